"""pipeline("translation") gives the results of generate() and decode(), also for T5, Marian and mBART."""

import enum
import re
import shutil
from itertools import count, islice

import datasets
import pytest
import torch
from factories import save_checkpoint, stacks, tiny_config, tiny_model, tiny_tokenizer
from sentences import refused
from torch.utils.data import IterableDataset
from transformers import (
    GenerationConfig,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
    pipelines,
)
from transformers.pipelines import PIPELINE_REGISTRY, text_generation
from transformers.pipelines.pt_utils import KeyDataset

from vaswani_hf import TranslationPipeline, VaswaniForSeq2SeqLM, register_translation_pipeline
from vaswani_hf.publish import push
from vaswani_hf.translation import Translator

# The sentences have different lengths, so a batch contains padding.
TEXTS = ["a cat", "the dog lay on the mat", "a small cat sat on the mat and the dog lay there", "the dog"]
GERMAN = [
    "eine Katze",
    "der Hund lag auf der Matte",
    "eine kleine Katze saß auf der Matte und der Hund lag dort",
    "der Hund",
]
RECORDS = [{"translation_text": text} for text in GERMAN]
# Settings for untrained models, which never produce `</s>`.
SETTINGS = {"num_beams": 2, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def make_model():
    """Train a model until it has memorised the four sentences."""

    def make(source_tokenizer, target_tokenizer, **fields) -> VaswaniForSeq2SeqLM:
        torch.manual_seed(3)
        fields |= {"vocab_size": len(source_tokenizer), "decoder_vocab_size": len(target_tokenizer)}
        model = VaswaniForSeq2SeqLM(tiny_config(encoder_ffn_dim=32, decoder_ffn_dim=32, **fields)).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        sources = source_tokenizer(TEXTS, return_tensors="pt", padding=True)
        labels = target_tokenizer(GERMAN, return_tensors="pt", padding=True).input_ids
        for _ in range(60):
            model(**sources, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.eval()

    return make


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer(TEXTS + GERMAN, 300)


@pytest.fixture(scope="module")
def checkpoint(make_model, tokenizer, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    return str(save_checkpoint(folder, make_model(tokenizer, tokenizer), tokenizer))


@pytest.fixture(scope="module")
def translator(checkpoint) -> TranslationPipeline:
    return pipeline("translation", model=checkpoint, device="cpu")


@pytest.fixture(scope="module")
def two_vocabularies(make_model, tmp_path_factory) -> str:
    tokenizers = tiny_tokenizer(TEXTS, 280), tiny_tokenizer(GERMAN, 290)
    model = make_model(*tokenizers, share_encoder_decoder_embeddings=False)
    return str(save_checkpoint(tmp_path_factory.mktemp("two_vocabularies"), model, *tokenizers))


def translate(model, tokenizer, text: str, **settings) -> list[str]:
    """The expected translations, computed one sentence at a time without padding."""
    output_ids = model.generate(**tokenizer(text, return_tensors="pt"), **settings)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in output_ids]


def generate_settings(translator, monkeypatch, **settings) -> dict:
    """The settings with which the pipeline calls generate()."""
    calls = []
    monkeypatch.setattr(
        translator.model, "generate", lambda **given: calls.append(given) or torch.tensor([[0, 2]])
    )
    translator("a cat", **settings)
    # Remove the check for NaN and the type of the result, because the caller did not set these arguments.
    calls[0].pop("logits_processor", None)
    assert calls[0].pop("return_dict_in_generate") is False
    return {name: value for name, value in calls[0].items() if not isinstance(value, torch.Tensor)}


def test_one_text_gives_a_list_of_one_and_a_list_a_flat_list(translator, tokenizer):
    for text, record in zip(TEXTS, RECORDS, strict=True):
        assert translator(text) == [record]
        assert translate(translator.model, tokenizer, text, num_beams=4, max_new_tokens=40) == list(
            record.values()
        )
    for batch_size in (1, 3):
        assert translator(TEXTS, batch_size=batch_size) == RECORDS
    assert translator(tuple(TEXTS)) == RECORDS


def test_several_translations_are_nested(translator, tokenizer):
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 30}
    expected = []
    for text in TEXTS:
        found = translate(translator.model, tokenizer, text, **settings)
        expected.append([{"translation_text": translation} for translation in found])
    assert all(first != second for first, second in expected)
    assert translator(TEXTS[0], **settings) == expected[0]
    assert translator(TEXTS, batch_size=3, **settings) == expected


def test_a_seed_draws_what_the_translator_draws(translator, checkpoint):
    settings = {"do_sample": True, "num_beams": 1, "max_new_tokens": 6, "seed": 3}
    drawn = [record["translation_text"] for record in translator(TEXTS, **settings)]
    assert drawn == list(Translator.from_pretrained(checkpoint).translate(TEXTS, **settings))


def test_a_stream_is_read_as_it_is_translated(translator):
    read = count()
    texts = (text for text in TEXTS * 1000 if next(read) >= 0)
    assert list(islice(translator(texts, batch_size=2), 3)) == [[record] for record in RECORDS[:3]]
    assert next(read) == 4
    assert next(translator(texts, batch_size=2, window=5)) == [RECORDS[0]]
    assert next(read) == 10


class StreamWithLength(IterableDataset):
    """A dataset that has a length, but no `__getitem__`."""

    def __len__(self):
        return len(TEXTS)

    def __iter__(self):
        return iter(TEXTS)


def test_datasets(translator):
    dataset = datasets.Dataset.from_dict({"en": TEXTS})
    assert translator(dataset["en"]) == RECORDS
    translations = translator(KeyDataset(dataset, "en"), batch_size=3)
    assert list(translations) == [[record] for record in RECORDS]
    assert translator([]) == translator(KeyDataset(datasets.Dataset.from_dict({"en": []}), "en")) == []
    assert list(translator(text for text in [])) == []
    assert list(translator(StreamWithLength())) == [[record] for record in RECORDS]


def test_an_empty_text_is_translated_to_an_empty_text(translator):
    empty = {"translation_text": ""}
    assert translator("") == translator(" \t\u3000\n") == [empty]
    records = translator(["", TEXTS[0], "  ", TEXTS[1], ""], batch_size=2)
    assert records == [empty, RECORDS[0], empty, RECORDS[1], empty]
    two = {"num_beams": 2, "num_return_sequences": 2}
    assert translator(["", "a cat"], **two)[0] == [empty, empty]
    assert translator("", generation_config=GenerationConfig(**two)) == [empty, empty]
    assert translator("", return_tensors=True)[0]["translation_token_ids"].shape == (0,)


def test_token_ids(translator, tokenizer):
    (record,) = translator(TEXTS[1], return_tensors=True)
    assert record.keys() == {"translation_token_ids"}
    assert record["translation_token_ids"].tolist() == [0, *tokenizer(GERMAN[1]).input_ids]
    (both,) = translator(TEXTS[1], return_tensors=True, return_text=True)
    assert both.keys() == {"translation_token_ids", "translation_text"}
    assert translator(TEXTS[1], return_text=False) == [RECORDS[1]]


def test_truncation_and_clean_up_reach_the_tokenizer(translator, tokenizer, monkeypatch, caplog):
    length = len(tokenizer("the dog").input_ids)
    monkeypatch.setattr(tokenizer, "model_max_length", length)
    short = TranslationPipeline(translator.model, tokenizer, device="cpu")
    assert short(["the dog lay on the mat"], truncation=True) == [RECORDS[3]]
    with caplog.at_level("WARNING"):
        (in_pieces,) = short(["the dog lay on the mat"])
    assert "the line is translated in" in caplog.text
    expected = Translator(translator.model, tokenizer, tokenizer).translate(["the dog lay on the mat"])
    assert in_pieces == {"translation_text": next(expected)} != RECORDS[1]
    decode = tokenizer.decode
    for settings, expected in (({"clean_up_tokenization_spaces": True}, True), ({}, False)):
        monkeypatch.setattr(
            tokenizer, "decode", lambda ids, expected=expected, **given: decode(ids) + str(given)
        )
        given = {"skip_special_tokens": True, "clean_up_tokenization_spaces": expected}
        assert short("the dog", **settings)[0]["translation_text"].endswith(str(given))


def test_settings_of_the_call_and_of_the_constructor(checkpoint, tokenizer, monkeypatch):
    of_the_constructor = {"num_beams": 3, "max_new_tokens": 5}
    translator = pipeline("translation", model=checkpoint, device="cpu", batch_size=2, **of_the_constructor)
    assert type(translator) is TranslationPipeline
    for settings in ({}, {"do_sample": True, "temperature": 9.0}, {"max_new_tokens": 3}):
        torch.manual_seed(0)
        expected = translate(translator.model, tokenizer, TEXTS[1], **{**of_the_constructor, **settings})
        torch.manual_seed(0)
        assert translator(TEXTS[1], **settings) == [{"translation_text": expected[0]}]
        assert expected[0] != GERMAN[1]
    plain = pipeline("translation_en_to_de", model=translator.model, tokenizer=tokenizer)
    assert (translator.task, plain.task) == ("translation", "translation_en_to_de")
    assert generate_settings(plain, monkeypatch, max_length=9) == {"num_beams": 4, "max_length": 9}


def test_a_short_limit_is_reported(translator, transformers_log):
    length = len(translator.tokenizer(TEXTS[1]).input_ids)
    translator(TEXTS[1], max_new_tokens=length)
    expected = f"A text has {length} tokens, and its translation has at most {length} tokens; if the translation is cut off, give a larger `max_new_tokens`."
    assert [record.getMessage() for record in transformers_log.records] == [expected]
    translator(TEXTS[1], max_new_tokens=2 * length)
    assert len(transformers_log.records) == 1


def test_other_tasks_stay_unknown(translator):
    for task in ("translation_en_de", "summarization"):
        with pytest.raises(KeyError, match=f"(Unknown task|The task) {task}"):
            pipeline(task, model=translator.model)


def test_a_pipeline_without_a_model_says_that_there_is_no_default():
    message = "`model` must be given for the task 'translation', because the task has no default model; "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        pipeline("translation_en_to_de")


# transformers 4 had this class.
ReturnType = enum.Enum("ReturnType", ["TENSORS", "TEXT"])


def test_the_return_type_of_transformers_4(translator, checkpoint):
    for kind in (ReturnType.TENSORS, "tensors"):
        assert translator(TEXTS[1], return_type=kind)[0].keys() == {"translation_token_ids"}
    # `return_type` takes precedence over `return_tensors`, and the call takes precedence over the pipeline.
    for kind in (ReturnType.TEXT, "text", text_generation.ReturnType.FULL_TEXT):
        assert translator(TEXTS[1], return_type=kind, return_tensors=True) == RECORDS[1:2]
    by_default = pipeline("translation", model=checkpoint, return_type="tensors")
    assert by_default(TEXTS[1])[0].keys() == {"translation_token_ids"}
    assert by_default(TEXTS[1], return_type=ReturnType.TEXT) == RECORDS[1:2]
    with pytest.raises(ValueError, match='^`return_type` must be "tensors" or "text", but is \'numpy\'.$'):
        translator(TEXTS[1], return_type="numpy")


def test_the_stop_sequence_of_transformers_4(translator, tokenizer, recwarn):
    ids = translator(TEXTS[1], return_tensors=True)[0]["translation_token_ids"].tolist()
    tokens = {token_id: tokenizer.decode([token_id]) for token_id in ids[2:-1]}
    own = {token_id: tokenizer(text, add_special_tokens=False).input_ids for token_id, text in tokens.items()}
    stop = next(token_id for token_id in tokens if own[token_id] == [token_id])
    text = tokens[stop]
    (found,) = translator(TEXTS[1], stop_sequence=text, return_tensors=True, num_beams=3)
    assert found["translation_token_ids"].tolist() == ids[: ids.index(stop) + 1]
    assert not [warning for warning in recwarn if "stop_sequence" in str(warning.message)]
    # A stop sequence that does not occur changes nothing, and `</s>` still ends a translation.
    assert translator(TEXTS[1], stop_sequence="~", num_beams=3) == RECORDS[1:2]
    with pytest.warns(
        UserWarning,
        match="^`stop_sequence` has several tokens; only its first token is used, and ends a translation.$",
    ):
        assert translator(TEXTS[1], stop_sequence=text + "~~", return_tensors=True)[0].keys() == found.keys()


def test_a_task_of_transformers_is_left_alone(monkeypatch):
    own, check_task = {"impl": "of transformers"}, PIPELINE_REGISTRY.check_task
    monkeypatch.setitem(PIPELINE_REGISTRY.supported_tasks, "translation", own)
    monkeypatch.setattr(pipelines, "REMOVED_TASKS", {"translation": ""}, raising=False)
    register_translation_pipeline()
    assert PIPELINE_REGISTRY.supported_tasks["translation"] is own
    assert PIPELINE_REGISTRY.check_task == check_task
    assert pipelines.REMOVED_TASKS == {"translation": ""}


def test_a_tokenizer_must_fit_the_model(translator, tokenizer, checkpoint):
    larger = tiny_tokenizer(TEXTS + GERMAN, 300)
    larger.add_tokens(["<new>"])
    with pytest.raises(ValueError, match=f"^The source tokenizer must fit {checkpoint!r}, but has ids up to"):
        pipeline("translation", model=translator.model, tokenizer=larger)
    # The model may have embeddings for added tokens, and classes without tokens.
    resized = VaswaniForSeq2SeqLM.from_pretrained(checkpoint)
    resized.resize_token_embeddings(312)
    for fitting in (larger, tokenizer):
        assert pipeline("translation", model=resized, tokenizer=fitting)(TEXTS[1]) == RECORDS[1:2]


def test_one_vocabulary(translator, tokenizer, tmp_path):
    translator.save_pretrained(tmp_path / "saved")
    assert pipeline("translation", model=str(tmp_path / "saved"), device="cpu")(TEXTS) == RECORDS
    assert not (tmp_path / "saved" / "target_tokenizer").exists()
    # Two tables of embeddings may have one vocabulary.
    model = tiny_model(vocab_size=len(tokenizer), share_encoder_decoder_embeddings=False)
    save_checkpoint(tmp_path / "two", model, tokenizer)
    two = pipeline("translation", model=str(tmp_path / "two"), device="cpu")
    assert two.target_tokenizer is two.tokenizer


def test_two_vocabularies(two_vocabularies, tmp_path):
    translator = pipeline("translation", model=two_vocabularies, device="cpu")
    assert len(translator.tokenizer) != len(translator.target_tokenizer)
    # Use one beam, because the beam search of transformers 5.17 assumes the size of the source vocabulary.
    assert translator(TEXTS, batch_size=3, num_beams=1) == RECORDS
    translator.save_pretrained(tmp_path)
    assert pipeline("translation", model=str(tmp_path), device="cpu")(TEXTS, num_beams=1) == RECORDS
    in_memory, target = tiny_tokenizer(TEXTS, 280), translator.target_tokenizer
    explicit = TranslationPipeline(translator.model, in_memory, target_tokenizer=target, device="cpu")
    assert explicit(TEXTS, num_beams=1) == RECORDS
    explicit.save_pretrained(tmp_path / "explicit")
    assert [*Translator.from_pretrained(tmp_path / "explicit").translate(TEXTS, num_beams=1)] == GERMAN
    shutil.rmtree(tmp_path / "target_tokenizer")
    sentence = f"^`target_tokenizer` must be given for .* the subfolder `target_tokenizer` of '{tmp_path}'.$"
    with pytest.raises(ValueError, match=sentence):
        pipeline("translation", model=str(tmp_path), device="cpu")


@pytest.fixture(scope="module")
def t5(tokenizer) -> T5ForConditionalGeneration:
    torch.manual_seed(5)
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, **ids
    )
    config.task_specific_params = {
        "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 3, "max_length": 13}
    }
    return T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    ("task", "prefix", "settings"),
    [
        ("translation_en_to_de", "translate English to German: ", {"num_beams": 3, "max_length": 13}),
        ("translation_en_to_fr", "", {"num_beams": 4, "max_new_tokens": 256}),
        ("translation", "", {"num_beams": 4, "max_new_tokens": 256}),
    ],
)
def test_t5_gets_its_prefix_and_its_settings(t5, tokenizer, monkeypatch, task, prefix, settings):
    # Create the pipeline twice, because the first pipeline must not change the config.
    for _ in range(2):
        translator = pipeline(task, model=t5, tokenizer=tokenizer, device="cpu")
    expected = translate(t5, tokenizer, prefix + TEXTS[1], num_beams=3, max_length=13)
    assert translator(TEXTS[1], num_beams=3, max_length=13) == [{"translation_text": expected[0]}]
    assert generate_settings(translator, monkeypatch) == settings
    assert generate_settings(translator, monkeypatch, max_new_tokens=4) == {
        "num_beams": settings["num_beams"],
        "max_new_tokens": 4,
    }


