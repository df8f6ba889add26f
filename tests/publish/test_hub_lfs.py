"""The tests with the marker `transfer` in a process whose client uploads large files with Git LFS instead of xet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants


@pytest.mark.slow
@pytest.mark.skipif(constants.HF_HUB_DISABLE_XET, reason="All tests of this run use Git LFS already.")
def test_large_files_move_with_git_lfs():
    # The client reads HF_HUB_DISABLE_XET when it is imported.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-m", "transfer", "-p", "no:cacheprovider"]
    place = {"cwd": Path(__file__).parents[2], "env": environment | {"HF_HUB_DISABLE_XET": "1"}}
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, **place)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
