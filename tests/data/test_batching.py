"""Batches keep their budgets, hold every pair once, are alike on every process and go on exactly where a run stopped."""

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader

from vaswani_hf.data.batching import PairCollator, StreamedBatches, TokenBudgetSampler, padding_efficiency
from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.data.preparation import pair_lengths, prepare_pairs
from vaswani_hf.data.tokenizer_training import train_tokenizer

DATA = Path(os.environ.get("VASWANI_DATA", Path(__file__).parents[3] / "shared" / "data"))
COUNT = 1000
SOURCE_TOKENS, TARGET_TOKENS = 90, 70


@pytest.fixture(scope="module")
def lengths() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    source = rng.integers(2, 30, COUNT)
    return source, np.clip(source + rng.integers(-4, 5, COUNT), 1, 40)


def sampler(lengths, *, seed: int | None = 3, epoch: int = 0, **share) -> TokenBudgetSampler:
    made = TokenBudgetSampler(*lengths, SOURCE_TOKENS, TARGET_TOKENS, seed=seed, **share)
    made.set_epoch(epoch)
    return made


def flat(batches) -> list[int]:
    return [row for batch in batches for row in batch]


# The sampler


def test_neighbours_in_length_share_a_batch():
    # In the order of target lengths 2, 3, 4, with source lengths rising, falling, rising, the pairs are (source,
    # target) = (1,2) (4,2) | (5,3) (1,3) | (2,4) (6,4): numbers 5 1 | 0 4 | 2 3.
    source, target = np.array([5, 4, 2, 6, 1, 1]), np.array([3, 2, 4, 4, 3, 2])
    assert list(TokenBudgetSampler(source, target, 100, 100, seed=None)) == [[5, 1, 0, 4, 2, 3]]
    # The target side allows six positions: 3 x 2, 2 x 3 or 1 x 4.
    assert list(TokenBudgetSampler(source, target, 100, 6, seed=None)) == [[5, 1], [0, 4], [2], [3]]
    # The source side allows eight: 2 x 4, 1 x 5, then 2 x 2, and 1 x 6.
    assert list(TokenBudgetSampler(source, target, 8, 100, seed=None)) == [[5, 1], [0], [4, 2], [3]]


def test_batches_keep_both_budgets_and_are_full(lengths):
    source, target = lengths
    batches = list(sampler(lengths, seed=None))

    def fits(rows):
        return len(rows) * source[rows].max() <= SOURCE_TOKENS and len(rows) * target[rows].max() <= TARGET_TOKENS

    assert all(fits(batch) for batch in batches)
    for batch, following in zip(batches, batches[1:], strict=False):
        assert not fits([*batch, following[0]])


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
        return Counter(tuple(zip(source[batch].tolist(), target[batch].tolist(), strict=True)) for batch in batches)

    assert shapes(0) == shapes(1) == shapes(20)


def test_the_order_of_batches_is_not_the_order_of_lengths(lengths):
    widths = [max(lengths[1][batch]) for batch in sampler(lengths)]
    ascents = sum(left <= right for left, right in zip(widths, widths[1:], strict=False))
    assert 0.3 < ascents / len(widths) < 0.7


@pytest.mark.parametrize("num_processes", [2, 3, 7])
def test_processes_train_on_equally_many_batches(lengths, num_processes):
    total = len(sampler(lengths))
    left_out = []
    for epoch in range(2):
        shares = [
            list(sampler(lengths, epoch=epoch, num_processes=num_processes, process_index=index))
            for index in range(num_processes)
        ]
        assert {len(share) for share in shares} == {total // num_processes}
        assert len(sampler(lengths, num_processes=num_processes)) == total // num_processes
        together = Counter(flat(flat(shares)))
        assert set(together.values()) == {1}
        whole = list(sampler(lengths, epoch=epoch))
        assert [batch for step in zip(*shares, strict=True) for batch in step] == whole[: len(flat(shares))]
        assert len(whole) - len(flat(shares)) == total % num_processes
        left_out.append(set(range(COUNT)) - set(together))
    if total % num_processes:
        assert left_out[0] != left_out[1]


def test_evaluation_leaves_nothing_out(lengths):
    total = len(sampler(lengths, seed=None))
    shares = [sampler(lengths, seed=None, num_processes=7, process_index=index) for index in range(7)]
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]
    assert sum(len(share) for share in shares) == total
    assert sorted(flat(flat(shares))) == list(range(COUNT))
    assert total % 7


