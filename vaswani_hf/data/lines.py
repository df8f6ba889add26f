"""Reads the lines of an uncompressed or gzip text file, and parses JSON texts.

Only a line feed ends a line, because a source file and its target file could otherwise have different numbers
of lines. Unicode line separators, such as U+2028, are part of a line.
"""

import codecs
import gzip
import json
import os
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from ..model.errors_vaswani import InvalidValueError


class MissingFileError(InvalidValueError, FileNotFoundError):
    """Raised if a file that the user has named does not exist."""


def matching_paths(name: str) -> list[str]:
    """Return the paths that match the shell pattern `name`, sorted by name. Return [`name`] if `name` is not
    a pattern, or if a file has this name.
    """
    is_pattern = has_magic(name) and not os.path.exists(name)
    return sorted(glob(name, recursive=True)) if is_pattern else [name]


def strip_line_ends(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a binary file without line ends and without the byte order mark."""
    for number, line in enumerate(lines):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        # A file that contains only a byte order mark has no lines.
        if text:
            yield text.removesuffix(b"\n").removesuffix(b"\r")


def read_raw_lines(path: Any) -> Iterator[bytes]:
    """Yield the lines of an uncompressed or gzip text file as bytes without line ends."""
    return strip_line_ends(read_binary_lines(path))


def read_binary_lines(path: Any) -> Iterator[bytes]:
    """Yield the lines of an uncompressed or gzip file as bytes with their line ends."""
    open_file = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} must be a gzip file, but is damaged or has another format.") from None


def read_lines(path: Any) -> Iterator[str]:
    """Yield the lines, without their line ends, of an uncompressed or gzip UTF-8 text file."""
    for number, line in enumerate(read_raw_lines(path), 1):
        yield decode_line(line, number, str(path))


def decode_line(line: bytes, number: int, place: str) -> str:
    """Decode a line of UTF-8. The error message contains the line number and `place`, the name of the
    file.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{place} must be UTF-8 text, but line {number:,} is not.") from None


def refuse_blank(lines: Collection[str], option: str, path: str) -> None:
    """Raise an error if `lines` is empty or contains only blank lines. `path` is the path of the file, and
    `option` is the option with which the user named the file.
    """
    if not any(line.strip() for line in lines):
        state = "has only empty lines" if lines else "is empty"
        raise InvalidValueError(f"`{option}` must hold text, but {path} {state}.")


def check_equally_many(what: str, path: str, number: int, other: str, other_number: int) -> None:
    """Raise an error if two files have different numbers of `what`, a plural noun such as "lines"."""
    if number != other_number:
        raise ValueError(
            f"{path} and {other} must have equally many {what}, but have {number:,} and {other_number:,}."
        )


def parse_json(text: str, kind: type, place: str) -> Any:
    """Parse a JSON object (`kind` is dict) or array (`kind` is list). Error messages begin with `place`."""
    name, opening = ("object", "{") if kind is dict else ("array", "[")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"{place} must be a JSON {name}, but is nested too deeply.") from None
    except json.JSONDecodeError as error:
        value = None
        if text.lstrip().startswith(opening):
            where = f"character {error.pos + 1:,}"
            if kind is list:
                where = f"line {error.lineno:,}, column {error.colno:,}"
            raise ValueError(
                f"{place} must be a JSON {name}, but is damaged or cut off at {where} ({error.msg})."
            ) from None
    except ValueError:
        # Python raises a ValueError for an integer with too many digits, because the conversion would take a
        # long time.
        digits = sys.get_int_max_str_digits()
        raise ValueError(
            f"{place} must have no number of more than {digits:,} digits, but has one."
        ) from None
    if not isinstance(value, kind):
        raise ValueError(f"{place} must be a JSON {name}, but begins with {text[:40]!r}.")
    return value