@pytest.fixture(scope="module")
def mbart() -> tuple[MBartForConditionalGeneration, MBartTokenizer]:
    words = sorted({word for text in TEXTS for word in text.split()})
    pieces = ["<s>", "<pad>", "</s>", "<unk>"] + [f"▁{word}" for word in words]
    tokenizer = MBartTokenizer(vocab=[(piece, -1.0) for piece in pieces])
    torch.manual_seed(5)
    sizes = {"d_model": 16, **stacks(layers=1, attention_heads=2, ffn_dim=32)}
    config = MBartConfig(vocab_size=len(tokenizer), init_std=0.5, **sizes)
    return MBartForConditionalGeneration(config).eval(), tokenizer


def test_languages_of_mbart(mbart):
    model, tokenizer = mbart
    tokenizer.src_lang = "en_XX"
    expected = []
    for text in TEXTS:
        german = tokenizer.convert_tokens_to_ids("de_DE")
        expected.append(translate(model, tokenizer, text, **SETTINGS, forced_bos_token_id=german)[0])
    tokenizer.src_lang = "fr_XX"
    languages = {"src_lang": "en_XX", "tgt_lang": "de_DE"}
    plain = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")
    named = pipeline("translation_en_XX_to_de_DE", model=model, tokenizer=tokenizer, device="cpu")
    made = pipeline("translation_xx_to_yy", model=model, tokenizer=tokenizer, device="cpu", **languages)
    for translator, given in ((plain, languages), (named, {}), (made, {})):
        records = translator(TEXTS, batch_size=3, **given, **SETTINGS)
        assert [record["translation_text"] for record in records] == expected
    (record,) = named("a cat", return_tensors=True, **SETTINGS)
    assert record["translation_token_ids"][1] == tokenizer.convert_tokens_to_ids("de_DE")
    with pytest.raises(ValueError, match="Translation requires a `src_lang` and a `tgt_lang`"):
        plain("a cat")


