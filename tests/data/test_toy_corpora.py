"""The toy corpora: numbers in words, trees, equal corpora for equal seeds, and splits without overlap."""

import hashlib

import pytest
from sentences import rows

from vaswani_hf.data import toy_corpora
from vaswani_hf.data.toy_corpora import english_words, german_words, grammar_trees, num_digits, number_pairs
from vaswani_hf.data.trees import tree_from_text

SPLITS = ("train", "validation", "test")
HAND_WRITTEN = """
    0 | zero | null
    16 | sixteen | sechzehn
    1021 | one thousand and twenty-one | eintausendeinundzwanzig
    101101 | one hundred and one thousand one hundred and one | einhunderteintausendeinhunderteins
"""


@pytest.mark.parametrize(("number", "english", "german"), rows(HAND_WRITTEN))
def test_words_equal_those_written_by_hand(number, english, german):
    assert english_words(int(number)) == english
    assert german_words(int(number)) == german


def number_targets(seed, split):
    return {pair["target"] for pair in number_pairs(2000, seed, split)}


def tree_sentences(seed, split):
    return {tree.sentence for tree in grammar_trees(150, seed, split)}


def test_splits_share_no_pair_whatever_the_seeds():
    for draw in (number_targets, tree_sentences):
        drawn = {split: draw(1, split) | draw(2, split) for split in SPLITS}
        assert not drawn["train"] & drawn["validation"]
        assert not drawn["train"] & drawn["test"]
        assert not drawn["validation"] & drawn["test"]


def test_seeds_choose_the_pairs_and_small_draws_begin_large_ones():
    assert number_pairs(50, 3, "test") == number_pairs(200, 3, "test")[:50]
    assert number_pairs(50, 3, "test") != number_pairs(50, 4, "test")
    assert grammar_trees(20, 3, "test") == grammar_trees(60, 3, "test")[:20]
    assert grammar_trees(20, 3, "test") != grammar_trees(20, 4, "test")


def test_digits_are_counted_in_words():
    for number in (*range(2000), *range(2000, 1_000_000, 997)):
        assert num_digits(english_words(number)) == len(str(number))


def test_trees_are_those_of_a_treebank():
    for tree in grammar_trees(150, 1, "train"):
        assert tree_from_text(str(tree)) == tree and len(tree.words) <= 18


def test_the_corpora_have_not_changed():
    # The digests of version 0.2, for the seed of the quick recipes. Published scores depend on these corpora.
    lines = [f"{pair['source']}\t{pair['target']}\n" for pair in number_pairs(30_000, 1, "train")]
    assert hashlib.sha256("".join(lines).encode()).hexdigest()[:32] == "c201458b15e5eeadfd45cfa86ccc8ac7"
    lines = [f"{tree.sentence}\t{tree}\n" for tree in grammar_trees(1000, 1, "test")]
    assert hashlib.sha256("".join(lines).encode()).hexdigest()[:32] == "1b3b25e3fa9e2cd388ddd410da139418"


def test_num2words_is_imported_only_when_a_number_is_spelled():
    # The module would have this name if it imported num2words at its head.
    assert not hasattr(toy_corpora, "num2words")
