"""Formats the texts that `vaswani train --help-keys` and `--help-key` print.

docs/generators/recipe_reference.py generates recipe_keys.json from the settings classes. This module reads
recipe_keys.json instead of the classes, because an import of the settings classes would also import torch.
"""

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from ..model.errors_vaswani import InvalidValueError
from ..settings.names import suggestion

_FILE = Path(__file__).with_name("recipe_keys.json")
_WIDTH = 100


class PrintKeys(argparse.Action):
    """The `argparse.Action` of `--help-keys` and `--help-key`. Like `--help`, the action prints a text and
    ends the process.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            text = describe_all_keys() if values is True else describe_key(values)
        except ValueError as error:
            parser.error(str(error))
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # Ignore the error, because the program that reads standard output, such as `head`, has ended.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        parser.exit()


def describe_all_keys() -> str:
    """Describe all keys of a recipe, section by section."""
    blocks = []
    for name, row in read_rows().items():
        facts = [f"{fact}: {row[fact]}" for fact in ("default", "unit", "range") if row[fact]]
        lines = [f"{name}  ({'; '.join([row['type'], *facts])})"]
        lines += textwrap.wrap(row["meaning"], _WIDTH, initial_indent="    ", subsequent_indent="    ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def describe_key(name: str) -> str:
    """Describe one key, such as `training.warmup_steps`. A name without a section, such as `warmup_steps`,
    describes the key in each section.
    """
    rows = read_rows()
    found = [place for place in rows if name in (place, rows[place]["key"])]
    if not found:
        names = [*rows, *(row["key"] for row in rows.values())]
        nearest = suggestion(name.split(".")[-1], names)
        hint = "`--help-keys` describes all keys" if nearest is None else f"the nearest key is `{nearest}`"
        raise InvalidValueError(f"`{name}` is not a key of a recipe; {hint}.")
    return "\n\n".join(_describe(place, rows[place]) for place in found)


def _describe(place: str, row: dict[str, Any]) -> str:
    lines = [place]
    for fact in ("type", "default", "unit", "range", "meaning"):
        indent = f"  {fact:<9}"
        text = row[fact] or "none"
        lines += textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
    return "\n".join(lines)


def read_rows() -> dict[str, dict[str, Any]]:
    """Return a dictionary from the name of each key (`section.key`, or `key` for a key without a section) to
    its description.
    """
    rows = json.loads(_FILE.read_text(encoding="utf-8"))
    return {f"{row['section']}.{row['key']}".lstrip("."): row for row in rows}
