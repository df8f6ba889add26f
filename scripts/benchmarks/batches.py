"""Time to make training batches from a corpus on disk, against rows that `datasets` gathers, in one run.

Prints medians over interleaved repetitions, and ratios: `python scripts/benchmarks/batches.py [--pairs 500000 …]`.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features

from vaswani_hf.data.batching import PairCollator, PairRows, TokenBudgetSampler, cut_into_batches
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus import ID_FEATURES
from vaswani_hf.data.corpus_cache import corpus_digest


def prepared_pairs(num_pairs: int, path: Path) -> Dataset:
    """Random pairs in a file, of which one in ten is dropped as cleaning would drop it."""
    rng = np.random.default_rng(0)

    def rows():
        for length in np.clip(rng.gamma(2.5, 11, num_pairs).astype(int) + 2, 2, 250).tolist():
            ids = rng.integers(4, 30000, length)
            yield {"input_ids": ids, "labels": ids, "source_length": length, "target_length": length}

    pairs = Dataset.from_generator(rows, features=Features(ID_FEATURES), cache_dir=str(path))
    return pairs.select(np.flatnonzero(np.arange(num_pairs) % 10))


def gathered(pairs: Dataset, batch: list[int]) -> list[dict[str, Any]]:
    """The pairs of a batch as `datasets` gives them."""
    columns = pairs[batch]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def gathered_lengths(pairs: Dataset) -> list[np.ndarray]:
    """The lengths of all pairs as `datasets` gives them."""
    return [pairs.with_format("numpy")[f"{side}_length"][:] for side in ("source", "target")]


def seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """The time of one call."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in {"pairs": 200000, "tokens": 25000, "repetitions": 51}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = prepared_pairs(arguments.pairs, Path(folder))
        lengths, rows, collator = pair_lengths(pairs), PairRows(pairs), PairCollator(1)
        batches = list(TokenBudgetSampler(*lengths, arguments.tokens, arguments.tokens, seed=1))
        # The first look at each part of the file.
        for batch in batches:
            rows.__getitems__(batch)
        ways = {
            "rows of a batch": (lambda batch: gathered(pairs, batch), rows.__getitems__),
            "batch": (
                lambda batch: collator(gathered(pairs, batch)),
                lambda batch: collator(rows.__getitems__(batch)),
            ),
            "lengths": (lambda _: gathered_lengths(pairs), lambda _: pair_lengths(pairs)),
        }
        for name, both in ways.items():
            count = 5 if name == "lengths" else arguments.repetitions
            times = [
                [seconds(way, batches[number % len(batches)]) for way in both] for number in range(count)
            ]
            theirs, ours = (1000 * statistics.median(column) for column in zip(*times, strict=True))
            print(f"{name:16} {ours:9.2f} ms, gathered {theirs:9.2f} ms: {theirs / ours:,.1f} times as fast")
        print(f"{'digest':16} {1000 * seconds(corpus_digest, pairs):9.2f} ms")
        print(
            f"{'packing':16} {1000 * seconds(cut_into_batches, *lengths, arguments.tokens, arguments.tokens):9.2f} ms"
        )


if __name__ == "__main__":
    main()
