"""Divides a corpus into batches of sentence pairs with similar lengths. A token budget limits the number of
tokens in a batch, including padding.

Section 5.1: "Sentence pairs were batched together by approximate sequence length. Each training batch
contained a set of sentence pairs containing approximately 25000 source tokens and 25000 target tokens."

1. `TokenBudgetSampler` sorts the encoded pairs by length, and cuts the sorted pairs into batches.
2. `EndlessSampler` yields the batches of all epochs, one after the other. In a distributed run, each process
   gets its own part of the batches.
3. `PairRows` reads the pairs of a batch, and `PairCollator` pads the pairs into the input tensors of the
   model.

The trainer builds a `DataLoader` from `EndlessSampler`, `EpochPairs` (a subclass of `PairRows`) and
`PairCollator`.

In array shapes, N is the number of sentence pairs in the corpus, and B is the number of pairs in a batch. S
and T are the lengths of the padded source and target tensors of a batch, in tokens. L is the length of one
sentence in tokens.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch.utils.data
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..model.errors_vaswani import InvalidValueError
from ..model.loss_vaswani import IGNORED_LABEL
from .columns import CORPUS_COLUMN, Column, kept_rows
from .memory import mapped_files
from .text_encoder import serialize_tokenizer, text_encoder

# 1. Cut the pairs into batches


class _Packing(NamedTuple):
    """The pairs of a corpus in the order of their lengths, and the positions at which the batches begin."""

    # The indices of the sentence pairs [N], sorted so that neighbouring pairs have similar lengths.
    order: np.ndarray
    # For each length bucket, the position of its first pair in `order`. The last element of `bucket_bounds`
    # is the number of pairs N. All pairs of a bucket have the same source length and the same target length.
    bucket_bounds: np.ndarray
    # The position in `order` of the first pair of each batch, and N as the last element.
    batch_bounds: np.ndarray


class TokenBudgetSampler(torch.utils.data.Sampler[list[int]]):
    """Yields batches of sentence pairs with similar lengths: as few batches as the two token budgets allow.

    The token budgets limit the padded source tensor and the padded target tensor of a batch. The size of a
    padded tensor in tokens is the number of pairs times the length of the longest sentence. All epochs have
    the same number of batches. In each epoch, the sampler shuffles the pairs of equal source length and equal
    target length among each other, and then shuffles the batches.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,  # in tokens [N]; with corpus weights, [P] for the P pairs of an epoch
        target_lengths: np.ndarray,  # the same shape, in tokens
        source_tokens: int,
        target_tokens: int,
        *,
        seed: int,
        pairs_of: Callable[[int], np.ndarray] | None = None,
    ):
        """With corpus weights, `pairs_of(epoch)` returns the indices [P] of the sentence pairs in an
        epoch.
        """
        self._packing = _pack(source_lengths, target_lengths, source_tokens, target_tokens)
        self._seed = seed
        self._pairs_of = pairs_of
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The random order of pairs and batches depends on the seed and the epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._packing.batch_bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        order, bucket_bounds, batch_bounds = self._packing
        generator = np.random.default_rng([self._seed, self._epoch])
        order = _permuted_within(order, bucket_bounds, generator)
        batches = generator.permutation(len(self))
        if self._pairs_of is not None:
            order = self._pairs_of(self._epoch)[order]
        for batch in batches:
            yield order[batch_bounds[batch] : batch_bounds[batch + 1]].tolist()


