"""The tokenizer restores every text, and BPE-dropout is BPE that leaves out merges."""

import json
import logging
import pickle
import random
import unicodedata
from collections import Counter

import numpy as np
import pytest
from sentences import refused
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.data.tokenizer_training import _WORDS, train_tokenizer

CORPUS = [
    "the cat sat on the mat and the dog lay on the mat",
    "a small cat and a smaller dog met at the lower house",
    "the lowest house is newer than the newest mat </s> <pad>",
    "Straße und Häuser, die Katze saß auf der Matte.",
    "它们坐在垫子上。 Кошка сидела на коврике.",
]
AWKWARD = [
    "",
    " ",
    "   ",
    "word",
    " word",
    "  two  words  ",
    "\ttab\tand\nnewline\r\n",
    "\x00nul\x00",
    "\x1b[31m\x7f\x85",
    "line\u2028separator\u2029paragraph",
    "\u00a0no-break\u3000ideographic\u200bzero",
    "\ufeffbyte order mark",
    "😀👩‍👩‍👧‍👦🏳️‍🌈",
    "𓀀𒀀 unknown ꙮ scripts \U0010ffff",
    "e\u0301 and \u00e9",
    "</s>",
    " </s> ",
    "<s>a</s><pad> <unk>",
    "Ġ is a letter, too: ĠĊ",
    "don't can't I'll 've",
    "of course , not ! i 'm",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(CORPUS, 360)


def random_texts(count: int) -> list[str]:
    """Strings of random characters, from all of Unicode and from small alphabets rich in spaces and special
    tokens.
    """
    rng = random.Random(7)
    everything = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    alphabets = [
        everything,
        list(" \t\n\u2028\u00a0ab"),
        list(" <>/spadunk"),
        [" ", "</s>", "<pad>", "Ġ", "cat", "'s"],
    ]
    return ["".join(rng.choices(rng.choice(alphabets), k=rng.randrange(1, 30))) for _ in range(count)]


def decoded(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


def test_every_text_is_restored(tokenizer):
    for text in AWKWARD + random_texts(1500):
        assert decoded(tokenizer, text) == text


def test_special_tokens_have_the_order_of_bart_and_only_the_end_is_marked(tokenizer):
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<s>", "<pad>", "</s>", "<unk>"]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (0, 1)
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (2, 3)
    for text in AWKWARD:
        token_ids = tokenizer(text)["input_ids"]
        assert token_ids[-1] == 2
        assert min(token_ids[:-1], default=4) >= 4
    assert tokenizer("")["input_ids"] == [2]
    # A word is the same token at the beginning and in the middle of a sentence.
    cat, eos = tokenizer("cat")["input_ids"]
    assert eos == 2
    assert tokenizer("cat cat")["input_ids"] == [cat, cat, 2]


def test_lowercase_and_normal_forms():
    text = "Ｆｕｌｌ Cafe\u0301 ﬁ"
    assert decoded(train_tokenizer(CORPUS, 300), text) == text
    assert decoded(train_tokenizer(CORPUS, 300, lowercase=True), text) == text.lower()
    for form in ("NFC", "NFKC"):
        tokenizer = train_tokenizer(CORPUS, 300, normalization=form)
        assert decoded(tokenizer, text) == unicodedata.normalize(form, text)


def test_a_corpus_that_is_too_small_gives_fewer_entries(caplog):
    with caplog.at_level(logging.WARNING):
        tokenizer = train_tokenizer(["ab ab"], 1000)
    # 4 special tokens, 256 bytes, and the merges ab, Ġab.
    assert len(tokenizer) == 262
    assert caplog.messages == ["The texts fill only 262 of 1000 vocabulary entries."]


# Each character of 2, 3 or 4 bytes occurs once, and the words fill the vocabulary.
RARE = ["the cat sat on the mat " * 50, "ß 垫 😀"]


def test_every_character_of_the_training_text_is_one_entry():
    tokenizer = train_tokenizer([*CORPUS, *RARE], 340)
    characters = {character for text in [*CORPUS, *RARE] for character in text if not character.isascii()}
    assert len(characters) > 20
    for character in characters:
        token_id = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(character)[-1])
        assert tokenizer.decode([token_id]) == character
    for text in [*CORPUS, *RARE]:
        assert not any("\ufffd" in tokenizer.decode([token_id]) for token_id in tokenizer(text)["input_ids"])


@pytest.mark.parametrize(
    ("normalization", "lowercase", "text"), [("NFC", True, "E\u0301"), ("NFKC", False, "\uff21\ufb01e\u0301")]
)
def test_characters_are_those_that_the_normalizer_leaves(normalization, lowercase, text):
    tokenizer = train_tokenizer([text, *RARE], 300, lowercase=lowercase, normalization=normalization)
    *pieces, _ = tokenizer(text)["input_ids"]
    assert "\ufffd" not in "".join(tokenizer.decode([token_id]) for token_id in pieces)
    # A letter and a separate accent get no entries, because the normal form joins them.
    assert len(tokenizer.tokenize("\u0301")) > 1


def test_the_most_frequent_characters_come_first_where_not_all_fit(caplog):
    # "ß" and "ö" take an entry each; "垫" takes two, one for its first two bytes; none is left for "它".
    texts = ["ß" * 3 + "垫" * 2 + "它" + "öö", "the the the"]
    with caplog.at_level(logging.WARNING):
        tokenizer = train_tokenizer(texts, 264)
    assert len(tokenizer) == 264
    assert [len(tokenizer.tokenize(character)) - 1 for character in "ßö垫它"] == [1, 1, 1, 3]
    assert caplog.messages == [
        "1 of the 4 characters beyond ASCII do not fit into 264 vocabulary entries and are encoded as bytes."
    ]
    for text in texts:
        assert decoded(tokenizer, text) == text


def test_where_the_text_is_ascii_it_is_plain_byte_level_bpe():
    by_bytes = Tokenizer(models.BPE())
    by_bytes.normalizer, by_bytes.pre_tokenizer = normalizers.Prepend(" "), pre_tokenizers.ByteLevel(False)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    options = {"special_tokens": special, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    by_bytes.train_from_iterator(
        CORPUS[:3], trainers.BpeTrainer(vocab_size=320, show_progress=False, **options)
    )
    trained = train_tokenizer(CORPUS[:3], 320).backend_tokenizer
    assert trained.get_vocab() == by_bytes.get_vocab()
    assert json.loads(trained.to_str())["model"] == json.loads(by_bytes.to_str())["model"]


def test_words_are_those_of_byte_level_bpe():
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_pattern = pre_tokenizers.Split(_WORDS, "isolated")
    for text in AWKWARD + CORPUS + random_texts(800):
        spans = [[span for _, span in split.pre_tokenize_str(text)] for split in (by_bytes, by_pattern)]
        assert spans[0] == spans[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"vocab_size": 259},
            "`vocab_size` must be at least 260 (256 bytes and 4 special tokens), but is 259.",
        ),
        ({"normalization": "NFX"}, '`normalization` must be "NFC", "NFKC" or None, but is \'NFX\'.'),
        (
            {"texts": iter(["", " \n"])},
            "`texts` must contain at least one text that is not empty, to train a tokenizer.",
        ),
        ({"texts": []}, "`texts` must contain at least one text that is not empty, to train a tokenizer."),
    ],
)
def test_errors_say_what_is_wrong(arguments, message):
    with refused(message):
        train_tokenizer(**{"texts": CORPUS, "vocab_size": 300, **arguments})