def test_skipping_holds_for_one_iteration(lengths):
    resumed = sampler(lengths, epoch=2, num_processes=2, process_index=1)
    whole = list(resumed)
    resumed.skip(5)
    assert len(resumed) == len(whole)
    assert list(resumed) == whole[5:]
    assert list(resumed) == whole


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([3, 11], [2, 2], "`source_tokens` must be at least the 11 tokens of the longest source sentence, but is 10."),
        ([3, 4], [2, 12], "`target_tokens` must be at least the 12 tokens of the longest target sentence, but is 10."),
    ],
)
def test_a_pair_beyond_a_budget_is_an_error(source, target, message):
    with pytest.raises(ValueError) as caught:
        TokenBudgetSampler(np.array(source), np.array(target), 10, 10, seed=1)
    assert str(caught.value) == message


def test_more_processes_than_batches_is_an_error():
    with pytest.raises(ValueError) as caught:
        TokenBudgetSampler(np.array([1, 1]), np.array([1, 1]), 10, 10, seed=1, num_processes=2)
    assert str(caught.value) == "`num_processes` must be at most the 1 batches of an epoch, but is 2."


def test_padding_efficiency_by_hand():
    # One batch of 1 and 3 source tokens in 2 x 3 positions, and of 2 and 2 target tokens in 2 x 2.
    made = TokenBudgetSampler(np.array([1, 3]), np.array([2, 2]), 10, 10, seed=1)
    assert padding_efficiency(made) == (4 / 6, 4 / 4, 8 / 10)


def test_padding_efficiency_is_that_of_the_batches(lengths):
    made = sampler(lengths)
    positions = [sum(len(batch) * max(side[batch]) for batch in made) for side in lengths]
    expected = (lengths[0].sum() / positions[0], lengths[1].sum() / positions[1], np.sum(lengths) / sum(positions))
    assert padding_efficiency(made) == pytest.approx(expected, abs=0)


@pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason=f"there is no corpus at {DATA}")
def test_most_positions_of_real_batches_are_tokens():
    sides = []
    for language in ("en", "de"):
        with gzip.open(DATA / "multi30k" / f"train.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
            sides.append([line.strip() for line in file])
    # Training on all sentences would take most of the time and change little.
    encode = train_tokenizer([*sides[0][::5], *sides[1][::5]], 10_000).backend_tokenizer.encode_batch_fast
    lengths = [np.array([len(encoding) for encoding in encode(side)]) for side in sides]
    efficiency = padding_efficiency(TokenBudgetSampler(*lengths, 4096, 4096, seed=1))
    assert efficiency.overall >= 0.95
    assert efficiency.source >= 0.90
    assert efficiency.target >= 0.98


# The stream


def stream(lengths) -> IterableDataset:
    """Prepared pairs whose token ids are their number in the corpus, over and over."""
    columns = {
        "input_ids": [[row] * length for row, length in enumerate(lengths[0].tolist())],
        "labels": [[row] * length for row, length in enumerate(lengths[1].tolist())],
        "source_length": lengths[0],
        "target_length": lengths[1],
    }
    return Dataset.from_dict(columns).to_iterable_dataset()


def streamed(lengths, *, seed: int | None = 3, epoch: int = 0, **options) -> StreamedBatches:
    options = {"window_batches": 20, **options}
    made = StreamedBatches(stream(lengths), SOURCE_TOKENS, TARGET_TOKENS, seed=seed, **options)
    made.set_epoch(epoch)
    return made


def numbers(batches) -> list[list[int]]:
    return [[pair["input_ids"][0] for pair in batch] for batch in batches]


def test_a_stream_is_batched_window_by_window(lengths):
    source, target = lengths
    batches = numbers(streamed(lengths))
    assert sorted(flat(batches)) == list(range(COUNT))
    for batch in batches:
        assert len(batch) * source[batch].max() <= SOURCE_TOKENS
        assert len(batch) * target[batch].max() <= TARGET_TOKENS
    # Windows: the pairs of the first 15 batches stand at the beginning of the stream, but not in its order.
    beginning = flat(batches[:15])
    assert max(beginning) < 150
    assert beginning != sorted(beginning)
    positions = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in batches)
    assert np.sum(lengths) / positions > 0.85


def test_epochs_of_a_stream_differ_and_repeat(lengths):
    epochs = [numbers(streamed(lengths, epoch=epoch)) for epoch in (0, 1, 1)]
    assert epochs[0] != epochs[1]
    assert epochs[1] == epochs[2]
    one = streamed(lengths)
    assert [numbers(one), numbers(one)] == [epochs[0]] * 2


