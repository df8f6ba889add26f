"""Divides a stream of sentence pairs into batches of limited size. A stream is a dataset of unknown size that
is read during the training.

`EndlessStream` reads consecutive sentence pairs in groups (windows). Each window is divided into batches in
the same way as batching.py divides a corpus. A checkpoint contains the position in the stream at which the
current window of sentence pairs begins. Therefore a resumed run continues with exactly the next batch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data
from datasets import IterableDataset

from ..model.errors_vaswani import InvalidValueError
from .batching import cut_into_batches

# The number of shards from which the stream reads sentence pairs alternately. Read from several shards,
# because all pairs of a shard can belong to the same language, domain or corpus.
_NUM_OPEN_SHARDS = 8


class EndlessStream(torch.utils.data.IterableDataset):
    """Yields the training batches of one process from a stream of tokenized sentence pairs, without end.

    The pairs of a window are shuffled, sorted by length and divided into batches, and then the batches are
    shuffled. Every process reads the whole stream. Use `DataLoader(stream, batch_size=None,
    collate_fn=collator)` without workers, because `state_dict` must run in the process that reads the stream.
    """

    # `batches_per_epoch` is None, because the number of batches in an epoch of a stream is unknown.
    batches_per_epoch = None

    def __init__(
        self,
        pairs: IterableDataset,
        source_tokens: int,
        target_tokens: int,
        *,
        seed: int,
        num_processes: int = 1,
        process_index: int = 0,
        window_batches: int = 100,
    ):
        """A window contains enough sentence pairs for `window_batches` full batches, except for the last
        window of an epoch.
        """
        self._pairs = ShuffledShards(pairs, seed)
        self._budgets = (source_tokens, target_tokens)
        self._seed = seed
        self._num_processes = num_processes
        self._process_index = process_index
        self._window_batches = window_batches
        # `_window` records where the current window of sentence pairs begins: the epoch, the window, the
        # first batch and the stream position. `_position` is the number of finished batches, counted over all
        # epochs and all processes.
        self._window: dict[str, Any] = {"epoch": 0, "window": 0, "first_batch": 0, "pairs": None}
        self._position = 0

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return the state for `load_state_dict`. All processes return the same state.

        A run with another number of processes can load the state. `position` is the number of batches on
        which the run has trained, counted over all epochs and all processes. By default, `position` is the
        number of batches that all processes together have yielded.
        """
        done = self._position if position is None else position
        if done < self._window["first_batch"]:
            raise InvalidValueError(
                f"`position` must be at least {self._window['first_batch']}, the first batch of the window, "
                f"but is {done}."
            )
        return {**self._window, "position": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a result of `state_dict`. The iteration skips the batches on which the run has
        already trained.
        """
        self._position = state["position"]
        self._window = {name: state[name] for name in self._window}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        # Each of `n` processes computes all batches, but yields only every `n`-th batch. Therefore the state
        # of the stream is the same in all processes.
        for batches in zip(*[self._sequence()] * self._num_processes, strict=False):
            self._position += self._num_processes
            yield batches[self._process_index]

    def _sequence(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches of all processes and epochs, without the batches on which the run has trained."""
        done = self._position
        number = self._window["first_batch"]
        epoch = self._window["epoch"]
        first_window = self._window["window"]
        start = self._window["pairs"]
        while True:
            # Raise the error about an empty stream only after a complete epoch without pairs. A resumed run
            # reads only the rest of an epoch.
            has_pairs = first_window > 0
            for window, (place, pairs) in enumerate(self._windows(epoch, start), first_window):
                has_pairs = True
                self._window = {"epoch": epoch, "window": window, "first_batch": number, "pairs": place}
                for batch in self._batches(pairs, [self._seed, epoch, window]):
                    number += 1
                    if number > done:
                        yield batch
            if not has_pairs:
                raise ValueError(
                    "The stream of training pairs must contain a pair that the cleaning keeps, but has none."
                )
            epoch += 1
            first_window = 0
            start = None

    def _windows(self, epoch: int, start: Any) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
        """Yield the windows of an epoch from the stream position `start` on, as (start position, pairs)."""
        source_tokens, target_tokens = self._budgets
        # A sentence pair uses a fraction of each of the two budgets: source length / `source_tokens`, and
        # target length / `target_tokens`. Multiply both fractions by `source_tokens * target_tokens`, so that
        # the size of the sentence pair is an integer. The size of a sentence pair is the larger of two
        # products: source length * `target_tokens`, and target length * `source_tokens`. A batch is full when
        # the sum of the pair sizes is about `source_tokens * target_tokens`. With floating-point sizes,
        # rounding errors could make a resumed run begin a window of pairs at another stream position than the
        # original run.
        batch_size = source_tokens * target_tokens
        pairs: list[dict[str, Any]] = []
        filled = 0
        # `full` is None until enough sentence pairs for a window have been read. For a full window, `full`
        # contains the number of pairs, the sum of the pair sizes, and the stream position after the window.
        full: tuple[int, int, Any] | None = None
        for pair in self._pairs.epoch(epoch, start):
            pairs.append({**pair, "epoch": epoch})
            filled += max(pair["source_length"] * target_tokens, pair["target_length"] * source_tokens)
            # When a window of sentence pairs is full, read the pairs of one more batch before yielding the
            # window. At the end of the epoch, add the pairs of an incomplete batch to the last window of
            # sentence pairs.
            if full is not None and filled >= (self._window_batches + 1) * batch_size:
                count, filled_before, place = full
                yield start, pairs[:count]
                pairs = pairs[count:]
                filled -= filled_before
                start = place
                full = None
            if full is None and filled >= self._window_batches * batch_size:
                full = (len(pairs), filled, self._pairs.state_dict())
        if pairs:
            yield start, pairs

    def _batches(self, pairs: list[dict[str, Any]], seed: list[int]) -> list[list[dict[str, Any]]]:
        generator = np.random.default_rng(seed)
        # Shuffle the pairs, so that each epoch distributes pairs of equal lengths differently to the batches.
        pairs = [pairs[row] for row in generator.permutation(len(pairs))]
        source_lengths = np.array([pair["source_length"] for pair in pairs])
        target_lengths = np.array([pair["target_length"] for pair in pairs])
        batches = cut_into_batches(source_lengths, target_lengths, *self._budgets)
        generator.shuffle(batches)
        return [[pairs[row] for row in batch] for batch in batches]


class ShuffledShards:
    """Reads the shards of a stream in a different random order in each epoch, and takes pairs alternately
    from several open shards.

    The shuffle buffer of `datasets` is not used, because its content is lost when a run stops. A stream with
    a single shard is read in its stored order.
    """

    def __init__(self, pairs: IterableDataset, seed: int):
        self._pairs = pairs
        self._seed = seed
        self._beginning = pairs.state_dict()
        self._open: list[tuple[int, IterableDataset, Iterator[dict[str, Any]]]] = []
        self._num_opened = 0
        self._turn = 0

    def state_dict(self) -> dict[str, Any]:
        """Return a dict. `open` contains the open shards and their positions. `opened` is the number of
        shards opened so far. The next pair comes from the open shard with the index `turn`.
        """
        shards = [[shard, pairs.state_dict()] for shard, pairs, _ in self._open]
        return {"open": shards, "opened": self._num_opened, "turn": self._turn}

    def epoch(self, epoch: int, place: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        """Yield the pairs of an epoch from the position `place` on. `place` is a result of `state_dict`, or
        None for the beginning of the epoch.
        """
        order = np.random.default_rng([self._seed, epoch]).permutation(self._pairs.num_shards).tolist()
        if place is None:
            place = {"open": [], "opened": 0, "turn": 0}
        self._open = [self._begin(shard, epoch, state) for shard, state in place["open"]]
        self._num_opened = place["opened"]
        self._turn = place["turn"]
        while len(self._open) < _NUM_OPEN_SHARDS and self._num_opened < len(order):
            self._open_next(order, epoch, len(self._open))
        while self._open:
            pair = next(self._open[self._turn][2], None)
            if pair is not None:
                self._turn = (self._turn + 1) % len(self._open)
                yield pair
                continue
            # Replace the finished shard by the next shard of the epoch.
            del self._open[self._turn]
            if self._num_opened < len(order):
                self._open_next(order, epoch, self._turn)
            self._turn = self._turn % max(1, len(self._open))

    def _open_next(self, order: list[int], epoch: int, position: int) -> None:
        self._open.insert(position, self._begin(order[self._num_opened], epoch, None))
        self._num_opened += 1

    def _begin(self, shard: int, epoch: int, state: dict[str, Any] | None) -> tuple:
        count = self._pairs.num_shards
        # At the beginning of an epoch, reset a stream with a single shard to its first pair, because the
        # stream keeps its position from the previous epoch. If the stream has several shards,
        # `self._pairs.shard` returns a new stream that contains only the pairs of one shard.
        pairs = self._pairs.shard(count, shard) if count > 1 else self._pairs
        pairs.set_epoch(epoch)
        if state is not None or count == 1:
            pairs.load_state_dict(self._beginning if state is None else state)
        return shard, pairs, iter(pairs)
