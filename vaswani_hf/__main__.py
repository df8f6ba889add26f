"""Runs the command `vaswani` if Python is called with `-m vaswani_hf`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
