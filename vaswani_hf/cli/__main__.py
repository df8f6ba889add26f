"""`python -m vaswani_hf.cli`."""

import sys

from . import main

sys.exit(main())