def test_token_type_ids_are_left_out(translator, tokenizer):
    with_types = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **{"pad_token": "<pad>", "eos_token": "</s>"},
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    assert "token_type_ids" in with_types("a cat")
    assert TranslationPipeline(translator.model, with_types, device="cpu")(TEXTS) == RECORDS


def test_scores_and_alignments(translator, checkpoint):
    package = Translator.from_pretrained(checkpoint, "cpu")
    wanted = {"return_scores": True, "return_alignments": True}
    expected = list(package.translate(TEXTS, num_beams=4, **wanted))
    for batch_size in (1, 3):
        records = translator([*TEXTS[:2], "", *TEXTS[2:]], batch_size=batch_size, num_beams=4, **wanted)
        empty = {"score": 0.0, "confidence": 1.0, "words": [], "alignment": ""}
        assert records.pop(2) == {"translation_text": "", **empty}
        for record, translation in zip(records, expected, strict=True):
            assert record["translation_text"] == translation.text
            assert record["score"] == pytest.approx(translation.score, abs=1e-4)
            assert record["confidence"] == pytest.approx(translation.confidence, abs=1e-4)
            assert [word["word"] for word in record["words"]] == translation.text.split()
            confidences = [word.confidence for word in translation.words]
            assert [word["confidence"] for word in record["words"]] == pytest.approx(confidences, abs=1e-4)
            assert record["alignment"] == translation.alignment
    (record,) = translator("a cat", return_alignments=True)
    assert record.keys() == {"translation_text", "alignment"}
    (record,) = translator("a cat", return_scores=True, return_tensors=True)
    assert record.keys() == {"translation_token_ids", "score", "confidence", "words"}


