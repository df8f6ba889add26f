"""The lines of a text file, plain or gzip; the one reader of sentences for training, translation and evaluation."""

import codecs
import gzip
import json
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

# JSON can write the halves of a surrogate pair one by one; Python reads a byte of a command line that is no UTF-8 as one.
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def without_ends(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file of bytes without their ends, and without the byte order mark that some programs put before text.

    Args:
        lines: A file in binary mode, whose lines end at a line feed only.
    """
    for number, line in enumerate(lines):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        # A mark and nothing behind it is an empty file.
        if text:
            yield text.removesuffix(b"\n").removesuffix(b"\r")


def read_lines(path: Any) -> Iterator[str]:
    """The lines of a text file without their ends; in binary mode a line ends at a line feed only.

    Raises:
        ValueError: If the file is not UTF-8 or its compression is damaged.
    """
    for number, line in enumerate(read_raw_lines(path), 1):
        yield decoded(line, number, str(path))


def decoded(line: bytes, number: int, place: str) -> str:
    """The text of a line.

    Args:
        line: As it is in the file, without its end.
        number: Its number, for the error.
        place: The file, for the error.

    Raises:
        ValueError: If it is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{place} must be UTF-8 text, but line {number:,} is not.") from None


def refuse_blank(lines: Collection[str], name: str, place: str) -> None:
    """Refuse lines that hold no text.

    Args:
        lines: Sources or references.
        name: What they are, for the error.
        place: The file or dataset, for the error.

    Raises:
        ValueError: If each of them is blank, or there are none.
    """
    if not any(line.strip() for line in lines):
        raise ValueError(f"{name} must hold text, but {place} {'has only empty lines' if lines else 'is empty'}.")


def read_raw_lines(path: Any) -> Iterator[bytes]:
    """The lines of a text file, plain or gzip, as `read_lines` gives them, but not decoded.

    Raises:
        ValueError: If the compression is damaged.
    """
    is_gzip = Path(path).suffix == ".gz"
    try:
        with gzip.open(path, "rb") if is_gzip else open(path, "rb") as file:
            yield from without_ends(file)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} must be a gzip file, but is damaged or something else.") from None


def parse_json(text: str, kind: type, place: str) -> Any:
    """The object or array that a JSON text holds.

    Args:
        text: The JSON text.
        kind: What it must hold, dict or list.
        place: Where the text stands, for errors.

    Raises:
        ValueError: If it holds something else, is damaged, nested too deeply, or has too long a number.
    """
    name, opening = ("object", "{") if kind is dict else ("array", "[")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"{place} must be a JSON {name}, but is nested too deeply.") from None
    except json.JSONDecodeError as error:
        if text.lstrip().startswith(opening):
            line = f"line {error.lineno:,}, column {error.colno:,}"
            where = line if kind is list else f"character {error.pos + 1:,}"
            raise ValueError(
                f"{place} must be a JSON {name}, but is damaged or cut off at {where} ({error.msg})."
            ) from None
        value = None
    except ValueError:
        # Python refuses such a number, whose digits would take it long.
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"{place} must have no number of more than {digits:,} digits, but has one.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{place} must be a JSON {name}, but begins with {text[:40]!r}.")
    return value


def refuse_half_characters(text: str, place: str) -> None:
    """Refuse text that UTF-8 cannot write.

    Args:
        text: The text.
        place: Where it stands, for the error.

    Raises:
        ValueError: If half a surrogate pair stands in it.
    """
    if half := _HALF_CHARACTER.search(text):
        raise ValueError(f"{place} must hold text, but holds {half[0]!r}, half a character, which UTF-8 cannot write.")
