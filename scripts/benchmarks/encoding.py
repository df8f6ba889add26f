"""Compares two ways to encode a corpus: encode each distinct word once, or encode whole sentences.

    python scripts/benchmarks/encoding.py SOURCE TARGET [--repeat 6] [--num_proc 1] [--rounds 4]

`TextEncoder` of this package encodes each distinct word once. `encode_batch_fast` of the library `tokenizers`
encodes whole sentences. Each measurement runs in a new process with an empty cache. The script measures the
CPU time of the process and its children, because other programs on the machine affect the CPU time less than
the wall-clock time. The script also prints a digest of the token ids. If all digests are equal, all
measurements produced the same token ids.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import in_turns, print_header, print_times, seconds_of

WAYS = ("words", "sentences", "sentences, TOKENIZERS_PARALLELISM=true")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def encode_corpus(way: str, arguments: argparse.Namespace) -> None:
    """Encode the corpus in this process, and print the measured values as JSON."""
    import datasets
    import pyarrow

    from vaswani_hf.data import text_encoder
    from vaswani_hf.data.corpus_cache import corpus_digest
    from vaswani_hf.data.encoding import prepare_pairs
    from vaswani_hf.data.loading import PairSource, load_pairs
    from vaswani_hf.data.tokenizer_training import train_tokenizer, training_texts

    datasets.disable_progress_bars()
    if way != "words":

        def encode(self, texts):
            encodings = self._tokenizer.encode_batch_fast(texts.to_pylist())
            return pyarrow.array([encoding.ids for encoding in encodings], pyarrow.list_(pyarrow.int32()))

        text_encoder.TextEncoder.__call__ = encode  # type: ignore[method-assign]
    once = load_pairs(PairSource(arguments.source, arguments.target))
    tokenizer = train_tokenizer(training_texts(once, ("source", "target"), 100), arguments.vocab_size)
    repeated = PairSource([arguments.source] * arguments.repeat, [arguments.target] * arguments.repeat)
    pairs = load_pairs(repeated)
    num_proc = arguments.num_proc if arguments.num_proc > 1 else None
    prepared: list[Any] = []

    def prepare() -> None:
        prepared[:] = prepare_pairs(
            pairs, tokenizer, tokenizer, max_length=100, max_length_ratio=3.0, num_proc=num_proc
        )

    before = cpu_seconds()
    wall = seconds_of(prepare)
    figures = {
        "cpu_seconds": cpu_seconds() - before,
        "wall_seconds": round(wall, 2),
        "load": round(os.getloadavg()[0], 1),
        "pairs": len(pairs),
        "sha256": corpus_digest(prepared[0]).sha256[:12],
    }
    print(json.dumps(figures), flush=True)


def main(words: list[str] | None = None) -> None:
    """Print a line for each measurement, and the medians and ratios of the CPU seconds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="a file with one sentence per line, plain or .gz")
    parser.add_argument("target", type=Path, help="the translations of the sentences")
    parser.add_argument(
        "--repeat", type=int, default=6, help="how many times the corpus is repeated; default: 6"
    )
    parser.add_argument(
        "--num_proc", type=int, default=1, help="number of processes that encode the corpus; default: 1"
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="number of measurements of each encoder; default: 4"
    )
    parser.add_argument(
        "--vocab_size",
        type=int,
        default=8000,
        help="number of entries of the joint vocabulary; default: 8,000",
    )
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.way is not None:
        encode_corpus(arguments.way, arguments)
        return

    def run(way: str) -> float:
        with tempfile.TemporaryDirectory() as cache:
            parallel = "true" if "=true" in way else "false"
            environment = os.environ | {"HF_DATASETS_CACHE": cache, "TOKENIZERS_PARALLELISM": parallel}
            command = [sys.executable, *sys.argv, "--way", way]
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        print(f"{way}: {done.stdout.strip()}", flush=True)
        return json.loads(done.stdout)["cpu_seconds"]

    print_header()
    ways = {way: (lambda way=way: run(way)) for way in WAYS}
    times = in_turns(ways, arguments.rounds, warm_up=0, measure=lambda way: way())
    print_times(times, baseline="words")


if __name__ == "__main__":
    main()