def test_long_texts(translator):
    text = "A cat.\n\n  The dog! A small cat?\n"
    sentences = translator(["A cat.", "The dog!", "A small cat?"])
    joined = "{}\n\n  {} {}\n".format(*(record["translation_text"] for record in sentences))
    expected = [{"translation_text": joined}, {"translation_text": ""}, RECORDS[0]]
    assert translator([text, "", "a cat"], split_sentences=True, batch_size=2) == expected
    assert translator(text, split_sentences=True, num_beams=2, num_return_sequences=2)[1]
    with pytest.raises(ValueError, match="^`return_tensors` must be left out with `split_sentences`"):
        translator(text, split_sentences=True, return_tensors=True)
    arguments = (translator.model, translator.tokenizer)
    splitting = TranslationPipeline(*arguments, split_sentences=True, device="cpu")
    with pytest.raises(ValueError, match="^`return_tensors` must be left out with `split_sentences`"):
        splitting(text, return_tensors=True)


def test_constraints(translator):
    for record in translator(TEXTS, target_prefix="der Hund lag", must_contain=["saß"], batch_size=3):
        assert re.match("der Hund lag.* saß", record["translation_text"])
    prefixes = ["der", "", "eine kleine", "auf der Matte"]
    phrases = [[], ["Matte"], ["Hund", "saß"], []]
    each = translator(TEXTS, target_prefix=prefixes, must_contain=phrases, batch_size=4, return_scores=True)
    for record, prefix, of_text in zip(each, prefixes, phrases, strict=True):
        assert record["translation_text"].startswith(prefix)
        assert all(phrase in record["translation_text"] for phrase in of_text)
        forced = record["words"][: len(prefix.split())]
        assert all(word["confidence"] == 1.0 for word in forced)


