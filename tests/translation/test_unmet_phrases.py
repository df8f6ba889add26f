"""Phrases that other settings forbid, prefixes of blank texts, and other models."""

import logging

import pytest
import torch
from factories import stacks
from transformers import MarianConfig, MarianMTModel

from vaswani_hf import TranslationPipeline
from vaswani_hf.model.backend_vaswani import Hypothesis, Segment
from vaswani_hf.model.segment_search_vaswani import _unmet_phrases
from vaswani_hf.translation import Translator

# Each word may occur only once, so no translation can contain all three phrases.
CIRCLE = ["der Hund", "Hund läuft", "läuft der"]
ONCE = {"no_repeat_ngram_size": 1, "num_beams": 3}
WARNING = (
    "Line 2 has 'läuft der' in `must_contain`, but no translation with all phrases was found under the other settings; "
    "the translation of the line lacks the named phrases."
)


def phrases_of(translator, text):
    return translator.target_tokenizer(f"a {text}", add_special_tokens=False)["input_ids"][1:]


def test_unmet_phrases_are_told(copier, caplog):
    lines, phrases = ["nein", "der Hund nein", "eins"], [["ja?"], CIRCLE, None]
    with caplog.at_level(logging.WARNING):
        found = list(copier.translate(lines, must_contain=phrases, return_scores=True, **ONCE))
    assert [record.getMessage() for record in caplog.records] == [WARNING]
    assert [translation.unmet_phrases for translation in found] == [None, ["läuft der"], None]
    assert "ja?" in found[0].text and "der Hund läuft" in found[1].text
    # The score comes from the model, and not from a missing translation.
    assert all(-20 < translation.score < 0 and translation.tokens for translation in found)
    (scored,) = copier.score([lines[1]], [found[1].text])
    assert scored.log_prob == pytest.approx(found[1].log_prob, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "unmet"), [("des Hauses", None), ("Haustür", None), ("ein haus", ["Haus"]), ("Ha us", ["Haus"])]
)
def test_a_phrase_may_be_a_part_of_a_longer_word(text, unmet):
    segment = Segment("house", [5, 2], phrases=[[9]], phrase_texts=["Haus"])
    assert _unmet_phrases(segment, Hypothesis([6, 2], text=text)) == unmet


def test_sentences_of_a_text_have_their_own_phrases(copier):
    options = {**ONCE, "split_sentences": True, "return_scores": True, "num_return_sequences": 2}
    (translation,) = copier.translate(["der Hund. Mr. Öl"], must_contain=[["Öl", *CIRCLE]], **options)
    for each in (translation, *translation.alternatives):
        assert each.unmet_phrases == ["läuft der"] and "Öl" in each.text


def test_a_translation_that_does_not_exist_is_no_alternative(copier):
    words = phrases_of(copier, "nein")
    suppressed = [token for token in range(len(copier.target_tokenizer)) if token not in (2, *words)]
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 1, "suppress_tokens": suppressed}
    (translation,) = copier.translate(["eins"], return_scores=True, **options)
    both = [translation, *translation.alternatives]
    assert len(both) == 1 + len(words) and min(each.score for each in both) > -100
    pipeline = TranslationPipeline(copier.model, copier.source_tokenizer, device="cpu")
    (records,) = pipeline(["eins"], **options)
    assert [record["translation_text"] for record in records] == [each.text for each in both]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"must_contain": [["nein", "ja? ja?"]], "no_repeat_ngram_size": 1},
            r"`must_contain` has 'ja\? ja\?' for the text 'eins', but `no_repeat_ngram_size` is 1 and forbids \[\d+\] twice, as "
            "in this phrase; remove the phrase or the setting.",
        ),
        (
            {"suppress_tokens": list(range(320))},
            r"No translation of the text 'eins' was found, because at some step every token is forbidden by `supp.*",
        ),
    ],
)
def test_a_contradiction_names_the_text_and_both_sides(copier, options, message):
    with pytest.raises(ValueError, match=f"^{message}$") as raised:
        list(copier.translate(["eins"], **{"num_beams": 2, **options}))
    assert raised.value.line_number == 1


