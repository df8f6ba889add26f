"""Loops are found, what is said often with good reason is left alone."""

import random

import pytest

from vaswani_hf.model.text_rules_vaswani import _repeats, is_loop, ngram_size_without_loops

LOOPS = [
    ("sehr " * 30, "very very very good"),
    ("schön schön schön schön Landschaft", "beautiful"),
    ("nunca jamás nunca jamás nunca jamás jamás", "never"),
    ("cada vez cada vez cada vez", "increasingly"),
    ("Nein, nein, nein, nein, nein.", "no"),
    ("anti anti " * 20, "anti anti"),
    ("la" * 12, "la"),
    ("哈" * 30, "ha"),
    ("!" * 40, "what?"),
    ("Ich liebe dich. Ich liebe dich. Ich liebe dich.", "I love you."),
    ("Der Mann geht und geht und geht und geht.", "The man walks and walks."),
]
NO_LOOPS = [
    ("ha ha ha", "laughs"),
    ("ha ha ha ha ha ha", "hahaha"),
    ("ha ha ha ha", "ha, ha, ha, ha!"),
    ("sehr sehr sehr gut", "very very very good"),
    ("quasi quasi", "quase quase"),
    ("Ich liebe dich. Ich liebe dich. Ich liebe dich.", "I love you. I love you. I love you."),
    ("100000000000000000", "a hundred quadrillion"),
    ("-----------------------------", "----------------------------------"),
    (". . . . . . .", "......."),
    ("Der Mann und der Hund und der Ball und der Baum", "The man, the dog, the ball and the tree"),
    ("", ""),
    ("eins", "one"),
]


@pytest.mark.parametrize(("translation", "source"), LOOPS)
def test_loops(translation, source):
    assert is_loop(translation, source)


@pytest.mark.parametrize(("translation", "source"), NO_LOOPS)
def test_repetition_with_good_reason(translation, source):
    assert not is_loop(translation, source)


def test_long_sentences_may_say_two_words_twice():
    assert ngram_size_without_loops("one two three") == 2
    assert ngram_size_without_loops("the " * 11) == 3


def slow_repeats(symbols):
    """The most repetitions in a row of any unit."""
    most = 1
    for length in range(1, len(symbols) // 2 + 1):
        for start in range(len(symbols) - length):
            unit, count = symbols[start : start + length], 1
            while symbols[start + count * length : start + (count + 1) * length] == unit:
                count += 1
            most = max(most, count)
    return most


def test_the_count_of_repeats_is_that_of_a_slow_search():
    generator = random.Random(1)
    for _ in range(300):
        text = "".join(generator.choices("ab", k=generator.randrange(2, 14))) * generator.randrange(1, 4)
        assert max(count for _, count in _repeats(text)) == slow_repeats(text)


def test_the_work_grows_with_the_length_of_a_text():
    work = [sum(1 for _ in _repeats("abcdefg" * n)) for n in (100, 1000)]
    assert work[0] == work[1]
    assert is_loop("abcdefg" * 1000, "letters") and is_loop("das ist ein Satz " * 1000, "a sentence")
