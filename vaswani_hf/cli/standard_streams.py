"""Replaces a standard stream by the null device if the stream is closed or if no program reads the stream.

This module also prevents encoding errors of standard output.
"""

import io
import os
import select
import sys


def open_closed_streams() -> None:
    """Open the null device for each closed standard stream. If a stream stayed closed, the next file that
    Python opens would get the file descriptor of the stream. Messages for the closed stream would then be
    written into the newly opened file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # If `sys.stderr` were None, `print(..., file=sys.stderr)` would write errors to standard output.
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")


def escape_unencodable_characters() -> None:
    """If the encoding of standard output lacks a character, print an escape sequence such as `\\u2026`, as
    Python does on stderr. Without this replacement, the character would end the command with an error.

    The commands print only messages and help texts with `print`. They write translations, scores and recipes
    to `sys.stdout.buffer`, in UTF-8, so that no escape sequence replaces a character in these results.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def is_reader_gone() -> bool:
    """Return True if standard output is a pipe, and the program that reads from the pipe has ended."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError):
        # Return False on Windows, which has no `poll`, and in a test whose output stream has no file
        # descriptor.
        return False


def discard_lost_output() -> bool:
    """Flush standard output. Return True if the flush fails. After a failed flush, redirect standard output
    to the null device, so that Python prints no second error at exit.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