def test_an_epoch_shuffles_the_stream_itself(lengths):
    shuffled = stream(lengths).shuffle(seed=1, buffer_size=COUNT)
    batches = StreamedBatches(shuffled, SOURCE_TOKENS, TARGET_TOKENS, seed=None, window_batches=20)
    beginnings = []
    for epoch in (1, 2, 1):
        batches.set_epoch(epoch)
        epoch_batches = numbers(batches)
        assert sorted(flat(epoch_batches)) == list(range(COUNT))
        beginnings.append(set(flat(epoch_batches[:5])))
    assert beginnings[0] != beginnings[1]
    assert beginnings[0] == beginnings[2]


@pytest.mark.parametrize("num_processes", [2, 3, 8])
def test_processes_share_a_stream_without_loss(lengths, num_processes):
    shares = [
        numbers(streamed(lengths, num_processes=num_processes, process_index=index)) for index in range(num_processes)
    ]
    assert len({len(share) for share in shares}) == 1
    assert sorted(flat(flat(shares))) == list(range(COUNT))


def test_the_last_pairs_of_a_stream(lengths):
    few = tuple(side[:3] for side in lengths)
    training = [numbers(streamed(few, num_processes=4, process_index=index)) for index in range(4)]
    assert training == [[], [], [], []]
    evaluation = [numbers(streamed(few, seed=None, num_processes=4, process_index=index)) for index in range(4)]
    assert sorted(flat(flat(evaluation))) == [0, 1, 2]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_stream_goes_on_after_any_batch(lengths, epoch):
    share = {"epoch": epoch, "num_processes": 2, "process_index": 1}
    whole = numbers(streamed(lengths, **share))
    for done in (0, 1, 8, 9, 10, 11, 12, len(whole) - 1, len(whole)):
        stopped = streamed(lengths, **share)
        iterator = iter(stopped)
        for _ in range(done):
            next(iterator)
        state = json.loads(json.dumps(stopped.state_dict()))
        resumed = streamed(lengths, num_processes=2, process_index=1)
        resumed.load_state_dict(state)
        assert numbers(resumed) == whole[done:]
        # Only once: the next iteration begins at the beginning.
        assert numbers(resumed) == whole


def test_a_state_is_that_of_its_epoch(lengths):
    run = streamed(lengths)
    first_epoch = numbers(run)
    finished = run.state_dict()
    run.set_epoch(1)
    assert run.state_dict() == {**streamed(lengths).state_dict(), "epoch": 1}
    second_epoch = numbers(run)
    iterator = iter(run)
    for _ in range(3):
        next(iterator)
    run.load_state_dict(run.state_dict())
    assert run.state_dict()["num_batches"] == 3
    assert numbers(run) == second_epoch[3:]
    run.load_state_dict(finished)
    assert run.state_dict() == finished
    assert numbers(run) == []
    assert run.state_dict() == finished
    assert numbers(run) == first_epoch
    # A state is not carried into another epoch.
    run.load_state_dict(finished)
    run.set_epoch(1)
    assert numbers(run) == second_epoch


def test_a_resumed_stream_can_stop_again(lengths):
    whole = numbers(streamed(lengths))
    state = None
    seen = []
    while len(seen) < len(whole):
        run = streamed(lengths)
        if state is not None:
            run.load_state_dict(state)
        iterator = iter(run)
        seen += numbers([next(iterator) for _ in range(min(7, len(whole) - len(seen)))])
        state = run.state_dict()
    assert seen == whole


def test_a_loader_may_have_read_ahead(lengths):
    whole = numbers(streamed(lengths))
    ahead = streamed(lengths)
    iterator = iter(ahead)
    # Past the end of the first window, which is worth 20 batches.
    for position in range(1, 31):
        next(iterator)
        resumed = streamed(lengths)
        resumed.load_state_dict(ahead.state_dict(num_batches=position - 1))
        assert numbers([next(iter(resumed))]) == whole[position - 1 : position]
    with pytest.raises(ValueError) as caught:
        ahead.state_dict(num_batches=0)
    window_begins = ahead.state_dict()["first_batch"]
    assert 0 < window_begins < len(whole)
    assert str(caught.value) == (f"`num_batches` must be at least {window_begins}, where the window begins, but is 0.")


