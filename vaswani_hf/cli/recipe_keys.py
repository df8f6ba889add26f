"""Formats the texts that `vaswani train --help-keys` and `--help-key` print.

docs/generators/recipe_reference.py generates recipe_keys.json from the settings classes. This module reads
recipe_keys.json, because an import of the settings classes would also import torch.
"""

import argparse
import json
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.errors_vaswani import InvalidValueError
from ..settings.names import suggestion

_FILE = Path(__file__).with_name("recipe_keys.json")
_WIDTH = 100


@dataclass(frozen=True)
class RecipeKey:
    """The description of a recipe key: an entry of recipe_keys.json."""

    section: str
    key: str
    type: str
    default: str
    unit: str
    range: str
    meaning: str
    is_boolean: bool


class PrintKeys(argparse.Action):
    """The `argparse.Action` of `--help-keys` and `--help-key`: prints a text and ends the process."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            text = describe_all_keys() if values is True else describe_key(values)
        except ValueError as error:
            parser.error(str(error))
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # Print no error if the program that reads standard output, such as `head`, has ended.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        parser.exit()


def describe_all_keys() -> str:
    """Describe all keys of a recipe, section by section."""
    blocks = []
    for name, key in read_keys().items():
        properties = {"default": key.default, "unit": key.unit, "range": key.range}
        given = [f"{name}: {text}" for name, text in properties.items() if text]
        lines = [f"{name}  ({'; '.join([key.type, *given])})"]
        lines += textwrap.wrap(key.meaning, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def describe_key(name: str) -> str:
    """Describe the key whose full name is `name`, such as `training.warmup_steps`, or all keys whose short
    name is `name`, such as `warmup_steps`.
    """
    keys = read_keys()
    found = {place: key for place, key in keys.items() if name in (place, key.key)}
    if not found:
        names = [*keys, *(key.key for key in keys.values())]
        nearest = suggestion(name.split(".")[-1], names)
        hint = "`--help-keys` describes all keys" if nearest is None else f"the nearest key is `{nearest}`"
        raise InvalidValueError(f"`{name}` is not a key of a recipe; {hint}.")
    return "\n\n".join(_describe(place, key) for place, key in found.items())


def _describe(place: str, key: RecipeKey) -> str:
    lines = [place]
    for name in ("type", "default", "unit", "range", "meaning"):
        indent = f"  {name:<9}"
        text = getattr(key, name) or "none"
        lines += textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
    return "\n".join(lines)


def read_keys() -> dict[str, RecipeKey]:
    """Map each key (`section.key`, or `key` for a key without a section) to the description of the key."""
    keys = [RecipeKey(**row) for row in json.loads(_FILE.read_text(encoding="utf-8"))]
    return {f"{key.section}.{key.key}".lstrip("."): key for key in keys}
