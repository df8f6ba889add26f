# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Train a model from a recipe, on several processes or on Hugging Face Jobs.

Several processes: `accelerate launch scripts/train.py configuration/NAME.yaml [--key value …]`.

Hugging Face Jobs: `hf jobs uv run --with WHEEL scripts/train.py …` installs the wheel of this package. The
header of this file lists no dependencies, because the wheel states the dependencies. See
docs/how_to/hub_jobs.md.
"""

import sys

from vaswani_hf.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
