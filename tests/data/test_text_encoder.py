"""Texts are encoded word by word, each word once, into exactly the ids of the tokenizer."""

import functools
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pytest
from factories import tiny_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from vaswani_hf.data import text_encoder
from vaswani_hf.data.text_encoder import TextEncoder, serialize_tokenizer

WORDS = "abΣσ'sdré½²1_-.</s> 家 ̈ ¨ ﷺ ff \x1c \x85 \u00a0 \u3000 \t 's 3rd It's (no) 1,000".split(" ")
CORPUS = ["the Lower Größe, naïve: Σας!", "ein ̈a ﷺ it's 家"] * 5


def texts(count: int) -> list[str]:
    rng = random.Random(1)

    def word():
        return "".join(
            rng.choice(WORDS) if rng.random() < 0.7 else chr(rng.randrange(1, 0x3000)) for _ in range(3)
        )

    def space():
        return " " if rng.random() < 0.95 else rng.choice(["  ", "\t", "\u00a0 ", " \u2003", "\n"])

    made = ["".join(word() + space() for _ in range(rng.randrange(6))).strip() for _ in range(count)]
    return [*made, "", "a", "</s>", "<s> a</s>"]


def ids_of(encoder: TextEncoder, texts: list[str]) -> list[list[int]]:
    return encoder(pyarrow.array(texts, pyarrow.string())).to_pylist()


def expected(tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer(text).input_ids for text in texts]


@pytest.mark.parametrize("normalization", [None, "NFC", "NFKC"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_are_those_of_the_tokenizer(normalization, lowercase, monkeypatch):
    # The cache of words is so small that the encoder forgets words.
    monkeypatch.setattr(text_encoder, "_MAX_WORDS", 300)
    tokenizer = tiny_tokenizer(CORPUS, 330, lowercase=lowercase, normalization=normalization)
    encoder, sentences = TextEncoder(serialize_tokenizer(tokenizer)), texts(1500)
    for start in range(0, len(sentences), 100):
        batch = sentences[start : start + 100]
        assert ids_of(encoder, batch) == expected(tokenizer, batch)


def test_one_text_has_the_same_ids_and_no_texts_have_none():
    encoder = TextEncoder(serialize_tokenizer(tiny_tokenizer(CORPUS, 330)))
    assert [encoder.encode(text) for text in texts(50)] == ids_of(encoder, texts(50))
    assert ids_of(encoder, []) == []


def test_other_tokenizers_are_taken_as_they_are():
    tokenizer = tiny_tokenizer(CORPUS, 330)
    # The tokenizer recognises special tokens in a text.
    tokenizer.split_special_tokens = False
    assert ids_of(TextEncoder(serialize_tokenizer(tokenizer)), texts(200)) == expected(tokenizer, texts(200))
    content = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    # Without a pre-tokenizer, words are not separated.
    content.pre_tokenizer = None
    whole = PreTrainedTokenizerFast(tokenizer_object=content, split_special_tokens=True, unk_token="<unk>")
    assert ids_of(TextEncoder(serialize_tokenizer(whole)), texts(200)) == expected(whole, texts(200))


def test_added_tokens_are_found_across_words():
    tokenizer = tiny_tokenizer(CORPUS, 330)
    tokenizer.add_tokens(["lower house", "naï"])
    sentences = ["the lower house", "lower house", "naïve lower houses", *texts(50)]
    assert ids_of(TextEncoder(serialize_tokenizer(tokenizer)), sentences) == expected(tokenizer, sentences)


def test_a_word_is_encoded_once(monkeypatch):
    encoder = TextEncoder(serialize_tokenizer(tiny_tokenizer(CORPUS, 330)))
    asked = []

    class Counting:
        def encode_batch_fast(self, batch, own=encoder._tokenizer, **options):
            asked.extend(batch)
            return own.encode_batch_fast(batch, **options)

    monkeypatch.setattr(encoder, "_tokenizer", Counting())
    for _ in range(3):
        encoder(pyarrow.array(["the lower house", "the house  is low", "low house"] * 50))
    # The tokenizer encodes a text with two spaces in a row, and the empty word between the spaces.
    assert sorted(word for word in asked if word and "  " not in word) == [
        "house",
        "is",
        "low",
        "lower",
        "the",
    ]


def test_threads_share_an_encoder():
    tokenizer = tiny_tokenizer(CORPUS, 330)
    encoder, sentences = TextEncoder(serialize_tokenizer(tokenizer)), texts(2000)
    parts = [sentences[start : start + 20] for start in range(0, len(sentences), 20)]
    with ThreadPoolExecutor(4) as threads:
        encoded = [ids for rows in threads.map(functools.partial(ids_of, encoder), parts) for ids in rows]
    assert encoded == expected(tokenizer, sentences)
