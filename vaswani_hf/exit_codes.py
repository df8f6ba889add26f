"""The exit codes of a failed command, and the class of errors that end a training run. docs/commands.md
explains the exit codes.

The class of an error decides the exit code. If the class has the attribute `exit_code`, the command ends with
`exit_code`, else with `FAILURE`. `InvalidValueError` in model/errors_vaswani.py has `USAGE_ERROR`, and
`InterruptedRunError` in training/run.py has `INTERRUPTED`. `report` in cli/report.py reads the attribute.
"""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130


class RunError(Exception):
    """Raised if a training run fails or is interrupted. The error message is a complete sentence."""