@pytest.mark.parametrize("constraints", [{}, {"target_prefix": [None] * 3, "must_contain": [None] * 3}])
def test_an_invalid_text_is_skipped(translator, constraints):
    first, *skipped = translator([TEXTS[0], None, "\ud800"], on_error="skip", **constraints)
    assert first == RECORDS[0]
    for record in skipped:
        assert record["translation_text"] == "" and record["error"].startswith("A text to translate must")


def test_other_models_are_scored_but_not_aligned(t5, tokenizer):
    translator = pipeline("translation", model=t5, tokenizer=tokenizer, device="cpu")
    inputs = tokenizer(TEXTS[1], return_tensors="pt")
    found = t5.generate(**inputs, return_dict_in_generate=True, output_scores=True, **SETTINGS)
    (record,) = translator(TEXTS[1], return_scores=True, **SETTINGS)
    assert record["score"] == pytest.approx(found.sequences_scores.item(), abs=1e-4)
    with refused(
        "Word alignments and coverage must be left out for a model of type 't5'; only Vaswani models record the "
        "attention that alignments and coverage need."
    ):
        translator(TEXTS[1], return_alignments=True)


TENSOR = torch.tensor([3])
WRONG_INPUTS = [
    (
        TEXTS,
        {"target_prefix": ["a", "b"]},
        "`target_prefix` must have one entry per text, but has 2 for 4 te",
    ),
    (
        "a",
        {"must_contain": [["a"]]},
        "`must_contain` must have one entry per text, but has 1 for one text or",
    ),
    ("a", {"must_contain": TENSOR}, "`must_contain` must be a list of phrases, but is a Tensor."),
    ("a", {"target_prefix": TENSOR}, "`target_prefix` must be a str or a list of str, but is a Tensor."),
    (
        "a",
        {"stop_sequence": "\ud800"},
        "A stop sequence must hold text, but holds '\\ud800', a lone surrogate",
    ),
    ("a", {"min_confidence": 0.5}, "`min_confidence` must be left out, because a pipeline loads no cal"),
    (None, {}, "A text to translate must be a str, but is of type NoneType."),
    ({"en": "a"}, {}, "A text to translate must be a str, but is of type dict."),
]


