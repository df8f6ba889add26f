"""Token-budget batches: token ids packed by length, and padded into tensors.

`TokenBudgetSampler` sorts the pairs of preparation.py by length and cuts them into batches, and
`PairCollator` pads a batch into the tensors that the model takes. endless.py puts the batches of all epochs
one after the other, and shares them between processes.

Section 5.1: "Sentence pairs were batched together by approximate sequence length. Each training batch
contained a set of sentence pairs containing approximately 25000 source tokens and 25000 target tokens."

Legend of shapes: N pairs of the corpus, B pairs of a batch, S source length and T target length of a batch,
in tokens.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data
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


def order_by_length(source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
    """The pairs in an order in which neighbours have similar lengths, [N] int64. The order is stable."""
    # NumPy sorts numbers of 16 bits several times as fast.
    kind: Any = np.int16 if max(source_lengths.max(), target_lengths.max()) < 2**15 else np.int64
    source_keys, target_keys = source_lengths.astype(kind), target_lengths.astype(kind)
    # Within one target length the source lengths rise, within the next they fall, so that neighbours stay
    # similar.
    serpentine = np.where(target_keys % 2 == 0, source_keys, -source_keys)
    return np.lexsort((serpentine, target_keys))


def _pack(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source_tokens: int, target_tokens: int
) -> _Packing:
    """Cuts the pairs, sorted by length, into the fewest batches of this order, about equally full."""
    for side, lengths, budget in (
        ("source", source_lengths, source_tokens),
        ("target", target_lengths, target_tokens),
    ):
        if lengths.max() > budget:
            raise ValueError(
                f"`{side}_tokens` must be at least the {lengths.max()} tokens of the longest {side} sentence,"
                f" but is {budget}."
            )
    order = order_by_length(source_lengths, target_lengths)
    sources, targets = source_lengths[order], target_lengths[order]
    changes = np.flatnonzero((np.diff(sources) != 0) | (np.diff(targets) != 0)) + 1
    bucket_bounds = np.concatenate([[0], changes, [len(order)]])
    starts = bucket_bounds[:-1]
    counts = np.diff(bucket_bounds).tolist()
    buckets = list(zip(counts, sources[starts].tolist(), targets[starts].tolist(), strict=True))
    return _Packing(order, bucket_bounds, _evenly_full_bounds(buckets, source_tokens, target_tokens))


def _evenly_full_bounds(
    buckets: list[tuple[int, int, int]], source_tokens: int, target_tokens: int
) -> np.ndarray:
    """The bounds of the fewest batches within both budgets, cut by the smallest shares that suffice.

    Batches filled to the brim one after the other would leave a few pairs to the last batch. A step of the
    optimizer would give them the weight of a full batch.
    """
    whole = max(source_tokens, target_tokens)
    longest_source = max(source_length for _, source_length, _ in buckets)
    longest_target = max(target_length for _, _, target_length in buckets)

    def budgets(share: int) -> tuple[int, int]:
        # A budget holds the longest sentence.
        return max(longest_source, source_tokens * share // whole), max(
            longest_target, target_tokens * share // whole
        )

    def bounds(total: int, count: int) -> np.ndarray:
        # The shares of `count` batches add up to `total`; those of the last ones are larger by one, because
        # one pair less in each batch may be too much.
        share, larger = divmod(total, count)
        return _batch_bounds(buckets, budgets(share), budgets(min(share + 1, whole)), count - larger)

    fewest = len(bounds(whole, 1)) - 1
    # The smaller the shares, the more batches.
    totals = range(fewest, fewest * whole)
    smallest = bisect.bisect_left(totals, True, key=lambda total: len(bounds(total, fewest)) - 1 <= fewest)
    return bounds(fewest + smallest, fewest)


def _batch_bounds(
    buckets: Iterable[tuple[int, int, int]],
    budgets: tuple[int, int],
    larger_budgets: tuple[int, int],
    num_smaller: int,
) -> np.ndarray:
    """Fills batch after batch with length buckets: number of pairs, their source length, their target length.

    The first `num_smaller` batches have `budgets` for source and target tokens, the others `larger_budgets`.
    """
    starts = [np.zeros(1, np.int64)]
    position = rows = longest_source = longest_target = number = 0
    source_tokens, target_tokens = budgets if num_smaller > 0 else larger_budgets
    for count, source_length, target_length in buckets:
        while count > 0:
            source_width = max(longest_source, source_length)
            target_width = max(longest_target, target_length)
            capacity = min(source_tokens // source_width, target_tokens // target_width) - rows
            if capacity > 0 and count <= capacity:
                longest_source = source_width
                longest_target = target_width
                rows += count
                position += count
                break
            # A bucket that fills an empty batch fills the next ones alike, as long as the budgets stay.
            full = 1 if rows else max(1, (count - 1) // capacity)
            if number < num_smaller:
                full = min(full, num_smaller - number)
            taken = max(capacity, 0)
            starts.append(position + taken * np.arange(1, full + 1))
            position += full * taken
            count -= full * taken
            number += full
            rows = longest_source = longest_target = 0
            source_tokens, target_tokens = budgets if number < num_smaller else larger_budgets
    return np.concatenate([*starts, [position]])


class TokenBudgetSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of pairs of similar lengths, each within a budget of source and of target tokens.

    A budget counts positions, padding included: pairs of the batch times longest sentence. There are as few
    batches as the budgets allow, about equally full. The lengths alone decide where batches begin, so every
    epoch has equally many. An epoch permutes the pairs of each length bucket, then the batches. Evaluation
    has no seed, and nothing is permuted.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        source_tokens: int,
        target_tokens: int,
        *,
        seed: int | None,
        pairs_of: Callable[[int], np.ndarray] | None = None,
    ):
        """Sorts and cuts [N] pairs by their lengths in tokens, for the budgets of a batch in tokens.

        `seed` decides all permutations, together with the epoch; None means none. `pairs_of` is a function from an
        epoch to the [N] pairs that take the places of these lengths (see `WeightedPairs` in endless.py).
        """
        self._packing = _pack(source_lengths, target_lengths, source_tokens, target_tokens)
        self._seed = seed
        self._pairs_of = pairs_of
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutations of an epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._packing.batch_bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        order, bucket_bounds, batch_bounds = self._packing
        batches = np.arange(len(self))
        if self._seed is not None:
            generator = np.random.default_rng([self._seed, self._epoch])
            order = _permuted_within(order, bucket_bounds, generator)
            batches = generator.permutation(batches)
        if self._pairs_of is not None:
            order = self._pairs_of(self._epoch)[order]
        for batch in batches:
            yield order[batch_bounds[batch] : batch_bounds[batch + 1]].tolist()


def _permuted_within(
    order: np.ndarray, bucket_bounds: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """A copy of [N] `order` in which every length bucket is permuted by itself."""
    permuted = order.copy()
    sizes = np.diff(bucket_bounds)
    for start, size in zip(bucket_bounds[:-1][sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        generator.shuffle(permuted[start : start + size])
    return permuted


def cut_into_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source_tokens: int, target_tokens: int
) -> list[np.ndarray]:
    """The batches of a window, from short to long: the numbers of the pairs of each batch, [B] int64."""
    packing = _pack(source_lengths, target_lengths, source_tokens, target_tokens)
    return np.split(packing.order, packing.batch_bounds[1:-1])


class PairCollator:
    """Pads the pairs of a batch into tensors, with BPE-dropout if there is any.

    BPE-dropout encodes the text of a pair anew, by a generator seeded with seed, epoch, index and copy of the
    pair, so that a resumed run sees the same batches and the number of workers does not matter. The epoch
    comes with each pair because a loader that reads ahead may be in another epoch than the training. Dropout
    lengthens sentences: budgets count the tokens before dropout.
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

        `pad_token_id` of the source tokenizer fills `input_ids`. `bpe_dropout` is that of the source and of the
        target side, and changes no pair that would become longer than `max_length` tokens.
        """
        self._pad_token_id = pad_token_id
        self._bpe_dropout = bpe_dropout
        self._seed = seed
        self._max_length = max_length

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` [B, S] int64, and `labels` [B, T] int64 with -100 for padding.

        The examples are [B] prepared pairs. For BPE-dropout they have text, `index`, `epoch`, and `copy` if
        an epoch has a pair several times.
        """
        encoded = [self._encode(example) for example in examples]
        input_ids, attention_mask = _pad([source for source, _ in encoded], self._pad_token_id)
        labels, _ = _pad([target for _, target in encoded], IGNORED_LABEL)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def _encode(self, example: dict[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
        if self._bpe_dropout is None:
            return example["input_ids"], example["labels"]
        copy = f" {example['copy']}" if example.get("copy") else ""
        rng = Random(f"{self._seed} {example['epoch']} {example['index']}{copy}")
        source_dropout, target_dropout = self._bpe_dropout
        source_ids = source_dropout.encode(example["source"], rng)
        target_ids = target_dropout.encode(example["target"], rng)
        if self._max_length is not None and max(len(source_ids), len(target_ids)) > self._max_length:
            return example["input_ids"], example["labels"]
        return source_ids, target_ids


def cut_into_parts(
    batch: dict[str, Tensor], positions: int, *, are_texts: bool = False
) -> list[dict[str, Tensor]]:
    """A batch as parts of about equally many neighbouring pairs, each as long as its own longest sentences.

    A part has at most `positions` positions on either side, unless a pair alone has more. With `are_texts`
    labels and inputs are one side. A batch that is small enough is the only part.
    """
    length = max(batch["input_ids"].size(1), batch["labels"].size(1))
    number = math.ceil(len(batch["labels"]) / max(1, positions // length))
    if number <= 1:
        return [batch]
    return [
        _trimmed(dict(zip(batch, part, strict=True)), are_texts)
        for part in zip(*(tensor.tensor_split(number) for tensor in batch.values()), strict=True)
    ]


def _trimmed(batch: dict[str, Tensor], are_texts: bool) -> dict[str, Tensor]:
    """A batch, padded on the right, without the columns that are padding in every row."""
    source = int(batch["attention_mask"].sum(1).max())
    target = source if are_texts else int((batch["labels"] != IGNORED_LABEL).sum(1).max())
    widths = {"input_ids": source, "attention_mask": source, "labels": target}
    return {name: tensor[:, : widths[name]].contiguous() for name, tensor in batch.items()}


def _pad(sequences: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """The sequences filled up on the right, and the mask that is 0 on the filler, both [B, L] int64."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_token.shape, filler, np.int64)
    padded[is_token] = np.concatenate(sequences)
    return torch.from_numpy(padded), torch.from_numpy(is_token.astype(np.int64))
