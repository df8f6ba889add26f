"""Prints the progress of a training run or of a push, and handles the progress bars of other libraries."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

SECONDS_BETWEEN_LINES = 30.0


def say(line: str, *, is_important: bool = False) -> None:
    """Print a line immediately. If the log level of this file is above WARNING, print only lines with
    `is_important=True`: results and failures. `--quiet` sets the log level to ERROR. If the output goes to a
    program that has ended, such as `head`, continue without output.
    """
    if not is_important and not logging.getLogger(__name__).isEnabledFor(logging.WARNING):
        return
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _discard_output(sys.stdout)


def hide_progress_bars_without_terminal() -> None:
    """Hide the progress bars of the library `datasets` if stderr is no terminal."""
    import datasets

    if sys.stderr is None or not sys.stderr.isatty():
        datasets.disable_progress_bars()


@contextlib.contextmanager
def said_at_intervals(work: str) -> Iterator[None]:
    """Print a line every 30 seconds in place of a progress bar if stderr is no terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        yield
        return
    start = time.perf_counter()
    is_done = threading.Event()

    def print_lines() -> None:
        while not is_done.wait(SECONDS_BETWEEN_LINES):
            say(f"{work}: {time.perf_counter() - start:,.0f} seconds so far")

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def _discard_output(stream: TextIO) -> None:
    """Redirect a stream to the null device, also for other threads and for new child processes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class PipeSafeStream:
    """Wraps stdout or stderr, and ignores the error if the reader has closed the pipe. `vaswani train` wraps
    stderr, because the progress bars of other libraries write to stderr, and a closed pipe must not end the
    training.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text` to the stream if the reader has not closed the pipe."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            _discard_output(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush the stream if the reader has not closed the pipe."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            _discard_output(self._stream)


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, such as "1 thread" or "2 processes"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"
