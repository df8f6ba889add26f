"""Reports the error that ends a command: one sentence on stderr, and the exit code."""

import errno
import logging
import os
import sys

from ..exit_codes import FAILURE

# The maximum number of characters of a message.
_LONGEST = 600


def report(error: Exception, is_output_lost: bool) -> int:
    """Print the error (with the traceback for `-v` or VASWANI_TRACEBACK=1), and return the exit code."""
    # Import `checkpoint.hub` here, so that only a command with an error waits for the import of
    # huggingface_hub.
    from ..checkpoint.hub import hub_error, sentence_of

    logger = logging.getLogger("vaswani_hf")
    if os.environ.get("VASWANI_TRACEBACK") == "1" or logger.getEffectiveLevel() <= logging.DEBUG:
        logger.error("traceback", exc_info=error)
    error = hub_error(error) or error
    message = sentence_of(error)
    if isinstance(error, OSError) and error.strerror:
        message = _system_error_message(error, is_output_lost)
    elif not isinstance(error, ValueError | OSError) and not hasattr(error, "exit_code"):
        # An error message of another library can be unclear without the name of the exception class. Only
        # exception classes of this package have the attribute `exit_code`.
        message = f"{type(error).__name__}: {message}"
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} … (-v shows all)"
    print(f"vaswani: {message}", file=sys.stderr)
    return getattr(error, "exit_code", FAILURE)


def _system_error_message(error: OSError, is_output_lost: bool) -> str:
    """Return a message for an OSError. Python's own message for an OSError can omit the file name."""
    name = f"'{error.filename}'" if error.filename else "A file"
    if error.errno == errno.ENOSPC and error.filename2:
        # If `shutil.copyfile` fails because a disk is full, `error.filename2` is the name of the target file
        # on the full disk.
        name = f"'{error.filename2}'"
    if is_output_lost:
        name = "Standard output"
    return f"{name} cannot be read or written ({error.strerror})."
