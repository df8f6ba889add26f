"""Reports the error that ends a command: one sentence on stderr, and the exit code. Also replaces a standard
stream by the null device if the stream is closed or if no program reads the stream.
"""

import errno
import logging
import os
import select
import sys

from ..exit_codes import FAILURE, USAGE_ERROR

# The maximum number of characters of a message without `-v`.
_LONGEST = 600


def report(error: Exception, is_output_lost: bool) -> int:
    """Print the error in one sentence, and return the exit code. `-v` and VASWANI_TRACEBACK=1 add the
    traceback. `is_output_lost` is True if standard output cannot be written.
    """
    logger = logging.getLogger("vaswani_hf")
    if os.environ.get("VASWANI_TRACEBACK") == "1" or logger.getEffectiveLevel() <= logging.DEBUG:
        logger.error("traceback", exc_info=error)
    message = _sentence(error, is_output_lost)
    if len(message) > _LONGEST:
        message = f"{message[:500]} … (-v shows all)"
    print(f"vaswani: {message}", file=sys.stderr)
    return _exit_code(error, message)


def _sentence(error: Exception, is_output_lost: bool) -> str:
    from ..checkpoint.hub import explain, sentence_of

    # Do not change an error message of this package, because the message is already a complete sentence.
    if explain(error) is not None or type(error).__module__.startswith("vaswani_hf."):
        return sentence_of(error)
    if isinstance(error, OSError) and error.strerror:
        # Write a sentence in place of Python's message "[Errno 13] Permission denied: 'file'", because
        # Python's message may omit the file name.
        name = f"'{error.filename}'" if error.filename else "A file"
        if error.errno == errno.ENOSPC and error.filename2:
            # If the disk is full, an error of `shutil.copyfile` has the source in `filename` and the copy in
            # `filename2`. The copy is the file that cannot be written.
            name = f"'{error.filename2}'"
        if is_output_lost:
            name = "Standard output"
        return f"{name} cannot be read or written ({error.strerror})."
    if isinstance(error, (ValueError, OSError)):
        return sentence_of(error)
    # Messages of other libraries may be unclear without the name of the exception class.
    return f"{type(error).__name__}: {sentence_of(error)}"


def _exit_code(error: Exception, message: str) -> int:
    """Return the attribute `exit_code` of the error, if the class of the error has this attribute.

    For any other error, the exit code depends on the beginning of the message, as docs/commands.md says. A
    message about an invalid value begins with the option or the recipe key in backticks. A message about an
    invalid line or a damaged file begins with the line or the file.
    """
    from ..checkpoint.hub import HubError, is_unknown_name

    if hasattr(error, "exit_code"):
        return error.exit_code
    is_wrong_value = isinstance(error, (ValueError, FileNotFoundError, HubError)) and message.startswith("`")
    return USAGE_ERROR if is_wrong_value or is_unknown_name(error) else FAILURE


def open_closed_streams() -> None:
    """Open the null device for each closed standard stream.

    If a standard stream stays closed, the next file that Python opens gets the file descriptor of the stream,
    and messages to the stream are written into this file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # If `sys.stderr` were None, `print(..., file=sys.stderr)` would write errors to standard output.
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")


def is_reader_gone() -> bool:
    """Return True if standard output is a pipe, and the program that reads from the pipe has ended."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError):
        # Return False if the check is not possible, because Windows has no `poll` and the output stream in a
        # test has no file descriptor.
        return False


def discard_lost_output() -> bool:
    """Flush standard output, and return True if standard output can no longer be written.

    If standard output cannot be written, redirect standard output to the null device, because Python flushes
    standard output at exit and would print another error.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
