"""The exit codes of a failed command, and the class of errors that end a training run. docs/commands.md
explains the exit codes.
"""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130


class RunError(Exception):
    """Raised if a training run fails or is interrupted. The error message is a complete sentence."""

    exit_code = FAILURE
