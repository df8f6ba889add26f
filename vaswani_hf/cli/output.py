"""Checks, locks and writes the outputs of commands. Each error message about an output names the output file
or standard output.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..checkpoint.locks import InUseError, check_not_in_use, locked_output
from ..model.errors_vaswani import InvalidValueError


class OutputError(OSError):
    """Raised if an output cannot be written. The error message says what the user can do."""


class LineOutput:
    """Writes complete lines without buffering. `name` and `remedy` are parts of the error messages."""

    def __init__(self, stream: BinaryIO, name: str, remedy: str):
        self._stream = stream
        self._name = name
        self._remedy = remedy
        # If not None, the next write first truncates the file to this size in bytes.
        self._kept: int | None = None

    def keep(self, size: int) -> None:
        """Before the next `write`, truncate the file to its first `size` bytes."""
        self._kept = size if size < os.path.getsize(self._name) else None

    def write(self, line: bytes) -> None:
        """Write a complete line without buffering."""
        rest = memoryview(line)
        try:
            if self._kept is not None:
                self._stream.truncate(self._kept)
                self._kept = None
            while rest:
                rest = rest[self._stream.write(rest) :]
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"{self._name} cannot be written ({error.strerror}); {self._remedy}.") from None


def standard_input() -> BinaryIO:
    """Return standard input. Raise a ValueError if standard input is closed."""
    if sys.stdin is None:
        raise ValueError("Standard input is closed; open it, or give the texts with `--input` or `--text`.")
    return sys.stdin.buffer


def standard_output() -> LineOutput:
    """Return standard output. Raise a ValueError if standard output is closed."""
    if sys.stdout is None:
        raise ValueError(
            "Standard output is closed, and the results would be lost; open standard output, or redirect it "
            "to a file."
        )
    return LineOutput(
        sys.stdout.buffer, "Standard output", "free space, or redirect the output to another place"
    )


def check_output(
    path: str | None,
    inputs: Mapping[str, str | None],
    *,
    resume: bool = False,
    can_resume: bool = False,
    option: str = "--output",
) -> None:
    """Raise an error if an output would overwrite another file or cannot be written.

    `inputs` maps options to the files that the command reads. None as a path means standard output or
    standard input. `resume` allows an existing file. If `can_resume` is true, the error about an existing
    file advises `--resume`.
    """
    output = _identity(sys.stdout if path is None else path)
    for name, source in inputs.items():
        if output is not None and output == _identity(sys.stdin if source is None else source):
            names = "standard input" if source is None else f"`{name}`"
            both = source if path is None else path
            what = "Standard output" if path is None else f"`{option}`"
            raise InvalidValueError(
                f"{what} must be another file than {names}, but both are {both or 'the same file'}."
            )
    if path is None:
        return
    if Path(path).is_dir():
        raise InvalidValueError(f"`{option}` must be a file, but '{path}' is a folder.")
    if not Path(path).absolute().parent.is_dir():
        raise InvalidValueError(f"`{option}` must be in an existing folder, but is {path}.")
    if os.path.isfile(path):
        check_not_in_use(path, f"`{option}` {path}")
    _check_new(path, option, resume, can_resume)
    if path.endswith(".gz"):
        raise InvalidValueError(
            f"`{option}` is written without compression and must not end in .gz, but is {path}."
        )


def _check_new(path: str, option: str, resume: bool, can_resume: bool) -> None:
    if os.path.lexists(path) and not resume:
        way = "continue it with `--resume` or give another name" if can_resume else "give another name"
        raise InvalidValueError(f"`{option}` must be a new file, but {path} exists; {way}.")


def _identity(file: Any) -> tuple[int, int] | None:
    """Return the device and the inode of a regular file (a path or an open file), or None for other files."""
    try:
        status = os.stat(file) if isinstance(file, str) else os.fstat(file.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


@contextmanager
def output_file(
    path: str, remedy: str, option: str = "--output", *, resume: bool = False, can_resume: bool = False
) -> Iterator[LineOutput]:
    """Open and lock a file. If the command fails, delete a file that the command created and left empty.
    `remedy` ends the error message of a failed write. The other arguments are the arguments of
    `check_output`.
    """
    with ExitStack() as stack:
        is_new = not os.path.lexists(path)
        try:
            if is_new or os.path.isfile(path):
                stack.enter_context(locked_output(path, f"`{option}` {path}"))
            # Raise an error if another process has created the file after the options were checked.
            _check_new(path, option, resume, can_resume)
            is_new = not os.path.lexists(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except InUseError:
            raise
        except OSError as error:
            raise OutputError(
                f"`{option}` {path} cannot be written ({error.strerror}); give another name."
            ) from None
        with open(descriptor, "ab", buffering=0) as file:
            try:
                yield LineOutput(file, path, remedy)  # type: ignore[arg-type]
            except BaseException:
                if is_new and os.fstat(descriptor).st_size == 0:
                    # Delete the empty file, because a repeated command refuses to overwrite an existing file.
                    os.unlink(path)
                raise
