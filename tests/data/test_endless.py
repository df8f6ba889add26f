"""Training batches go on for ever, are the same for any number of processes, and go on exactly where a run stopped."""

import itertools
import json
import random

import numpy as np
import pytest
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader

from vaswani_hf.data.batching import EndlessSampler, EpochPairs, PairCollator, TokenBudgetSampler
from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus import prepare_pairs
from vaswani_hf.data.streams import EndlessStream
from vaswani_hf.data.tokenizer_training import train_tokenizer

COUNT = 1000
BUDGETS = (90, 70)
# Processes and accumulated batches, four batches a step.
SHARES = [(1, 4), (2, 2), (4, 1)]


@pytest.fixture(scope="module")
def lengths() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    source = rng.integers(2, 30, COUNT)
    return source, np.clip(source + rng.integers(-4, 5, COUNT), 1, 40)


def few(lengths, count: int) -> tuple[np.ndarray, np.ndarray]:
    return lengths[0][:count], lengths[1][:count]


def prepared(lengths) -> Dataset:
    """Prepared pairs whose token ids are their number in the corpus, over and over."""
    columns = {
        "input_ids": [[row] * length for row, length in enumerate(lengths[0].tolist())],
        "labels": [[row] * length for row, length in enumerate(lengths[1].tolist())],
        "source_length": lengths[0],
        "target_length": lengths[1],
    }
    return Dataset.from_dict(columns)


def stream(lengths) -> IterableDataset:
    return prepared(lengths).to_iterable_dataset()


def sampler(lengths, position: int = 0, **share) -> EndlessSampler:
    return EndlessSampler(TokenBudgetSampler(*lengths, *BUDGETS, seed=3), position, **share)


def streamed(lengths, state: dict | None = None, **options) -> EndlessStream:
    made = EndlessStream(stream(lengths), *BUDGETS, seed=3, **{"window_batches": 20, **options})
    if state is not None:
        made.load_state_dict(json.loads(json.dumps(state)))
    return made


def numbers(batches) -> list[list[tuple[int, int]]]:
    """Batches of a stream as the sampler gives them."""
    return [[(pair["epoch"], pair["input_ids"][0]) for pair in batch] for batch in batches]


def rows(batches) -> list[int]:
    return [row for batch in batches for _, row in batch]


def batches_per_epoch(lengths) -> int:
    """The number of batches of an epoch of a stream."""
    return next(number for number, batch in enumerate(streamed(lengths)) if batch[0]["epoch"] == 1)


def steps(shares, accumulation: int, count: int) -> list[list]:
    """The batches of each step of the optimizer, in an order that does not depend on the processes."""
    iterators = [iter(share) for share in shares]
    return [
        sorted(batch for iterator in iterators for batch in itertools.islice(iterator, accumulation))
        for _ in range(count)
    ]


# Any number of processes


@pytest.mark.parametrize("size", [400, 30, 2], ids=["many batches", "few batches", "one batch"])
@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_steps_do_not_depend_on_the_number_of_processes(lengths, kind, size):
    corpus, count = few(lengths, size), 60 if size == 400 else 10

    def run(num_processes, accumulation, begin, end, state=None):
        """The steps from `begin` to `end`, and the state of each process at the end."""
        share = [{"num_processes": num_processes, "process_index": index} for index in range(num_processes)]
        if kind == "sampler":
            made = [sampler(corpus, begin * 4, **options) for options in share]
            return steps(made, accumulation, end - begin), [None]
        made = [streamed(corpus, state, **options) for options in share]
        taken = steps(
            [(numbers([batch])[0] for batch in batches) for batches in made], accumulation, end - begin
        )
        return taken, [batches.state_dict(end * 4) for batches in made]

    whole, _ = run(1, 4, 0, count)
    assert whole[-1][-1][0][0] >= 2
    for before, after, switch in zip(SHARES, [*SHARES[1:], SHARES[0]], (1, 5, 8), strict=True):
        first, states = run(*before, 0, switch)
        assert all(state == states[0] for state in states)
        second, _ = run(*after, switch, count, states[0])
        assert first + second == whole


@pytest.mark.parametrize("num_processes", [2, 7])
def test_no_batch_is_left_out(lengths, num_processes):
    count = 600 // num_processes
    for make, batches in ((sampler, list), (streamed, numbers)):
        shares = [
            batches(itertools.islice(make(lengths, num_processes=num_processes, process_index=index), count))
            for index in range(num_processes)
        ]
        together = [batch for group in zip(*shares, strict=True) for batch in group]
        assert together == batches(itertools.islice(make(lengths), count * num_processes))
        for epoch in range(2):
            assert sorted(rows(batch for batch in together if batch[0][0] == epoch)) == list(range(COUNT))


# A corpus on disk