@pytest.mark.parametrize(("inputs", "constraint", "message"), WRONG_INPUTS)
def test_what_does_not_fit_the_texts_is_named(translator, inputs, constraint, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        translator(inputs, **constraint)
    assert str(raised.value).startswith(message)


def test_batches_hold_texts_of_similar_length(translator, t5, tokenizer, monkeypatch):
    sizes = []
    for model in (translator.model, t5):

        def generate(*, own=model, **given):
            sizes.append(tuple(given["input_ids"].shape))
            return type(own).generate(own, **given)

        monkeypatch.setattr(model, "generate", generate)
    lengths = sorted((len(ids) for ids in tokenizer(TEXTS).input_ids), reverse=True)
    assert translator(TEXTS) == RECORDS
    assert translator(TEXTS, batch_size=2) == RECORDS
    assert translator(TEXTS, tokens_per_batch=3 * lengths[1]) == RECORDS
    assert sizes == [(4, lengths[0]), (2, lengths[0]), (2, lengths[2]), (1, lengths[0]), (3, lengths[1])]
    # Other models may need more memory, so a batch has several texts only if the user says so.
    sizes.clear()
    other = pipeline("translation", model=t5, tokenizer=tokenizer, device="cpu")
    assert len(other(TEXTS, **SETTINGS)) == len(other(TEXTS, batch_size=4, **SETTINGS)) == 4
    assert sizes == [*((1, length) for length in lengths), (4, lengths[0])]


def test_the_package_pushes_the_pipelines_of_its_models(translator, t5, tokenizer, monkeypatch):
    pushed = []
    monkeypatch.setattr(push, "push_pipeline", lambda *given, **kwargs: pushed.append((given, kwargs)))
    translator.push_to_hub("alice/model", private=True)
    assert pushed == [((translator, "alice/model"), {"private": True})]
    monkeypatch.setattr(pipelines.Pipeline, "push_to_hub", lambda *given, **kwargs: "by transformers")
    assert (
        pipeline("translation", model=t5, tokenizer=tokenizer, device="cpu").push_to_hub("x")
        == "by transformers"
    )
