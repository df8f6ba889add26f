"""Writes docs/look.webp, the animated picture of a page of `vaswani look` in README.md.

    vaswani look CHECKPOINT --text "..." --output page.html
    python docs/generators/look_recording.py page.html docs/look.webp

The script opens the page in headless Chromium with Playwright, takes a screenshot after each action, and
joins the screenshots with Pillow. The animation lasts 40 seconds.
"""

import argparse
import io
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SECONDS = 40
WIDTH, HEIGHT = 1000, 720
# A JavaScript function that draws a circle at the position of the mouse, because a screenshot does not show
# the mouse pointer.
POINTER = """() => {
  const pointer = document.createElement("div");
  pointer.style.cssText = "position:fixed;width:22px;height:22px;margin:-11px;border-radius:50%;z-index:9;" +
    "background:rgb(255 120 0 / 0.45);border:2px solid rgb(255 120 0);pointer-events:none;left:-50px;top:-50px";
  document.body.append(pointer);
  addEventListener("mousemove", (event) => {
    pointer.style.left = `${event.clientX}px`;
    pointer.style.top = `${event.clientY}px`;
  });
}"""

# An action on the page, and the time in seconds until the next action. `record` scales the times so that
# their sum is 40 seconds.
Scene = tuple[Callable[[], Any], float]


def scenes(page: Page) -> Iterator[Scene]:
    """Yield all actions of the recording."""
    yield from attention_scenes(page)
    yield from word_scenes(page)
    yield from search_scenes(page)


def attention_scenes(page: Page) -> Iterator[Scene]:
    """Yield actions in the attention section: point at words, show single heads, and choose each layer and
    each kind of attention.
    """
    rows = page.locator(".words.row button")
    yield lambda: scroll_to(page, "header"), 2.5
    yield lambda: scroll_to(page, ".attention"), 0.5
    for index in range(1, min(6, rows.count())):
        yield rows.nth(index).hover, 0.9
    yield lambda: page.mouse.move(0, 0), 0.4
    chips = page.locator(".chip")
    for index in range(min(4, chips.count())):
        yield chips.nth(index).dblclick, 0.9
    yield page.get_by_role("button", name="All heads").click, 0.5
    layer = page.get_by_label("Layer")
    for number in range(1, int(layer.get_attribute("max") or 1) + 1):
        yield partial(layer.fill, str(number)), 0.7
    for kind in ("encoder", "decoder"):
        yield partial(page.check, f"input[value={kind}]", force=True), 1.4


def word_scenes(page: Page) -> Iterator[Scene]:
    """Yield actions that show the most probable other words for the three least probable words."""
    words = page.locator(".sentence button")
    doubts = words.evaluate_all("(all) => all.map((one) => Number(one.style.getPropertyValue('--doubt')))")
    yield lambda: scroll_to(page, ".why"), 1.2
    for index in sorted(range(len(doubts)), key=lambda word: -doubts[word])[:3]:
        yield words.nth(index).click, 2.2


def search_scenes(page: Page) -> Iterator[Scene]:
    """Yield actions that show the steps of the beam search up to the result, and then change the length
    penalty.
    """
    step = page.get_by_label("Step", exact=True)
    result = int(step.input_value())
    yield lambda: scroll_to(page, ".replay"), 0.5
    for number in range(1, result + 1):
        yield partial(step.fill, str(number)), 0.45
    penalty = page.get_by_label("Length penalty")
    for value in ("0.5", "0"):
        yield partial(penalty.fill, value), 1.2
    yield page.get_by_role("button", name="Recorded settings").click, 1.0
    yield lambda: page.locator(".effect").scroll_into_view_if_needed(), 2.5


def scroll_to(page: Page, place: str) -> None:
    """Scroll to the top of the first element that matches the CSS selector `place`."""
    page.locator(place).first.evaluate(
        "(part) => scrollTo(0, part.getBoundingClientRect().top + scrollY - 8)"
    )


def record(source: Path, output: Path, width: int, height: int, quality: int) -> None:
    """Record the page in the file `source`, and write the animation into the file `output`."""
    frames = []
    times = []
    with sync_playwright() as playwright:
        # The page needs no network, and without these arguments Chromium looks for updates.
        offline = ["--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND"]
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *offline])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(source.absolute().as_uri())
        page.evaluate(POINTER)
        for act, seconds in scenes(page):
            act()
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB").resize((width, height)))
            times.append(seconds)
        browser.close()
    durations = [round(1000 * seconds * SECONDS / sum(times)) for seconds in times]
    frames[0].save(
        output, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=quality, method=4
    )


def main() -> None:
    """Read the command line, and write the recording."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="a page of `vaswani look`")
    parser.add_argument("output", type=Path, help="the recording, a .webp file")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"width in pixels ({WIDTH})")
    parser.add_argument("--height", type=int, default=HEIGHT, help=f"height in pixels ({HEIGHT})")
    parser.add_argument("--quality", type=int, default=60, help="quality of WebP (60)")
    arguments = parser.parse_args()
    record(arguments.page, arguments.output, arguments.width, arguments.height, arguments.quality)


if __name__ == "__main__":
    main()
