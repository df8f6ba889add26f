"""The toy corpora.

Numbers: the words equal hand-written ones, and an independent reader gets the number back. Trees: one right tree
for each sentence. Both: the same for each seed, and splits without overlap.
"""

import functools
import hashlib
import re

import pytest

from vaswani_hf.data import toy_corpora
from vaswani_hf.data.toy_corpora import english_words, german_words, grammar_trees, num_digits, number_pairs
from vaswani_hf.data.trees import WORD, tree_from_text

SPLITS = ("train", "validation", "test")

HAND_WRITTEN = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (12, "twelve", "zwölf"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (21, "twenty-one", "einundzwanzig"),
    (30, "thirty", "dreißig"),
    (44, "forty-four", "vierundvierzig"),
    (60, "sixty", "sechzig"),
    (66, "sixty-six", "sechsundsechzig"),
    (70, "seventy", "siebzig"),
    (77, "seventy-seven", "siebenundsiebzig"),
    (100, "one hundred", "einhundert"),
    (101, "one hundred and one", "einhunderteins"),
    (105, "one hundred and five", "einhundertfünf"),
    (216, "two hundred and sixteen", "zweihundertsechzehn"),
    (1000, "one thousand", "eintausend"),
    (1001, "one thousand and one", "eintausendeins"),
    (1021, "one thousand and twenty-one", "eintausendeinundzwanzig"),
    (1100, "one thousand one hundred", "eintausendeinhundert"),
    (1101, "one thousand one hundred and one", "eintausendeinhunderteins"),
    (21000, "twenty-one thousand", "einundzwanzigtausend"),
    (101000, "one hundred and one thousand", "einhunderteintausend"),
    (101101, "one hundred and one thousand one hundred and one", "einhunderteintausendeinhunderteins"),
    (471005, "four hundred and seventy-one thousand and five", "vierhunderteinundsiebzigtausendfünf"),
    (
        999999,
        "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
]

# Written in another order than the package's tables, so that a slip there is not repeated here.
ENGLISH_VALUES = {
    "ten": 10, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90, "one": 1, "eleven": 11, "two": 2, "twelve": 12, "three": 3, "thirteen": 13, "four": 4, "fourteen": 14,
    "five": 5, "fifteen": 15, "six": 6, "sixteen": 16, "seven": 7, "seventeen": 17, "eight": 8, "eighteen": 18,
    "nine": 9, "nineteen": 19, "zero": 0,
}  # fmt: skip
GERMAN_TENS = {
    "zwanzig": 20, "dreißig": 30, "vierzig": 40, "fünfzig": 50, "sechzig": 60, "siebzig": 70, "achtzig": 80,
    "neunzig": 90,
}  # fmt: skip
GERMAN_INSIDE = {
    "ein": 1, "zwei": 2, "drei": 3, "vier": 4, "fünf": 5, "sechs": 6, "sieben": 7, "acht": 8, "neun": 9, "zehn": 10,
    "elf": 11, "zwölf": 12, "dreizehn": 13, "vierzehn": 14, "fünfzehn": 15, "sechzehn": 16, "siebzehn": 17,
    "achtzehn": 18, "neunzehn": 19,
}  # fmt: skip


def english_value(words):
    total = group = 0
    for word in re.split("[ -]", words):
        if word == "thousand":
            total, group = total + 1000 * group, 0
        elif word == "hundred":
            group *= 100
        elif word != "and":
            group += ENGLISH_VALUES[word]
    return total + group


def german_value(word, one="eins"):
    """Reads the word from its largest part down; `one` is how a lone one must be written at its end."""
    for part, worth in (("tausend", 1000), ("hundert", 100)):
        if part in word:
            before, after = word.split(part)
            return worth * german_value(before, one="ein") + (german_value(after, one) if after else 0)
    if "und" in word:
        ones, tens = word.split("und")
        return GERMAN_INSIDE[ones] + GERMAN_TENS[tens]
    if word in GERMAN_TENS:
        return GERMAN_TENS[word]
    return 1 if word == one else {name: value for name, value in GERMAN_INSIDE.items() if value > 1}[word]


@pytest.mark.parametrize(("number", "english", "german"), HAND_WRITTEN)
def test_words_equal_those_written_by_hand(number, english, german):
    assert english_words(number) == english
    assert german_words(number) == german


def test_words_are_read_back_as_the_number():
    # All below 10,000, then every 97th: a prime, so that every pair of last digits occurs.
    for number in (*range(1, 10_000), *range(10_000, 1_000_000, 97)):
        assert english_value(english_words(number)) == number
        assert german_value(german_words(number)) == number


def number_targets(seed, split):
    return {pair["target"] for pair in number_pairs(3000, seed, split)}


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
    for number in (*range(10_000), *range(10_000, 1_000_000, 97), *(number for number, _, _ in HAND_WRITTEN)):
        assert num_digits(english_words(number)) == len(str(number))


@pytest.fixture(scope="module")
def trees():
    """The first trees of each split."""
    return {split: grammar_trees(150, 1, split) for split in SPLITS}


def test_trees_are_those_of_a_treebank(trees):
    for tree in trees["train"]:
        assert tree_from_text(str(tree)) == tree and len(tree.words) <= 18


def parses_of(words):
    """All trees that the grammar has for some words, as symbols."""
    choices = {left: {tuple(right) for right in rights} for left, rights in toy_corpora._read_rules().items()}
    lexicon = toy_corpora._read_lexicon()

    @functools.cache
    def of_symbol(symbol, start, end):
        if "~" in symbol:
            return of_symbol(symbol.replace("~", "s"), start, end) | of_symbol(
                symbol.replace("~", "p"), start, end
            )
        if symbol in lexicon:
            is_one = end == start + 1 and words[start] in {word for _, word in lexicon[symbol]}
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


def test_the_corpora_have_not_changed():
    # The digests of version 0.2, for the seed of the quick recipes. Published scores depend on these corpora.
    lines = [f"{pair['source']}\t{pair['target']}\n" for pair in number_pairs(30_000, 1, "train")]
    assert hashlib.sha256("".join(lines).encode()).hexdigest()[:32] == "c201458b15e5eeadfd45cfa86ccc8ac7"
    lines = [f"{tree.sentence}\t{tree}\n" for tree in grammar_trees(1000, 1, "test")]
    assert hashlib.sha256("".join(lines).encode()).hexdigest()[:32] == "1b3b25e3fa9e2cd388ddd410da139418"


def test_num2words_is_imported_only_when_a_number_is_spelled():
    # An import at the head of the module would define the name there.
    assert not hasattr(toy_corpora, "num2words")
