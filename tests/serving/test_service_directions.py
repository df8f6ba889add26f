"""The languages of checkpoints, and the choice of a model for two languages."""

import json
from types import SimpleNamespace

import pytest
from factories import tiny_tokenizer, write_recipe
from sentences import refused

from vaswani_hf.checkpoint.languages import recorded_languages
from vaswani_hf.model.tokenizing_vaswani import tags_of
from vaswani_hf.serving.directions import Directions, language_name, load_directions


def model(*tags: str, languages=()) -> SimpleNamespace:
    tags = tags_of(tiny_tokenizer(vocab_size=290, tags=tags))
    tokenizer = SimpleNamespace(tags=tags, languages=dict.fromkeys(languages, 20))
    return SimpleNamespace(backend=None, segment_tokenizer=tokenizer)


def pairs(directions: Directions) -> list[tuple]:
    return [(one.source, one.target, one.tgt_lang) for one in directions]


def test_a_model_of_both_directions_serves_both():
    both = model(">>en<<")
    directions = Directions([("en", "de", both)])
    assert pairs(directions) == [("en", "de", None), ("de", "en", "en")]
    assert directions.find("de", "en", [""]).translator is both


def test_the_tags_of_a_multilingual_model_are_its_target_languages():
    directions = Directions([("en", "gmw", model(">>deu<<", ">>nld<<"))])
    assert pairs(directions) == [("en", "gmw", None), ("en", "deu", "deu"), ("en", "nld", "nld")]
    named = Directions([("en", "nld", model(">>deu<<", ">>nld<<"))])
    assert pairs(named) == [("en", "nld", "nld"), ("en", "deu", "deu")]


def test_a_model_of_one_direction_has_priority_over_a_tag():
    both, one = model(">>en<<"), model()
    directions = Directions([("en", "de", both), ("de", "en", one)])
    assert directions.find("de", "en", [""]).translator is one


def detector(text: str) -> dict[str, float]:
    """A detector that knows English, German and Dutch, by the first word."""
    first = text.split()[0] if text.split() else ""
    return {language: 0.9 if language == first else 0.05 for language in ("en", "de", "nl")}


def test_a_detector_chooses_the_direction():
    directions = Directions([("en", "de", model()), ("nl", "de", model()), ("de", "en", model())], detector)
    assert directions.find("auto", "de", ["nl zin", "en"]).source == "nl"
    # English cannot be translated to English.
    assert directions.find("auto", "en", ["nl zin"]).source == "de"
    assert directions.confidences(["de Satz"]) == {"de": 0.9, "en": 0.05, "nl": 0.05}
    unknown = Directions([("xx", "de", model()), ("yy", "de", model())], detector)
    with pytest.raises(ValueError, match="has detected no source language; the source languages are xx, yy"):
        unknown.find("auto", "de", ["xx"])


def test_two_models_for_the_same_languages_are_refused():
    with refused(
        "`models` must have different languages, but two models translate from en to de; leave one of the two models "
        "out."
    ):
        Directions([("en", "de", model()), ("en", "de", model())])


def test_the_languages_of_a_model_with_language_tokens():
    many = model(languages=["eng_Latn", "deu_Latn"])
    assert pairs(Directions([("eng_Latn", "deu_Latn", many)])) == [("eng_Latn", "deu_Latn", "deu_Latn")]
    with refused("`--languages` must name languages of the model (eng_Latn, deu_Latn), but names de."):
        Directions([("eng_Latn", "de", many)])


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("en", "fr", ("en", "fr")),
        ("de", None, ("de", "en")),
        # Only one model translates to French.
        ("auto", "fr", ("en", "fr")),
    ],
)
def test_find(source, target, found):
    directions = Directions([("en", "de", model()), ("en", "fr", model()), ("de", "en", model())])
    direction = directions.find(source, target, ["text"])
    assert (direction.source, direction.target) == found


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("it", "de", "it is not supported; the source languages are en, nl."),
        ("en", "it", "en cannot be translated to it; the target languages of en are de, fr."),
        ("en", None, "The target language must be given, because en has the target languages de, fr."),
        ("auto", "de", "The source language must be given, because the service has detected no source "),
        ("auto", "it", "No model translates to the target language; `/languages` lists the languages."),
    ],
)
def test_impossible_languages(source, target, message):
    directions = Directions([("en", "de", model()), ("en", "fr", model()), ("nl", "de", model())])
    with pytest.raises(ValueError) as error:
        directions.find(source, target, ["text"])
    assert str(error.value).startswith(message)


def test_language_names():
    assert [language_name(code) for code in ("de", "EN", "tlh")] == ["German", "English", "tlh"]


def test_recorded_languages(tmp_path):
    assert recorded_languages(tmp_path) is None
    results = {"data": {"source_language": "eng", "target_language": "deu"}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert recorded_languages(tmp_path) == ("eng", "deu")
    # The languages in the recipe take precedence over those in the results.
    write_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "checkpoint-3").mkdir()
    assert recorded_languages(tmp_path) == recorded_languages(tmp_path / "checkpoint-3") == ("en", "de")
    (tmp_path / "recipe.yaml").write_text("data: [")
    assert recorded_languages(tmp_path) is None


def test_a_checkpoint_without_languages_needs_the_option(tmp_path):
    with refused(
        f"`--languages` must name the languages of each model, such as en:de, because '{tmp_path}' does not record its "
        "languages."
    ):
        load_directions([str(tmp_path)], [], lambda name: model())
    assert pairs(load_directions([str(tmp_path)], ["fr:it"], lambda name: model())) == [("fr", "it", None)]
