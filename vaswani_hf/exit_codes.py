"""The exit codes of a failed command. docs/commands.md explains each exit code."""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130
