"""Columns of memory-mapped files equal those of `datasets`, also after dropping and shuffling rows."""

import pickle
from itertools import pairwise

import datasets
import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from factories import tiny_tokenizer

from vaswani_hf.data.batching import PairCollator, PairRows
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus_cache import corpus_digest
from vaswani_hf.data.encoding import prepare_pairs
from vaswani_hf.data.streams import EndlessStream

COUNT = 2500


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer(["a"], 260)


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Dataset:
    """Pairs in a file, every seventh of them with an empty side."""
    rng = np.random.default_rng(0)

    def rows():
        for number, length in enumerate(rng.integers(1, 20, COUNT)):
            yield {"source": "a" * length, "target": f"{number}ä" if number % 7 else ""}

    return Dataset.from_generator(rows, cache_dir=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def prepared(raw, tokenizer) -> Dataset:
    pairs, _ = prepare_pairs(raw, tokenizer, tokenizer, max_length=50, max_length_ratio=None, keep_text=True)
    return pairs


FORMS = {
    "dropped": lambda pairs: pairs,
    "shuffled": lambda pairs: pairs.shuffle(seed=3),
    "a part": lambda pairs: pairs.select(range(1100, 1500)),
    "written anew": lambda pairs: pairs.flatten_indices(),
    "a part in one piece": lambda pairs: pairs.flatten_indices().select(range(1100, 1500)),
    "put together": lambda pairs: concatenate_datasets(
        [pairs.select(range(900)), pairs.select(range(900, len(pairs)))]
    ),
    "with a column of its own": lambda pairs: pairs.flatten_indices().add_column(
        "more", list(range(len(pairs)))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_lengths_are_those_of_the_dataset(prepared, form):
    pairs = FORMS[form](prepared)
    rows = PairRows(pairs)
    assert len(rows) == len(pairs) < COUNT
    batch = np.random.default_rng(1).permutation(len(pairs))[:200].tolist()
    got = rows.__getitems__(batch)
    expected = [pairs[number] for number in batch]
    for pair, row in zip(got, expected, strict=True):
        assert pair.keys() == row.keys() - {"source_length", "target_length"}
        for name, cell in pair.items():
            assert (list(cell) if name in ("input_ids", "labels") else cell) == row[name]
        assert type(pair["index"]) is int
    for left, right in zip(PairCollator(1)(got).values(), PairCollator(1)(expected).values(), strict=True):
        assert left.dtype == right.dtype
        assert left.equal(right)
    lengths = pair_lengths(pairs)
    assert [side.dtype for side in lengths] == [np.int64] * 2
    assert [side.tolist() for side in lengths] == [pairs["source_length"][:], pairs["target_length"][:]]


def test_ids_are_views_of_the_file_and_stay_behind_when_rows_are_sent(prepared):
    rows = PairRows(prepared)
    ids = rows[5]["input_ids"]
    assert ids.base is not None
    assert not ids.flags.writeable
    assert np.shares_memory(ids, rows[5]["input_ids"])
    sent = pickle.dumps(rows)
    assert len(sent) <= len(pickle.dumps(PairRows(prepared)))
    assert pickle.loads(sent)[5]["input_ids"].tolist() == ids.tolist()


def test_lengths_are_not_gathered_row_by_row(prepared, monkeypatch):
    def gathered(*args, **kwargs):
        raise AssertionError("rows are gathered")

    monkeypatch.setattr("datasets.table.IndexedTableMixin.fast_gather", gathered)
    source_lengths, _ = pair_lengths(prepared)
    pairs = PairRows(prepared).__getitems__([7, 3])
    assert [len(pair["input_ids"]) for pair in pairs] == source_lengths[[7, 3]].tolist()
    assert corpus_digest(prepared).count == len(source_lengths)


def test_the_digest_is_that_of_the_pairs(prepared, raw, tokenizer, tmp_path, monkeypatch):
    digest = corpus_digest(prepared)
    assert digest.count == len(prepared)
    assert digest == corpus_digest(prepared.flatten_indices())
    # The digest does not depend on the cache, on the chunks and on dropped texts.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    again = Dataset.from_list([*raw, {"source": "dropped", "target": " "}])
    options = {"max_length": 50, "max_length_ratio": None}
    other, _ = prepare_pairs(again, tokenizer, tokenizer, **options)
    assert digest == corpus_digest(other)
    assert digest == corpus_digest(Dataset.from_list(list(other), features=other.features))


def test_the_digest_tells_pairs_apart(tokenizer):
    def digest(*pairs):
        raw = Dataset.from_list([{"source": source, "target": target} for source, target in pairs])
        return corpus_digest(
            prepare_pairs(raw, tokenizer, tokenizer, max_length=50, max_length_ratio=None)[0]
        ).sha256

    one, two = ("ab", "cd"), ("ef", "gh")
    variants = [
        (one, two),
        (two, one),
        (one,),
        (("ab", "ef"), ("cd", "gh")),
        (one, ("ef", "gi")),
        (one, two, two),
    ]
    assert len({digest(*pairs) for pairs in variants}) == len(variants)
    # The digest changes if the same sequence of tokens is cut into other pairs.
    left, right = (
        Dataset.from_dict({"input_ids": ids, "labels": [[7], [8]]}) for ids in ([[4, 5], [6]], [[4], [5, 6]])
    )
    assert corpus_digest(left) != corpus_digest(right)


def test_the_digest_of_a_stream_reads_its_beginning_and_leaves_its_place(raw, tokenizer):
    text = raw.to_iterable_dataset()
    pairs, report = prepare_pairs(text, tokenizer, tokenizer, max_length=50, max_length_ratio=None)
    batches = iter(EndlessStream(pairs, 60, 60, seed=1, window_batches=3))
    seen = [next(batches) for _ in range(5)]
    read = report.read
    digest = corpus_digest(text)
    assert digest.count is None
    assert report.read == read
    # The digest of a stream depends on all of the first 1000 pairs, and on no later pair.
    assert digest == corpus_digest(raw.select(range(1000)).to_iterable_dataset())
    assert digest != corpus_digest(raw.select(range(999)).to_iterable_dataset())
    seen += [next(batches) for _ in range(40)]
    fresh, _ = prepare_pairs(
        raw.to_iterable_dataset(), tokenizer, tokenizer, max_length=50, max_length_ratio=None
    )
    whole = iter(EndlessStream(fresh, 60, 60, seed=1, window_batches=3))
    assert seen == [next(whole) for _ in range(45)]
    assert all(left != right for left, right in pairwise(seen))
