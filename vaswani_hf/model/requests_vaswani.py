"""The requests of the translator: texts with their constraints, and lines that cannot be read or translated.

A bad line is named with its number, and costs no other line.

This file travels with every checkpoint because the translator reads its input with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from typing import Any, TypeVar

from .scoring_vaswani import Translation

T = TypeVar("T")

# What a bad line raises: when it is read, when it is tokenized, and in the search.
LINE_ERRORS = (ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True)
class Request:
    """A text to translate, with the constraints of its translation.

    Attributes:
        text (str): The text.
        target_prefix (str): The text that its translation begins with.
        must_contain (sequence): The phrases that its translation contains.

    Raises:
        TypeError: If one of them is no str.
        ValueError: If UTF-8 cannot write one of them, or a phrase is empty.
    """

    text: str
    target_prefix: str = ""
    must_contain: Sequence[str] = ()

    def __post_init__(self):
        check_text(self.text, "A text to translate")
        if self.target_prefix != "":
            check_text(self.target_prefix, "A target prefix")
        for phrase in self.must_contain:
            check_text(phrase, "A phrase of `must_contain`")
            if not phrase.strip():
                raise ValueError("A phrase of `must_contain` must have at least one character, but is empty.")


@dataclass(frozen=True)
class InvalidInput:
    """A line that cannot be read, in place of its text or its request."""

    error: Exception


def try_parse(read: Callable[..., T], *args: Any) -> T | InvalidInput:
    """What a call that reads a line returns, or the error that it raises, as an `InvalidInput`."""
    try:
        return read(*args)
    except LINE_ERRORS as error:
        return InvalidInput(error)


def unwrap(line: T | InvalidInput) -> T:
    """The line, if it could be read; raises the error of an `InvalidInput`."""
    if isinstance(line, InvalidInput):
        raise line.error
    return line


def has_text(request: Any) -> bool:
    """True for a request with something to translate; False for a blank one and for an `InvalidInput`."""
    return isinstance(request, Request) and not request.text.isspace() and request.text != ""


def results_of_lines(
    lines: Sequence[Any],
    first_line: int,
    read: Callable[[Any, int], Any],
    find: Callable[[list[Any]], Sequence[Any]],
    on_error: str,
) -> Iterator[Any]:
    """The result of each line of a window. All results are found at once, and a bad line costs no other line.

    `read` makes what `find` needs from a line and its number, and `find` gives the results of a list of them.
    With "skip" a bad line gives a `Translation` with an `error`. With "fail" its error is raised after the
    results of the lines before it, with the number of the line as `line_number`.
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
    found = _results(good, find, on_error)
    for number in range(first_line, first_line + len(good) + len(errors)):
        yield _failed(errors[number], number, on_error) if number in errors else next(found)


def _results(
    lines: list[tuple[int, Any]], find: Callable[[list[Any]], Sequence[Any]], on_error: str
) -> Iterator[Any]:
    """The results of lines. After an error, which does not name its line, each half of the lines is tried."""
    try:
        found = find([line for _, line in lines]) if lines else []
    except LINE_ERRORS as error:
        if len(lines) == 1:
            yield _failed(error, lines[0][0], on_error)
            return
        half = len(lines) // 2
        yield from _results(lines[:half], find, on_error)
        yield from _results(lines[half:], find, on_error)
    else:
        yield from found


def _failed(error: Exception, number: int, on_error: str) -> Translation:
    if on_error == "skip":
        return Translation("", error=" ".join(str(error).split()))
    error.line_number = number  # type: ignore[attr-defined]
    raise error


def refuse_one_text(name: str, texts: Any) -> None:
    """Refuse a text, or anything else that is no iterable of texts."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise TypeError(
            f"`{name}` must be a list or another iterable of texts, but is of type {type(texts).__name__}."
        )


def pairs_of(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    """Texts with their translations; refuses columns of different lengths."""
    missing = object()
    for number, pair in enumerate(zip_longest(sources, targets, fillvalue=missing), 1):
        if missing in pair:
            fewer, more = ("sources", "targets") if pair[0] is missing else ("targets", "sources")
            raise ValueError(
                f"`{fewer}` must hold as many texts as `{more}`, but ends before number {number:,}."
            )
        yield pair


def requests_of(
    lines: Iterable[str],
    target_prefixes: Iterable[str | None] | None,
    must_contain: Iterable[Sequence[str] | None] | None,
) -> Iterator[Request | InvalidInput]:
    """Lines with the constraints of their translations; refuses columns of different lengths."""
    missing = object()
    prefixes = repeat(None) if target_prefixes is None else iter(target_prefixes)
    phrases = repeat(None) if must_contain is None else iter(must_contain)
    number = 0
    for number, line in enumerate(lines, 1):
        prefix = next(prefixes, missing)
        of_line = next(phrases, missing)
        for name, value in (("target_prefixes", prefix), ("must_contain", of_line)):
            if value is missing:
                raise ValueError(f"`{name}` must hold one entry per line, but ends before line {number:,}.")
        yield try_parse(_request, number, line, prefix, of_line)
    for name, given, rest in (
        ("target_prefixes", target_prefixes, prefixes),
        ("must_contain", must_contain, phrases),
    ):
        if given is not None and next(rest, missing) is not missing:
            raise ValueError(
                f"`{name}` must hold one entry per line, but has more than the {number:,} lines."
            )


def _request(number: int, line: Any, prefix: Any, phrases: Any) -> Request:
    """The request of a line of `translate`; None is no constraint."""
    phrases = () if phrases is None else phrases
    if isinstance(phrases, (str, bytes)) or not isinstance(phrases, Iterable):
        raise TypeError(
            f"`must_contain` must hold a list of phrases per line, but for line {number:,} it is of type "
            f"{type(phrases).__name__}."
        )
    try:
        return Request(line, "" if prefix is None else prefix, tuple(phrases))
    except (TypeError, ValueError) as error:
        raise type(error)(f"Line {number:,}: {error}") from error


def check_text(text: Any, name: str) -> None:
    """Refuse what is no str, and what UTF-8 cannot write; `name` is the name of the text in the message."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, but is of type {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must hold text, but holds {text[error.start]!r}, half a character, which UTF-8 cannot write."
        ) from None
