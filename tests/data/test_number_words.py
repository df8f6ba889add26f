"""The quick-start corpus: spelling against hand-written words and an independent parser; splits and sampling."""

import re
from collections import Counter
from random import Random

import pytest

from vaswani_hf.data import number_words
from vaswani_hf.data.number_words import english_words, german_words, num_digits, number_pairs

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


@pytest.mark.parametrize("words", [english_words, german_words])
@pytest.mark.parametrize("number", [-1, 1_000_000, 2.0, "7"])
def test_numbers_out_of_range_are_refused(words, number):
    with pytest.raises(ValueError) as caught:
        words(number)
    assert str(caught.value) == f"`number` must be an integer from 0 to 999,999, but is {number!r}."


@pytest.mark.parametrize("split", SPLITS)
def test_pairs_translate_each_other(split):
    pairs = number_pairs(3000, seed=1, split=split)
    assert len(pairs) == 3000
    assert split == "train" or len({pair["source"] for pair in pairs}) == 3000
    for pair in pairs:
        assert set(pair) == {"source", "target"}
        if pair["target"] != "null":
            assert english_value(pair["source"]) == german_value(pair["target"])


def test_splits_share_no_pair_whatever_the_seeds():
    drawn = {split: set() for split in SPLITS}
    for seed in range(3):
        for split in SPLITS:
            drawn[split] |= {pair["target"] for pair in number_pairs(3000, seed, split)}
    assert not drawn["train"] & drawn["validation"]
    assert not drawn["train"] & drawn["test"]
    assert not drawn["validation"] & drawn["test"]


def test_seeds_choose_the_pairs_and_small_draws_begin_large_ones():
    assert number_pairs(50, 3, "test") == number_pairs(200, 3, "test")[:50]
    assert number_pairs(50, 3, "test") != number_pairs(50, 4, "test")


def test_pairs_stay_the_same_on_every_machine():
    # number_pairs(4, 0, split) drew them first; results that were published with a seed depend on them.
    drawn = {split: [english_value(pair["source"]) for pair in number_pairs(4, 0, split)] for split in SPLITS}
    assert drawn == {
        "train": [782002, 3039, 46000, 372000],
        "validation": [6054, 701003, 86015, 41056],
        "test": [1915, 49009, 74044, 4754],
    }


def test_training_has_every_number_below_100_and_many_shapes():
    numbers = {english_value(pair["source"]) for pair in number_pairs(8000, seed=0, split="train")}
    assert set(range(100)) <= numbers
    shapes = Counter((len(str(number // 1000)), len(str(number % 1000))) for number in numbers if number >= 1000)
    # Of 100,000 and more one in a thousand is round.
    assert sum(number % 1000 == 0 and number >= 100_000 for number in numbers) >= 250
    assert all(shapes[thousands, 3] >= 350 for thousands in (1, 2, 3))


def test_short_numbers_come_again_in_training_and_equally_often():
    sources = Counter(pair["source"] for pair in number_pairs(32_000, seed=0, split="train"))
    for numbers, times in ((range(1), 1800), (range(1, 10), 200), (range(10, 100), 20), (range(100, 1000), 2)):
        # Numbers that are held out never come.
        counts = {sources[english_words(number)] for number in numbers} - {0}
        # Each of a shape once before any again.
        assert max(counts) - min(counts) <= 1
        assert min(counts) >= times


@pytest.fixture
def below_100_000(monkeypatch):
    """A tenth of the numbers."""
    shapes = [(thousands, rests) for thousands, rests in number_words._SHAPES if thousands.stop <= 100]
    monkeypatch.setattr(number_words, "_SHAPES", shapes)


@pytest.mark.usefixtures("below_100_000")
def test_every_number_has_one_shape():
    numbers = number_words._drawn_numbers(Random(0), is_endless=False)
    assert sorted(numbers) == list(range(100_000))


def test_held_out_numbers_are_those_that_no_training_ever_sees():
    trained_on = {pair["source"] for pair in number_pairs(40_000, seed=5, split="train")}
    held_out = {pair["source"] for split in ("validation", "test") for pair in number_pairs(1000, 1, split)}
    assert not trained_on & held_out
    # All of three digits, of which there are fewer than drawn.
    assert len([source for source in held_out if num_digits(source) == 3]) == 89


def test_digits_are_counted_in_words():
    for number in (*range(10_000), *range(10_000, 1_000_000, 97), *(number for number, _, _ in HAND_WRITTEN)):
        assert num_digits(english_words(number)) == len(str(number))


@pytest.mark.usefixtures("below_100_000")
def test_more_pairs_than_the_split_has_are_refused():
    # All numbers are drawn to count them.
    with pytest.raises(ValueError) as caught:
        number_pairs(1_000_000, seed=0, split="validation")
    size = int(re.search(r"at most (\d+)", str(caught.value))[1])
    assert str(caught.value) == (
        f'`num_pairs` must be at most {size}, the size of the "validation" split, but is 1000000.'
    )
    assert size == pytest.approx(5_000, rel=0.05)


def test_unknown_splits_and_counts_are_refused():
    with pytest.raises(ValueError) as caught:
        number_pairs(5, seed=0, split="dev")
    assert str(caught.value) == '`split` must be "train", "validation" or "test", but is \'dev\'.'
    with pytest.raises(ValueError) as caught:
        number_pairs(0, seed=0, split="train")
    assert str(caught.value) == "`num_pairs` must be a positive integer, but is 0."
