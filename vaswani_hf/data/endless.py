"""Training batches without an end: epoch after epoch, from any batch on, shared between processes.

The batches of all epochs are one sequence, whatever the number of processes, and none is left out. Process r of n takes
the batches whose number in the sequence leaves the remainder r when divided by n. With gradient accumulation over a
batches, step s of the optimizer therefore takes the batches from s * n * a on, n * a of them, for any n and a with this
product; they may belong to two epochs.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.utils.data
from datasets import IterableDataset

from .batching import TokenBudgetSampler, cut_into_batches
from .columns import PairRows
from .shards import ShuffledShards


class EndlessSampler(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """The batches of epoch after epoch that one process takes, as lists of (epoch, number of the pair)."""

    def __init__(
        self, sampler: TokenBudgetSampler, position: int = 0, *, num_processes: int = 1, process_index: int = 0
    ):
        """Starts at any batch.

        Args:
            sampler: The batches of one epoch.
            position: The number of batches, of all epochs and processes, that a resumed run has already seen.
            num_processes: The number of processes that share the batches.
            process_index: The number of this process.
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
    """Prepared pairs by (epoch, number), each with its `epoch`, which decides BPE-dropout together with its number.

    Where an epoch has a pair several times (see weights.py), the number tells its `copy` too, from 0 on.
    """

    def __getitems__(self, keys: Any) -> list[dict[str, Any]]:
        pairs = super().__getitems__([number % len(self) for _, number in keys])
        for (epoch, number), pair in zip(keys, pairs, strict=True):
            pair["epoch"], pair["copy"] = epoch, number // len(self)
        return pairs


class EndlessStream(torch.utils.data.IterableDataset):
    """The batches of a stream of prepared pairs that one process takes, epoch after epoch.

    The stream is read window by window, from its shards in an order of the epoch; the pairs of a window are permuted, then
    sorted and cut like a whole corpus by `TokenBudgetSampler`, and its batches are permuted. A rest of less than a full
    batch at the end of an epoch joins the last window. Every process reads the whole stream. Each pair is given the number
    of its `epoch`. The loader is `DataLoader(stream, batch_size=None, collate_fn=collator)`, without workers, because the
    state is that of the reading process.
    """

    # Nobody knows it before the stream was read.
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
        """Starts at the beginning of the stream.

        Args:
            pairs: The stream of `prepare_pairs`.
            source_tokens: The budget of a batch for the source side, in tokens.
            target_tokens: The budget of a batch for the target side, in tokens.
            seed: It decides all permutations, together with the epoch.
            num_processes: The number of processes that share the batches.
            process_index: The number of this process.
            window_batches: The size of a window, in full batches.
        """
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
        """The state from which `load_state_dict` goes on, the same in all processes, and usable with any number of them.

        Args:
            position: The number of batches, of all epochs and processes, that are done; `None` for all that were taken.

        Raises:
            ValueError: If `position` lies before the window of the last batch taken.
        """
        done = self._position if position is None else position
        if done < self._window["first_batch"]:
            raise ValueError(
                f"`position` must be at least {self._window['first_batch']}, where the window begins, but is {done}."
            )
        return {**self._window, "position": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration go on from a state, reading little more than one window again.

        Args:
            state: A result of `state_dict`.

        Raises:
            ValueError: If an earlier version has made it.
        """
        if state["pairs"] is not None and "open" not in state["pairs"]:
            raise ValueError(
                "The place in the stream of training pairs was saved by an earlier version, which read them in another order; "
                "begin the run again in another `--output_dir`."
            )
        self._position = state["position"]
        self._window = {name: state[name] for name in self._window}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        # Each process reads on to the last batch of all, so that all have the same state.
        for batches in zip(*[self._sequence()] * self._num_processes, strict=False):
            self._position += self._num_processes
            yield batches[self._process_index]

    def _sequence(self) -> Iterator[list[dict[str, Any]]]:
        """The batches of all epochs and processes, without those that are done.

        Raises:
            ValueError: If an epoch has no pairs.
        """
        done, number = self._position, self._window["first_batch"]
        epoch, first_window, start = (self._window[name] for name in ("epoch", "window", "pairs"))
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
                raise ValueError("The stream of training pairs must hold a pair that survives cleaning, but has none.")
            epoch, first_window, start = epoch + 1, 0, None

    def _windows(self, epoch: int, start: Any) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
        """The windows of an epoch from a place in the stream on, each with the place where it begins."""
        source_tokens, target_tokens = self._budgets
        # Whole numbers, because a sum of fractions would depend on where a run was resumed.
        batch_size = source_tokens * target_tokens
        pairs: list[dict[str, Any]] = []
        filled, full = 0, None
        for pair in self._pairs.epoch(epoch, start):
            pairs.append({**pair, "epoch": epoch})
            filled += max(pair["source_length"] * target_tokens, pair["target_length"] * source_tokens)
            # One batch more is read, to see that the rest of the epoch is worth a window.
            if full is not None and filled >= (self._window_batches + 1) * batch_size:
                count, filled_before, place = full
                yield start, pairs[:count]
                pairs, filled, start, full = pairs[count:], filled - filled_before, place, None
            if full is None and filled >= self._window_batches * batch_size:
                full = (len(pairs), filled, self._pairs.state_dict())
        if pairs:
            yield start, pairs

    def _batches(self, pairs: list[dict[str, Any]], seed: list[int]) -> list[list[dict[str, Any]]]:
        generator = np.random.default_rng(seed)
        # Pairs of equal lengths would meet in the same batches each time.
        pairs = [pairs[row] for row in generator.permutation(len(pairs))]
        source_lengths, target_lengths = (
            np.array([pair[f"{side}_length"] for pair in pairs]) for side in ("source", "target")
        )
        batches = cut_into_batches(source_lengths, target_lengths, *self._budgets)
        generator.shuffle(batches)
        return [[pairs[row] for row in batch] for batch in batches]
