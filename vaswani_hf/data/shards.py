"""The pairs of a stream, shuffled by its shards: in another order each epoch, several of them in turn, resumable exactly.

The buffer with which `datasets` shuffles a stream is lost where a run stops.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import IterableDataset

# Files of one language, domain or corpus stand side by side; windows of batches take from so many.
_SHARDS_AT_ONCE = 8


class ShuffledShards:
    """The pairs of a stream epoch by epoch, from any place on: the next pair of each of several shards, in turn."""

    def __init__(self, pairs: IterableDataset, seed: int):
        """Reads nothing yet.

        Args:
            pairs: The stream; one of a single shard is read in its order.
            seed: It decides the order of the shards, together with the epoch.
        """
        self._pairs = pairs
        self._seed = seed
        self._beginning = pairs.state_dict()
        self._open: list[tuple[int, IterableDataset, Iterator[dict[str, Any]]]] = []
        self._opened = self._turn = 0

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch: the open shards with their places, the number of opened ones, and whose turn it is."""
        shards = [[shard, pairs.state_dict()] for shard, pairs, _ in self._open]
        return {"open": shards, "opened": self._opened, "turn": self._turn}

    def epoch(self, epoch: int, place: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        """The pairs of an epoch from a place on.

        Args:
            epoch: Its number.
            place: A `state_dict` of this epoch; `None` for the beginning.
        """
        order = np.random.default_rng([self._seed, epoch]).permutation(self._pairs.num_shards).tolist()
        self._open, self._opened, self._turn = [], 0, 0
        if place is not None:
            self._open = [self._begin(shard, epoch, state) for shard, state in place["open"]]
            self._opened, self._turn = place["opened"], place["turn"]
        while len(self._open) < min(_SHARDS_AT_ONCE, len(order) - self._opened + len(self._open)):
            self._open_next(order, epoch, len(self._open))
        while self._open:
            pair = next(self._open[self._turn][2], None)
            if pair is not None:
                self._turn = (self._turn + 1) % len(self._open)
                yield pair
                continue
            # The next shard takes the place of one that is over.
            del self._open[self._turn]
            if self._opened < len(order):
                self._open_next(order, epoch, self._turn)
            self._turn = self._turn % max(1, len(self._open))

    def _open_next(self, order: list[int], epoch: int, position: int) -> None:
        self._open.insert(position, self._begin(order[self._opened], epoch, None))
        self._opened += 1

    def _begin(self, shard: int, epoch: int, state: dict[str, Any] | None) -> tuple:
        count = self._pairs.num_shards
        # What is made of a stream shares its place, a shard does not.
        pairs = self._pairs.shard(count, shard) if count > 1 else self._pairs
        pairs.set_epoch(epoch)
        if state is not None or count == 1:
            pairs.load_state_dict(self._beginning if state is None else state)
        return shard, pairs, iter(pairs)
