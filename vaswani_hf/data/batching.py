"""Batches: prepared pairs packed by length into batches of a token budget, and padded.

Section 5.1: "Sentence pairs were batched together by approximate sequence length. Each training batch contained a set
of sentence pairs containing approximately 25000 source tokens and 25000 target tokens."

Legend of shapes: N pairs of the corpus, B pairs of a batch, S source length and T target length of a batch, in tokens.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data
from datasets import IterableDataset
from torch import Tensor

from ..model.loss_vaswani import IGNORED_LABEL
from .bpe_dropout import BpeDropout


class _Packing(NamedTuple):
    """The pairs in the order of their lengths, and the positions in this order at which it is cut."""

    # [N] the pairs; neighbours have similar lengths.
    order: np.ndarray
    # The start of each length bucket, which holds the pairs of exactly equal lengths, and N at the end.
    bucket_bounds: np.ndarray
    # The start of each batch, and N at the end.
    batch_bounds: np.ndarray


def _pack(source_lengths: np.ndarray, target_lengths: np.ndarray, source_tokens: int, target_tokens: int) -> _Packing:
    """Cuts the pairs, sorted by length, into the fewest batches that this order allows within both budgets.

    Raises:
        ValueError: If a pair is longer than a budget.
    """
    for side, lengths, budget in (
        ("source", source_lengths, source_tokens),
        ("target", target_lengths, target_tokens),
    ):
        if lengths.max() > budget:
            raise ValueError(
                f"`{side}_tokens` must be at least the {lengths.max()} tokens of the longest {side} sentence, but is"
                f" {budget}."
            )
    # Within one target length the source lengths rise, within the next they fall, so that neighbours stay similar.
    serpentine = np.where(target_lengths % 2 == 0, source_lengths, -source_lengths)
    order = np.lexsort((serpentine, target_lengths))
    sources, targets = source_lengths[order], target_lengths[order]
    changes = np.flatnonzero((np.diff(sources) != 0) | (np.diff(targets) != 0)) + 1
    bucket_bounds = np.concatenate([[0], changes, [len(order)]])
    starts = bucket_bounds[:-1]
    buckets = zip(np.diff(bucket_bounds).tolist(), sources[starts].tolist(), targets[starts].tolist(), strict=True)
    return _Packing(order, bucket_bounds, _batch_bounds(buckets, source_tokens, target_tokens))


def _batch_bounds(buckets: Iterable[tuple[int, int, int]], source_tokens: int, target_tokens: int) -> np.ndarray:
    """Fills batch after batch with length buckets: a number of pairs, their source length and their target length."""
    bounds = [0]
    position = rows = longest_source = longest_target = 0
    for count, source_length, target_length in buckets:
        while count > 0:
            source_width = max(longest_source, source_length)
            target_width = max(longest_target, target_length)
            capacity = min(source_tokens // source_width, target_tokens // target_width) - rows
            if capacity <= 0:
                bounds.append(position)
                rows = longest_source = longest_target = 0
                continue
            longest_source, longest_target = source_width, target_width
            taken = min(count, capacity)
            rows, position, count = rows + taken, position + taken, count - taken
    return np.array([*bounds, position])


class TokenBudgetSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of pairs of similar lengths, each within a budget of source and of target tokens.

    A budget counts positions, padding included: pairs of the batch times longest sentence. The lengths alone decide
    where batches begin, so every epoch has equally many. An epoch permutes the pairs of each length bucket, then the
    batches. Process i of n takes the batches i, i + n, …; in training the last batches of the permuted order, fewer
    than n in an epoch, are left out, so that every process takes equally many. Evaluation has no seed: nothing is
    permuted or left out, and one process may take a batch more than another.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        source_tokens: int,
        target_tokens: int,
        *,
        seed: int | None,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        """Sorts and cuts the pairs.

        Args:
            source_lengths: [N] int lengths in tokens.
            target_lengths: [N] int lengths in tokens.
            source_tokens: The budget of a batch for the source side, in tokens.
            target_tokens: The budget of a batch for the target side, in tokens.
            seed: It decides all permutations, together with the epoch; `None` for none.
            num_processes: The number of processes that share the batches.
            process_index: The number of this process.

        Raises:
            ValueError: If a pair is longer than a budget, or there are fewer batches to train on than processes.
        """
        self._packing = _pack(source_lengths, target_lengths, source_tokens, target_tokens)
        self._num_batches = len(self._packing.batch_bounds) - 1
        self._seed = seed
        self._num_processes = num_processes
        self._process_index = process_index
        self._epoch = 0
        self._skipped = 0
        self._efficiency = _efficiency(self._packing, source_lengths, target_lengths)
        if seed is not None and self._num_batches < num_processes:
            raise ValueError(
                f"`num_processes` must be at most the {self._num_batches} batches of an epoch, but is {num_processes}."
            )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutations of an epoch.

        Args:
            epoch: The number of the epoch.
        """
        self._epoch = epoch

    def skip(self, num_batches: int) -> None:
        """Lets the next iteration, and only that one, begin after the batches that a resumed run has already seen.

        Args:
            num_batches: The number of batches of this process.
        """
        self._skipped = num_batches

    def __len__(self) -> int:
        if self._seed is not None:
            return self._num_batches // self._num_processes
        return len(range(self._process_index, self._num_batches, self._num_processes))

    def __iter__(self) -> Iterator[list[int]]:
        order, bucket_bounds, batch_bounds = self._packing
        batches = np.arange(self._num_batches)
        if self._seed is not None:
            generator = np.random.default_rng([self._seed, self._epoch])
            order = _permuted_within(order, bucket_bounds, generator)
            batches = generator.permutation(batches)[: len(self) * self._num_processes]
        skipped, self._skipped = self._skipped, 0
        for batch in batches[self._process_index :: self._num_processes][skipped:]:
            yield order[batch_bounds[batch] : batch_bounds[batch + 1]].tolist()


