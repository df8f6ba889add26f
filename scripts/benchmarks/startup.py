"""Compares the start of two commands with the time to import classes of transformers: the run time of
`vaswani translate` for one word, and the time until `vaswani serve` is ready.

Run `python scripts/benchmarks/startup.py CHECKPOINT [--rounds 7]`. Each measurement runs in a new process.
"""

import argparse
import subprocess
import sys

from timing import in_turns, print_header, print_times

IMPORTS = "from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerFast"


def run(words: list[str]) -> None:
    """Run Python with the arguments `words`."""
    subprocess.run([sys.executable, *words], check=True, capture_output=True)


def serve_until_ready(words: list[str]) -> None:
    """Run Python with the arguments `words` until the service prints the `curl` line. Then end the
    service.
    """
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        is_ready = any(line.startswith("try: curl") for line in process.stderr)
        process.kill()
    if not is_ready:
        raise SystemExit("The service has not started.")


def main() -> None:
    """Print the median times, and the median of the ratios of the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument("--languages", default="en:de", help="the languages of the checkpoint")
    parser.add_argument(
        "--rounds", type=int, default=7, help="number of measurements of each command; default: 7"
    )
    arguments = parser.parse_args()
    translate = ["translate", arguments.checkpoint, "--text", "seven", "--device", "cpu"]
    serve = ["serve", arguments.checkpoint, "--languages", arguments.languages]
    serve += ["--port", "0", "--device", "cpu"]
    command = ["-m", "vaswani_hf.cli"]
    print_header()
    ways = {
        "imports": lambda: run(["-c", IMPORTS]),
        "vaswani translate": lambda: run([*command, *translate]),
        "vaswani serve": lambda: serve_until_ready([*command, *serve]),
    }
    print_times(in_turns(ways, arguments.rounds), baseline="imports")


if __name__ == "__main__":
    main()
