"""The code blocks of a Markdown page."""

import re
from dataclasses import dataclass

# A line of this form directly above a block excludes the block from the test. Readers see the line.
MARK = re.compile(
    r"\*Needs (a GPU|the network|several machines|another toolkit|your own data files|minutes or hours)\.\*"
)
# Blocks of these languages run. Blocks of "text" show output or a sketch and do not run.
RUNNABLE = ("bash", "python", "yaml")
LANGUAGES = (*RUNNABLE, "text")
# These directives of MyST contain no code that a user runs.
DIRECTIVES = (
    "{toctree} {eval-rst} {literalinclude} {formats-table} {import-formats-table} {percent-script} {include} "
    "{note} {warning}"
).split()
_FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        line: The number of the first line of the code in the page.
        language: The word after the opening fence, such as "bash".
        code: The lines between the fences.
        mark: The reason why the block does not run, such as "the network"; None if it runs.
    """

    line: int
    language: str
    code: str
    mark: str | None = None


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page, without directives."""
    found = []
    for match in _FENCE.finditer(page):
        language = match[2].strip()
        if language.split(" ")[0] in DIRECTIVES:
            continue
        above = page[: match.start()].rstrip().rpartition("\n")[2]
        mark = MARK.fullmatch(above)
        line = page.count("\n", 0, match.start(3)) + 1
        found.append(Block(line, language, match[3], mark[1] if mark else None))
    return found
