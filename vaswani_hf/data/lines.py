"""The lines of a text file, plain or gzip; the one reader of sentences for training, translation and evaluation."""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


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
    is_gzip = Path(path).suffix == ".gz"
    try:
        with gzip.open(path, "rb") if is_gzip else open(path, "rb") as file:
            for number, line in enumerate(without_ends(file), 1):
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError:
                    raise ValueError(f"{path} must be UTF-8 text, but line {number:,} is not.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} must be a gzip file, but is damaged or something else.") from None
