"""Takes validation and test pairs out of the training data (`data.validation_size`, `data.test_size`)."""

import hashlib

import numpy as np
from datasets import Dataset

from ..model.errors_vaswani import InvalidValueError
from .columns import CORPUS_COLUMN
from .memory import mapped_files

_BATCH_SIZE = 10_000


def hold_out(pairs: Dataset, sizes: dict[str, int]) -> dict[str, Dataset]:
    """Take pairs out of the training data for the splits in `sizes`. The pairs that remain are the split
    "train".

    The pairs with the smallest hashes of source and target are held out. Therefore the splits depend neither
    on the seed nor on the order of the pairs. The validation and test pairs contain no duplicates and no
    empty texts. The split "train" contains no copy of a validation or test pair.
    """
    hashes, have_text = _hash_pairs(pairs)
    rows = np.flatnonzero(have_text)
    # `np.unique` returns the distinct hashes in ascending order, and the first index of each hash in
    # `hashes[rows]`.
    distinct, first = np.unique(hashes[rows], return_index=True)
    total = sum(sizes.values())
    if total >= len(distinct):
        keys = " and ".join(f"`data.{split}_size: {size}`" for split, size in sizes.items())
        raise InvalidValueError(
            f"{keys} must leave pairs for the training, but the training data has only {len(distinct):,} "
            "different pairs with text on both sides; give a smaller number, or more training data."
        )
    splits = {}
    start = 0
    for split, size in sizes.items():
        held_out = pairs.select(np.sort(rows[first[start : start + size]]))
        # Only the training needs the column `corpus`.
        has_column = CORPUS_COLUMN in held_out.column_names
        splits[split] = held_out.remove_columns(CORPUS_COLUMN) if has_column else held_out
        start += size
    is_held_out = have_text & np.isin(hashes, distinct[:total])
    splits["train"] = pairs.select(np.flatnonzero(~is_held_out))
    return splits


def _hash_pairs(pairs: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash [N] uint64 of each pair, and an array [N] bool: True if the source and the target of
    the pair contain text. The hash ignores outer white space.
    """
    hashes = np.zeros(len(pairs), np.uint64)
    have_text = np.zeros(len(pairs), bool)
    row = 0
    for batch in pairs.iter(batch_size=_BATCH_SIZE):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            source = source.strip()
            target = target.strip()
            digest = hashlib.blake2b(f"{source}\0{target}".encode(), digest_size=8).digest()
            hashes[row] = int.from_bytes(digest, "little")
            have_text[row] = bool(source and target)
            row += 1
        mapped_files.release()
    return hashes, have_text
