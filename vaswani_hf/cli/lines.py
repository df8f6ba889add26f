"""Functions that `translate`, `parse`, `score` and `distill` share. The functions report invalid lines, show
the progress, count lines, and format JSON lines.
"""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..data.lines import read_lines, read_raw_lines
from ..model.requests_vaswani import LINE_ERRORS, InvalidInput, Request, has_text

if TYPE_CHECKING:
    from ..model.translations_vaswani import Translation

# The maximum number of skipped lines that are reported one by one. Further skipped lines are only counted.
MOST_WARNINGS = 20


class CountedRequests:
    """Counts the requests read so far: `num_read` counts all requests, and `num_texts` counts the requests
    that are invalid or contain text.
    """

    def __init__(self, requests: Iterable[Request | InvalidInput]):
        self.num_read = 0
        self.num_texts = 0
        self._requests = requests

    def __iter__(self) -> Iterator[Any]:
        for request in self._requests:
            self.num_read += 1
            self.num_texts += isinstance(request, InvalidInput) or has_text(request)
            yield request


def report_bad_lines(
    translations: Iterable[Any], place: str, done: int = 0, requests: CountedRequests | None = None
) -> Iterator[Any]:
    """Yield the translations, and report skipped lines of the input `place` on stderr. The first translation
    belongs to line `done + 1` of the input.
    """
    num_lines = 0
    num_skipped = 0
    first_error = ""
    for translation in _with_line_in_errors(translations, place):
        num_lines += 1
        if error := getattr(translation, "error", None):
            num_skipped += 1
            sentence = _at_line(done + num_lines, place, error)
            first_error = first_error or sentence
            if num_skipped <= MOST_WARNINGS:
                print(f"vaswani: skipped: {sentence}", file=sys.stderr)
        yield translation
    if num_skipped == 0:
        return
    num_texts = num_lines if requests is None else requests.num_texts
    if done == 0 and num_skipped == num_texts:
        blank = "" if num_skipped == num_lines else " that are not blank"
        raise ValueError(
            f"All lines{blank} were skipped, {num_skipped:,} of {num_lines:,}; the first error: {first_error}"
        )
    print(f"vaswani: {num_skipped:,} of {num_lines:,} lines were skipped", file=sys.stderr)


def _with_line_in_errors(translations: Iterable[Any], place: str) -> Iterator[Any]:
    try:
        yield from translations
    except LINE_ERRORS as error:
        number = getattr(error, "line_number", None)
        if number is None or place == "`--text`":
            raise
        raise ValueError(_at_line(number, place, str(error))) from error


def _at_line(number: int, place: str, error: str) -> str:
    is_named = re.search(rf"\b(line|pair) {number:,}\b", error, re.IGNORECASE)
    return error if is_named or place == "`--text`" else f"Line {number:,} of {place}: {error}"


def with_progress(
    items: Iterable[Any], work: str, total: int | None, done: int = 0, to_file: bool = False
) -> Iterator[Any]:
    """Yield the items, show a progress bar on a terminal, and print the speed to stderr at the end. `total`
    is the number of all items. `done` is the number of items that an earlier run wrote; `items` does not
    contain the written items.
    """
    from tqdm.auto import tqdm

    # Show no progress bar if the user types the input in the terminal, or if the command prints the results
    # to the terminal. With `disable=None`, tqdm shows no progress bar if stderr is not a terminal.
    is_typed = total is None and _is_terminal(sys.stdin)
    is_read = _is_terminal(sys.stdout) and not to_file
    disable = True if is_typed or is_read else None
    start = time.perf_counter()
    number = 0
    with tqdm(total=total, initial=done, unit=" sentences", desc=work, disable=disable, leave=False) as bar:
        for item in items:
            number += 1
            bar.update()
            yield item
    seconds = time.perf_counter() - start
    sentences = "sentence" if number == 1 else "sentences"
    print(f"{number:,} {sentences} in {seconds:.1f} s, {number / seconds:,.1f} sentences/s", file=sys.stderr)


def _is_terminal(stream: Any) -> bool:
    """Return True for a terminal. `stream`, such as `sys.stdin`, is None if the standard stream is closed."""
    return stream is not None and stream.isatty()


def is_typed_by_user(text: str | None, path: str | None) -> bool:
    """Return True if a user types the input in a terminal."""
    return text is None and path is None and _is_terminal(sys.stdin)


def count_lines(path: str, skips: bool = False) -> int:
    """Read a whole text file, plain or .gz, so that damage is detected early. Return the number of lines. If
    `skips` is True, a line that is not UTF-8 raises no error.
    """
    return sum(1 for _ in (read_raw_lines(path) if skips else read_lines(path)))


def json_line(record: dict[str, Any]) -> bytes:
    """Format a record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"


def translation_as_json(translation: "str | Translation") -> bytes:
    """Format a translation as a line of JSON, without token ids and without fields whose value is None."""
    return json_line({"text": translation} if isinstance(translation, str) else translation.as_dict())
