"""Writes an explanation into a page: one HTML file that needs no network.

`vaswani look` writes a page that explains one translation. `vaswani export --format html` writes a page that
translates texts. On request, the exported page also explains how the model translated a sentence. The
exported page contains the CSS of `view_style` and the JavaScript of `view_script`.
"""

import html
import re
from importlib.resources import files

from ..model.errors_vaswani import InvalidValueError
from .explanation import MAX_PAGE_SIZE, Explanation

# The scripts that draw an `Explanation` of a translation. `view_script` joins the scripts into one script, so
# each script can call the functions of all scripts.
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
# The names of the functions that the JavaScript object `vaswaniView` offers to a page.
_PUBLIC = (
    "show",
    "element",
    "decimal",
    "percent",
    "decodeWeights",
    "headMatrix",
    "searchTree",
    "searchNote",
    "hypothesisText",
)


def page_of(explanation: Explanation) -> str:
    """Return an HTML page that shows an explanation and needs no other file. Raise an error if the page is
    larger than 1.5 MB.
    """
    contents = {
        "title": html.escape(explanation.target_text or explanation.source_text),
        "style": view_style(),
        "script": view_script(),
        "explanation": json_in_script(explanation.as_json()),
    }
    page = fill_page(_file("page.html"), contents)
    size = len(page.encode())
    if size > MAX_PAGE_SIZE:
        raise InvalidValueError(explanation.too_large(size))
    return page


def view_style() -> str:
    """Return the CSS that `view_script` needs."""
    return _file("look.css")


def view_script() -> str:
    """Return the JavaScript that defines the object `vaswaniView`. `vaswaniView.show(element, explanation)`
    draws an explanation.
    """
    scripts = "\n".join(_file(name) for name in _SCRIPTS)
    return (
        f'const vaswaniView = (() => {{\n"use strict";\n{scripts}\nreturn {{ {", ".join(_PUBLIC)} }};\n}})();'
    )


def _file(name: str) -> str:
    return files(__package__).joinpath("view", name).read_text(encoding="utf-8")


def json_in_script(content: str) -> str:
    """Escape "<" in JSON, because "</script>" in the JSON would end the `<script>` element of a page."""
    return content.replace("<", "\\u003c")


def fill_page(page: str, contents: dict[str, str]) -> str:
    """Replace each `{{name}}` of a page by `contents[name]`. Keep a `{{name}}` that is not in `contents`."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: contents.get(found[1], found[0]), page)