def test_epochs_of_a_corpus_differ_and_begin_anywhere(lengths):
    endless = sampler(lengths)
    per_epoch = endless.batches_per_epoch
    assert per_epoch == len(TokenBudgetSampler(*lengths, *BUDGETS, seed=3))
    whole = list(itertools.islice(endless, 3 * per_epoch))
    assert {epoch for epoch, _ in whole[per_epoch - 1]} == {0}
    assert {epoch for epoch, _ in whole[per_epoch]} == {1}
    assert rows(whole[:per_epoch]) != rows(whole[per_epoch : 2 * per_epoch])
    for position in (0, 1, per_epoch - 1, per_epoch, 2 * per_epoch + 5):
        assert list(itertools.islice(sampler(lengths, position), 30)) == whole[position : position + 30]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_corpus_through_a_loader(lengths, num_workers):
    pairs, share = prepared(lengths), {"num_processes": 2, "process_index": 1}
    loader = DataLoader(
        EpochPairs(pairs),
        batch_sampler=sampler(lengths, 7, **share),
        num_workers=num_workers,
        collate_fn=list,
    )
    expected = list(itertools.islice(sampler(lengths, 7, **share), 200))
    assert numbers(itertools.islice(loader, 200)) == expected
    assert {batch[0][0] for batch in expected} >= {0, 1}


# A stream


def test_a_stream_is_batched_window_by_window(lengths):
    source, target = lengths
    batches = [[row for _, row in batch] for batch in numbers(itertools.islice(streamed(lengths), 200))]
    for batch in batches:
        assert len(batch) * source[batch].max() <= BUDGETS[0]
        assert len(batch) * target[batch].max() <= BUDGETS[1]
    # Windows: the pairs of the first 15 batches stand at the beginning of the stream, but not in its order.
    beginning = [row for batch in batches[:15] for row in batch]
    assert max(beginning) < 150
    assert beginning != sorted(beginning)
    positions = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in batches)
    assert sum(source[batch].sum() + target[batch].sum() for batch in batches) / positions > 0.85


