"""Functions that `translate`, `parse`, `score` and `distill` share. The functions report invalid lines, show
the progress, count lines, and format JSON lines.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from ..data.lines import read_lines, read_raw_lines
from ..model.requests_vaswani import LINE_ERRORS, InvalidInput, Request, has_text

if TYPE_CHECKING:
    from ..model.translations_vaswani import Translation

logger = logging.getLogger(__name__)

# The maximum number of skipped lines that are reported one by one. Further skipped lines are only counted.
MOST_WARNINGS = 20


class CountedRequests:
    """Counts the requests read so far: `num_read` counts all requests, and `num_texts` counts all requests
    except requests with a blank text.
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
    """Context manager that reports on stderr how a command processes the lines of an input: skipped lines,
    and with `show_progress` also the progress and the speed.

    `place` is the name of the input in messages. An earlier run of the command has already read the first
    `done` lines of the input. If the message of an error about a line lacks the number of the line, the
    context manager adds the number.
    """

    def __init__(self, place: str, done: int = 0, requests: CountedRequests | None = None):
        self._place = place
        self._done = done
        self._requests = requests
        self._num_lines = 0
        self._num_skipped = 0
        self._first_error = ""
        self._bar: Any = None
        self._start = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def show_progress(self, work: str, total: int | None, to_file: bool = False) -> None:
        """Show a progress bar on a terminal, and print the speed at the end. `total` is the number of all
        lines of the input, if it is known.
        """
        from tqdm.auto import tqdm

        # Show no progress bar if the user types the input in the terminal, or if the command prints the
        # results to the terminal. With `disable=None`, tqdm shows no progress bar if stderr is not a
        # terminal.
        is_typed = total is None and is_terminal(sys.stdin)
        is_read = is_terminal(sys.stdout) and not to_file
        self._bar = tqdm(
            total=total,
            initial=self._done,
            unit=" sentences",
            desc=work,
            disable=True if is_typed or is_read else None,
            leave=False,
        )

    def add(self, translation: Any) -> None:
        """Advance the line count and the progress bar by one line. If the line was skipped, print the
        reason.
        """
        self._num_lines += 1
        if self._bar is not None:
            self._bar.update()
        error = getattr(translation, "error", None)
        if not error:
            return
        self._num_skipped += 1
        sentence = self._at_line(self._done + self._num_lines, error)
        self._first_error = self._first_error or sentence
        if self._num_skipped <= MOST_WARNINGS:
            logger.warning(f"vaswani: skipped: {sentence}")

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._bar is not None:
            self._bar.close()
        if error is None:
            self._print_summary()
        elif isinstance(error, LINE_ERRORS):
            number = getattr(error, "line_number", None)
            if number is not None and self._place != "`--text`":
                raise ValueError(self._at_line(number, str(error))) from error

    def _print_summary(self) -> None:
        """Print the number of skipped lines. If `show_progress` was called, also print the speed. Raise an
        error if a new run has skipped all lines with text.
        """
        number = self._num_lines
        num_texts = number if self._requests is None else self._requests.num_texts
        if self._num_skipped > 0:
            if self._done == 0 and self._num_skipped == num_texts:
                blank = "" if self._num_skipped == number else " that are not blank"
                raise ValueError(
                    f"All lines{blank} were skipped, {self._num_skipped:,} of {number:,}; the first error: "
                    f"{self._first_error}"
                )
            logger.warning(f"vaswani: {self._num_skipped:,} of {number:,} lines were skipped")
        if self._bar is not None:
            seconds = time.perf_counter() - self._start
            sentences = "sentence" if number == 1 else "sentences"
            print(
                f"{number:,} {sentences} in {seconds:.1f} s, {number / seconds:,.1f} sentences/s",
                file=sys.stderr,
            )

    def _at_line(self, number: int, error: str) -> str:
        is_named = re.search(rf"\b(line|pair) {number:,}\b", error, re.IGNORECASE)
        if is_named or self._place == "`--text`":
            return error
        return f"Line {number:,} of {self._place}: {error}"


def is_terminal(stream: Any) -> bool:
    """Return True if `stream` is a terminal. `stream`, such as `sys.stdin`, is None if the standard stream is
    closed.
    """
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