@pytest.mark.parametrize("model_type", [None, "a_model_that_transformers_does_not_know"])
def test_auto_tokenizer_loads_it_without_remote_code(tokenizer, tmp_path, model_type):
    tokenizer.save_pretrained(tmp_path)
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    assert loaded.padding_side == "right"
    assert loaded.clean_up_tokenization_spaces is False
    for text in AWKWARD + random_texts(300):
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert decoded(loaded, text) == text


def test_using_a_tokenizer_does_not_change_what_it_saves(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "before")
    BpeDropout(tokenizer, 0.5).encode("the cat", random.Random(0))
    tokenizer.save_pretrained(tmp_path / "after")
    before, after = ((tmp_path / time / "tokenizer.json").read_bytes() for time in ("before", "after"))
    assert before == after
    assert json.loads(after)["model"]["dropout"] is None


def test_without_dropout_it_is_the_tokenizer(tokenizer):
    dropout = BpeDropout(tokenizer, 0.0)
    for text in CORPUS + AWKWARD + random_texts(400) + ["ab" * 100 + " the" * 50]:
        assert dropout.encode(text, random.Random(0)) == tokenizer(text)["input_ids"]


def test_without_merges_it_is_characters_and_bytes(tokenizer):
    dropout = BpeDropout(tokenizer, 1.0)
    known = {character for text in CORPUS for character in text}
    for text in CORPUS + AWKWARD + random_texts(200):
        # The vocabulary may contain the first bytes of an unknown character.
        most = (
            sum(1 if character in known else len(character.encode()) for character in f" {text}")
            if text
            else 0
        )
        length = len(dropout.encode(text, random.Random(0))) - 1
        assert length == most if set(text) <= known or text.isascii() else length <= most
    assert "\ufffd" not in "".join(
        tokenizer.batch_decode([[i] for i in dropout.encode(CORPUS[-1], random.Random(0))])
    )


