"""Seconds to encode a corpus: each word once (`TextEncoder`) against `encode_batch_fast` for whole sentences.

Run `python scripts/benchmarks/encoding.py SOURCE TARGET [--repeat 6] [--num_proc 1] [--rounds 4]`. Both ways
take turns, each in a new process with its own cache. CPU seconds are those of the process and its children.
Other work on the machine changes CPU seconds less than wall seconds. The digest shows that the token ids are
the same.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = ("words", "sentences", "sentences, TOKENIZERS_PARALLELISM=true")


def cpu_seconds() -> float:
    """The CPU seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(way: str, arguments: argparse.Namespace) -> None:
    """Encode the corpus in this process, and print the numbers as JSON."""
    import datasets
    import pyarrow

    from vaswani_hf.data import corpus, text_encoder
    from vaswani_hf.data.corpus import PairSource, load_pairs
    from vaswani_hf.data.corpus_cache import corpus_digest
    from vaswani_hf.data.tokenizer_training import texts_of, train_tokenizer

    datasets.disable_progress_bars()
    if way != "words":

        def encode(self, texts):
            encodings = self._tokenizer.encode_batch_fast(texts)
            return pyarrow.array([encoding.ids for encoding in encodings], pyarrow.list_(pyarrow.int32()))

        text_encoder.TextEncoder.__call__ = encode  # type: ignore[method-assign]
    once = load_pairs(PairSource(arguments.source, arguments.target))
    tokenizer = train_tokenizer(texts_of(once, ("source", "target"), 100), arguments.vocab_size)
    pairs = load_pairs(
        PairSource([arguments.source] * arguments.repeat, [arguments.target] * arguments.repeat)
    )
    load, cpu, wall = os.getloadavg()[0], cpu_seconds(), time.perf_counter()
    num_proc = arguments.num_proc if arguments.num_proc > 1 else None
    prepared, _ = corpus.prepare_pairs(
        pairs, tokenizer, tokenizer, max_length=100, max_length_ratio=3.0, num_proc=num_proc
    )
    numbers = {
        "cpu_seconds": round(cpu_seconds() - cpu, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "load": round(load, 1),
        "pairs": len(pairs),
        "sha256": corpus_digest(prepared)["sha256"][:12],
    }
    print(json.dumps(numbers), flush=True)


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="sentences, one a line, plain or .gz")
    parser.add_argument("target", type=Path, help="their translations")
    parser.add_argument("--repeat", type=int, default=6, help="how often the corpus is encoded (6)")
    parser.add_argument("--num_proc", type=int, default=1, help="processes that encode (1)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each way (4)")
    parser.add_argument(
        "--vocab_size", type=int, default=8000, help="entries of the joint vocabulary (8,000)"
    )
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way is not None:
        measure(arguments.way, arguments)
        return
    for _ in range(arguments.rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as cache:
                parallel = "true" if "=true" in way else "false"
                environment = os.environ | {"HF_DATASETS_CACHE": cache, "TOKENIZERS_PARALLELISM": parallel}
                command = [sys.executable, *sys.argv, "--way", way]
                finished = subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                )
            print(f"{way}: {finished.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