def test_resuming_encodes_no_more_than_a_window_again():
    tokenizer = train_tokenizer(["a"], 260)
    raw = Dataset.from_dict({"source": ["ab"] * 20_000, "target": ["cd"] * 20_000}).to_iterable_dataset()

    def prepared():
        pairs, report = prepare_pairs(raw, tokenizer, tokenizer, max_length=9, max_length_ratio=None)
        return StreamedBatches(pairs, 40, 40, seed=1, window_batches=100), report

    stopped, _ = prepared()
    iterator = iter(stopped)
    # Ten pairs of four tokens make a batch: 1750 batches are 17,500 pairs, the eighteenth window half done.
    for _ in range(1750):
        next(iterator)
    resumed, report = prepared()
    resumed.load_state_dict(stopped.state_dict())
    next(iter(resumed))
    # One window of 1000 pairs, in steps of the 1000 that map() encodes at once.
    assert report.read <= 3000


def test_a_streamed_pair_beyond_a_budget_is_an_error(lengths):
    too_long = np.where(np.arange(COUNT) == 500, TARGET_TOKENS + 1, 5)
    with pytest.raises(ValueError) as caught:
        list(streamed((lengths[0], too_long)))
    assert str(caught.value) == (
        "`target_tokens` must be at least the 71 tokens of the longest target sentence, but is 70."
    )


# The collator


def test_a_batch_by_hand():
    batch = PairCollator(1)([{"input_ids": [5, 6, 2], "labels": [2]}, {"input_ids": [2], "labels": [7, 2]}])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 2], [2, 1, 1]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[2, -100], [7, 2]],
    }
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@pytest.fixture(scope="module")
def prepared():
    """Prepared pairs with text, with their tokenizer."""
    rng = random.Random(0)
    words = ["cat", "house", "lower", "newest", "the", "on"]
    sides = [[" ".join(rng.choices(words, k=rng.randrange(1, 9))) for _ in range(60)] for _ in range(2)]
    tokenizer = train_tokenizer([*sides[0], *sides[1]], 300)
    raw = Dataset.from_dict(dict(zip(("source", "target"), sides, strict=True)))
    pairs, _ = prepare_pairs(raw, tokenizer, tokenizer, max_length=50, max_length_ratio=None, keep_text=True)
    return pairs, tokenizer


def dropout_collator(tokenizer, rates, *, seed: int = 1) -> PairCollator:
    source_rate, target_rate = rates
    dropouts = (BpeDropout(tokenizer, source_rate), BpeDropout(tokenizer, target_rate))
    return PairCollator(tokenizer.pad_token_id, bpe_dropout=dropouts, seed=seed)


def ids_of(batch: dict[str, torch.Tensor], row: int) -> tuple[list[int], list[int]]:
    source = batch["input_ids"][row][batch["attention_mask"][row] == 1]
    return source.tolist(), batch["labels"][row][batch["labels"][row] != -100].tolist()


def test_dropout_is_that_of_seed_epoch_and_pair(prepared):
    pairs, tokenizer = prepared
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


def test_each_side_has_its_own_dropout(prepared):
    pairs, tokenizer = prepared
    batch = dropout_collator(tokenizer, (0.0, 1.0))([{**pairs[0], "epoch": 0}])
    source, target = ids_of(batch, 0)
    assert source == pairs[0]["input_ids"]
    assert len(target) == len(pairs[0]["target"].encode()) + 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_through_a_loader(prepared, num_workers):
    pairs, tokenizer = prepared
    batches = TokenBudgetSampler(*pair_lengths(pairs), 60, 60, seed=1)
    pairs = pairs.add_column("epoch", [4] * len(pairs))
    collator = dropout_collator(tokenizer, (0.3, 0.3))
    loaded = list(DataLoader(pairs, batch_sampler=batches, collate_fn=collator, num_workers=num_workers))
    expected = [collator([pairs[row] for row in batch]) for batch in batches]
    assert len(loaded) == len(batches) > 3
    for left, right in zip(loaded, expected, strict=True):
        assert {name: tensor.tolist() for name, tensor in left.items()} == {
            name: tensor.tolist() for name, tensor in right.items()
        }


def test_a_stream_through_a_loader(prepared):
    pairs, tokenizer = prepared
    batches = StreamedBatches(pairs.to_iterable_dataset(), 60, 60, seed=1)
    batches.set_epoch(3)
    collator = dropout_collator(tokenizer, (0.3, 0.3))
    assert {pair["epoch"] for batch in batches for pair in batch} == {3}
    loaded = list(DataLoader(batches, batch_size=None, collate_fn=collator))
    assert [batch["labels"].tolist() for batch in loaded] == [collator(batch)["labels"].tolist() for batch in batches]
    assert sum(len(batch["labels"]) for batch in loaded) == 60
