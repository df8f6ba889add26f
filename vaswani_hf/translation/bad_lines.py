"""Lines that cannot be translated or scored: each one ends the work, or costs no other line, and is named."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .scoring import Translation

# What the reading of a line, its tokenization and the search raise where the line is to blame.
LINE_ERRORS = (ValueError, TypeError, ArithmeticError)

T = TypeVar("T")


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be read, in place of its text or request."""

    error: Exception


def has_text(request: Any) -> bool:
    """True if there is something to translate; a line that cannot be read has no text.

    Args:
        request: A `Request`, or what stands for one.
    """
    text = getattr(request, "text", None)
    return isinstance(text, str) and bool(text.strip())


def attempted(read: Callable[..., T], *args: Any) -> T | BadLine:
    """What a call gives, or the `BadLine` that it refuses.

    Args:
        read (Callable): It reads a line.
        *args: Its arguments.
    """
    try:
        return read(*args)
    except LINE_ERRORS as error:
        return BadLine(error)


def readable(line: T | BadLine) -> T:
    """The line.

    Args:
        line: What `attempted` gave.

    Raises:
        ValueError: If it cannot be read, or another error of `LINE_ERRORS`.
    """
    if isinstance(line, BadLine):
        raise line.error
    return line


def line_by_line(
    lines: Sequence[Any],
    first: int,
    prepare: Callable[[Any, int], Any],
    find: Callable[[list[Any]], list[Any]],
    skips: bool,
) -> Iterator[Any]:
    """What is found for each line of a window; all are looked for at once, and a bad one costs no other.

    Args:
        lines: The lines.
        first: The number of the first one.
        prepare: What it gives for a line and its number is looked for.
        find: It gives a list with an entry for each prepared line.
        skips: True if a bad line gives a `Translation` with an `error`; else its error is raised behind the lines
            before it, with the number of the line as `line_number`.
    """
    good: list[tuple[int, Any]] = []
    errors: dict[int, Exception] = {}
    for number, line in enumerate(lines, first):
        try:
            good.append((number, prepare(line, number)))
        except LINE_ERRORS as error:
            errors[number] = error
            if not skips:
                break
    found = _found(good, find, skips)
    for number in range(first, first + len(good) + len(errors)):
        yield _failed(errors[number], number, skips) if number in errors else next(found)


def _found(lines: list[tuple[int, Any]], find: Callable[[list[Any]], list[Any]], skips: bool) -> Iterator[Any]:
    """What is found for each line; where that fails, it is tried with each half."""
    try:
        found = find([line for _, line in lines]) if lines else []
    except LINE_ERRORS as error:
        if len(lines) == 1:
            yield _failed(error, lines[0][0], skips)
            return
        half = len(lines) // 2
        yield from _found(lines[:half], find, skips)
        yield from _found(lines[half:], find, skips)
    else:
        yield from found


def _failed(error: Exception, number: int, skips: bool) -> Translation:
    if skips:
        return Translation("", error=" ".join(str(error).split()))
    error.line_number = number  # type: ignore[attr-defined]
    raise error
