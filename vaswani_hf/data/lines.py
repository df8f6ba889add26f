"""The lines of a text file, plain or gzip; the one reader of sentences for training, translation and evaluation."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Any) -> Iterator[str]:
    """The lines of a text file without their ends; in binary mode a line ends at a line feed only.

    Raises:
        ValueError: If the file is not UTF-8 or its compression is damaged.
    """
    is_gzip = Path(path).suffix == ".gz"
    try:
        with gzip.open(path, "rb") if is_gzip else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
                except UnicodeDecodeError:
                    raise ValueError(f"{path} must be UTF-8 text, but line {number:,} is not.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} must be a gzip file, but is damaged or something else.") from None
