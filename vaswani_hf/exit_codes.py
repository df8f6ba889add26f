"""The exit codes of a failed command. docs/commands.md explains the exit codes."""

FAILURE = 1
USAGE_ERROR = 2
INTERRUPTED = 130
