"""Both directions in one model: tags are tokens, and each pair is encoded unchanged and reversed."""

import random

import pyarrow
import pytest
from datasets import Dataset
from factories import tiny_tokenizer
from transformers import AutoTokenizer

from vaswani_hf.checkpoint.tokenizers import direction_tag
from vaswani_hf.data.bpe_dropout import BpeDropout
from vaswani_hf.data.encoding import CorpusReport, prepare_pairs
from vaswani_hf.data.text_encoder import TextEncoder, serialize_tokenizer
from vaswani_hf.model.tokenizing_vaswani import tags_of
from vaswani_hf.tasks.translation import in_both_directions

TAG = direction_tag("en")
PAIRS = [
    ("the house", "das Haus"),
    ("a  big\thouse ", " ein großes Haus"),
    ("", "nichts"),
    ("nothing", " "),
    ("</s>", "it's >>en<< house"),
    ("x", "das Haus das Haus das Haus das" * 3),
]
TEXTS = [text for pair in PAIRS for text in pair if "<" not in text]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer(TEXTS * 3, 300, tags=(TAG,))


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("normalization", [None, "NFKC"])
def test_a_tag_is_one_token_that_changes_no_other(lowercase, normalization, tmp_path):
    options = {"lowercase": lowercase, "normalization": normalization}
    plain, made = (
        tiny_tokenizer(TEXTS * 3, 300, **options),
        tiny_tokenizer(TEXTS * 3, 301, tags=(TAG,), **options),
    )
    made.save_pretrained(tmp_path)
    for tokenizer in (made, AutoTokenizer.from_pretrained(tmp_path)):
        assert tags_of(tokenizer) == {TAG: len(plain)} and len(tokenizer) == len(plain) + 1 <= 301
        for text in TEXTS:
            ids = plain(text.strip()).input_ids
            assert tokenizer(text.strip()).input_ids == ids
            assert tokenizer(f"{TAG} {text.strip()}").input_ids == [len(plain), *ids]
            # The decoded text never contains the tag, with any value of `skip_special_tokens`.
            assert tokenizer.decode([len(plain), *ids]) == plain.decode(ids)
    # A tokenizer without tags encodes the tag as ordinary text.
    assert tags_of(plain) == {} and len(plain(TAG).input_ids) > 2
    assert plain.decode(plain(TAG).input_ids, skip_special_tokens=True) == TAG


def test_texts_with_tags_are_encoded_word_by_word_as_by_the_tokenizer(tokenizer, monkeypatch):
    rng = random.Random(2)
    parts = [
        TAG,
        f"{TAG}x",
        f"x{TAG}",
        f"{TAG}{TAG}",
        *">>EN<< house Größe </s> 's".split(),
        "\x1c",
        "a\u00a0b",
    ]
    choices = [rng.choices(parts, k=rng.randrange(1, 6)) for _ in range(800)]
    texts = [rng.choice([" ", "  "]).join(chosen).strip() for chosen in choices]
    encoder = TextEncoder(serialize_tokenizer(tokenizer))
    assert encoder(pyarrow.array(texts)).to_pylist() == [tokenizer(text).input_ids for text in texts]
    # The encoder encodes texts with a tag word by word, and does not pass whole texts to the tokenizer.
    monkeypatch.setattr(encoder, "_tokenizer", None)
    encoder._encode = lambda texts, special: [] if not texts else pytest.fail(f"{texts} are not looked up")
    assert encoder(pyarrow.array([f"{TAG} house Größe"])).to_pylist() == [
        tokenizer(f"{TAG} house Größe").input_ids
    ]


def test_dropout_leaves_tags_whole(tokenizer):
    texts = [f"{TAG} das große Haus", TAG, f"the{TAG} house", f"{TAG}\u00a0das"]
    assert [BpeDropout(tokenizer, 0.0).encode(text, random.Random(0)) for text in texts] == tokenizer(
        texts
    ).input_ids
    dropout, rng = BpeDropout(tokenizer, 0.5), random.Random(1)
    splits = [dropout.encode(texts[0], rng) for _ in range(20)]
    assert {ids[0] for ids in splits} == {tags_of(tokenizer)[TAG]} and len({*map(tuple, splits)}) > 10
    assert {tokenizer.decode(ids, skip_special_tokens=True) for ids in splits} == {"das große Haus"}


@pytest.mark.parametrize("streaming", [False, True])
def test_each_pair_is_encoded_as_it_is_and_turned_round(tokenizer, streaming):
    def ids(text):
        return tokenizer(text.strip()).input_ids

    tag_id = tags_of(tokenizer)[TAG]
    both = [(tag + ids(a), ids(b)) for pair in PAIRS for tag, (a, b) in (([], pair), ([tag_id], pair[::-1]))]
    # Rows 4 to 7 have an empty side. The last row is too long only because of the tag.
    kept = both[:4] + both[8:11]
    max_length = len(ids(PAIRS[-1][1]))
    raw = Dataset.from_list([{"source": source, "target": target} for source, target in PAIRS])
    pairs = in_both_directions(raw.to_iterable_dataset() if streaming else raw, TAG)
    prepared, report = prepare_pairs(
        pairs, tokenizer, tokenizer, max_length=max_length, max_length_ratio=None
    )
    assert [(row["input_ids"], row["labels"]) for row in prepared] == kept
    assert report == CorpusReport(kept=7, empty=4, too_long=1)