def test_a_tokenizer_of_an_earlier_version_keeps_its_splits():
    # Earlier merges could join a byte with a neighbour: "r" with the first byte of "ü".
    tokenizer = train_tokenizer(["x"], 260)
    vocabulary = tokenizer.get_vocab() | {"rÃ": 260, "Ã¼": 261}
    tokenizer.backend_tokenizer.model = models.BPE(vocab=vocabulary, merges=[("r", "Ã"), ("Ã", "¼")])
    pieces = {
        rate: tokenizer.convert_ids_to_tokens(BpeDropout(tokenizer, rate).encode("rü", random.Random(0))[:-1])
        for rate in (0.0, 1.0)
    }
    assert pieces == {0.0: ["Ġ", "rÃ", "¼"], 1.0: ["Ġ", "r", "Ã", "¼"]}


def test_every_random_split_spells_the_text(tokenizer):
    dropout = BpeDropout(tokenizer, 0.4)
    rng = random.Random(1)
    for text in CORPUS + AWKWARD + random_texts(200):
        assert tokenizer.decode(dropout.encode(text, rng), skip_special_tokens=True) == text


def splits_of(tokenizer, rate, text, draws):
    """How often each split of a text is drawn."""
    dropout, rng = BpeDropout(tokenizer, rate), random.Random(5)
    drawn = (tokenizer.convert_ids_to_tokens(dropout.encode(text, rng)[:-1]) for _ in range(draws))
    return Counter(map(" ".join, drawn))


def test_splits_have_the_probabilities_of_algorithm_1():
    # The merges are "a"+"b" and then "Ġ"+"ab", but not "Ġ"+"a", so a text "ab" has three possible splits.
    splits = splits_of(train_tokenizer(["ab ab"], 262), 0.25, "ab", 10_000)
    expected = {"Ġ a b": 0.25, "Ġ ab": 0.75 * 0.25, "Ġab": 0.75 * 0.75}
    assert splits.keys() == expected.keys()
    for split, probability in expected.items():
        # Five standard deviations of a binomial share: sqrt(p (1-p) / draws) <= 0.005.
        assert splits[split] / 10_000 == pytest.approx(probability, abs=0.025)


def test_a_dropped_merge_leaves_room_for_the_next():
    # Both merges of "bab" apply at once, and "ab" comes first. Dropping "ab" alone must give "ba b", not "b a
    # b".
    tokenizer = train_tokenizer(CORPUS, 260)
    vocabulary = {**tokenizer.get_vocab(), "ab": 260, "ba": 261}
    tokenizer.backend_tokenizer.model = models.BPE(vocab=vocabulary, merges=[("a", "b"), ("b", "a")])
    splits = splits_of(tokenizer, 0.5, "bab", 8000)
    assert splits.keys() == {"Ġ b ab", "Ġ ba b", "Ġ b a b"}
    assert splits["Ġ b ab"] / 8000 == pytest.approx(0.5, abs=0.03)
    assert splits["Ġ ba b"] / 8000 == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("generator", [random.Random, np.random.default_rng])
def test_the_seed_decides_the_split(tokenizer, generator):
    dropout = BpeDropout(tokenizer, 0.3)
    fresh = pickle.loads(pickle.dumps(BpeDropout(tokenizer, 0.3)))
    first = [dropout.encode(CORPUS[0], generator(seed)) for seed in range(20)]
    assert first == [fresh.encode(CORPUS[0], generator(seed)) for seed in range(20)]
    assert len(set(map(tuple, first))) > 10


def test_another_kind_of_tokenizer_has_no_dropout():
    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    words.normalizer, words.pre_tokenizer = normalizers.NFC(), pre_tokenizers.Whitespace()
    with refused("`tokenizer` must be byte-level BPE as `train_tokenizer` makes it, but is another kind."):
        BpeDropout(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>"), 0.1)