def _permuted_within(
    order: np.ndarray, bucket_bounds: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Return a copy of `order` [N] with the sentence pairs of each length bucket in random order."""
    permuted = order.copy()
    sizes = np.diff(bucket_bounds)
    for start, size in zip(bucket_bounds[:-1][sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        generator.shuffle(permuted[start : start + size])
    return permuted


def cut_into_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source_tokens: int, target_tokens: int
) -> list[list[int]]:
    """Divide sentence pairs into batches, short sentences first. A batch is a list of B pair indices."""
    packing = _pack(source_lengths, target_lengths, source_tokens, target_tokens)
    return [batch.tolist() for batch in np.split(packing.order, packing.batch_bounds[1:-1])]


def _pack(
    source_lengths: np.ndarray, target_lengths: np.ndarray, source_tokens: int, target_tokens: int
) -> _Packing:
    """Sort the pairs by length, and divide the pairs into as few batches of almost equal size as possible."""
    for side, lengths, budget in (
        ("source", source_lengths, source_tokens),
        ("target", target_lengths, target_tokens),
    ):
        if lengths.max() > budget:
            raise InvalidValueError(
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


def order_by_length(source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
    """Return the pair indices [N] int64, stably sorted so that neighbouring pairs have similar lengths."""
    # NumPy sorts 16-bit integers several times as fast as 64-bit integers.
    kind: Any = np.int16 if max(source_lengths.max(), target_lengths.max()) < 2**15 else np.int64
    source_keys, target_keys = source_lengths.astype(kind), target_lengths.astype(kind)
    # Sort the pairs by target length, and then pairs of equal target length by source length. The source
    # lengths are in ascending order for even target lengths, and in descending order for odd target lengths.
    # With this order, neighbouring pairs have similar source lengths.
    serpentine = np.where(target_keys % 2 == 0, source_keys, -source_keys)
    return np.lexsort((serpentine, target_keys))


def _evenly_full_bounds(
    buckets: list[tuple[int, int, int]], source_tokens: int, target_tokens: int
) -> np.ndarray:
    """Divide the pairs into as few batches as possible, with almost equal numbers of tokens. Return the
    bounds of the batches.

    The batches have almost equal sizes, because a step on a last batch of only a few pairs could change the
    weights as much as a step on a full batch.
    """
    whole = max(source_tokens, target_tokens)
    longest_source = max(source_length for _, source_length, _ in buckets)
    longest_target = max(target_length for _, _, target_length in buckets)

    def budgets(share: int) -> tuple[int, int]:
        # The token budget of a batch must be at least the length of the longest sentence.
        source_budget = max(longest_source, source_tokens * share // whole)
        target_budget = max(longest_target, target_tokens * share // whole)
        return source_budget, target_budget

    def bounds(total: int, count: int) -> np.ndarray:
        # Divide the token budget `total` among the first `count` batches. If the division of `total` by
        # `count` leaves a remainder, each of the last batches gets a budget of one token more. If no batch
        # had the additional token, the sentence pairs could need more batches.
        share, larger = divmod(total, count)
        return _batch_bounds(buckets, budgets(share), budgets(min(share + 1, whole)), count - larger)

    fewest = len(bounds(whole, 1)) - 1
    # The token budget of a batch is its maximum number of tokens. `total` is the sum of the token budgets of
    # all batches. `fewest` is the number of batches with the full token budgets. Find the smallest `total`
    # with which the pairs still fit into `fewest` batches. Bisection finds the smallest `total`, because the
    # number of batches never increases if `total` increases.
    totals = range(fewest, fewest * whole)
    smallest = bisect.bisect_left(totals, True, key=lambda total: len(bounds(total, fewest)) - 1 <= fewest)
    return bounds(fewest + smallest, fewest)


def _batch_bounds(
    buckets: Iterable[tuple[int, int, int]],
    budgets: tuple[int, int],
    larger_budgets: tuple[int, int],
    num_smaller: int,
) -> np.ndarray:
    """Fill batches with the pairs of all buckets, and return the positions at which the batches begin and
    end. A bucket is the tuple (number of pairs, source length, target length), and all its pairs have these
    lengths.

    Each of the first `num_smaller` batches has the token limit `budgets`, and each later batch has the token
    limit `larger_budgets`. A token limit is (source tokens, target tokens).
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
            # To save time, compute the ends of all full batches of a bucket at once.
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


# 2. Join the batches of all epochs


class EndlessSampler(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """Yields the training batches of one process without end. A batch is a list of (epoch, pair index).

    The batches of all epochs form one sequence that does not depend on the number of processes. Process `r`
    of `n` processes yields the batches `r`, `r + n`, `r + 2n`, …. The batches of one optimizer step can
    belong to two epochs. A resumed run continues with the next batch of the sequence.
    """

    def __init__(
        self,
        sampler: TokenBudgetSampler,
        position: int = 0,
        *,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        """An earlier run has trained on `position` batches, counted over all epochs and processes."""
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


# 3. Make tensors from the pairs of a batch


class PairRows(torch.utils.data.Dataset):
    """Reads tokenized sentence pairs for a `DataLoader`, all pairs of a batch at once.

    `input_ids` and `labels` are [L] int32 views of the memory-mapped file, so that the corpus does not need
    to fit into memory.
    """

    def __init__(self, pairs: Dataset):
        self._pairs = pairs
        self._columns: dict[str, Column] | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        if self._columns is None:
            unused = {"source_length", "target_length", CORPUS_COLUMN}
            names = [name for name in self._pairs.column_names if name not in unused]
            self._rows = kept_rows(self._pairs)
            self._columns = {name: Column(self._pairs.data.column(name)) for name in names}
        mapped_files.release()
        rows = self._rows[np.asarray(numbers)]
        pairs: list[dict[str, Any]] = [{} for _ in numbers]
        for name, column in self._columns.items():
            for pair, cell in zip(pairs, column.cells(rows), strict=True):
                pair[name] = cell
        return pairs

    def __getstate__(self) -> dict[str, Any]:
        # Do not pickle views of the memory-mapped file, because a pickled view would contain the whole file.
        return {"_pairs": self._pairs, "_columns": None}


class EpochPairs(PairRows):
    """Maps each tuple (epoch, pair index) to a sentence pair. The sentence pair has the additional keys
    `epoch` and `copy`.

    With weighted corpora, an epoch can contain pair `n` several times. In a corpus of N pairs, the indices
    `n`, `n + N`, `n + 2N`, … mean the copies 0, 1, 2, … of pair `n`.
    """

    def __getitems__(self, keys: Any) -> list[dict[str, Any]]:
        pairs = super().__getitems__([number % len(self) for _, number in keys])
        for (epoch, number), pair in zip(keys, pairs, strict=True):
            pair["epoch"] = epoch
            pair["copy"] = number // len(self)
        return pairs


class SentenceEncoder(Protocol):
    """Encodes a sentence into token ids [L] with `</s>` at the end. The token ids can depend on random
    numbers, for example with BPE-dropout.
    """

    def encode(self, text: str, rng: Random) -> list[int]:
        """Return the token ids of a sentence."""
        ...


class TokenizerEncoder:
    """Encodes a sentence with a tokenizer, and ignores the random generator `rng`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = serialize_tokenizer(tokenizer)

    def encode(self, text: str, rng: Random) -> list[int]:
        """Return the token ids of a sentence."""
        return text_encoder(self._tokenizer).encode(text.strip())


class PairCollator:
    """Pads the pairs of a batch into tensors.

    With `encoders`, the collator encodes the text of each pair again in each epoch, for BPE-dropout or
    augmentation. The random numbers depend only on the seed, the epoch, the pair, and the number of earlier
    occurrences of the pair in the epoch. Therefore a resumed run and a run with another number of data
    workers encode the pair in the same way. If the collator encodes the texts again, a batch can exceed its
    token budget, because the sampler counts the tokens that the corpus stores.
    """

    def __init__(
        self,
        pad_token_id: int,
        *,
        encoders: tuple[SentenceEncoder, SentenceEncoder] | None = None,
        augment: Callable[[str, str, Random], tuple[str, str]] | None = None,
        seed: int = 0,
        max_length: int | None = None,
    ):
        """The two `encoders` (a `SentenceEncoder` each) convert the source text and the target text to token
        ids, after `augment` has changed the texts.

        If the new encoding of a pair is longer than `max_length` tokens, the pair keeps the stored token ids.
        """
        self._pad_token_id = pad_token_id
        self._encoders = encoders
        self._augment = augment
        self._seed = seed
        self._max_length = max_length

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return `input_ids` [B, S], `attention_mask` [B, S] and `labels` [B, T] (-100 for padding)."""
        encoded = [self._encode(example) for example in examples]
        input_ids, attention_mask = _pad([source for source, _ in encoded], self._pad_token_id)  # [B, S]
        labels, _ = _pad([target for _, target in encoded], IGNORED_LABEL)  # [B, T]
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def trim(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remove the columns of the batch tensors that contain padding in every row."""
        source = int(batch["attention_mask"].sum(1).max())
        target = int((batch["labels"] != IGNORED_LABEL).sum(1).max())
        widths = {"input_ids": source, "attention_mask": source, "labels": target}
        return {name: tensor[:, : widths[name]].contiguous() for name, tensor in batch.items()}

    def _encode(self, example: dict[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
        if self._encoders is None:
            return example["input_ids"], example["labels"]
        copy = f" {example['copy']}" if example.get("copy") else ""
        # Use the epoch in the field `epoch` of the sentence pair, not the epoch of the sampler. The sampler
        # is perhaps already in the next epoch, because the `DataLoader` prepares batches in advance.
        rng = Random(f"{self._seed} {example['epoch']} {example['index']}{copy}")
        source, target = example["source"], example["target"]
        if self._augment is not None:
            source, target = self._augment(source, target, rng)
        source_encoder, target_encoder = self._encoders
        source_ids = source_encoder.encode(source, rng)
        target_ids = target_encoder.encode(target, rng)
        if self._max_length is not None and max(len(source_ids), len(target_ids)) > self._max_length:
            return example["input_ids"], example["labels"]
        return source_ids, target_ids


def _pad(sequences: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Pad on the right. Return the ids [B, L] int64, and the mask [B, L] int64 with 0 for padding."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    is_token = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_token.shape, filler, np.int64)
    padded[is_token] = np.concatenate(sequences)
    return torch.from_numpy(padded), torch.from_numpy(is_token.astype(np.int64))


def cut_into_parts(
    batch: dict[str, Tensor], positions: int, trim: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """Divide the sentence pairs of a batch into smaller batches, called parts. Each part has a padded source
    tensor and a padded target tensor, each with at most `positions` elements.

    If the longest sentence of the batch has more tokens than the limit `positions`, each part contains only
    one sentence pair, and a part can exceed the limit.
    """
    length = max(batch["input_ids"].size(1), batch["labels"].size(1))
    num_parts = math.ceil(len(batch["labels"]) / max(1, positions // length))
    if num_parts <= 1:
        return [batch]
    parts = zip(*(tensor.tensor_split(num_parts) for tensor in batch.values()), strict=True)
    return [trim(dict(zip(batch, part, strict=True))) for part in parts]
