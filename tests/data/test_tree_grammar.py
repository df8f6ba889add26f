"""The quick corpus of a parser: reproducible, disjoint splits, agreement, and one right tree for each sentence."""

import functools
import re

import pytest

from vaswani_hf.data import tree_grammar
from vaswani_hf.data.tree_grammar import grammar_trees
from vaswani_hf.data.trees import WORD, tree_of


@pytest.fixture(scope="module")
def trees():
    """The first trees of each split."""
    return {split: grammar_trees(150, 1, split) for split in ("train", "validation", "test")}


def test_the_trees_of_a_seed_are_the_same_and_a_smaller_number_gives_the_first_of_them(trees):
    assert grammar_trees(20, 1, "train") == trees["train"][:20]
    assert str(trees["train"][3]) == FOURTH
    assert grammar_trees(20, 2, "train") != trees["train"][:20]


FOURTH = (
    "(SQ (VBP do) (NP (DT some) (NNS bakers)) (VP (VB smile) (PP (IN after) (NP (NNP Sunday) (NN evening)))) (. ?))"
)


def test_no_sentence_is_there_twice(trees):
    sentences = [tree.sentence for of_split in trees.values() for tree in of_split]
    assert len(set(sentences)) == len(sentences)
    # Whatever the seed.
    assert not set(sentences[:150]) & {tree.sentence for tree in grammar_trees(150, 9, "test")}


def test_trees_are_those_of_a_treebank(trees):
    for tree in trees["train"]:
        assert tree_of(str(tree)) == tree and len(tree.words) <= 18


def test_number_agrees(trees):
    text = " ".join(tree.sentence for tree in trees["train"])
    assert not re.search(r"\b(this|every|a) (\w+ )?(dogs|cats|men)\b|\b(these|many|some) (\w+ )?(dog|cat|man)\b", text)
    assert not re.search(r"\b(he|she) (see|sleep|are)\b|\b(we|they) (sees|sleeps|is)\b", text)


def parses_of(words):
    """All trees that the grammar has for some words, as symbols."""
    choices = {left: sorted(set(rights)) for left, rights in tree_grammar._EXPANSIONS.items()}

    @functools.cache
    def of_symbol(symbol, start, end):
        if "~" in symbol:
            return of_symbol(symbol.replace("~", "s"), start, end) | of_symbol(symbol.replace("~", "p"), start, end)
        if symbol in tree_grammar._LEXICON:
            is_one = end == start + 1 and words[start] in tree_grammar._LEXICON[symbol][1]
            return frozenset([(WORD,)] if is_one else [])
        label = symbol.partition(":")[0]
        found = {body for right in choices[symbol] for body in of_sequence(right, start, end)}
        return frozenset((f"({label}", *body, ")") if label else body for body in found)

    @functools.cache
    def of_sequence(right, start, end):
        if len(right) == 1:
            return of_symbol(right[0], start, end)
        return frozenset(
            left + rest
            for middle in range(start + 1, end - len(right) + 2)
            for left in of_symbol(right[0], start, middle)
            for rest in of_sequence(right[1:], middle, end)
        )

    return of_symbol("S:", 0, len(words)) | of_symbol("SQ:", 0, len(words))


def test_each_sentence_has_one_tree(trees):
    for tree in trees["test"][:60]:
        assert parses_of(tree.words) == {tree.symbols}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, "train"), "`num_trees` must be a positive integer, but is 0."),
        ((1, 1, "dev"), '`split` must be "train", "validation" or "test", but is \'dev\'.'),
    ],
)
def test_impossible_wishes_are_refused(arguments, message):
    with pytest.raises(ValueError) as error:
        grammar_trees(*arguments)
    assert str(error.value) == message
