"""Translations have the scores of the search, for settings from all sources and with forced tokens."""

import copy
import string

import pytest
import torch
from factories import stacks
from transformers import (
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from vaswani_hf.translation import Translator

TEXTS = ["eins zwei", "der Hund läuft über die Straße"]
SCORED = {"return_dict_in_generate": True, "output_scores": True}


def config_with(**fields):
    """A generation config that contains fields of this package."""
    config = GenerationConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


OURS = {"length_penalty": 0.6, "length_penalty_type": "gnmt", "coverage_penalty": 0.3}
BEAMS = {"num_beams": 4, "max_new_tokens": 6}
# For each case, the generation config of the checkpoint, and the arguments of a call.
SETTINGS = {
    "nothing": ({}, {}),
    "checkpoint": ({**OURS, "num_beams": 3, "max_new_tokens": 7}, {}),
    "checkpoint, several": ({"coverage_penalty": 0.2, "num_return_sequences": 2, "num_beams": 2}, {}),
    "arguments": ({}, {**OURS, **BEAMS}),
    "an argument of a checkpoint": (OURS, {**BEAMS, "length_penalty": 2.0}),
    "another start": ({}, {**BEAMS, "decoder_start_token_id": 5}),
    "the coverage taken back": (OURS, {**BEAMS, "coverage_penalty": None, "length_penalty": 0.3}),
    "all taken back": (OURS, {**BEAMS, **dict.fromkeys(OURS)}),
    "an empty config": (OURS, {"generation_config": GenerationConfig()}),
    "a config": ({}, {"generation_config": config_with(**OURS, **BEAMS)}),
    "a config of the power": (
        OURS,
        {"generation_config": config_with(**BEAMS, length_penalty_type="power", coverage_penalty=0.0)},
    ),
    "a config of three": (
        {"num_return_sequences": 2, "num_beams": 2},
        {"generation_config": config_with(**BEAMS, num_return_sequences=3, length_penalty=-0.5)},
    ),
    "a config and an argument": (
        {},
        {"generation_config": config_with(**OURS, **BEAMS), "length_penalty": 1.7},
    ),
}
with_settings = pytest.mark.parametrize(("fields", "call"), SETTINGS.values(), ids=SETTINGS)


def scores_of_the_search(translator, text, call):
    """Return the scores of each translation, best first."""
    inputs = translator.source_tokenizer(text, return_tensors="pt")
    call = copy.deepcopy(call)
    if "generation_config" not in call and translator.model.generation_config.num_beams is None:
        call.setdefault("num_beams", 4)
    return translator.model.generate(**inputs, **call, **SCORED).sequences_scores.tolist()


@with_settings
def test_scores_are_those_of_the_search(babbler, fields, call):
    model = copy.deepcopy(babbler.model)
    model.generation_config.update(allow_custom_entries=True, **fields)
    translator = Translator(model, babbler.source_tokenizer, babbler.target_tokenizer)
    config = call.get("generation_config")
    if config is not None and config.num_beams is None and "num_beams" not in fields:
        # Greedy search reports no score.
        call = {**call, "num_beams": 2}
    pipe = pipeline("translation", model=model, tokenizer=babbler.source_tokenizer, device="cpu")
    for text in TEXTS:
        expected = scores_of_the_search(translator, text, call)
        (best,) = translator.translate([text], **copy.deepcopy(call), return_scores=True)
        found = [best.score, *(other.score for other in best.alternatives or ())]
        assert found == pytest.approx(expected, abs=1e-4)
        records = pipe(text, **copy.deepcopy(call), return_scores=True)
        assert [record["score"] for record in records] == pytest.approx(expected, abs=1e-4)
        assert len(expected) == (
            getattr(config, "num_return_sequences", None) or fields.get("num_return_sequences", 1)
        )


@pytest.mark.parametrize(
    "limit", [{"max_new_tokens": 6}, {"max_length": 7}, {"max_length_b": 6}], ids=" ".join
)
def test_a_forced_end_at_the_length_limit_has_no_log_probability(babbler, limit):
    model = copy.deepcopy(babbler.model)
    model.generation_config.forced_eos_token_id = model.generation_config.eos_token_id
    translator = Translator(model, babbler.source_tokenizer, babbler.target_tokenizer)
    call = {"num_beams": 2, "min_new_tokens": 6, **limit}
    (best,) = translator.translate([TEXTS[1]], **call, return_scores=True)
    assert (len(best.token_ids), len(best.tokens)) == (6, 5)
    assert [best.score] == pytest.approx(scores_of_the_search(translator, TEXTS[1], call), abs=1e-4)


@with_settings
def test_scores_of_given_translations_have_the_same_settings(copier, fields, call):
    # The copier copies the text and ends the translation with `</s>`.
    model = copy.deepcopy(copier.model)
    model.generation_config.update(allow_custom_entries=True, **{**fields, "num_return_sequences": 1})
    translator = Translator(model, copier.source_tokenizer, copier.target_tokenizer)
    names = ("length_penalty", "length_penalty_type", "coverage_penalty", "generation_config")
    # `score` treats None like a missing setting, so drop None.
    call = {name: value for name, value in call.items() if name in names and value is not None}
    searched = {**copy.deepcopy(call), "num_beams": 1, "max_new_tokens": 30, "num_return_sequences": 1}
    (translation,) = translator.translate([TEXTS[1]], **searched, return_scores=True)
    assert translation.text == TEXTS[1]
    (scored,) = translator.score([TEXTS[1]], [TEXTS[1]], **dict.fromkeys(names[:3]) | call)
    assert scored.score == pytest.approx(translation.score, abs=1e-4)


SHAPE = stacks(layers=1, attention_heads=2, ffn_dim=32) | {"d_model": 16, "init_std": 0.5}


def mbart():
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(f"▁{word}" for text in TEXTS for word in text.split())]
    tokenizer = MBartTokenizer(vocab=[(piece, -1.0) for piece in pieces])
    return MBartForConditionalGeneration(MBartConfig(vocab_size=len(tokenizer), **SHAPE)), tokenizer


