"""The client moves large files in two ways: what moves some, in the usual one (xet), is tested in the older one (LFS) too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants


@pytest.mark.skipif(constants.HF_HUB_DISABLE_XET, reason="The whole run is in the older way already.")
def test_what_moves_large_files_moves_them_in_the_older_way_too():
    # The client decides when it is imported.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-m", "transfer", "-p", "no:cacheprovider"]
    place = {"cwd": Path(__file__).parents[2], "env": environment | {"HF_HUB_DISABLE_XET": "1"}}
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, **place)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
