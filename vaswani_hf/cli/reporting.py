"""What the `vaswani` command says when something goes wrong, and its standard streams."""

import logging
import os
import sys

from ..checkpoint.hub import explain, sentence_of


def fill_closed_streams() -> None:
    """Keep the numbers of closed standard streams from files, into which other libraries could write."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # Without one print would write to standard output.
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")


def give_up_output() -> bool:
    """True if standard output takes nothing more; then Python is kept from complaining when it flushes at the end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def without_bars_for_moments() -> None:
    """Hide the bars of loading and saving models; those of data preparation and of the Hub stay."""
    from huggingface_hub import constants
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    # It switches off those of the Hub too.
    disable_progress_bar()
    if sys.stderr.isatty() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


def report(error: Exception, is_output_lost: bool) -> int:
    """One sentence on stderr instead of a traceback; the traceback with VASWANI_TRACEBACK=1, for bug reports.

    Args:
        error (Exception): What went wrong.
        is_output_lost (bool): Standard output takes nothing more.

    Returns:
        int: The exit code.
    """
    if os.environ.get("VASWANI_TRACEBACK") == "1":
        logging.getLogger("vaswani_hf").error("traceback", exc_info=error)
    message, is_explained = sentence_of(error), explain(error) is not None
    interrupted = type(error).__name__ == "InterruptedRunError"
    # Our errors are sentences; those of others may be a page and need their name to be understood.
    is_ours = type(error).__module__.startswith("vaswani_hf.")
    if not is_explained and not isinstance(error, (ValueError, OSError)) and not is_ours:
        message = f"{type(error).__name__}: {message}"
    if isinstance(error, OSError) and error.strerror and not is_explained and not is_ours:
        # "[Errno 13] Permission denied: 'file'", or no file at all.
        name = "Standard output" if is_output_lost else f"'{error.filename}'" if error.filename else "A file"
        message = f"{name} cannot be read or written ({error.strerror})."
    if len(message) > 600:
        message = f"{message[:500]} … (VASWANI_TRACEBACK=1 shows all)"
    print(f"vaswani: {message}", file=sys.stderr)
    return 130 if interrupted else 1
