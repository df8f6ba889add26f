"""Computes the digest of a corpus, and stores the digest in the cache of `datasets`.

tokenizer_training.py stores the tokenizers of a corpus in the same cache.
"""

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, IterableDataset

from ..checkpoint.files import explain_write_errors, write_whole
from ..checkpoint.results import Record
from ..version import __version__
from .columns import CORPUS_COLUMN, Column, kept_rows, pair_corpora
from .memory import mapped_files

# The number of sentence pairs to hash at the beginning of a stream. Hash only a few pairs of a stream,
# because each run hashes the pairs again when the run starts.
_NUM_DIGESTED_PAIRS_OF_STREAM = 1000


class CorpusDigest(Record):
    """The number and the SHA-256 hash of training pairs. A resumed run compares its digest with the digest of
    the original run.
    """

    # The number of sentence pairs. None for a stream.
    count: int | None
    # The hash of all pairs; for a stream, the hash of the first 1000 pairs.
    sha256: str


def corpus_digest(pairs: Dataset | IterableDataset) -> CorpusDigest:
    """Return the digest of training pairs. The digest depends only on the content of the pairs, and not on
    the cache folder or the time of the tokenization.
    """
    if isinstance(pairs, IterableDataset):
        # Read the pairs from a copy of the stream, so that the training starts with the first pair of the
        # original stream.
        first = copy.deepcopy(pairs).take(_NUM_DIGESTED_PAIRS_OF_STREAM)
        return CorpusDigest(count=None, sha256=hash_of_texts(first))
    rows = kept_rows(pairs)
    digest = hashlib.sha256()
    for name in ("input_ids", "labels"):
        ids = hashlib.sha256()
        lengths = hashlib.sha256()
        for lists in Column(pairs.data.column(name)).lists(rows):
            ids.update(np.ascontiguousarray(lists.flatten().to_numpy(), "<i4"))
            lengths.update(np.ascontiguousarray(lists.value_lengths().to_numpy(), "<i4"))
            mapped_files.release()
        digest.update(ids.digest() + lengths.digest())
    if CORPUS_COLUMN in pairs.column_names:
        # Hash the corpus of each pair too, because the weight of the corpus determines how often an epoch
        # contains the pair.
        digest.update(np.ascontiguousarray(pair_corpora(pairs), "<i4"))
    return CorpusDigest(count=len(pairs), sha256=digest.hexdigest())


def hash_of_texts(pairs: Iterable[dict[str, Any]]) -> str:
    """Return the SHA-256 hash of the texts of sentence pairs."""
    text = "\n".join(json.dumps(pair, sort_keys=True) for pair in pairs)
    return hashlib.sha256(text.encode()).hexdigest()


def cached_digest(pairs: Dataset) -> CorpusDigest:
    """Return the `corpus_digest` of tokenized sentence pairs, from the cache if possible."""
    cache = cache_folder(pairs)
    if cache is None:
        return corpus_digest(pairs)
    path = cache / f"digest-{cache_key(pairs, hashlib.sha256(kept_rows(pairs)).hexdigest())}.json"
    # Ignore a missing or damaged file, because the digest is then computed below.
    with contextlib.suppress(OSError, ValueError):
        digest = CorpusDigest.model_validate_json(path.read_bytes())
        if digest.count == len(pairs):
            return digest
    digest = corpus_digest(pairs)
    # Ignore the error if the cache is full or read-only, because the next run can compute the digest again.
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(digest.as_json()))
    return digest


def explain_cache_errors(folder: Path | None = None) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that explains the error if `datasets` cannot write to its cache `folder`. By
    default, `folder` is the cache folder of `datasets`.
    """
    return explain_write_errors(
        folder or Path(datasets.config.HF_DATASETS_CACHE),
        remedy="free disk space, or set HF_DATASETS_CACHE to a folder with more space",
    )


def cache_folder(pairs: Dataset | IterableDataset) -> Path | None:
    """Return the cache folder of a dataset, or None for a stream and for a dataset in memory."""
    files = getattr(pairs, "cache_files", [])
    return Path(files[0]["filename"]).parent if files else None


def cache_key(pairs: Dataset, options: Any) -> str:
    """Return a hash of the paths, sizes and modification times of the files of a dataset, of the version of
    this package, and of `options`.
    """
    files = [file["filename"] for file in pairs.cache_files]
    stamps = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    text = json.dumps([__version__, len(pairs), stamps, options], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
