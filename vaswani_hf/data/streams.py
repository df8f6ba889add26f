"""Token-budget batches of a stream, whose size is unknown and which is read during the training.

`EndlessStream` reads the stream window by window, and makes batches of each window as batching.py makes
batches of a corpus. A killed run continues exactly, because its checkpoint has the state of the current
window.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data
from datasets import IterableDataset

from .batching import cut_into_batches

# The number of shards that are read in turn, because each shard may have one language, domain or corpus only.
_NUM_OPEN_SHARDS = 8


class EndlessStream(torch.utils.data.IterableDataset):
    """The batches of one process from a stream of encoded pairs, in epoch after epoch.

    The pairs of a window are permuted, sorted by length and cut into batches, and the batches are permuted.
    If less than a full batch is left at the end of an epoch, these pairs belong to the last window. Every
    process reads the whole stream. Use `DataLoader(stream, batch_size=None, collate_fn=collator)` without
    workers, because the state of the stream is in the process that reads it.
    """

    # The number of batches is unknown until the stream was read.
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
        """`pairs` is a stream of `prepare_pairs`. A window has the tokens of `window_batches` batches."""
        self._pairs = ShuffledShards(pairs, seed)
        self._budgets = (source_tokens, target_tokens)
        self._seed = seed
        self._num_processes = num_processes
        self._process_index = process_index
        self._window_batches = window_batches
        # The current window, and the number of finished batches of all epochs and processes.
        self._window: dict[str, Any] = {"epoch": 0, "window": 0, "first_batch": 0, "pairs": None}
        self._position = 0

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """The state for `load_state_dict`. All processes have the same state, for any number of processes.

        `position` is the number of finished batches of all epochs and processes. None means all batches that
        the iterator has given.
        """
        done = self._position if position is None else position
        if done < self._window["first_batch"]:
            raise ValueError(
                f"`position` must be at least {self._window['first_batch']}, where the window begins, but is {done}."
            )
        return {**self._window, "position": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from a `state_dict`. It reads little more than one window again."""
        self._position = state["position"]
        self._window = {name: state[name] for name in self._window}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        # Each process takes one batch for every process, so that all processes have the same state.
        for batches in zip(*[self._sequence()] * self._num_processes, strict=False):
            self._position += self._num_processes
            yield batches[self._process_index]

    def _sequence(self) -> Iterator[list[dict[str, Any]]]:
        """The batches of all epochs and processes, without the finished batches."""
        done = self._position
        number = self._window["first_batch"]
        epoch = self._window["epoch"]
        first_window = self._window["window"]
        start = self._window["pairs"]
        while True:
            # The epoch of a resumed run may have no pairs left.
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
                    "The stream of training pairs must hold a pair that survives cleaning, but has none."
                )
            epoch += 1
            first_window = 0
            start = None

    def _windows(self, epoch: int, start: Any) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
        """The windows of an epoch from the place `start` on, each with the place where it begins."""
        source_tokens, target_tokens = self._budgets
        # Count in integers, because the rounding of a sum of fractions would depend on where a run was
        # resumed.
        batch_size = source_tokens * target_tokens
        pairs: list[dict[str, Any]] = []
        filled = 0
        # Set when the window is full: its number of pairs, their size, and the place after them.
        full: tuple[int, int, Any] | None = None
        for pair in self._pairs.epoch(epoch, start):
            pairs.append({**pair, "epoch": epoch})
            filled += max(pair["source_length"] * target_tokens, pair["target_length"] * source_tokens)
            # Read one more batch, because less than a batch at the end of the epoch belongs to this window.
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
        # Permute the pairs, because otherwise the same pairs of equal lengths would share a batch in each
        # epoch.
        pairs = [pairs[row] for row in generator.permutation(len(pairs))]
        source_lengths = np.array([pair["source_length"] for pair in pairs])
        target_lengths = np.array([pair["target_length"] for pair in pairs])
        batches = cut_into_batches(source_lengths, target_lengths, *self._budgets)
        generator.shuffle(batches)
        return [[pairs[row] for row in batch] for batch in batches]


class ShuffledShards:
    """The pairs of a stream, epoch by epoch, from several shards in turn, from any place on.

    Each epoch has another order of the shards. The shuffle buffer of `datasets` is not used, because it is
    lost if a run stops. A stream with a single shard is read in its own order.
    """

    def __init__(self, pairs: IterableDataset, seed: int):
        self._pairs = pairs
        self._seed = seed
        self._beginning = pairs.state_dict()
        self._open: list[tuple[int, IterableDataset, Iterator[dict[str, Any]]]] = []
        self._num_opened = 0
        self._turn = 0

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch: open shards and their places, number of opened shards, next shard."""
        shards = [[shard, pairs.state_dict()] for shard, pairs, _ in self._open]
        return {"open": shards, "opened": self._num_opened, "turn": self._turn}

    def epoch(self, epoch: int, place: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        """The pairs of an epoch, from the beginning or from the place of a `state_dict` on."""
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
            # The next shard replaces a finished shard.
            del self._open[self._turn]
            if self._num_opened < len(order):
                self._open_next(order, epoch, self._turn)
            self._turn = self._turn % max(1, len(self._open))

    def _open_next(self, order: list[int], epoch: int, position: int) -> None:
        self._open.insert(position, self._begin(order[self._num_opened], epoch, None))
        self._num_opened += 1

    def _begin(self, shard: int, epoch: int, state: dict[str, Any] | None) -> tuple:
        count = self._pairs.num_shards
        # All views of a stream share one position. Only a shard has a position of its own.
        pairs = self._pairs.shard(count, shard) if count > 1 else self._pairs
        pairs.set_epoch(epoch)
        if state is not None or count == 1:
            pairs.load_state_dict(self._beginning if state is None else state)
        return shard, pairs, iter(pairs)
