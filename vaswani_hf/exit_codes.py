"""The exit codes of a failed command. docs/commands.md explains the exit codes.

The class of an error decides the exit code: the attribute `exit_code` of the class, or `FAILURE` if the class
has no such attribute. `InvalidValueError` (model/errors_vaswani.py) has `USAGE_ERROR`, and the errors of a
training run (training/stopping.py) have `FAILURE` or `INTERRUPTED`. `report` in cli/report.py reads the
attribute.
"""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130
