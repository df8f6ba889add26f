"""Compares the run time of `vaswani translate` for one word with the time to import classes of transformers.

Run `python scripts/benchmarks/startup.py CHECKPOINT [--rounds 7]`. Each measurement runs in a new process.
"""

import argparse
import subprocess
import sys

from timing import in_turns, print_header, print_times

IMPORTS = "from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerFast"


def main() -> None:
    """Print the median times and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument(
        "--rounds", type=int, default=7, help="number of measurements of each command; default: 7"
    )
    arguments = parser.parse_args()
    translate = [
        "-m",
        "vaswani_hf.cli",
        "translate",
        arguments.checkpoint,
        "--text",
        "seven",
        "--device",
        "cpu",
    ]

    def run(words: list[str]) -> None:
        subprocess.run([sys.executable, *words], check=True, capture_output=True)

    print_header()
    ways = {"imports": lambda: run(["-c", IMPORTS]), "vaswani translate": lambda: run(translate)}
    print_times(in_turns(ways, arguments.rounds), baseline="imports")


if __name__ == "__main__":
    main()