def test_a_prefix_of_forbidden_tokens_is_named(copier):
    prefix = copier.target_tokenizer("nein ja?", add_special_tokens=False)["input_ids"]
    for setting in ({"bad_words_ids": [prefix[1:]]}, {"suppress_tokens": prefix[:1]}):
        message = "^`target_prefix` has the tokens .* for the text 'eins', but `[a-z_]*` forbids "
        with pytest.raises(ValueError, match=message):
            list(copier.translate(["eins"], target_prefixes=["nein ja?"], **setting))


def test_a_blank_text_keeps_its_prefix_and_lacks_its_phrases(copier, caplog):
    lines = ["", "  ", "eins", ""]
    prefixes = ["nein ja?", " der ", "nein", None]
    options = {"must_contain": [["ja?"], ["Öl"], None, None], "return_scores": True, "num_beams": 2}
    for split in (False, True):
        found = list(copier.translate(lines, target_prefixes=prefixes, split_sentences=split, **options))
        texts = [translation.text for translation in found]
        assert texts[:2] + texts[3:] == ["nein ja?", "der", ""] and texts[2].startswith("nein")
        assert [translation.unmet_phrases for translation in found] == [None, ["Öl"], None, None]
        assert [word.word for word in found[0].words] == ["nein", "ja?"] and found[0].score == 0.0
    assert list(copier.translate(lines, target_prefixes=prefixes, num_beams=2)) == texts
    pipeline = TranslationPipeline(copier.model, copier.source_tokenizer, device="cpu")
    assert pipeline(["", "eins"], target_prefix="nein")[0] == {"translation_text": "nein"}
    (record,) = pipeline("", target_prefix="nein", return_tensors=True)
    assert copier.target_tokenizer.decode(record["translation_token_ids"][1:]).strip() == "nein"
    (record,) = pipeline("der Hund nein", must_contain=CIRCLE, **ONCE)
    assert record["unmet_phrases"] == ["läuft der"]


def test_what_is_no_list_is_one_sentence(copier):
    pipeline = TranslationPipeline(copier.model, copier.source_tokenizer, device="cpu")
    with pytest.raises(
        TypeError, match=r"^Texts must be one argument, a list such as `\['eins', 'nein'\]`, but are 2"
    ):
        pipeline("eins", "nein")
    with pytest.raises(
        ValueError, match="^`ensemble` must be a list of models, but is a VaswaniForSeq2SeqLM; pass"
    ):
        pipeline("eins", ensemble=copier.model)
    with pytest.raises(ValueError, match="^`ensemble` must be a list of checkpoints, but is the str 'a'.$"):
        Translator.from_pretrained("a", ensemble="a")


@pytest.fixture
def marian(copier):
    config = copier.model.config
    ids = {name: getattr(config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    shape = {"vocab_size": config.vocab_size, "d_model": 16, **stacks(layers=1, attention_heads=2)}
    torch.manual_seed(0)
    return MarianMTModel(MarianConfig(**shape, **ids)).eval()


def test_a_model_of_another_class_translates_with_ours(copier, marian):
    pipeline = TranslationPipeline(copier.model, copier.source_tokenizer, device="cpu")
    texts, prefixes = ["eins nein", "", "der Hund läuft"], ["ja?", None, None]
    options = {"return_scores": True, "num_beams": 2}
    records = pipeline(texts, ensemble=[marian], target_prefix=prefixes, **options)
    assert [record["translation_text"] for record in records][1:] == texts[1:]
    both = Translator(copier.model, copier.source_tokenizer, copier.target_tokenizer, ensemble=[marian])
    for line, prefix, record in zip(texts, prefixes, records, strict=True):
        (alone,) = both.translate([line], target_prefixes=[prefix], **options)
        assert alone.text == record["translation_text"]
        assert alone.score == pytest.approx(record["score"], abs=1e-5)
    message = "^`ensemble` needs a Vaswani model as the first model, but the first model is a MarianMTModel"
    with pytest.raises(ValueError, match=message):
        Translator(marian, copier.source_tokenizer, copier.target_tokenizer, ensemble=[copier.model])
    other = Translator(marian, copier.source_tokenizer, copier.target_tokenizer)
    with pytest.raises(ValueError, match="^`must_contain` must be left out, because the engine"):
        list(other.translate(["eins"], must_contain=[["nein"]]))
