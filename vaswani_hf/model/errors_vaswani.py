"""The error about an invalid value that a user has given.

This file is saved with every checkpoint because the config, the model and the search raise
`InvalidValueError`.
"""


class InvalidValueError(ValueError):
    """Raised if the user has given an invalid option, argument, recipe key, or name of a file or a model. If
    possible, the message begins with the name of the option, argument or key.
    """

    # The exit code of the command `vaswani` after this error, see vaswani_hf/exit_codes.py.
    exit_code = 2
