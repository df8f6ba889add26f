"""The exit codes of a failed command. docs/commands.md explains the exit codes.

The class of an error decides the exit code: the attribute `exit_code` of the class, or `FAILURE` if the class
has no such attribute. `InvalidValueError` (model/errors_vaswani.py) has the exit code `USAGE_ERROR`. The
errors of a training run (training/stopping.py) have the exit code `FAILURE` or `INTERRUPTED`. `report` in
cli/report.py reads `exit_code`.
"""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130
