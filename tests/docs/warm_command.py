"""Runs `vaswani` or `hf` in an interpreter that has imported everything: `python warm_command.py COMMAND ARGUMENTS`.

huggingface_hub reads its environment variables when it is imported, and therefore this file sets its
constants again. The corpora of numbers and trees have few examples for validation and test.
"""

import os
import sys

from huggingface_hub import constants
from huggingface_hub.cli import hf

from vaswani_hf.cli import main
from vaswani_hf.data import toy_corpora

SWITCHES = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_UPDATE_CHECK")


def apply_environment() -> None:
    """Set the constants of huggingface_hub from the environment variables of this process."""
    for name in SWITCHES:
        setattr(constants, name, os.environ.get(name) == "1")
    constants.HF_HOME = os.path.abspath(os.environ["HF_HOME"])
    constants.HF_HUB_CACHE = os.path.join(constants.HF_HOME, "hub")


if __name__ == "__main__":
    apply_environment()
    toy_corpora.NUMBERS_HELD_OUT = 10
    toy_corpora.TREES_HELD_OUT = 10
    command = sys.argv.pop(1)
    sys.exit(main() if command == "vaswani" else hf.main())
