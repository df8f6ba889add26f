"""Training batches never end, do not depend on the number of processes, and continue where a run stopped."""

import itertools
import json

import numpy as np
import pytest
from datasets import Dataset, IterableDataset
from factories import tiny_tokenizer
from torch.utils.data import DataLoader

from vaswani_hf.data.batching import EndlessSampler, EpochPairs, PairCollator, TokenBudgetSampler
from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.encoding import prepare_pairs
from vaswani_hf.data.streams import EndlessStream

BUDGETS = (90, 70)
# The numbers of processes and of accumulated batches; a step always has four batches.
SHARES = [(1, 4), (2, 2), (4, 1)]


def prepared(lengths) -> Dataset:
    """Return prepared pairs. Each token id of a pair is the number of the pair in the corpus."""
    columns = {
        "input_ids": [[row] * length for row, length in enumerate(lengths[0].tolist())],
        "labels": [[row] * length for row, length in enumerate(lengths[1].tolist())],
        "source_length": lengths[0],
        "target_length": lengths[1],
    }
    return Dataset.from_dict(columns)


def sampler(lengths, position: int = 0, **share) -> EndlessSampler:
    return EndlessSampler(TokenBudgetSampler(*lengths, *BUDGETS, seed=3), position, **share)


def loaded(stream: EndlessStream, state: dict | None) -> EndlessStream:
    """The stream after it has loaded a state from a file."""
    if state is not None:
        stream.load_state_dict(json.loads(json.dumps(state)))
    return stream


def streamed(lengths, state: dict | None = None, **options) -> EndlessStream:
    pairs = prepared(lengths).to_iterable_dataset()
    return loaded(EndlessStream(pairs, *BUDGETS, seed=3, **{"window_batches": 20, **options}), state)


def numbers(batches) -> list[list[tuple[int, int]]]:
    """Batches of a stream as the sampler gives them."""
    return [[(pair["epoch"], pair["input_ids"][0]) for pair in batch] for batch in batches]


def first(batches, count: int) -> list:
    return list(itertools.islice(batches, count))


def in_turn(shares) -> list:
    """The batches of several processes, one after the other."""
    return [batch for group in zip(*shares, strict=True) for batch in group]


def processes(number: int) -> list[dict[str, int]]:
    return [{"num_processes": number, "process_index": index} for index in range(number)]


def rows(batches) -> list[int]:
    return [row for batch in batches for _, row in batch]


def steps(shares, accumulation: int, count: int) -> list[list]:
    """The batches of each step of the optimizer, in an order that does not depend on the processes."""
    iterators = [iter(share) for share in shares]
    return [
        sorted(batch for iterator in iterators for batch in itertools.islice(iterator, accumulation))
        for _ in range(count)
    ]


@pytest.mark.parametrize("size", [400, 30, 2], ids=["many batches", "few batches", "one batch"])
@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_steps_do_not_depend_on_the_number_of_processes(lengths, kind, size):
    corpus, count = (lengths[0][:size], lengths[1][:size]), 60 if size == 400 else 10

    def run(num_processes, accumulation, begin, end, state=None):
        """The steps from `begin` to `end`, and the state of each process at the end."""
        if kind == "sampler":
            made = [sampler(corpus, begin * 4, **options) for options in processes(num_processes)]
            return steps(made, accumulation, end - begin), [None]
        made = [streamed(corpus, state, **options) for options in processes(num_processes)]
        batches = [(numbers([batch])[0] for batch in share) for share in made]
        taken = steps(batches, accumulation, end - begin)
        return taken, [share.state_dict(end * 4) for share in made]

    whole, _ = run(1, 4, 0, count)
    assert whole[-1][-1][0][0] >= 2
    for before, after, switch in zip(SHARES, [*SHARES[1:], SHARES[0]], (1, 5, 8), strict=True):
        begun, states = run(*before, 0, switch)
        assert all(state == states[0] for state in states)
        rest, _ = run(*after, switch, count, states[0])
        assert begun + rest == whole


