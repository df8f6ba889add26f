"""Batches keep their budgets, are evenly full, contain every pair once, and are padded for the model."""

import time
from collections import Counter

import numpy as np
import pytest
import torch
from sentences import refused

from vaswani_hf.data.batching import PairCollator, TokenBudgetSampler, cut_into_batches, cut_into_parts
from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.tasks.language_modeling import CausalCollator

COUNT = 1000
SOURCE_TOKENS, TARGET_TOKENS = 90, 70


def sampler(lengths, *, seed: int = 3, epoch: int = 0) -> TokenBudgetSampler:
    made = TokenBudgetSampler(*lengths, SOURCE_TOKENS, TARGET_TOKENS, seed=seed)
    made.set_epoch(epoch)
    return made


def flat(batches) -> list[int]:
    return [row for batch in batches for row in batch]


def test_neighbours_in_length_share_a_batch():
    # By target length, the source lengths rise, fall and rise: (1,2) (4,2) | (5,3) (1,3) | (2,4) (6,4).
    source, target = np.array([5, 4, 2, 6, 1, 1]), np.array([3, 2, 4, 4, 3, 2])
    assert cut_into_batches(source, target, 100, 100) == [[5, 1, 0, 4, 2, 3]]
    # The target side allows six positions: 3 x 2, 2 x 3 or 1 x 4.
    assert cut_into_batches(source, target, 100, 6) == [[5, 1], [0, 4], [2], [3]]
    # The source side allows eight positions: 2 x 4, 1 x 5, then 2 x 2, and 1 x 6.
    assert cut_into_batches(source, target, 8, 100) == [[5, 1], [0], [4, 2], [3]]


def filled(batches, lengths, budgets) -> list[float]:
    """For each batch, the used share of the source or of the target budget, whichever is larger."""
    return [
        max(len(rows) * side[rows].max() / budget for side, budget in zip(lengths, budgets, strict=True))
        for rows in batches
    ]


def greedy(batches, lengths, budgets) -> int:
    """The number of batches if each batch is filled completely, pair by pair in the same order."""
    count = num_rows = 0
    longest = np.zeros(2)
    for row in flat(batches):
        longest = np.maximum(longest, [side[row] for side in lengths])
        num_rows += 1
        if count == 0 or (num_rows * longest > budgets).any():
            count, num_rows, longest = count + 1, 1, np.array([side[row] for side in lengths])
    return count


AWKWARD = {
    "like a corpus": None,
    "one pair": ([7], [9]),
    "two pairs that need two batches": ([60, 60], [50, 50]),
    "a rest of one": ([9] * 11, [7] * 11),
    "one long pair": ([2] * 200 + [90], [2] * 200 + [70]),
    "half of the budget": ([1] * 30 + [46] * 5, [1] * 30 + [36] * 5),
    "each side fills some": ([2] * 50 + [30] * 50, [20] * 50 + [3] * 50),
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_batches_keep_both_budgets_and_are_as_few_as_can_be(lengths, kind):
    pairs = lengths if AWKWARD[kind] is None else tuple(map(np.array, AWKWARD[kind]))
    budgets = (SOURCE_TOKENS, TARGET_TOKENS)
    batches = cut_into_batches(*pairs, *budgets)
    assert sorted(flat(batches)) == list(range(len(pairs[0])))
    assert max(filled(batches, pairs, budgets)) <= 1
    assert len(batches) == greedy(batches, pairs, budgets)


def test_no_batch_is_a_crumb():
    # There are eleven batches of up to ten pairs; ten full batches would leave one pair for the last batch.
    alike = cut_into_batches(np.full(101, 10), np.full(101, 8), 100, 100)
    assert [len(batch) for batch in alike] == [9] * 9 + [10] * 2


def test_an_epoch_holds_every_pair_once_and_epochs_differ(lengths):
    epochs = [list(sampler(lengths, epoch=epoch)) for epoch in range(3)]
    for batches in epochs:
        assert sorted(flat(batches)) == list(range(COUNT))
    assert sorted(map(sorted, epochs[0])) != sorted(map(sorted, epochs[1]))
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[1] == list(sampler(lengths, epoch=1))
    assert epochs[1] != list(sampler(lengths, epoch=1, seed=4))


def test_every_epoch_cuts_at_the_same_lengths(lengths):
    source, target = lengths

    def shapes(epoch):
        batches = list(sampler(lengths, epoch=epoch))
        assert len(batches) == len(sampler(lengths))
        return Counter(
            tuple(zip(source[batch].tolist(), target[batch].tolist(), strict=True)) for batch in batches
        )

    assert shapes(0) == shapes(1) == shapes(20)


def test_the_order_of_batches_is_not_the_order_of_lengths(lengths):
    widths = [max(lengths[1][batch]) for batch in sampler(lengths)]
    ascents = sum(left <= right for left, right in zip(widths, widths[1:], strict=False))
    assert 0.3 < ascents / len(widths) < 0.7


@pytest.mark.parametrize(
    ("side", "source", "target", "longest"), [("source", 11, 2, 11), ("target", 4, 12, 12)]
)
def test_a_pair_beyond_a_budget_is_an_error(side, source, target, longest):
    with refused(
        f"`{side}_tokens` must be at least the {longest} tokens of the longest {side} sentence, but is 10."
    ):
        TokenBudgetSampler(np.array([3, source]), np.array([2, target]), 10, 10, seed=1)


def test_a_batch_by_hand():
    batch = PairCollator(1)([{"input_ids": [5, 6, 2], "labels": [2]}, {"input_ids": [2], "labels": [7, 2]}])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 2], [2, 1, 1]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[2, -100], [7, 2]],
    }
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_parts_of_a_batch_hold_every_pair_once_and_no_padding_that_is_only_another_part_s():
    pairs = [
        {"input_ids": [5] * length + [2], "labels": [6] * (9 - length) + [2]} for length in (1, 2, 3, 6, 8)
    ]
    collator = PairCollator(1)
    batch = collator(pairs)
    parts = cut_into_parts(batch, 20, collator.trim)
    assert [len(part["labels"]) for part in parts] == [2, 2, 1]
    assert [list(part["input_ids"].shape) for part in parts] == [[2, 3], [2, 7], [1, 9]]
    assert [list(part["labels"].shape) for part in parts] == [[2, 9], [2, 7], [1, 2]]
    assert [ids_of(part, row) for part in parts for row in range(len(part["labels"]))] == [
        (pair["input_ids"], pair["labels"]) for pair in pairs
    ]
    # A sentence that exceeds the limit becomes a part of its own; a batch that is small enough is not cut.
    assert [len(part["labels"]) for part in cut_into_parts(batch, 5, collator.trim)] == [1] * 5
    assert cut_into_parts(batch, 45, collator.trim) == [batch]


