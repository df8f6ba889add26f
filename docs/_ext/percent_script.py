"""Defines the Sphinx directive `{percent-script}`, which shows a Python script in the percent format as a
page. The page also shows the outputs of the cells.

A code cell begins with a line `# %%`, and a Markdown cell begins with a line `# %% [markdown]`. The directive
executes all code cells in one namespace. If the first line of a cell contains `tags=["source"]`, the page
shows the output of the cell as Python code. If a cell appends a path to the list `PICTURES`, the page shows
the picture after the cell.
"""

import base64
import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from sphinx.util.docutils import SphinxDirective

_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def cells_of(script: str) -> list[tuple[str, str]]:
    """Return a pair for each cell of a script: the text after `# %%`, and the code or Markdown of the
    cell.
    """
    _, *parts = _CELL.split(script)
    return list(zip((option.strip() for option in parts[::2]), parts[1::2], strict=True))


def markdown_of(text: str) -> str:
    """Return the text of a Markdown cell. Remove a title at the beginning, because the page already has a
    title.
    """
    lines = [re.sub("^# ?", "", line) for line in text.strip().split("\n")]
    return "\n".join(lines[1:] if lines[0].startswith("# ") else lines)


def page_of(path: Path) -> str:
    """Execute a script, and return the content of its page in Markdown."""
    namespace: dict[str, Any] = {"__name__": path.stem, "PICTURES": []}
    blocks = []
    for option, text in cells_of(path.read_text(encoding="utf-8")):
        if option == "[markdown]":
            blocks.append(markdown_of(text))
            continue
        num_pictures = len(namespace["PICTURES"])
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(text, str(path), "exec"), namespace)
        blocks.append(f"```python\n{text.strip()}\n```")
        language = "python" if "source" in option else "text"
        if printed.getvalue():
            blocks.append(f"```{language}\n{printed.getvalue().strip()}\n```")
        blocks += map(_image, namespace["PICTURES"][num_pictures:])
    return "\n\n".join(blocks)


def _image(path: Path) -> str:
    """Return an HTML image that contains the picture as base64, so that the build copies no file into
    `docs`.
    """
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{path.stem}" style="background: white">'


class PercentScript(SphinxDirective):
    """Writes the page of one script. The argument is the path of the script, relative to the page."""

    required_arguments = 1

    def run(self) -> list[Any]:
        relative, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        return self.parse_text_to_nodes(page_of(Path(path)), allow_section_headings=True)


def setup(app: Any) -> dict[str, Any]:
    """Register the directive `{percent-script}`."""
    app.add_directive("percent-script", PercentScript)
    return {"parallel_read_safe": True}
