"""Writes an explanation into a page: one HTML file that needs no network.

`vaswani look` writes the page of one explanation. Other pages embed the same view with `view_style` and
`view_script`.
"""

import html
import math
import re
from importlib.resources import files

from .explanation import Explanation

# The maximum size of a page in bytes.
MAX_PAGE_SIZE = 1_500_000
# The scripts of the view. Each script may use the functions of all scripts.
_SCRIPTS = (
    "elements.js",
    "state.js",
    "weights.js",
    "search.js",
    "attention.js",
    "words.js",
    "replay.js",
    "look.js",
)
# The functions that the view gives to the page.
_PUBLIC = ("show", "decodeWeights", "headMatrix", "searchTree", "hypothesisText")


def page_of(explanation: Explanation) -> str:
    """Return the page of an explanation as HTML.

    Args:
        explanation (Explanation): The explanation.

    Returns:
        str: The HTML of the page. The page has no links to other files.

    Raises:
        ValueError: If the page is larger than 1.5 MB.
    """
    content = explanation.as_json()
    page = _page(explanation.target_text, content)
    size = len(page.encode())
    if size > MAX_PAGE_SIZE:
        fixed = size - len(content.encode())
        num_tokens = len(explanation.source.tokens)
        # Assume that the content grows with the square of the length, as the attention weights do.
        fitting = math.isqrt(num_tokens**2 * (MAX_PAGE_SIZE - fixed) // (size - fixed))
        raise ValueError(too_long(num_tokens, fitting))
    return page


def too_long(num_tokens: int, fitting: int) -> str:
    """Return the message of the error for a text that is too long for a page."""
    return (
        f"`text` must be short enough for a page of {MAX_PAGE_SIZE / 1e6} MB, but has {num_tokens:,} tokens; with this "
        f"model a text of about {fitting} tokens fits, so give one sentence."
    )


def view_style() -> str:
    """Return the CSS of the view."""
    return _file("look.css")


def view_script() -> str:
    """Return the JavaScript of the view. The script defines the object `vaswaniView`. `vaswaniView.show(element,
    explanation)` draws an explanation into an element of the page.
    """
    scripts = "\n".join(_file(name) for name in _SCRIPTS)
    return (
        f'const vaswaniView = (() => {{\n"use strict";\n{scripts}\nreturn {{ {", ".join(_PUBLIC)} }};\n}})();'
    )


def _file(name: str) -> str:
    return files(__package__).joinpath("view", name).read_text(encoding="utf-8")


def _page(title: str, content: str) -> str:
    parts = {
        "{title}": html.escape(title),
        "{style}": view_style(),
        "{script}": view_script(),
        # Escape "<", because "</script>" in the content would end the element.
        "{explanation}": content.replace("<", "\\u003c"),
    }
    return re.sub(
        r"\{(?:title|style|script|explanation)\}", lambda place: parts[place[0]], _file("page.html")
    )