def test_the_epochs_of_a_corpus_differ(lengths):
    endless = sampler(lengths)
    per_epoch = endless.batches_per_epoch
    assert per_epoch == len(TokenBudgetSampler(*lengths, *BUDGETS, seed=3))
    whole = first(endless, 2 * per_epoch)
    assert [epoch for ((epoch, _), *_) in whole] == [0] * per_epoch + [1] * per_epoch
    assert rows(whole[:per_epoch]) != rows(whole[per_epoch:])


def test_a_stream_is_batched_window_by_window(lengths):
    source, target = lengths
    batches = [[row for _, row in batch] for batch in numbers(first(streamed(lengths), 200))]
    for batch in batches:
        assert len(batch) * source[batch].max() <= BUDGETS[0]
        assert len(batch) * target[batch].max() <= BUDGETS[1]
    # Windows: the first 15 batches have the pairs from the beginning of the stream, but in another order.
    beginning = [row for batch in batches[:15] for row in batch]
    assert max(beginning) < 150
    assert beginning != sorted(beginning)
    positions = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in batches)
    assert sum(source[batch].sum() + target[batch].sum() for batch in batches) / positions > 0.85


@pytest.mark.parametrize("rest", [1, 3, 12, 13, 40])
def test_the_last_window_of_an_epoch_takes_a_rest_of_less_than_a_batch(rest):
    # Ten pairs of nine tokens fill a batch, and 40 pairs fill a window of four batches.
    stream = streamed((np.full(40 + rest, 9), np.full(40 + rest, 7)), window_batches=4)
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
    per_epoch = next(number for number, batch in enumerate(streamed(lengths)) if batch[0]["epoch"] == 1)
    whole = numbers(first(streamed(lengths), 2 * per_epoch))
    # A window has as many tokens as 20 batches.
    for done in (0, 1, 19, 20, 21, 24, per_epoch - 1, per_epoch, per_epoch + 1, per_epoch + 30):
        stopped = streamed(lengths)
        first(stopped, done)
        resumed = streamed(lengths, stopped.state_dict())
        assert numbers(first(resumed, 30)) == whole[done : done + 30]
        # The stopped stream can also continue, and the resumed stream can stop again.
        assert numbers(first(stopped, 5)) == whole[done : done + 5]
        again = streamed(lengths, resumed.state_dict())
        assert numbers(first(again, 5)) == whole[done + 30 : done + 35]


def sharded(counts: list[int], state=None, **share) -> EndlessStream:
    """A stream of shards with these numbers of pairs. The token ids state the shard and the place of a
    pair.
    """

    def generate(shards):
        for shard, count in shards:
            for row in range(count):
                length = 3 + (row * 7 + shard) % 11
                ids = [shard * 1000 + row] * length
                sizes = dict.fromkeys(("source_length", "target_length"), length)
                yield {"input_ids": ids, "labels": ids} | sizes

    shards = IterableDataset.from_generator(generate, gen_kwargs={"shards": list(enumerate(counts))})
    pairs = shards.map(lambda batch: batch, batched=True, batch_size=10)
    return loaded(EndlessStream(pairs, 90, 90, seed=3, window_batches=4, **share), state)


SHARDS = pytest.mark.parametrize(
    "counts", [[60], [30, 0, 1, 45, 20], [9] * 25], ids=["one", "unequal", "many"]
)


