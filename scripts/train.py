"""Train a model from a recipe on several processes: `accelerate launch scripts/train.py
configuration/NAME.yaml [--key value …]`.
"""

import sys

from vaswani_hf.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
