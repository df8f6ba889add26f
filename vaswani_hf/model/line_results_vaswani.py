"""Finds the invalid lines of a group of lines, so that an invalid line does not change the results of the
other lines.

This file is saved with every checkpoint because the translator handles invalid lines with this file.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .requests_vaswani import LINE_ERRORS
from .translations_vaswani import Translation


def results_of_lines(
    lines: Sequence[Any],
    first_line: int,
    read: Callable[[Any, int], Any],
    find: Callable[[list[Any]], Sequence[Any]],
    on_error: str,
) -> Iterator[Any]:
    """Yield the result of each line. An invalid line does not change the results of the other lines.

    `read(line, number)` converts a line to an input of `find`, and `find(inputs)` returns one result for each
    input. If `on_error` is "skip", the result of an invalid line is a `Translation` with an `error`. If
    `on_error` is "fail", the error of an invalid line is raised after the results of the earlier lines. The
    field `line_number` of the error is the number of the line.
    """
    good: list[tuple[int, Any]] = []
    errors: dict[int, Exception] = {}
    for number, line in enumerate(lines, first_line):
        try:
            good.append((number, read(line, number)))
        except LINE_ERRORS as error:
            errors[number] = error
            if on_error == "fail":
                break
    found = _find_or_bisect(good, find, on_error)
    for number in range(first_line, first_line + len(good) + len(errors)):
        yield _skip_or_raise(errors[number], number, on_error) if number in errors else next(found)


def _find_or_bisect(
    lines: list[tuple[int, Any]], find: Callable[[list[Any]], Sequence[Any]], on_error: str
) -> Iterator[Any]:
    """Call the function `find` with all lines, and yield the results. If `find` raises an error, call `find`
    with each half of the lines, down to single lines.
    """
    try:
        found = find([line for _, line in lines]) if lines else []
    except LINE_ERRORS as error:
        if len(lines) == 1:
            yield _skip_or_raise(error, lines[0][0], on_error)
            return
        half = len(lines) // 2
        yield from _find_or_bisect(lines[:half], find, on_error)
        yield from _find_or_bisect(lines[half:], find, on_error)
    else:
        yield from found


def _skip_or_raise(error: Exception, number: int, on_error: str) -> Translation:
    if on_error == "skip":
        return Translation("", error=" ".join(str(error).split()))
    error.line_number = number  # type: ignore[attr-defined]
    raise error