@SHARDS
def test_an_epoch_takes_shards_in_another_order_and_each_pair_once(counts):
    everything = sorted(shard * 1000 + row for shard, count in enumerate(counts) for row in range(count))
    epochs, batches = [[], [], []], [set(), set(), set()]
    for pairs in sharded(counts):
        (batch,) = numbers([pairs])
        if batch[0][0] == 3:
            break
        epochs[batch[0][0]] += [row for _, row in batch]
        batches[batch[0][0]].add(frozenset(row for _, row in batch))
    assert [sorted(epoch) for epoch in epochs] == [everything] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    # In each epoch, pairs of equal length are in other batches.
    assert batches[0] != batches[1] != batches[2]
    if len(counts) == 25:
        # A window mixes pairs of several shards, and each epoch begins with other shards.
        begins = [{row // 1000 for row in epoch[:30]} for epoch in epochs]
        assert all(len(begin) >= 6 for begin in begins)
        assert begins[0] != begins[1] != begins[2]


@SHARDS
def test_shards_go_on_after_any_batch_with_any_number_of_processes(counts):
    whole = numbers(first(sharded(counts), 70))
    assert whole[-1][0][0] >= 2
    for done in (0, 1, 3, 4, 5, 9, 17, 26, 39):
        stopped = sharded(counts)
        assert numbers(first(stopped, done)) == whole[:done]
        state = stopped.state_dict()
        shares = [numbers(first(sharded(counts, state, **share), 12)) for share in processes(2)]
        assert in_turn(shares) == whole[done : done + 24]


def test_a_state_of_before_the_window_is_refused(lengths):
    stream = streamed(lengths)
    first(stream, 30)
    begin = stream.state_dict()["first_batch"]
    assert 0 < begin < 30
    assert stream.state_dict(begin)["position"] == begin
    sentence = f"must be at least {begin}, the first batch of the window, but is {begin - 1}"
    with pytest.raises(ValueError, match=sentence):
        stream.state_dict(begin - 1)


def test_resuming_encodes_no_more_than_a_window_again():
    tokenizer = tiny_tokenizer(["a"], 260)
    raw = Dataset.from_dict({"source": ["ab"] * 20_000, "target": ["cd"] * 20_000}).to_iterable_dataset()

    def made():
        pairs, report = prepare_pairs(raw, tokenizer, tokenizer, max_length=9, max_length_ratio=None)
        return EndlessStream(pairs, 40, 40, seed=1, window_batches=100), report

    stopped, _ = made()
    # 1,750 batches have 17,500 pairs and end in the middle of the eighteenth window.
    first(stopped, 1750)
    resumed, report = made()
    resumed.load_state_dict(stopped.state_dict())
    next(iter(resumed))
    # The resumed stream needs one window of 1,000 pairs and one batch, and map() encodes 1,000 pairs at once.
    assert report.read <= 3000


def test_a_stream_without_pairs_is_an_error(lengths):
    empty = prepared(lengths).to_iterable_dataset().filter(lambda pair: False)
    sentence = "^The stream of training pairs must contain a pair that the cleaning keeps, but has none.$"
    with pytest.raises(ValueError, match=sentence):
        next(iter(EndlessStream(empty, *BUDGETS, seed=3)))


def test_dropout_follows_the_epoch_of_each_pair(short_pairs):
    pairs, tokenizer = short_pairs
    dropout = BpeDropout(tokenizer, 0.3)
    collator = PairCollator(tokenizer.pad_token_id, encoders=(dropout, dropout), seed=1)

    def check(loader, expected):
        for found, batch in zip(loader, expected, strict=False):
            assert {pair["epoch"] for pair in batch} <= {0, 1}
            for left, right in zip(found.values(), collator(batch).values(), strict=True):
                assert left.equal(right)

    endless = EndlessSampler(TokenBudgetSampler(*pair_lengths(pairs), 60, 60, seed=1))
    batches = first(endless, 2 * endless.batches_per_epoch)
    expected = [[{**pairs[row], "epoch": epoch} for epoch, row in batch] for batch in batches]
    check(DataLoader(EpochPairs(pairs), batch_sampler=endless, collate_fn=collator), expected)

    def stream():
        return EndlessStream(pairs.to_iterable_dataset(), 60, 60, seed=1)

    check(DataLoader(stream(), batch_size=None, collate_fn=collator), first(stream(), len(batches)))
