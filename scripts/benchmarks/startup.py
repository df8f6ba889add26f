"""How long `vaswani translate` takes for one word, against importing a model and a tokenizer of transformers alone.

Run `python scripts/benchmarks/startup.py CHECKPOINT [--repetitions 7]`. Both are fresh processes, in turn.
"""

import argparse
import statistics
import subprocess
import sys
import time

IMPORTS = "from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerFast"


def seconds_of(command: list[str]) -> float:
    """The seconds that a process takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument("--repetitions", type=int, default=7, help="of each (7)")
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
    commands = {"transformers, imports": ["-c", IMPORTS], "vaswani translate": translate}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    # The first round fills the caches of files.
    for repetition in range(arguments.repetitions + 1):
        for name, words in commands.items():
            measured = seconds_of([sys.executable, *words])
            if repetition:
                seconds[name].append(measured)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:24}{median:8.2f} s")
    print(f"{'ratio':24}{medians['vaswani translate'] / medians['transformers, imports']:8.2f}")


if __name__ == "__main__":
    main()
