"""Training batches without an end: epoch after epoch, from any batch on, shared between processes.

`EndlessSampler` takes the batches of a corpus on disk from batching.py, and `EndlessStream` those of a
stream, window by window. `WeightedPairs` chooses the pairs of each epoch if corpora have weights. A killed
run goes on exactly, with the number of the batches that it has computed, and for a stream with the state of
the last window.

The batches of all epochs are one sequence, whatever the number of processes, and none is left out. Process r
of n takes the batches whose number in the sequence leaves the remainder r when divided by n. With gradient
accumulation over a batches, step s of the optimizer therefore takes the batches from s * n * a on, n * a of
them, for any n and a with this product; they may belong to two epochs.

Legend of shapes: N pairs of all corpora, P places of an epoch of weighted corpora.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data
from datasets import IterableDataset

from .batching import TokenBudgetSampler, cut_into_batches, order_by_length
from .columns import PairRows

# The shards of a stream that are read in turn. Files of one language, domain or corpus stand side by side.
_SHARDS_AT_ONCE = 8


class EndlessSampler(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """The batches of epoch after epoch that one process takes, as lists of (epoch, number of the pair)."""

    def __init__(
        self,
        sampler: TokenBudgetSampler,
        position: int = 0,
        *,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        """Starts after the first `position` batches, of all epochs and processes.

        The process with the number `process_index` takes its share of the batches that `num_processes`
        processes compute.
        """
        self._sampler = sampler
        self._position = position
        self._num_processes = num_processes
        self._process_index = process_index

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches of an epoch, for all processes together."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return itertools.islice(self._sequence(), self._process_index, None, self._num_processes)

    def _sequence(self) -> Iterator[list[tuple[int, int]]]:
        first_epoch, seen = divmod(self._position, len(self._sampler))
        for epoch in itertools.count(first_epoch):
            self._sampler.set_epoch(epoch)
            for batch in itertools.islice(self._sampler, seen, None):
                yield [(epoch, number) for number in batch]
            seen = 0


class EpochPairs(PairRows):
    """Prepared pairs by (epoch, number), each with its `epoch`, which decides BPE-dropout with the number.

    If an epoch has a pair several times (see `WeightedPairs`), the number tells its `copy` too, from 0 on.
    """

    def __getitems__(self, keys: Any) -> list[dict[str, Any]]:
        pairs = super().__getitems__([number % len(self) for _, number in keys])
        for (epoch, number), pair in zip(keys, pairs, strict=True):
            pair["epoch"] = epoch
            pair["copy"] = number // len(self)
        return pairs


class WeightedPairs:
    """The pairs of each epoch if corpora have weights.

    A corpus of n pairs with the weight w has m = round(w * n) places in every epoch. Its pairs stand in the
    order of their lengths, and place j is taken by pair floor((j * n + r) / m), where each epoch draws r from
    0 to n - 1. So each pair has floor(m / n) or ceil(m / n) places in an epoch, and m / n on the average. A
    place is as long as the longest pair that may take it, so that batches that are cut by the places serve
    every epoch.

    Attributes:
        source_lengths (ndarray): [P] int64 source tokens of the places of all corpora.
        target_lengths (ndarray): [P] int64 target tokens of the places of all corpora.
        num_pairs (list): The number of pairs of each corpus.
        num_places (list): The number of places of each corpus in an epoch.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        corpora: np.ndarray,
        weights: list[float],
        seed: int,
    ):
        """Puts the pairs of each corpus in the order of their lengths.

        `corpora` has the number of the corpus of each of [N] pairs, and `weights` says how often each pair of a
        corpus is seen in an epoch, on the average. `seed` decides, with the epoch, which pairs are seen.
        """
        self._seed = seed
        # Pairs of equal lengths stand in a random order.
        mixed = np.random.default_rng(seed).permutation(len(corpora))
        order = mixed[order_by_length(source_lengths[mixed], target_lengths[mixed])]
        self._pairs = [order[corpora[order] == number] for number in range(len(weights))]
        self.num_pairs = [len(pairs) for pairs in self._pairs]
        self.num_places = []
        source_parts = []
        target_parts = []
        for pairs, weight in zip(self._pairs, weights, strict=True):
            # The smallest corpus has a place, however small its weight is.
            least = int(weight > 0 and len(pairs) > 0)
            num_places = max(least, round(weight * len(pairs)))
            self.num_places.append(num_places)
            if num_places > 0:
                source_parts.append(_longest_in_places(source_lengths[pairs], num_places))
                target_parts.append(_longest_in_places(target_lengths[pairs], num_places))
        if not source_parts:
            raise ValueError(
                f"`data.train_weights` must leave pairs to train on, but is {weights} where the corpora have"
                f" {self.num_pairs} pairs after cleaning; give one with pairs a weight above 0."
            )
        self.source_lengths = np.concatenate(source_parts)
        self.target_lengths = np.concatenate(target_parts)

    def of_epoch(self, epoch: int) -> np.ndarray:
        """The number of the pair in each place, [P] int64.

        The second time in an epoch the number of a pair is higher by N, the third time by 2 N.
        """
        # The sampler of the batches has the generator of [seed, epoch].
        generator = np.random.default_rng([self._seed, epoch, 1])
        total = sum(self.num_pairs)
        numbers = []
        for pairs, num_places in zip(self._pairs, self.num_places, strict=True):
            if num_places > 0:
                start = generator.integers(len(pairs))
                ranks = (np.arange(num_places) * len(pairs) + start) // num_places
                copies = np.arange(num_places) - np.searchsorted(ranks, ranks)
                numbers.append(pairs[ranks] + copies * total)
        return np.concatenate(numbers)


