"""The page of `vaswani demo` in headless Chromium."""

import json
import os
import shutil
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def launched(monkeypatch):
    """The addresses of the started pages. A page is served in the background until the test ends."""
    gradio = pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    launch = gradio.Blocks.launch
    pages, addresses = [], []

    def launch_in_background(page, **options):
        launched = launch(page, prevent_thread_lock=True, **options)
        pages.append(page)
        addresses.append(page.local_url)
        return launched

    monkeypatch.setattr(gradio.Blocks, "launch", launch_in_background)
    yield addresses
    for page in pages:
        page.close()


@pytest.fixture
def browser_page():
    """A page of headless Chromium. At the end it must have no errors and no requests to other hosts."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    problems = []
    with playwright.sync_playwright() as started:
        # Chromium looks for updates by itself. Let it find only the demo, and no other host by the proxy or
        # directly.
        local = ["--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *local])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        # A busy machine needs minutes for the first page.
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: problems.append(request.url) if _is_foreign(request.url) else None)
        yield page
        if picture := os.environ.get("VASWANI_SCREENSHOT"):
            page.screenshot(path=picture, full_page=True)
        browser.close()
    assert not problems


def _is_foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:"))


@pytest.fixture
def both_directions(copier_checkpoint, tmp_path) -> list[Path]:
    """Two checkpoints of opposite directions. Both copy texts."""
    folders = []
    for source, target in (("en", "de"), ("de", "en")):
        folder = Path(shutil.copytree(copier_checkpoint, tmp_path / f"copier_{source}_{target}"))
        record = {
            "data": {"source_language": source, "target_language": target},
            "examples": [{"source": "eins zwei,", "output": "eins zwei,", "confidence": 0.9, "words": []}],
        }
        (folder / "results.json").write_text(json.dumps(record))
        folders.append(folder)
    return folders