@pytest.mark.parametrize("rest", [1, 3, 12, 13, 40])
def test_the_last_window_of_an_epoch_takes_a_rest_of_less_than_a_batch(rest):
    # Ten pairs of nine tokens fill a batch, 40 a window of four.
    lengths = np.full(40 + rest, 9), np.full(40 + rest, 7)
    stream = streamed(lengths, window_batches=4)
    sizes, windows = [], []
    for batch in stream:
        if batch[0]["epoch"] == 1:
            break
        sizes.append(len(batch))
        windows.append(stream.state_dict()["window"])
    assert sum(sizes) == 40 + rest
    assert max(windows) == (rest >= 10)
    assert min(sizes) >= (8 if rest < 10 else min(rest, 10) // 2)


def test_a_stream_goes_on_after_any_batch(lengths):
    per_epoch = batches_per_epoch(lengths)
    whole = numbers(itertools.islice(streamed(lengths), 2 * per_epoch))
    # The window is worth 20 batches.
    for done in (0, 1, 18, 19, 20, 21, 22, 23, 24, per_epoch - 1, per_epoch, per_epoch + 1, per_epoch + 30):
        stopped = streamed(lengths)
        list(itertools.islice(stopped, done))
        resumed = streamed(lengths, stopped.state_dict())
        assert numbers(itertools.islice(resumed, 30)) == whole[done : done + 30]
        # Nobody who goes on iterating sees a batch again.
        assert numbers(itertools.islice(stopped, 5)) == whole[done : done + 5]


# Shards


def sharded(counts: list[int]) -> IterableDataset:
    """A stream of shards with so many pairs, whose token ids say where each stands; prepared like that of a run."""

    def generate(shards):
        for shard, count in shards:
            for row in range(count):
                length = 3 + (row * 7 + shard) % 11
                number = shard * 1000 + row
                yield {"input_ids": [number] * length, "labels": [number] * length} | dict.fromkeys(
                    ("source_length", "target_length"), length
                )

    shards = IterableDataset.from_generator(generate, gen_kwargs={"shards": list(enumerate(counts))})
    return shards.map(lambda batch: batch, batched=True, batch_size=10)


def sharded_batches(counts, state=None, **share) -> EndlessStream:
    made = EndlessStream(sharded(counts), 90, 90, seed=3, window_batches=4, **share)
    if state is not None:
        made.load_state_dict(json.loads(json.dumps(state)))
    return made


SHARDS = [[60], [30, 0, 1, 45, 20], [9] * 25]


@pytest.mark.parametrize("counts", SHARDS, ids=["one", "unequal", "many"])
def test_an_epoch_takes_shards_in_another_order_and_each_pair_once(counts):
    everything = sorted(shard * 1000 + row for shard, count in enumerate(counts) for row in range(count))
    epochs, batches = [[], [], []], [set(), set(), set()]
    for pairs in sharded_batches(counts):
        (batch,) = numbers([pairs])
        if batch[0][0] == 3:
            break
        epochs[batch[0][0]] += [row for _, row in batch]
        batches[batch[0][0]].add(frozenset(row for _, row in batch))
    assert [sorted(epoch) for epoch in epochs] == [everything] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    # Pairs of equal length meet in other batches.
    assert batches[0] != batches[1] != batches[2]
    if len(counts) == 25:
        begins = [{row // 1000 for row in epoch[:30]} for epoch in epochs]
        # A window mixes shards, others in each epoch.
        assert all(len(begin) >= 6 for begin in begins)
        assert begins[0] != begins[1] != begins[2]


@pytest.mark.parametrize("counts", SHARDS, ids=["one", "unequal", "many"])
def test_shards_go_on_after_any_batch_with_any_number_of_processes(counts):
    whole = numbers(itertools.islice(sharded_batches(counts), 70))
    assert whole[-1][0][0] >= 2
    for done in (0, 1, 3, 4, 5, 9, 17, 26, 39):
        stopped = sharded_batches(counts)
        assert numbers(itertools.islice(stopped, done)) == whole[:done]
        shares = [
            numbers(
                itertools.islice(
                    sharded_batches(counts, stopped.state_dict(), num_processes=2, process_index=index), 12
                )
            )
            for index in range(2)
        ]
        assert [batch for pair in zip(*shares, strict=True) for batch in pair] == whole[done : done + 24]


def test_a_resumed_stream_can_stop_again(lengths):
    whole = numbers(itertools.islice(streamed(lengths), 300))
    state, seen = None, []
    while len(seen) < 300:
        run = streamed(lengths, state)
        seen += numbers(itertools.islice(run, 7))
        state = run.state_dict()
        assert state["position"] == len(seen)
    assert seen[:300] == whole


def test_a_state_of_before_the_window_is_refused(lengths):
    stream = streamed(lengths)
    list(itertools.islice(stream, 30))
    begin = stream.state_dict()["first_batch"]
    assert 0 < begin < 30
    assert stream.state_dict(begin)["position"] == begin
    with pytest.raises(
        ValueError, match=f"must be at least {begin}, where the window begins, but is {begin - 1}"
    ):
        stream.state_dict(begin - 1)


def test_resuming_encodes_no_more_than_a_window_again():
    tokenizer = train_tokenizer(["a"], 260)
    raw = Dataset.from_dict({"source": ["ab"] * 20_000, "target": ["cd"] * 20_000}).to_iterable_dataset()

    def made():
        pairs, report = prepare_pairs(raw, tokenizer, tokenizer, max_length=9, max_length_ratio=None)
        return EndlessStream(pairs, 40, 40, seed=1, window_batches=100), report

    stopped, _ = made()
    # Ten pairs of four tokens make a batch: 1750 batches are 17,500 pairs, the eighteenth window half done.
    list(itertools.islice(stopped, 1750))
    resumed, report = made()
    resumed.load_state_dict(stopped.state_dict())
    next(iter(resumed))
    # One window of 1000 pairs and a batch, in steps of the 1000 that map() encodes at once.
    assert report.read <= 3000


def test_a_stream_without_pairs_is_an_error(lengths):
    empty = stream(lengths).filter(lambda pair: False)
    with pytest.raises(ValueError) as caught:
        next(iter(EndlessStream(empty, *BUDGETS, seed=3)))
    assert (
        str(caught.value)
        == "The stream of training pairs must hold a pair that survives cleaning, but has none."
    )


# BPE-dropout


def test_dropout_follows_the_epoch_of_each_pair():
    rng = random.Random(0)
    words = ["cat", "house", "lower", "newest", "the", "on"]
    sides = [[" ".join(rng.choices(words, k=rng.randrange(1, 9))) for _ in range(60)] for _ in range(2)]
    tokenizer = train_tokenizer([*sides[0], *sides[1]], 300)
    raw = Dataset.from_dict(dict(zip(("source", "target"), sides, strict=True)))
    pairs, _ = prepare_pairs(raw, tokenizer, tokenizer, max_length=50, max_length_ratio=None, keep_text=True)
    collator = PairCollator(
        tokenizer.pad_token_id, bpe_dropout=(BpeDropout(tokenizer, 0.3), BpeDropout(tokenizer, 0.3)), seed=1
    )
    endless = EndlessSampler(TokenBudgetSampler(*pair_lengths(pairs), 60, 60, seed=1))
    count = 2 * endless.batches_per_epoch
    expected = [
        collator([{**pairs[row], "epoch": epoch} for epoch, row in batch])
        for batch in itertools.islice(endless, count)
    ]
    loader = DataLoader(EpochPairs(pairs), batch_sampler=endless, collate_fn=collator)
    for left, right in zip(itertools.islice(loader, count), expected, strict=True):
        assert {name: tensor.tolist() for name, tensor in left.items()} == {
            name: tensor.tolist() for name, tensor in right.items()
        }
    batches = EndlessStream(pairs.to_iterable_dataset(), 60, 60, seed=1)
    streamed = list(itertools.islice(batches, count))
    loaded = itertools.islice(
        DataLoader(
            EndlessStream(pairs.to_iterable_dataset(), 60, 60, seed=1), batch_size=None, collate_fn=collator
        ),
        count,
    )
    assert [batch["labels"].tolist() for batch in loaded] == [
        collator(batch)["labels"].tolist() for batch in streamed
    ]
    assert {pair["epoch"] for batch in streamed for pair in batch} == {0, 1}
