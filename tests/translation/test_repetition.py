"""Loops are found, what is said often with good reason is left alone."""

import pytest

from vaswani_hf.translation.repetition import is_loop, ngram_size_without_loops

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
