"""Functions that `translate`, `parse`, `score` and `distill` share. The functions report invalid lines, show
the progress, count lines, and format JSON lines.
"""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

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


class LineReport:
    """Context manager that reports the skipped lines of an input on stderr.

    `place` is the name of the input in messages. An earlier run has read the first `done` lines of the input.
    An error about a line gets the number of the line.
    """

    def __init__(self, place: str, done: int = 0, requests: CountedRequests | None = None):
        self._place = place
        self._done = done
        self._requests = requests
        self._num_lines = 0
        self._num_skipped = 0
        self._first_error = ""

    def __enter__(self) -> Self:
        return self

    def add(self, translation: Any) -> None:
        """Count the translation of the next line. If the line was skipped, print the reason."""
        self._num_lines += 1
        error = getattr(translation, "error", None)
        if not error:
            return
        self._num_skipped += 1
        sentence = self._at_line(self._done + self._num_lines, error)
        self._first_error = self._first_error or sentence
        if self._num_skipped <= MOST_WARNINGS:
            print(f"vaswani: skipped: {sentence}", file=sys.stderr)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self._summarize()
        elif isinstance(error, LINE_ERRORS):
            number = getattr(error, "line_number", None)
            if number is not None and self._place != "`--text`":
                raise ValueError(self._at_line(number, str(error))) from error

    def _summarize(self) -> None:
        """Print the number of skipped lines. Raise an error if a new run has skipped all lines with text."""
        if self._num_skipped == 0:
            return
        num_texts = self._num_lines if self._requests is None else self._requests.num_texts
        if self._done == 0 and self._num_skipped == num_texts:
            blank = "" if self._num_skipped == self._num_lines else " that are not blank"
            raise ValueError(
                f"All lines{blank} were skipped, {self._num_skipped:,} of {self._num_lines:,}; the first error: "
                f"{self._first_error}"
            )
        print(f"vaswani: {self._num_skipped:,} of {self._num_lines:,} lines were skipped", file=sys.stderr)

    def _at_line(self, number: int, error: str) -> str:
        is_named = re.search(rf"\b(line|pair) {number:,}\b", error, re.IGNORECASE)
        if is_named or self._place == "`--text`":
            return error
        return f"Line {number:,} of {self._place}: {error}"


class Progress:
    """Context manager that shows a progress bar on a terminal, and prints the speed to stderr at the end.

    `total` is the number of all items, of which an earlier run has written `done` items. If `is_hidden` is
    True, nothing is shown or printed.
    """

    def __init__(
        self,
        work: str,
        total: int | None,
        done: int = 0,
        *,
        to_file: bool = False,
        is_hidden: bool = False,
    ):
        from tqdm.auto import tqdm

        # Show no progress bar if the user types the input in the terminal, or if the command prints the
        # results to the terminal. With `disable=None`, tqdm shows no progress bar if stderr is not a terminal.
        is_typed = total is None and is_terminal(sys.stdin)
        is_read = is_terminal(sys.stdout) and not to_file
        disable = True if is_hidden or is_typed or is_read else None
        self._is_hidden = is_hidden
        self._number = 0
        self._start = time.perf_counter()
        self._bar = tqdm(
            total=total, initial=done, unit=" sentences", desc=work, disable=disable, leave=False
        )

    def __enter__(self) -> Self:
        return self

    def advance(self) -> None:
        """Count one more item."""
        self._number += 1
        self._bar.update()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._bar.close()
        if error is None and not self._is_hidden:
            seconds = time.perf_counter() - self._start
            sentences = "sentence" if self._number == 1 else "sentences"
            print(
                f"{self._number:,} {sentences} in {seconds:.1f} s, {self._number / seconds:,.1f} sentences/s",
                file=sys.stderr,
            )


def is_terminal(stream: Any) -> bool:
    """Return True for a terminal. `stream`, such as `sys.stdin`, is None if the standard stream is closed."""
    return stream is not None and stream.isatty()


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
