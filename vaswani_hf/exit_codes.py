"""The exit codes of a failed command, and the class of errors that end a training run. docs/commands.md
explains the exit codes.

The class of an error decides the exit code: the attribute `exit_code` of the class, or `FAILURE` if the class
has no such attribute. `InvalidValueError` (model/errors_vaswani.py) has `USAGE_ERROR`, and
`InterruptedRunError` (training/stopping.py) has `INTERRUPTED`. `report` in cli/report.py reads the attribute.
"""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130


class RunError(Exception):
    """Raised if a training run fails or is interrupted. The error message is a complete sentence."""
