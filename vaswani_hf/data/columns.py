"""Prepared pairs in memory-mapped Arrow files: lengths, the rows of a batch, a digest, and their memory.

`datasets` would gather rows one by one as soon as a pair was dropped, and make a Python number of each token.

Legend of shapes: N pairs of the corpus, B pairs of a batch, L length of a sentence in tokens.
"""

import copy
import ctypes
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch.utils.data
from datasets import Dataset, IterableDataset

# The number of the corpus of a pair, if corpora have weights.
CORPUS_COLUMN = "corpus"
# The columns that batches are cut by and that no batch holds.
_LENGTHS = ("source_length", "target_length")
# The pairs of a stream that stand for all of them: few enough to be read again at every start.
_DIGESTED_OF_A_STREAM = 1000
# The pages of memory-mapped files that stay resident, in bytes.
_MOST_MAPPED = 2**28
_MADV_DONTNEED = 4
# M_MMAP_THRESHOLD, the largest that there is, M_TRIM_THRESHOLD and M_TOP_PAD of the C library's mallopt, in
# bytes.
_KEEPING = {-3: 2**25, -1: 2**31 - 1, -2: 2**26}


def kept_rows(pairs: Dataset) -> np.ndarray:
    """The rows of the Arrow table that a dataset holds, in its order, [N] int64."""
    # `select` leaves the table as it is and only writes down the rows.
    if pairs._indices is None:
        return np.arange(len(pairs))
    return pairs._indices.column(0).to_numpy().astype(np.int64)


def pair_lengths(pairs: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The source and the target lengths of prepared pairs, [N] int64 each, in tokens."""
    rows = kept_rows(pairs)
    source, target = (pairs.data.column(name).to_numpy()[rows].astype(np.int64) for name in _LENGTHS)
    return source, target


def pair_corpora(pairs: Dataset) -> np.ndarray:
    """The number of the corpus of each of the prepared pairs, [N] int64."""
    return pairs.data.column(CORPUS_COLUMN).to_numpy()[kept_rows(pairs)].astype(np.int64)


class _Column:
    """A column of an Arrow table, by row. A list of token ids is a view of the file, not a copy."""

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
            return [
                self._chunks[number][place].as_py() for number, place in zip(numbers, places, strict=True)
            ]
        for number in set(numbers) - self._views.keys():
            chunk = self._chunks[number]
            # A memoryview gives one offset faster than an array.
            self._views[number] = (chunk.values.to_numpy(), memoryview(chunk.offsets.to_numpy()))
        views = [self._views[number] for number in numbers]
        return [
            ids[offsets[place] : offsets[place + 1]]
            for (ids, offsets), place in zip(views, places, strict=True)
        ]

    def lists(self, rows: np.ndarray) -> Iterator[pyarrow.Array]:
        """The lists of token ids of [N] rows, in their order, as Arrow arrays of many."""
        numbers, places = self._places(rows)
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for run in np.split(np.arange(len(rows)), cuts):
            yield self._chunks[numbers[run[0]]].take(pyarrow.array(places[run]))


class PairRows(torch.utils.data.Dataset):
    """Prepared pairs for a `DataLoader`, which fetches those of a batch together.

    `input_ids` and `labels` are [L] int32 views of the memory-mapped file: nothing is kept in memory, and a
    worker, forked or spawned, maps the file for itself.
    """

    def __init__(self, pairs: Dataset):
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
    """The `count` of the training pairs and their `sha256`, by which a resumed run knows its pairs again.

    The digest does not depend on where and when the pairs were prepared. A stream is known by the hash of its
    first thousand pairs, and has None for `count`.
    """
    if isinstance(pairs, IterableDataset):
        # A stream and what is made of it share their place.
        first = copy.deepcopy(pairs).take(_DIGESTED_OF_A_STREAM)
        text = "\n".join(json.dumps(pair, sort_keys=True) for pair in first)
        return {"count": None, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    rows = kept_rows(pairs)
    digest = hashlib.sha256()
    for name in ("input_ids", "labels"):
        ids = hashlib.sha256()
        lengths = hashlib.sha256()
        for lists in _Column(pairs.data.column(name)).lists(rows):
            ids.update(np.ascontiguousarray(lists.flatten().to_numpy(), "<i4"))
            lengths.update(np.ascontiguousarray(lists.value_lengths().to_numpy(), "<i4"))
            mapped_files.release()
        digest.update(ids.digest() + lengths.digest())
    if CORPUS_COLUMN in pairs.column_names:
        # The same pairs, divided into corpora otherwise, are seen otherwise.
        digest.update(np.ascontiguousarray(pair_corpora(pairs), "<i4"))
    return {"count": len(pairs), "sha256": digest.hexdigest()}


# Memory


def _c_function(name: str) -> Any:
    """A function of the C library of Linux; None on other systems, which need no advice about memory."""
    return getattr(ctypes.CDLL(None), name, None) if os.path.exists("/proc/self/statm") else None


def return_free_memory() -> None:
    """Gives back what the C library keeps for later: half a gigabyte after the training of a tokenizer."""
    trim = _c_function("malloc_trim")
    if trim is not None:
        trim(0)


def keep_free_memory() -> None:
    """Lets the C library keep what is freed, for work that asks for the same amounts again and again.

    A training step is 4 % faster if the system need not hand out fresh pages, 20,000 of them in a small
    model.
    """
    set_option = _c_function("mallopt")
    if set_option is not None:
        for option, value in _KEEPING.items():
            set_option(option, value)


class MappedFiles:
    """The memory-mapped Arrow files of this process. A page counts as its memory once it was looked at."""

    def __init__(self) -> None:
        self._unavoidable = 0
        self._advise = _c_function("madvise")

    def release(self) -> None:
        """Drops the pages if they have become many. A page comes back when it is looked at again."""
        if self._advise is None or _shared_bytes() < self._unavoidable + _MOST_MAPPED:
            return
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            if line.endswith(".arrow") and line.split()[1].startswith("r--"):
                start, end = (int(place, 16) for place in line.split()[0].split("-"))
                self._advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
        # The code of libraries is shared too.
        self._unavoidable = _shared_bytes()


def _shared_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2]) * os.sysconf("SC_PAGE_SIZE")


mapped_files = MappedFiles()