def test_the_labels_of_a_part_of_texts_have_the_length_of_the_texts():
    texts = [[0, 5, 2], [0, 5, 6, 7, 2]]
    collator = CausalCollator(1)
    batch = collator([{"input_ids": ids, "labels": ids} for ids in texts])
    parts = cut_into_parts(batch, 5, collator.trim)
    assert [part["input_ids"].tolist() for part in parts] == [[ids] for ids in texts]
    assert [part["labels"].tolist() for part in parts] == [[[-100, *ids[1:]]] for ids in texts]


def dropout_collator(tokenizer, rates, *, seed: int = 1) -> PairCollator:
    source_rate, target_rate = rates
    dropouts = (BpeDropout(tokenizer, source_rate), BpeDropout(tokenizer, target_rate))
    return PairCollator(tokenizer.pad_token_id, encoders=dropouts, seed=seed)


def ids_of(batch: dict[str, torch.Tensor], row: int) -> tuple[list[int], list[int]]:
    source = batch["input_ids"][row][batch["attention_mask"][row] == 1]
    return source.tolist(), batch["labels"][row][batch["labels"][row] != -100].tolist()


def test_dropout_is_that_of_seed_epoch_and_pair(short_pairs):
    pairs, tokenizer = short_pairs
    rows = [{**pairs[number], "epoch": 2} for number in (3, 40, 7)]
    collator = dropout_collator(tokenizer, (0.5, 0.5))
    batch = collator(rows)
    for number, row in enumerate(rows):
        assert ids_of(collator([row]), 0) == ids_of(batch, number)
        source, target = ids_of(batch, number)
        assert tokenizer.decode(source, skip_special_tokens=True) == row["source"]
        assert tokenizer.decode(target, skip_special_tokens=True) == row["target"]
    assert ids_of(dropout_collator(tokenizer, (0.5, 0.5))(rows), 0) == ids_of(batch, 0)
    assert ids_of(dropout_collator(tokenizer, (0.5, 0.5), seed=2)(rows), 0) != ids_of(batch, 0)
    assert ids_of(collator([{**rows[0], "epoch": 3}]), 0) != ids_of(batch, 0)
    twins = collator([{**rows[0], "index": index} for index in range(2)])
    assert ids_of(twins, 0) != ids_of(twins, 1)


def test_each_side_has_its_own_dropout(short_pairs):
    pairs, tokenizer = short_pairs
    batch = dropout_collator(tokenizer, (0.0, 1.0))([{**pairs[0], "epoch": 0}])
    source, target = ids_of(batch, 0)
    assert source == pairs[0]["input_ids"]
    assert len(target) == len(pairs[0]["target"].encode()) + 2


def test_a_million_pairs_in_small_batches_are_packed_in_no_time():
    rng = np.random.default_rng(0)
    source = rng.integers(2, 40, 1_000_000)
    target = np.clip(source + rng.integers(-3, 4, len(source)), 1, 40)
    start = time.process_time()
    batches = len(TokenBudgetSampler(source, target, 128, 128, seed=1))
    # Cutting each of the 190,000 batches separately would take 15 s.
    assert time.process_time() - start < 5
    assert batches > 150_000