def nllb():
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *string.ascii_letters, *"üäß?"]
    tokenizer = NllbTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[])
    config = M2M100Config(
        vocab_size=len(tokenizer), decoder_start_token_id=2, max_position_embeddings=64, **SHAPE
    )
    return M2M100ForConditionalGeneration(config), tokenizer


FAMILIES = {
    "mBART": (mbart, ("en_XX", "de_DE")),
    "NLLB": (nllb, ("eng_Latn", "deu_Latn")),
}


@pytest.mark.parametrize("end", [None, 2], ids=["free end", "forced end"])
@pytest.mark.parametrize(("make", "languages"), FAMILIES.values(), ids=FAMILIES)
def test_the_language_that_is_forced_does_not_count(make, languages, end):
    torch.manual_seed(5)
    model, tokenizer = make()
    # transformers 5 reads this setting only from the generation config.
    model.generation_config.forced_eos_token_id = end
    model.eval()
    source, target = languages
    tokenizer.src_lang = source
    language = tokenizer.convert_tokens_to_ids(target)
    pipe = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")
    # Some translations end with `</s>`, and some at the limit.
    for penalty, limit in (
        (1.0, {"max_new_tokens": 4}),
        (0.0, {"max_length": 6}),
        (2.0, {"max_new_tokens": 12, "bad_words_ids": [[language]]}),
    ):
        given = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": penalty}
        for text in TEXTS:
            inputs = tokenizer(text, return_tensors="pt")
            outputs = model.generate(**inputs, **given, **limit, **SCORED, forced_bos_token_id=language)
            records = pipe(text, src_lang=source, tgt_lang=target, return_scores=True, **given, **limit)
            expected = pytest.approx(outputs.sequences_scores.tolist(), abs=1e-4)
            assert [record["score"] for record in records] == expected
            options = {"src_lang": source, "tgt_lang": target, "return_scores": True}
            translator = Translator(model, tokenizer, tokenizer)
            (translation,) = translator.translate([text], **options, **given, **limit)
            assert [translation.score, translation.alternatives[0].score] == expected
            assert target not in translation.tokens and language in translation.token_ids
            assert translation.log_prob == pytest.approx(sum(translation.token_log_probs), abs=1e-5)
            assert len(translation.tokens) == len(translation.token_log_probs)


def test_models_that_force_nothing_are_scored_as_they_were():
    torch.manual_seed(0)
    tokenizer = nllb()[1]
    ids = {"decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes, **ids)).eval()
    translator = Translator(model, tokenizer, tokenizer)
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    expected = model.generate(**inputs, num_beams=3, max_new_tokens=4, **SCORED).sequences_scores.item()
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    given = {"num_beams": 3, "max_new_tokens": 4, "forced_bos_token_id": None}
    (found,) = translator.translate([TEXTS[0]], **languages, return_scores=True, **given)
    assert found.score == pytest.approx(expected, abs=1e-4)
