"""Weighted corpora: how often an epoch has each pair, in which batches, and with which splits into tokens."""

from pathlib import Path

import numpy as np
import pytest
from sentences import refused

from vaswani_hf.data.batching import EpochPairs, PairCollator, TokenBudgetSampler
from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.data.columns import pair_corpora
from vaswani_hf.data.corpus_cache import corpus_digest
from vaswani_hf.data.weighted_corpora import WeightedPairs
from vaswani_hf.tasks.translation import TranslationData, TranslationTask, TranslationTokenizer

SIZES, WEIGHTS = [40, 7, 30, 1, 12], [0.25, 2.5, 1, 0.1, 0]
BUDGETS = (90, 80)


@pytest.fixture(scope="module")
def lengths() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    source = rng.integers(2, 40, sum(SIZES))
    return source, np.clip(source + rng.integers(-2, 3, sum(SIZES)), 2, 40)


@pytest.fixture(scope="module")
def corpora() -> np.ndarray:
    # Mix the pairs of all corpora, because the pairs of a corpus need not be neighbours.
    return np.random.default_rng(2).permutation(np.repeat(range(len(SIZES)), SIZES))


def sampler(lengths, corpora, seed=3):
    weighted = WeightedPairs(*lengths, corpora, WEIGHTS, seed)
    places = (weighted.source_lengths, weighted.target_lengths)
    return TokenBudgetSampler(*places, *BUDGETS, seed=seed, pairs_of=weighted.of_epoch), weighted


def epoch_of(made, epoch):
    made.set_epoch(epoch)
    return list(made)


