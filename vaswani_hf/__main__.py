"""`python -m vaswani_hf`: the same as the command `vaswani`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