def _permuted_within(order: np.ndarray, bucket_bounds: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A copy of [N] `order` in which every length bucket is permuted by itself."""
    permuted = order.copy()
    sizes = np.diff(bucket_bounds)
    for start, size in zip(bucket_bounds[:-1][sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        generator.shuffle(permuted[start : start + size])
    return permuted


class PaddingEfficiency(NamedTuple):
    """The shares of the positions of all batches that hold a token, not padding."""

    source: float
    target: float
    overall: float


def _efficiency(packing: _Packing, source_lengths: np.ndarray, target_lengths: np.ndarray) -> PaddingEfficiency:
    starts, rows = packing.batch_bounds[:-1], np.diff(packing.batch_bounds)
    tokens = [int(lengths.sum()) for lengths in (source_lengths, target_lengths)]
    positions = [
        int((rows * np.maximum.reduceat(lengths[packing.order], starts)).sum())
        for lengths in (source_lengths, target_lengths)
    ]
    return PaddingEfficiency(tokens[0] / positions[0], tokens[1] / positions[1], sum(tokens) / sum(positions))


def padding_efficiency(sampler: TokenBudgetSampler) -> PaddingEfficiency:
    """The shares of the positions that are tokens, over all batches of an epoch.

    Args:
        sampler: The sampler to judge.
    """
    return sampler._efficiency


class StreamedBatches(torch.utils.data.IterableDataset):
    """Batches of examples from a stream of prepared pairs, each within a budget of source and of target tokens.

    The stream is read window by window. A window is sorted and cut like a whole corpus by `TokenBudgetSampler`, and its
    batches are permuted. Every process reads the whole stream and takes its share of each window; in training the
    largest batches are halved until the shares are equal, so that no pair is lost, except in a window of fewer pairs
    than processes. Each pair is given the number of its `epoch`. The loader is `DataLoader(batches, batch_size=None,
    collate_fn=collator)`, without workers where the state is needed, because that is the state of the reading process.
    """

    def __init__(
        self,
        pairs: IterableDataset,
        source_tokens: int,
        target_tokens: int,
        *,
        seed: int | None,
        num_processes: int = 1,
        process_index: int = 0,
        window_batches: int = 100,
    ):
        """Starts at the beginning of the stream.

        Args:
            pairs: The stream of `prepare_pairs`.
            source_tokens: The budget of a batch for the source side, in tokens.
            target_tokens: The budget of a batch for the target side, in tokens.
            seed: It decides all permutations, together with the epoch; `None` for none, for evaluation.
            num_processes: The number of processes that share the batches.
            process_index: The number of this process.
            window_batches: The size of a window, in full batches.
        """
        self._pairs = pairs
        self._budgets = (source_tokens, target_tokens)
        self._seed = seed
        self._num_processes = num_processes
        self._process_index = process_index
        self._window_batches = window_batches
        self._epoch = 0
        self._beginning = {"window": 0, "first_batch": 0, "num_batches": 0, "pairs": pairs.state_dict()}
        self._go_to(self._beginning)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutations of an epoch; another epoch than the current one begins at its beginning.

        Args:
            epoch: The number of the epoch.
        """
        if epoch != self._epoch:
            self._go_to(self._beginning)
        self._epoch = epoch
        self._pairs.set_epoch(epoch)

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """The state from which `load_state_dict` goes on with the next batch, reading at most one window again.

        Args:
            num_batches: The number of batches of this epoch and process to count as done, for a loader that reads one
                ahead; `None` for all that were taken.

        Raises:
            ValueError: If `num_batches` lies before the window of the last batch taken.
        """
        done = self._num_batches if num_batches is None else num_batches
        if done < self._mark["first_batch"]:
            raise ValueError(
                f"`num_batches` must be at least {self._mark['first_batch']}, where the window begins, but is {done}."
            )
        return {**self._mark, "num_batches": done, "epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration, and only that one, go on from a state.

        Args:
            state: A result of `state_dict`.
        """
        self.set_epoch(state["epoch"])
        self._go_to(state)

    def _go_to(self, state: dict[str, Any]) -> None:
        # The start of the next iteration, the start of its current window, and the number of batches handed out.
        self._start = self._mark = state
        self._num_batches = state["num_batches"]

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        start = self._start
        self._go_to(start)
        self._start = self._beginning
        self._pairs.load_state_dict(start["pairs"])
        examples = iter(self._pairs)
        position = start["first_batch"]
        for window in itertools.count(start["window"]):
            batches = self._next_window(examples, window)
            if batches is None:
                return
            for batch in batches:
                position += 1
                # A resumed run has seen the first batches of its window.
                if position > start["num_batches"]:
                    self._num_batches = position
                    yield batch
            self._mark = {"window": window + 1, "first_batch": position, "pairs": self._pairs.state_dict()}

    def _next_window(self, examples: Iterator[dict[str, Any]], window: int) -> list[list[dict[str, Any]]] | None:
        """The share of this process in the batches of the next window; `None` at the end of the stream."""
        pairs = []
        filled = 0.0
        source_tokens, target_tokens = self._budgets
        for example in examples:
            pairs.append({**example, "epoch": self._epoch})
            filled += max(example["source_length"] / source_tokens, example["target_length"] / target_tokens)
            if filled >= self._window_batches:
                break
        if not pairs:
            return None
        source_lengths = np.array([pair["source_length"] for pair in pairs])
        target_lengths = np.array([pair["target_length"] for pair in pairs])
        packing = _pack(source_lengths, target_lengths, source_tokens, target_tokens)
        batches = np.split(packing.order, packing.batch_bounds[1:-1])
        if self._seed is not None:
            batches = _divisible(batches, self._num_processes)
            np.random.default_rng([self._seed, self._epoch, window]).shuffle(batches)
        return [[pairs[row] for row in batch] for batch in batches[self._process_index :: self._num_processes]]


def _divisible(batches: list[np.ndarray], num_processes: int) -> list[np.ndarray]:
    """The batches with the largest ones halved, until their number is a multiple of the number of processes."""
    batches = sorted(batches, key=len)
    while len(batches) % num_processes and len(batches[-1]) > 1:
        halves = np.array_split(batches.pop(), 2)
        batches = sorted([*batches, *halves], key=len)
    return batches[: len(batches) // num_processes * num_processes]


class PairCollator:
    """Pads the pairs of a batch into tensors, with BPE-dropout if there is any.

    BPE-dropout encodes the text of a pair anew, by a generator seeded with seed, epoch and index of the pair, so that a
    resumed run sees the same batches and the number of workers does not matter. The epoch comes with each pair because
    a loader that reads ahead may be in another one than the training. Dropout lengthens sentences: budgets count the
    tokens before it.
    """

    def __init__(
        self,
        pad_token_id: int,
        *,
        bpe_dropout: tuple[BpeDropout, BpeDropout] | None = None,
        seed: int = 0,
        max_length: int | None = None,
    ):
        """Keeps the settings.

        Args:
            pad_token_id: The pad token of the source tokenizer, which fills `input_ids`.
            bpe_dropout: The dropout of the source and of the target side, for pairs prepared with `keep_text`.
            seed: It decides the dropout, together with epoch and index of the pair.
            max_length: The length, in tokens, above which dropout leaves a pair as it is; `None` for no limit.
        """
        self._pad_token_id = pad_token_id
        self._bpe_dropout = bpe_dropout
        self._seed = seed
        self._max_length = max_length

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch that the model takes.

        Args:
            examples: [B] prepared pairs; for BPE-dropout with text and `index`, and with the number of the `epoch`.

        Returns:
            `input_ids` and `attention_mask`, [B, S] int64, and `labels`, [B, T] int64 with -100 for padding.
        """
        encoded = [self._encode(example) for example in examples]
        input_ids, attention_mask = _pad([source for source, _ in encoded], self._pad_token_id)
        labels, _ = _pad([target for _, target in encoded], IGNORED_LABEL)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def _encode(self, example: dict[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
        if self._bpe_dropout is None:
            return example["input_ids"], example["labels"]
        rng = Random(f"{self._seed} {example['epoch']} {example['index']}")
        source_dropout, target_dropout = self._bpe_dropout
        source_ids, target_ids = (
            source_dropout.encode(example["source"], rng),
            target_dropout.encode(example["target"], rng),
        )
        if self._max_length is not None and max(len(source_ids), len(target_ids)) > self._max_length:
            return example["input_ids"], example["labels"]
        return source_ids, target_ids


def _pad(sequences: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """The sequences filled up on the right, and the mask that is 0 on the filler, both [B, L] int64."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_token.shape, filler, np.int64)
    padded[is_token] = np.fromiter(itertools.chain.from_iterable(sequences), np.int64, int(lengths.sum()))
    return torch.from_numpy(padded), torch.from_numpy(is_token.astype(np.int64))