def _longest_in_places(lengths: np.ndarray, num_places: int) -> np.ndarray:
    """The length of the longest pair that may take each place, [num_places]."""
    places = np.arange(num_places)
    first = places * len(lengths) // num_places
    last = ((places + 1) * len(lengths) - 1) // num_places
    # `reduceat` takes the pairs before the first pair of the next place. The last pair may be that one.
    return np.maximum(np.maximum.reduceat(lengths, first), lengths[last])


class EndlessStream(torch.utils.data.IterableDataset):
    """The batches of a stream of prepared pairs that one process takes, epoch after epoch.

    The stream is read window by window, from its shards in an order of the epoch; the pairs of a window are
    permuted, then sorted and cut like a whole corpus by `TokenBudgetSampler`, and its batches are permuted. A
    rest of less than a full batch at the end of an epoch joins the last window. Every process reads the whole
    stream. Each pair is given the number of its `epoch`. The loader is `DataLoader(stream, batch_size=None,
    collate_fn=collator)`, without workers, because the reading process has the state.
    """

    # The number is not known before the stream was read.
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
        """Starts at the beginning of a stream of `prepare_pairs`; a window is worth `window_batches` batches."""
        self._pairs = ShuffledShards(pairs, seed)
        self._budgets = (source_tokens, target_tokens)
        self._seed = seed
        self._num_processes = num_processes
        self._process_index = process_index
        self._window_batches = window_batches
        # The window that is read, and the number of batches, of all epochs and processes, that are done.
        self._window: dict[str, Any] = {"epoch": 0, "window": 0, "first_batch": 0, "pairs": None}
        self._position = 0

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """The state for `load_state_dict`. It is the same in all processes, for any number of processes.

        `position` is the number of batches, of all epochs and processes, that are done; None means all that
        were taken.
        """
        done = self._position if position is None else position
        if done < self._window["first_batch"]:
            raise ValueError(
                f"`position` must be at least {self._window['first_batch']}, where the window begins, but is {done}."
            )
        return {**self._window, "position": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration go on from a `state_dict`; little more than one window is read again."""
        self._position = state["position"]
        self._window = {name: state[name] for name in self._window}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        # Each process reads on to the last batch of all, so that all have the same state.
        for batches in zip(*[self._sequence()] * self._num_processes, strict=False):
            self._position += self._num_processes
            yield batches[self._process_index]

    def _sequence(self) -> Iterator[list[dict[str, Any]]]:
        """The batches of all epochs and processes, without those that are done."""
        done = self._position
        number = self._window["first_batch"]
        epoch = self._window["epoch"]
        first_window = self._window["window"]
        start = self._window["pairs"]
        while True:
            # The last epoch of a resumed run may be over.
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
        """The windows of an epoch from a place in the stream on, each with the place where it begins."""
        source_tokens, target_tokens = self._budgets
        # Whole numbers, because a sum of fractions would depend on where a run was resumed.
        batch_size = source_tokens * target_tokens
        pairs: list[dict[str, Any]] = []
        filled = 0
        # The number of pairs of the window, what they fill, and the place after them, once they are enough.
        full: tuple[int, int, Any] | None = None
        for pair in self._pairs.epoch(epoch, start):
            pairs.append({**pair, "epoch": epoch})
            filled += max(pair["source_length"] * target_tokens, pair["target_length"] * source_tokens)
            # One batch more is read, to see that the rest of the epoch is worth a window.
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
        # Pairs of equal lengths would meet in the same batches each time.
        pairs = [pairs[row] for row in generator.permutation(len(pairs))]
        source_lengths = np.array([pair["source_length"] for pair in pairs])
        target_lengths = np.array([pair["target_length"] for pair in pairs])
        batches = cut_into_batches(source_lengths, target_lengths, *self._budgets)
        generator.shuffle(batches)
        return [[pairs[row] for row in batch] for batch in batches]


class ShuffledShards:
    """The pairs of a stream, epoch by epoch, from any place on, from several shards in turn.

    Each epoch takes the shards in another order. The buffer with which `datasets` shuffles a stream is lost
    if a run stops. A stream of a single shard is read in its order.
    """

    def __init__(self, pairs: IterableDataset, seed: int):
        self._pairs = pairs
        self._seed = seed
        self._beginning = pairs.state_dict()
        self._open: list[tuple[int, IterableDataset, Iterator[dict[str, Any]]]] = []
        self._num_opened = 0
        self._turn = 0

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch: the open shards and their places, how many were opened, the next shard."""
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
        while len(self._open) < _SHARDS_AT_ONCE and self._num_opened < len(order):
            self._open_next(order, epoch, len(self._open))
        while self._open:
            pair = next(self._open[self._turn][2], None)
            if pair is not None:
                self._turn = (self._turn + 1) % len(self._open)
                yield pair
                continue
            # The next shard takes the place of one that is over.
            del self._open[self._turn]
            if self._num_opened < len(order):
                self._open_next(order, epoch, self._turn)
            self._turn = self._turn % max(1, len(self._open))

    def _open_next(self, order: list[int], epoch: int, position: int) -> None:
        self._open.insert(position, self._begin(order[self._num_opened], epoch, None))
        self._num_opened += 1

    def _begin(self, shard: int, epoch: int, state: dict[str, Any] | None) -> tuple:
        count = self._pairs.num_shards
        # Views of one stream share its position; a shard has its own position.
        pairs = self._pairs.shard(count, shard) if count > 1 else self._pairs
        pairs.set_epoch(epoch)
        if state is not None or count == 1:
            pairs.load_state_dict(self._beginning if state is None else state)
        return shard, pairs, iter(pairs)
