"""The texts that a user gives to the translator.

A `Request` contains a text to translate, and the target prefix and the required phrases of the translation.
An `InvalidInput` replaces the `Request` of an invalid line.

This file imports neither torch nor transformers, because the command `vaswani` reads its arguments before the
slow import of torch and transformers.

This file is saved with every checkpoint because the translator reads texts with this file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from .errors_vaswani import InvalidValueError

T = TypeVar("T")

# The errors that an invalid line can cause in reading, tokenizing or translating.
LINE_ERRORS = (ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True)
class Request:
    """A text to translate, with the target prefix and the required phrases of its translation. `is_copied` is
    True if the translation is a copy of the text, for example because the text is not in the source language.
    `line_number` is for messages: the number of the text in the input, counted from 1. The translator sets
    `line_number`, see `numbered`.

    The constructor raises a TypeError or a ValueError for texts that are not valid Unicode strings, and a
    ValueError for a blank phrase.
    """

    text: str
    target_prefix: str = ""
    must_contain: Sequence[str] = ()
    is_copied: bool = False
    line_number: int = 1

    def __post_init__(self):
        check_text(self.text, "A text to translate")
        if self.target_prefix != "":
            check_text(self.target_prefix, "A target prefix")
        for phrase in self.must_contain:
            check_text(phrase, "A phrase of `must_contain`")
            if not phrase.strip():
                raise ValueError(f"A phrase of `must_contain` must not be blank, but is {phrase!r}.")

    @property
    def is_constrained(self) -> bool:
        """True if the translation must begin with a given prefix or contain given phrases."""
        return bool(self.target_prefix or self.must_contain)


@dataclass(frozen=True)
class InvalidInput:
    """Replaces the `Request` of an invalid line, and contains the error."""

    error: Exception


def try_parse(read: Callable[..., T], *args: Any) -> T | InvalidInput:
    """Return `read(*args)`, or an `InvalidInput` with the error if `read` raises one of `LINE_ERRORS`."""
    try:
        return read(*args)
    except LINE_ERRORS as error:
        return InvalidInput(error)


def unwrap(line: T | InvalidInput) -> T:
    """Return `line`, or raise its error if `line` is an `InvalidInput`."""
    if isinstance(line, InvalidInput):
        raise line.error
    return line


def numbered(request: Request | InvalidInput, line_number: int) -> Request:
    """Return the request with its line number, or raise the error of an `InvalidInput`."""
    return replace(unwrap(request), line_number=line_number)


def has_text(request: Any) -> bool:
    """Return True for a `Request` whose text is not blank. Return False for a blank text, and for an
    `InvalidInput` (an invalid line).
    """
    return isinstance(request, Request) and not request.text.isspace() and request.text != ""


def make_requests(
    lines: Iterable[str],
    target_prefixes: Iterable[str | None] | None,
    must_contain: Iterable[Sequence[str] | None] | None,
) -> Iterator[Request | InvalidInput]:
    """Yield a `Request` or an `InvalidInput` for each line. All iterables must have the same length."""
    columns = {"target_prefixes": target_prefixes, "must_contain": must_contain}
    given = {name: entries for name, entries in columns.items() if entries is not None}
    missing: Any = object()
    for number, (line, *entries) in enumerate(zip_longest(lines, *given.values(), fillvalue=missing), 1):
        of_line = dict(zip(given, entries, strict=True))
        for name, entry in of_line.items():
            if line is missing and entry is not missing:
                raise InvalidValueError(
                    f"`{name}` must hold one entry per line, but has more entries than the {number - 1:,} "
                    "lines."
                )
            if entry is missing and line is not missing:
                raise InvalidValueError(
                    f"`{name}` must hold one entry per line, but ends before line {number:,}."
                )
        yield try_parse(
            _make_request, number, line, of_line.get("target_prefixes"), of_line.get("must_contain")
        )


def _make_request(number: int, line: Any, prefix: Any, phrases: Any) -> Request:
    """Create the `Request` for an input line. Error messages contain the line number `number`."""
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


def zip_pairs(sources: Iterable[str], targets: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a source and a target. `sources` and `targets` must have the same length."""
    missing = object()
    for number, pair in enumerate(zip_longest(sources, targets, fillvalue=missing), 1):
        if missing in pair:
            fewer, more = ("sources", "targets") if pair[0] is missing else ("targets", "sources")
            raise InvalidValueError(
                f"`{fewer}` must hold as many texts as `{more}`, but ends before text {number:,}."
            )
        yield pair


def check_iterable_of_texts(name: str, texts: Any) -> None:
    """Raise an error about the argument `name` if `texts` is a single text or not iterable."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise TypeError(
            f"`{name}` must be a list or another iterable of texts, but is of type {type(texts).__name__}."
        )


def check_text(text: Any, name: str) -> None:
    """Raise an error about `name` if `text` is not a str or cannot be encoded as UTF-8."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, but is of type {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must hold text, but holds {text[error.start]!r}, a lone surrogate, which UTF-8 cannot "
            "write."
        ) from None
