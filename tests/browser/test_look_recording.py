"""The script that writes the recording of README."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from vaswani_hf.browser.explain import explain
from vaswani_hf.browser.page import page_of

SCRIPT = Path(__file__).parents[2] / "docs" / "generators" / "look_recording.py"


# Forty screenshots take most of a minute on a busy machine.
@pytest.mark.slow
def test_the_recording_takes_forty_seconds(word_translator, tmp_path):
    pytest.importorskip("playwright", reason="Playwright is not installed.")
    if shutil.which("chromium") is None:
        pytest.skip("Chromium is not installed.")
    page = tmp_path / "page.html"
    page.write_text(page_of(explain(word_translator, "one two five three", num_beams=2)), encoding="utf-8")
    output = tmp_path / "look.webp"
    words = [page, output, "--width", "100", "--height", "72"]
    subprocess.run([sys.executable, SCRIPT, *words], check=True, timeout=300)
    with Image.open(output) as image:
        durations = []
        for frame in range(image.n_frames):
            image.seek(frame)
            image.load()
            durations.append(image.info["duration"])
        assert image.size == (100, 72)
    assert sum(durations) == pytest.approx(40_000, abs=50)
