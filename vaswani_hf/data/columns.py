"""Columns of prepared pairs, straight from Arrow's memory-mapped buffers: lengths, the examples of a batch, a digest.

`datasets` gathers rows one by one as soon as a pair was dropped, and makes a Python number of each token.

Legend of shapes: N pairs of the corpus, B pairs of a batch, L length of a sentence in tokens.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow
import torch.utils.data
from datasets import Dataset, IterableDataset

from .memory import mapped_files

# The number of the corpus of a pair, where corpora have weights.
CORPUS_COLUMN = "corpus"
# The columns that batches are cut by and that no batch holds.
_LENGTHS = ("source_length", "target_length")
# The pairs of a stream that stand for all of them: few enough to be read again at every start.
_DIGESTED_OF_A_STREAM = 1000


def kept_rows(pairs: Dataset) -> np.ndarray:
    """The rows of the Arrow table that a dataset holds, in its order, [N] int64.

    Args:
        pairs: The dataset.
    """
    # `select` leaves the table as it is and only writes down the rows.
    if pairs._indices is None:
        return np.arange(len(pairs))
    return pairs._indices.column(0).to_numpy().astype(np.int64)


def pair_lengths(pairs: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The source and the target lengths of prepared pairs, [N] int64 each, in tokens.

    Args:
        pairs: The dataset of `prepare_pairs`.
    """
    rows = kept_rows(pairs)
    source, target = (pairs.data.column(name).to_numpy()[rows].astype(np.int64) for name in _LENGTHS)
    return source, target


def pair_corpora(pairs: Dataset) -> np.ndarray:
    """The number of the corpus of each of the prepared pairs, [N] int64.

    Args:
        pairs: The dataset of `prepare_pairs`, with the column `corpus`.
    """
    return pairs.data.column(CORPUS_COLUMN).to_numpy()[kept_rows(pairs)].astype(np.int64)


class _Column:
    """A column of an Arrow table, by row; a list of token ids is a view of the file, not a copy."""

    def __init__(self, chunks: pyarrow.ChunkedArray):
        self._chunks = chunks.chunks
        self._starts = np.cumsum([0, *map(len, self._chunks)])
        self._is_list = pyarrow.types.is_list(chunks.type) or pyarrow.types.is_large_list(chunks.type)
        self._views: dict[int, tuple[np.ndarray, memoryview]] = {}

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The chunk of each row, and its place in there."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        return numbers, rows - self._starts[numbers]

    def __getitem__(self, rows: np.ndarray) -> list[Any]:
        """The cells of [B] rows."""
        numbers, places = (array.tolist() for array in self._places(rows))
        if not self._is_list:
            return [self._chunks[number][place].as_py() for number, place in zip(numbers, places, strict=True)]
        for number in set(numbers) - self._views.keys():
            chunk = self._chunks[number]
            # A memoryview gives one offset faster than an array.
            self._views[number] = (chunk.values.to_numpy(), memoryview(chunk.offsets.to_numpy()))
        views = [self._views[number] for number in numbers]
        return [ids[offsets[place] : offsets[place + 1]] for (ids, offsets), place in zip(views, places, strict=True)]

    def lists(self, rows: np.ndarray) -> Iterator[pyarrow.Array]:
        """The lists of token ids of [N] rows, in their order, as Arrow arrays of many."""
        numbers, places = self._places(rows)
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for run in np.split(np.arange(len(rows)), cuts):
            yield self._chunks[numbers[run[0]]].take(pyarrow.array(places[run]))


class PairRows(torch.utils.data.Dataset):
    """Prepared pairs for a `DataLoader`, which fetches those of a batch together.

    `input_ids` and `labels` are [L] int32 views of the memory-mapped file: nothing is kept in memory, and a worker, forked
    or spawned, maps the file for itself.
    """

    def __init__(self, pairs: Dataset):
        """Reads nothing yet.

        Args:
            pairs: The dataset of `prepare_pairs`.
        """
        self._pairs = pairs
        self._columns: dict[str, _Column] | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        if self._columns is None:
            names = [name for name in self._pairs.column_names if name not in (*_LENGTHS, CORPUS_COLUMN)]
            self._rows = kept_rows(self._pairs)
            self._columns = {name: _Column(self._pairs.data.column(name)) for name in names}
        mapped_files.release()
        rows = self._rows[np.asarray(numbers)]
        pairs: list[dict[str, Any]] = [{} for _ in numbers]
        for name, column in self._columns.items():
            for pair, cell in zip(pairs, column[rows], strict=True):
                pair[name] = cell
        return pairs

    def __getstate__(self) -> dict[str, Any]:
        # A view would be sent to a worker as a copy of all that it shows.
        return {"_pairs": self._pairs, "_columns": None}


def corpus_digest(pairs: Dataset | IterableDataset) -> dict[str, Any]:
    """The number of training pairs and a hash of them, the same wherever and whenever the same pairs were prepared.

    Args:
        pairs: The dataset of `prepare_pairs`; or a stream, of which the first thousand pairs are read.

    Returns:
        `count`, which is `None` for a stream, and `sha256`; ready for JSON.
    """
    if isinstance(pairs, IterableDataset):
        # A stream and what is made of it share their place.
        first = copy.deepcopy(pairs).take(_DIGESTED_OF_A_STREAM)
        text = "\n".join(json.dumps(pair, sort_keys=True) for pair in first)
        return {"count": None, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    rows, digest = kept_rows(pairs), hashlib.sha256()
    for name in ("input_ids", "labels"):
        ids, lengths = hashlib.sha256(), hashlib.sha256()
        for lists in _Column(pairs.data.column(name)).lists(rows):
            ids.update(np.ascontiguousarray(lists.flatten().to_numpy(), "<i4"))
            lengths.update(np.ascontiguousarray(lists.value_lengths().to_numpy(), "<i4"))
            mapped_files.release()
        digest.update(ids.digest() + lengths.digest())
    if CORPUS_COLUMN in pairs.column_names:
        # The same pairs, divided into corpora otherwise, are seen otherwise.
        digest.update(np.ascontiguousarray(pair_corpora(pairs), "<i4"))
    return {"count": len(pairs), "sha256": digest.hexdigest()}
