"""Reads the text files of a checkpoint of another library. Errors about damaged files name the file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..checkpoint.files import DamagedFileError
from ..settings.base import first_line_of


def read_text(path: Path) -> str:
    """Return the content of a text file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"'{path.name}' cannot be read ({first_line_of(error)})") from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file. Split the text only at line feeds, because tokens can contain other
    line separators.
    """
    return read_text(path).removesuffix("\n").split("\n")


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the two tokens at the beginning of each line. fastBPE also writes the frequency of a merge."""
    merges = []
    for number, line in enumerate(read_lines(path), 1):
        left, _, rest = line.partition(" ")
        right = rest.partition(" ")[0]
        if not left or not right:
            raise DamagedFileError(
                f"Line {number} of '{path.name}' must have two tokens with a space between them, but is {line[:80]!r}"
            )
        merges.append((left, right))
    return merges


def parse_yaml(text: str, what: str, loader: Any = yaml.SafeLoader) -> dict[str, Any]:
    """Return the keys and values of a YAML text. `what` names the text in error messages, such as
    "'config.yaml'". `loader` must create only dicts, lists and plain values.
    """
    try:
        values = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise DamagedFileError(f"{what} must be YAML, but cannot be read ({first_line_of(error)})") from None
    if not isinstance(values, dict):
        raise DamagedFileError(f"{what} must be YAML with keys and values, but has no keys")
    return values


def read_yaml(
    path: Path, *, loader: Any = yaml.SafeLoader, sections: Iterable[str] = (), title: str = ""
) -> dict[str, Any]:
    """Return the keys and values of a YAML file. Raise a ValueError if a section, such as "model.encoder", is
    missing. `title` is the name of the library that has written the file.
    """
    settings = parse_yaml(read_text(path), f"'{path.name}'", loader)
    for section in sections:
        values: Any = settings
        for key in section.split("."):
            values = values.get(key) if isinstance(values, dict) else None
        if not isinstance(values, dict):
            raise ValueError(
                f"'{path.name}' must have the section `{section}`, but does not; use the file that {title} "
                "has written."
            )
    return settings
