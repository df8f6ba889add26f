"""Reads columns of a tokenized corpus from memory-mapped Arrow files.

This module reads rows faster than the library `datasets`. After `select`, `datasets` reads rows one by one,
and converts each token id to a Python integer.

In array shapes, N is the number of sentence pairs in the corpus, and B is the number of pairs in a batch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset

# The name of the column with the index of the corpus from which each pair comes. The column with the index of
# the corpus exists only if the training corpora have weights.
CORPUS_COLUMN = "corpus"


def kept_rows(pairs: Dataset) -> np.ndarray:
    """Return the row number [N] int64 of each pair in the Arrow table, in the order of the dataset."""
    # Read the row numbers from `_indices`, because `select` changes `_indices` instead of the table.
    if pairs._indices is None:
        return np.arange(len(pairs))
    return pairs._indices.column(0).to_numpy().astype(np.int64)


def pair_lengths(pairs: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the source lengths [N] int64 and the target lengths [N] int64 of sentence pairs, in tokens."""
    rows = kept_rows(pairs)
    source = pairs.data.column("source_length").to_numpy()[rows].astype(np.int64)
    target = pairs.data.column("target_length").to_numpy()[rows].astype(np.int64)
    return source, target


def pair_corpora(pairs: Dataset) -> np.ndarray:
    """For each sentence pair, return the index of its training corpus, [N] int64."""
    return pairs.data.column(CORPUS_COLUMN).to_numpy()[kept_rows(pairs)].astype(np.int64)


class Column:
    """Reads a column of an Arrow table. A list of token ids is a view of the memory-mapped file."""

    def __init__(self, chunks: pyarrow.ChunkedArray):
        self._chunks = chunks.chunks
        self._starts = np.cumsum([0, *map(len, self._chunks)])
        self._is_list = pyarrow.types.is_list(chunks.type) or pyarrow.types.is_large_list(chunks.type)
        self._views: dict[int, tuple[np.ndarray, memoryview]] = {}

    def _positions(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of the Arrow chunk of each row in `rows`, and the position in the chunk."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        return numbers, rows - self._starts[numbers]

    def cells(self, rows: np.ndarray) -> list[Any]:
        """Return the value of the column in each of the rows `rows` [B]."""
        numbers, positions = (array.tolist() for array in self._positions(rows))
        places = list(zip(numbers, positions, strict=True))
        if not self._is_list:
            return [self._chunks[number][position].as_py() for number, position in places]
        for number in set(numbers) - self._views.keys():
            chunk = self._chunks[number]
            # Store the offsets as a memoryview, because a memoryview returns a single number faster than a
            # NumPy array.
            self._views[number] = (chunk.values.to_numpy(), memoryview(chunk.offsets.to_numpy()))
        cells = []
        for number, position in places:
            ids, offsets = self._views[number]
            cells.append(ids[offsets[position] : offsets[position + 1]])
        return cells

    def lists(self, rows: np.ndarray) -> Iterator[pyarrow.Array]:
        """Yield Arrow arrays with the lists of token ids in the rows `rows`, in the order of `rows`. Each
        Arrow array contains the lists of one or more rows.
        """
        numbers, positions = self._positions(rows)
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for run in np.split(np.arange(len(rows)), cuts):
            yield self._chunks[numbers[run[0]]].take(pyarrow.array(positions[run]))
