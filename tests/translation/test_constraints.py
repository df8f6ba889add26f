"""The text of prefixes and phrases becomes token ids, and the output of `generate` becomes translations."""

import pytest
import torch
from factories import tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vaswani_hf.model.backend_vaswani import PyTorchBackend, Segment, without_padding
from vaswani_hf.model.requests_vaswani import Request
from vaswani_hf.model.segmenter_vaswani import assign_phrases
from vaswani_hf.model.tokenizing_vaswani import phrase_token_ids, prefix_token_ids


@pytest.fixture(scope="module")
def gpt_like() -> PreTrainedTokenizerFast:
    """A byte-level BPE as in GPT-2: a word after a space is another token than at the beginning of a text."""
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


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("a", "", [" "]), ValueError, "A phrase of `must_contain` must not be blank, but is ' '."),
        (("a", "", [3]), TypeError, "A phrase of `must_contain` must be a str, but is of type int."),
        (("a", ["a"]), TypeError, "A target prefix must be a str, but is of type list."),
        (
            ("\ud800",),
            ValueError,
            "A text to translate must hold text, but holds '\\ud800', a lone surrogate",
        ),
    ],
)
def test_a_request_holds_text(given, error, message):
    with pytest.raises(error) as raised:
        Request(*given)
    assert str(raised.value).startswith(message)


def test_phrases_go_where_they_are_or_to_the_longest_part():
    texts = ["One.", "The longest of all.", "Mr. Smith."]
    assert assign_phrases(["Smith", "Haus", "One"], texts) == [["One"], ["Haus"], ["Smith"]]


def test_prefixes_are_padded_on_the_left():
    backend = PyTorchBackend(tiny_model())

    def arguments_of(prefixes, phrases=((), (), ()), **settings):
        segments = []
        for prefix, of_segment in zip(prefixes, phrases, strict=False):
            segments.append(Segment("", [5, 2], prefix=prefix, phrases=[*of_segment]))
        return backend._generate_arguments(segments, prefixes, settings)

    arguments = arguments_of([[5], [], [6, 7]], ((), ([8, 9],), ()))
    assert arguments["decoder_input_ids"].tolist() == [[1, 0, 5], [1, 1, 0], [0, 6, 7]]
    assert arguments["decoder_attention_mask"].tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1]]
    assert arguments["must_contain"] == [[], [[8, 9]], []]
    plain = {"input_ids", "attention_mask", "return_dict_in_generate"}
    assert arguments_of([[], []]).keys() == plain
    assert arguments_of([[5], [6]]).keys() == plain | {"decoder_input_ids"}
    assert arguments_of([[5]], decoder_start_token_id=9)["decoder_input_ids"].tolist() == [[9, 5]]


def test_translations_end_at_their_end_or_before_their_padding():
    assert without_padding([8, 9, 2, 1, 1], [2], 1) == [8, 9, 2]
    # A translation that is cut off has no `</s>`, but may have padding.
    assert without_padding([8, 9, 1, 1], [2], 1) == [8, 9]
    assert without_padding([8, 7, 2, 1], [2, 7], 1) == [8, 7]
    # With the padding id 0, beam search pads with the first end token, as transformers does.
    model = tiny_model()
    model.generate = lambda **given: torch.tensor([[0, 8, 7, 7], [0, 8, 5, 6]])
    found = PyTorchBackend(model).search([Segment("", [5, 2])] * 2, eos_token_id=[7, 2])
    assert [hypothesis.token_ids for (hypothesis,) in found] == [[8, 7], [8, 5, 6]]


def test_prefixes_and_phrases_are_in_the_translation(copier):
    prefixes, phrases = ["größer.", None, "eins zwei,"], [None, ["Straße"], ["Łódź", "ja?"]]
    lines = ["nein", "der Hund", "Mr. Öl"]
    translations = list(copier.translate(lines, target_prefixes=prefixes, must_contain=phrases, num_beams=4))
    for translation, prefix, of_line in zip(translations, prefixes, phrases, strict=True):
        assert translation.startswith(prefix or "")
        assert all(phrase in translation for phrase in of_line or [])
    # The length limit of a line does not count the padding before its prefix.
    limited, many = {"num_beams": 2, "max_length": 9}, "ja? eins nein zwei, drei!"
    together = copier.translate([lines[0], many], target_prefixes=["eins zwei, drei! nein", None], **limited)
    assert list(together)[1:] == list(copier.translate([many], **limited))
    # The phrases of one line do not change the translation of another line.
    assert list(copier.translate([lines[1]], must_contain=[["Straße"]], num_beams=4)) == [translations[1]]
    with torch.no_grad():
        assert "Straße" not in next(copier.translate([lines[1]], num_beams=4))
