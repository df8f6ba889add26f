"""The lines of a text file, plain or gzip, and JSON texts in them.

Training, translation and evaluation read sentences with `read_lines`. A line ends at a line feed only, never
at another character that Unicode calls a line separator, so that parallel files stay aligned.
"""

import codecs
import gzip
import json
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

# JSON can write the halves of a surrogate pair one by one. Python reads a command line byte that is not UTF-8
# as such a half.
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def strip_line_ends(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a binary file without their ends, and without a byte order mark at the beginning."""
    for number, line in enumerate(lines):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        # A file with nothing after the mark is empty.
        if text:
            yield text.removesuffix(b"\n").removesuffix(b"\r")


def read_raw_lines(path: Any) -> Iterator[bytes]:
    """The lines of a text file, plain or gzip, as `read_lines` gives them, but not decoded."""
    open_file = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            yield from strip_line_ends(file)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} must be a gzip file, but is damaged or something else.") from None


def read_lines(path: Any) -> Iterator[str]:
    """The lines of a text file, plain or gzip, without their ends."""
    for number, line in enumerate(read_raw_lines(path), 1):
        yield decode_line(line, number, str(path))


def decode_line(line: bytes, number: int, place: str) -> str:
    """The text of a line; an error names the number of the line, and the file as `place`."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{place} must be UTF-8 text, but line {number:,} is not.") from None


def refuse_blank(lines: Collection[str], name: str, place: str) -> None:
    """Refuse lines without any text. The error says what the lines are (`name`), and their `place`."""
    if not any(line.strip() for line in lines):
        raise ValueError(
            f"{name} must hold text, but {place} {'has only empty lines' if lines else 'is empty'}."
        )


def parse_json(text: str, kind: type, place: str) -> Any:
    """The JSON object (`kind` is dict) or array (`kind` is list) in a text; an error names its `place`."""
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
        # Converting so many digits would take Python long.
        digits = sys.get_int_max_str_digits()
        raise ValueError(
            f"{place} must have no number of more than {digits:,} digits, but has one."
        ) from None
    if not isinstance(value, kind):
        raise ValueError(f"{place} must be a JSON {name}, but begins with {text[:40]!r}.")
    return value


def refuse_lone_surrogates(text: str, place: str) -> None:
    """Refuse half a surrogate pair, which UTF-8 cannot write; an error names the `place` of the text."""
    if half := _HALF_CHARACTER.search(text):
        raise ValueError(
            f"{place} must hold text, but holds {half[0]!r}, half a character, which UTF-8 cannot write."
        )
