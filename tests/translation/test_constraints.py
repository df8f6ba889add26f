"""From the text of prefixes and phrases to token ids, and from `generate` back to translations."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vaswani_hf.translation.constraints import (
    assign_phrases,
    constraint_arguments,
    phrase_token_ids,
    prefix_token_ids,
)

from vaswani_hf.model.translator_vaswani import translation_token_ids


@pytest.fixture(scope="module")
def gpt_like() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's: a word behind a space is another token than at the beginning."""
    vocab = {token: i for i, token in enumerate(["<pad>", "</s>", "a", "Ġ", "Ġa", "b", "ab", "Ġb", "Ġab"])}
    merges = [("Ġ", "a"), ("a", "b"), ("Ġ", "b"), ("Ġa", "b")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def test_a_phrase_is_split_as_it_is_behind_a_space(gpt_like, copier):
    assert gpt_like("ab")["input_ids"] == [6]
    assert phrase_token_ids(" ab ", gpt_like) == [8]
    assert phrase_token_ids("ab b", gpt_like) == [8, 7]
    sentence = copier.target_tokenizer("nein Straße eins")["input_ids"]
    phrase = phrase_token_ids("Straße", copier.target_tokenizer)
    assert any(sentence[i : i + len(phrase)] == phrase for i in range(len(sentence)))


def test_a_prefix_is_split_as_it_is_at_the_beginning(gpt_like, copier):
    assert prefix_token_ids(" ab b ", gpt_like) == [6, 7]
    whole = copier.target_tokenizer("die Straße ja?")["input_ids"]
    prefix = prefix_token_ids("die Straße", copier.target_tokenizer)
    assert whole[: len(prefix)] == prefix and 2 not in prefix
    assert prefix_token_ids("  ", copier.target_tokenizer) == []


def test_what_is_no_phrase_is_named(gpt_like):
    with pytest.raises(ValueError, match="^A phrase of `must_contain` must have at least one character, but one is"):
        phrase_token_ids("  ", gpt_like)
    with pytest.raises(TypeError, match="^A phrase of `must_contain` must be a str, but one is of type int.$"):
        phrase_token_ids(3, gpt_like)
    with pytest.raises(TypeError, match="^A target prefix must be a str, but one is of type list.$"):
        prefix_token_ids(["a"], gpt_like)


def test_phrases_go_where_they_are_or_to_the_longest_part():
    texts = ["One.", "The longest of all.", "Mr. Smith."]
    assert assign_phrases(["Smith", "Haus", "One"], texts) == [["One"], ["Haus"], ["Smith"]]


def test_prefixes_are_padded_on_the_left(tiny_model):
    model = tiny_model()
    arguments = constraint_arguments(model, [[5], [], [6, 7]], [[], [[8, 9]], []])
    assert arguments["decoder_input_ids"].tolist() == [[1, 0, 5], [1, 1, 0], [0, 6, 7]]
    assert arguments["decoder_attention_mask"].tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1]]
    assert arguments["must_contain"] == [[], [[8, 9]], []]
    assert constraint_arguments(model, [[], []], [[], []]) == {}
    assert constraint_arguments(model, [[5], [6]], [[], []]).keys() == {"decoder_input_ids"}


def test_translations_are_cut_out_of_what_generate_gives(tiny_model):
    model = tiny_model()
    assert translation_token_ids([1, 0, 5, 8, 9, 2, 1, 1], 1, 3, model) == [5, 8, 9, 2]
    # Cut off, and filled up because others go on.
    assert translation_token_ids([0, 8, 9, 1, 1], 0, 1, model) == [8, 9]
    # `</s>` within the prefix does not end the translation.
    assert translation_token_ids([0, 2, 8, 2], 1, 2, model) == [2, 8, 2]
    model.generation_config.eos_token_id = [2, 7]
    assert translation_token_ids([0, 8, 7, 1], 0, 1, model) == [8, 7]


def test_prefixes_and_phrases_are_in_the_translation(copier):
    prefixes, phrases = ["größer.", None, "eins zwei,"], [None, ["Straße"], ["Łódź", "ja?"]]
    lines = ["nein", "der Hund", "Mr. Öl"]
    translations = list(copier.translate(lines, target_prefixes=prefixes, must_contain=phrases, num_beams=4))
    for translation, prefix, of_line in zip(translations, prefixes, phrases, strict=True):
        assert translation.startswith(prefix or "")
        assert all(phrase in translation for phrase in of_line or [])
    # A limit is that of the line, and not of the padding before its prefix.
    limited, many = {"num_beams": 2, "max_length": 9}, "ja? eins nein zwei, drei!"
    together = copier.translate([lines[0], many], target_prefixes=["eins zwei, drei! nein", None], **limited)
    assert list(together)[1:] == list(copier.translate([many], **limited))
    # Those of one line do not change another.
    assert list(copier.translate([lines[1]], must_contain=[["Straße"]], num_beams=4)) == [translations[1]]
    with torch.no_grad():
        assert "Straße" not in next(copier.translate([lines[1]], num_beams=4))
