"""Both directions in one model: each pair a second time, turned round, with a tag for the language it is translated into.

The pairs as they are have no tag, so that whatever serves a model of one direction serves this one as it is.
"""

from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, IterableDataset

from ..checkpoint.files import naming_the_folder
from .reading import CACHE_REMEDY


def in_both_directions(
    pairs: Dataset | IterableDataset, tag: str, num_proc: int | None = None
) -> Dataset | IterableDataset:
    """Each pair as it is, and behind it the same one turned round, with a tag in front of its source.

    Args:
        pairs: The columns `source` and `target`, and others, which both have.
        tag: The tag of the language of the sources.
        num_proc: The number of processes that write a dataset.

    Returns:
        Twice as many pairs.

    Raises:
        OSError: If the disk of the cache is full.
    """
    options: dict[str, Any] = {"batched": True, "features": pairs.features, "fn_kwargs": {"tag": tag}}
    if isinstance(pairs, IterableDataset):
        return pairs.map(_with_turned, **options)
    with naming_the_folder(Path(datasets.config.HF_DATASETS_CACHE), CACHE_REMEDY):
        return pairs.map(_with_turned, **options, num_proc=num_proc, desc="Turning sentence pairs round")


def _with_turned(batch: dict[str, list], tag: str) -> dict[str, list]:
    turned = {
        # A side without text stays without, so that cleaning drops the pair in either direction.
        "source": [f"{tag} {text.strip()}" if text.strip() else "" for text in batch["target"]],
        "target": batch["source"],
    }
    return {
        name: [value for both in zip(values, turned.get(name, values), strict=True) for value in both]
        for name, values in batch.items()
    }
