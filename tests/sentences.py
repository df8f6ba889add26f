"""Error messages: tables with one line per case and abbreviated messages, and the check of one message."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def contains(sentence: str, parts: str) -> bool:
    """True if the text is one line that contains all parts in this order. " ... " separates the parts."""
    position = 0
    for part in parts.split(" ... "):
        position = sentence.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return "\n" not in sentence


def rows(table: str) -> list[list[str]]:
    """The cells of a table with one line per case and " | " between the cells."""
    return [line.strip().split(" | ") for line in table.strip().splitlines()]


@contextmanager
def refused(message: str, kind: Any = ValueError) -> Iterator[None]:
    """Check that the block raises an error of this kind with exactly this message."""
    with pytest.raises(kind) as raised:
        yield
    assert str(raised.value) == message, str(raised.value)
