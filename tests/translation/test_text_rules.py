"""Where sentences end, how translations are joined, and which translations are loops."""

import random
import time

import pytest

from vaswani_hf.model.text_rules_vaswani import (
    _repeats,
    copy_symbols,
    has_words,
    is_loop,
    join_sentences,
    ngram_size_without_loops,
    split_sentences,
)

# Texts with a | at each expected boundary.
SPLIT = [
    "Mr. Smith met Dr. Jones.|They left.",
    "Das ist z. B. Obst.|Es gibt z.B. Äpfel, d. h. Obst, u. a. Birnen.|Ende.",
    "He lives at No. 5 Main Street.|No.|I do not.",
    "J. R. R. Tolkien wrote it.|He did.|So do I.|He left.",
    "Am 3. Mai kam er.|Er wurde beim 2. Versuch Erster.|Im 19. Jahrhundert ging er.|Der 2. Weltkrieg.|Seit dem 4. Januar 2020.",
    "Das war 1999.|Danach kam er.|I have 3.|He has 4.",
    "1. First item.|2. Second item.",
    "Pi is 3.14.|Euler is 2.71.|It costs $5.|Visit www.a.com.|Now.",
    "Well...|I think so…|Really?|Yes!|What?!|No way... no.",
    "He said \"No.\"|Then he left.|(See p. 5.)|Fine.|'Good.'|“So?”|»Nein.«|Dann.",
    "„Nein.“|Dann ging er.|Il dit : « Non. »|Puis il part.",
    '"Stop!" he cried.|He ran.|"Is it?" she asked.',
    "He lives in the U.S.|He loves the U.S. Army.|It was 5 p.m.|The bus left.",
    "Ludwig II. König von Bayern starb.|Chapter IV.|The end.",
    "Apples, pears, etc.|The rest is at Acme Inc.|He is e.g. here, i.e. there.",
    "See Fig. 3.|It shows it on Jan. 5.|Prof. Dr. med. Müller.",
    "hello there.|how are you?|fine.",
    "¿Qué?|¡No!|Sí.|Ça va?|Élan!",
    "One.One is one.|Two...three is two.",
]
WIDE = ["你好。|你好吗？|很好！|谢谢", "「はい。」|と言った。|そうですか。", "あ（い。）|う"]


@pytest.mark.parametrize("marked", SPLIT)
def test_sentences_end_where_they_end(marked):
    sentences = marked.split("|")
    assert split_sentences(" ".join(sentences)) == (sentences, ["", *[" "] * (len(sentences) - 1), ""])


@pytest.mark.parametrize("marked", WIDE)
def test_full_stops_of_chinese_and_japanese_need_no_space(marked):
    sentences = marked.split("|")
    assert split_sentences("".join(sentences)) == (sentences, [""] * (len(sentences) + 1))
    assert split_sentences(" ".join(sentences)) == (sentences, ["", *[" "] * (len(sentences) - 1), ""])


@pytest.mark.parametrize(
    ("text", "sentences", "separators"),
    [
        ("One two. 😀 !! Five", ["One two.", "Five"], ["", " 😀 !! ", ""]),
        ("😀\n- 3\n***\n", ["- 3"], ["😀\n", "\n***\n"]),
        ("你好。😀！再见。", ["你好。", "再见。"], ["", "😀！", ""]),
    ],
)
def test_sentences_without_letters_and_digits_become_separators(text, sentences, separators):
    assert copy_symbols(*split_sentences(text)) == (sentences, separators)
    assert join_sentences(sentences, separators) == text


def test_letters_and_digits_of_all_scripts_are_words():
    assert all(map(has_words, ["a", "- 5", "你", "½"]))
    assert not any(map(has_words, ["", " ", "😀", "?!", "—", "\u0301"]))


def test_line_breaks_end_a_sentence_and_are_kept():
    text = "  A title\n\n\tOne. Two\r\ngoes on.\n \n"
    sentences, separators = split_sentences(text)
    assert sentences == ["A title", "One.", "Two", "goes on."]
    assert separators == ["  ", "\n\n\t", " ", "\r\n", "\n \n"]
    assert split_sentences("") == ([], [""])
    assert split_sentences(" \n\n ") == ([], [" \n\n "])


def test_nothing_gets_lost():
    rng = random.Random(0)
    pieces = ["a", "Bc", *".!?…。()3«", " ", "  ", "\n", "\r\n", '"', "Mr", "z. B", "\u2028"]
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 12)))
        sentences, separators = split_sentences(text)
        assert len(separators) == len(sentences) + 1
        rebuilt = separators[0] + "".join(a + b for a, b in zip(sentences, separators[1:], strict=True))
        assert rebuilt == text
        assert all(sentence and sentence == sentence.strip() for sentence in sentences)
        assert not "".join(separators).strip()


@pytest.mark.parametrize("run", [".", " ", "?!", '."', ". .", "Mr. ", "z. B. "])
def test_long_runs_take_no_square_of_their_length(run):
    text = "a" + run * 20_000 + "b"
    start = time.process_time()
    sentences, separators = split_sentences(text)
    # With quadratic cost the split would take half a minute.
    assert time.process_time() - start < 3
    assert sum(map(len, sentences + separators)) == len(text)


def test_translations_are_joined_as_the_text_was():
    assert join_sentences(["Eins.", "Zwei."], ["", "\n\n", " "]) == "Eins.\n\nZwei. "
    # A space follows an English sentence, and no space follows a Japanese full stop.
    assert join_sentences(["Hello.", "(Good!)", "Bye"], ["", "", "", ""]) == "Hello. (Good!) Bye"
    assert join_sentences(["はい。", "「そう。」", "Bye", "?"], [""] * 5) == "はい。「そう。」Bye ?"
    assert join_sentences([], [" \n"]) == " \n"
    # A space divides a translation and a symbol.
    assert join_sentences(["Hello.", "Bye."], ["", "😀！", ""]) == "Hello. 😀！Bye."
    assert join_sentences(["Hello."], ["", "😀"]) == "Hello. 😀"


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
    """Return the largest number of repeats of a unit in a row."""
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