def test_pairs_are_seen_as_often_as_their_corpus_weighs(lengths, corpora):
    made, weighted = sampler(lengths, corpora)
    assert weighted.num_pairs == SIZES
    # The product of 2.5 and 7 pairs is not a whole number. The last corpus has one pair and the weight 0.
    assert weighted.num_places == [10, 18, 30, 1, 0]
    shares = np.array(weighted.num_places)[corpora] / np.array(SIZES)[corpora]
    num_epochs = 100
    seen = np.zeros(len(corpora), int)
    for epoch in range(num_epochs):
        numbers = np.array([number for batch in epoch_of(made, epoch) for number in batch])
        assert len(set(numbers)) == len(numbers) == 59
        counts = np.bincount(numbers % len(corpora), minlength=len(corpora))
        assert np.all((counts == np.floor(shares)) | (counts == np.ceil(shares)))
        # A pair that occurs twice has two numbers with the same remainder.
        assert np.all(numbers // len(corpora) < counts[numbers % len(corpora)])
        seen += counts
    # The limit is four standard deviations of the number of epochs that contain a pair once more.
    assert np.abs(seen - shares * num_epochs).max() < 4 * np.sqrt(0.25 * num_epochs)


def test_batches_of_weighted_pairs_are_within_their_budgets_and_as_many_in_each_epoch(lengths, corpora):
    made, weighted = sampler(lengths, corpora)
    longest = np.zeros(len(weighted.source_lengths), int)
    for epoch in range(50):
        batches = epoch_of(made, epoch)
        assert len(batches) == len(made)
        for batch in batches:
            pairs = np.array(batch) % len(corpora)
            for side, budget in zip(lengths, BUDGETS, strict=True):
                assert len(pairs) * side[pairs].max() <= budget
        longest = np.maximum(longest, lengths[0][weighted.of_epoch(epoch) % len(corpora)])
    # The length of a place is the length of the longest pair that can fill the place.
    assert np.array_equal(longest, weighted.source_lengths)
    assert epoch_of(made, 5) != epoch_of(made, 9)
    assert epoch_of(sampler(lengths, corpora)[0], 5) == epoch_of(made, 5)
    assert epoch_of(sampler(lengths, corpora, seed=4)[0], 5) != epoch_of(made, 5)


def test_weights_of_1_give_each_pair_once(lengths, corpora):
    weighted = WeightedPairs(*lengths, corpora, [1.0] * len(SIZES), 3)
    assert sorted(weighted.of_epoch(7).tolist()) == list(range(len(corpora)))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that loads two corpora of three files as a run does."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    texts = {
        "a1": ["cat", "house on cat", ""],
        "a2": ["the house"],
        "b": ["newest house", "on the cat", "lower"],
    }
    for name, lines in texts.items():
        Path(tmp_path, f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        Path(tmp_path, f"{name}.de").write_text("".join(f"{line} {name}\n" for line in lines))
    sides = {
        f"train_{side}": [f"{tmp_path}/a*.{end}", f"{tmp_path}/b.{end}"]
        for side, end in (("source", "en"), ("target", "de"))
    }
    data = TranslationData(
        source_language="en", target_language="de", **sides, train_weights=[0.5, 3], max_length=40
    )

    def load(dropout=0.0, **changes):
        section = TranslationTokenizer(vocab_size=300, bpe_dropout=dropout)
        return TranslationTask(data.replace(**changes), section).load_corpus(tmp_path, new_tokenizers=True)

    return load


@pytest.mark.parametrize("both", [False, True])
def test_an_entry_with_all_of_its_files_is_a_corpus(load, both):
    corpus, times = load(both_directions=both), 1 + both
    decode = corpus.target_tokenizer.decode
    ends = [decode(ids, skip_special_tokens=True) for ids in corpus.train["labels"]]
    # The pair with an empty side is dropped.
    turned = [text for text in ends if not text.endswith(("a1", "a2", " b"))]
    assert len(ends) == 6 * times and len(turned) == 6 * both
    assert pair_corpora(corpus.train).tolist() == [0] * 3 * times + [1] * 3 * times
    assert (corpus.weighted.num_pairs, corpus.weighted.num_places) == ([3 * times] * 2, [2 + both, 9 * times])
    assert corpus.reports["train"].read == 7 * times
    # The second call finds the prepared pairs in the cache.
    assert load(both_directions=both).train.cache_files == corpus.train.cache_files


def test_the_division_into_corpora_is_part_of_the_digest(load, tmp_path):
    other = {
        f"train_{side}": [f"{tmp_path}/a1.{end}", f"{tmp_path}/[ab][2.]*{end}"]
        for side, end in (("source", "en"), ("target", "de"))
    }
    here, there = load(), load(**other)
    assert here.train["labels"] == there.train["labels"] and here.digest.count == there.digest.count == 6
    assert here.digest != there.digest
    assert corpus_digest(here.train.remove_columns("corpus")) == corpus_digest(
        there.train.remove_columns("corpus")
    )


def test_a_pair_that_is_seen_again_in_an_epoch_has_other_splits(load):
    corpus = load(dropout=0.6)
    dropout = BpeDropout(corpus.source_tokenizer, 0.6)
    collator = PairCollator(1, encoders=(dropout, dropout), seed=1, max_length=40)
    pairs, weighted = EpochPairs(corpus.train), corpus.weighted
    # The last three places of an epoch hold copies of one pair, because the last corpus has the weight 3.
    longest = [(2, number) for number in weighted.of_epoch(2).tolist()[-3:]]
    assert len({number % len(pairs) for _, number in longest}) == 1
    splits = [collator([pair])["labels"].tolist() for pair in pairs.__getitems__(longest)]
    assert len({str(ids) for ids in splits}) > 1
    assert splits == [collator([pair])["labels"].tolist() for pair in pairs.__getitems__(longest)]


def test_a_corpus_that_cleaning_left_nothing_of_takes_no_place(lengths):
    weighted = WeightedPairs(*lengths, np.zeros(sum(SIZES), int), [1.0, 2.0], 1)
    assert sorted(weighted.of_epoch(1).tolist()) == [*range(sum(SIZES))]


def test_weights_of_what_cleaning_left_nothing_of_are_refused(lengths):
    with refused(
        "`data.train_weights` must give a weight above 0 to at least one corpus with pairs, but the weights are [0, 2.0], and after "
        "cleaning the corpora have [90, 0] pairs; raise the weight of a corpus that has pairs."
    ):
        WeightedPairs(*lengths, np.zeros(sum(SIZES), int), [0, 2.0], 1)
