"""Splitting text into sentences: what ends one, what does not, and that nothing gets lost."""

import random
import time

import pytest

from vaswani_hf.model.text_rules_vaswani import join_sentences, split_sentences

# Each with | where it is to be split.
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


@pytest.mark.parametrize("run", [".", " ", "?!", '."', ". ."])
def test_long_runs_take_no_square_of_their_length(run):
    text = "a" + run * 20_000 + "b"
    start = time.process_time()
    sentences, separators = split_sentences(text)
    # With the square it is half a minute.
    assert time.process_time() - start < 3
    assert sum(map(len, sentences + separators)) == len(text)


def test_translations_are_joined_as_the_text_was():
    assert join_sentences(["Eins.", "Zwei."], ["", "\n\n", " "]) == "Eins.\n\nZwei. "
    # Out of Chinese there must be a space, into Japanese none.
    assert join_sentences(["Hello.", "(Good!)", "Bye"], ["", "", "", ""]) == "Hello. (Good!) Bye"
    assert join_sentences(["はい。", "「そう。」", "Bye", "?"], [""] * 5) == "はい。「そう。」Bye ?"
    assert join_sentences([], [" \n"]) == " \n"
