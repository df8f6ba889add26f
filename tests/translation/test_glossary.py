"""Glossaries: the terms that a text contains, wrong files, and translations with the target terms."""

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from vaswani_hf.model import glossary_vaswani
from vaswani_hf.model.glossary_vaswani import read_glossary
from vaswani_hf.model.inputs_vaswani import TranslationOptions
from vaswani_hf.model.tokenizing_vaswani import phrase_token_ids


@pytest.fixture
def glossary(tmp_path):
    def write(text):
        path = tmp_path / "terms.tsv"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("Two HOUSES and a city.", ["Haus", "Stadt"]),
        ("Cities of the house", ["Stadt", "Haus"]),
        ("a neural network", ["Netz"]),
        ("Vaswani and the form", ["Vaswani"]),
        ("the format of a network", ["Netzwerk"]),
        ("", []),
    ],
)
def test_terms_match_words_and_their_inflections(glossary, text, phrases):
    path = glossary(
        "house\tHaus\ncity\tStadt\nnetwork\tNetzwerk\nneural network\tNetz\nvaswani\t\nformal\ty\n\n"
    )
    assert read_glossary(path).phrases(text) == phrases


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("two Houses", ["Häuser"]),
        ("a house", ["Haus"]),
        ("an old house", ["Altes", "Haus"]),
        ("the green houses", ["Gewächshäuser"]),
        ("the green housed", ["Gewächshaus"]),
        ("housing", ["Haus"]),
    ],
)
def test_a_term_that_equals_a_word_precedes_a_term_that_matches_an_inflected_word(glossary, text, phrases):
    lines = ["house\tHaus", "olds\tAlt", "old\tAltes", "green house\tGewächshaus", "houses\tHäuser"]
    path = glossary("\n".join([*lines, "green houses\tGewächshäuser"]))
    assert read_glossary(path).phrases(text) == phrases


def test_a_match_examines_only_terms_with_the_same_first_word(glossary, monkeypatch):
    others = "".join(f"{chr(97 + i)}{chr(97 + k)}word\tx\n" for i in range(26) for k in range(26))
    terms = read_glossary(glossary(f"{others}old house\tHaus\n"))
    examined = []
    stems = glossary_vaswani._stems

    def stems_of(word):
        examined.append(word)
        return stems(word)

    monkeypatch.setattr(glossary_vaswani, "_stems", stems_of)
    assert terms.phrases("the old houses") == ["Haus"]
    assert examined == ["the", "old", "houses", "house"]


@pytest.mark.parametrize("line", ["house", "house\tHaus\tb", "house\t\tb", "\tHaus", " \t\tHaus"])
def test_a_line_must_have_a_source_term_and_one_target_term(glossary, line):
    with pytest.raises(ValueError, match="^Line 3 of the glossary .* must have a source term, a tab and a"):
        read_glossary(glossary(f"city\tStadt\n\t\n{line}\n"))


def test_empty_columns_at_the_end_of_a_line_are_ignored(glossary):
    assert read_glossary(glossary("house\tHaus\t\r\ncity\t\t\r\n")).phrases("a house") == ["Haus"]


def test_the_command_reads_a_glossary_once(glossary, vaswani, copier_checkpoint, monkeypatch):
    paths = []

    def read(path):
        paths.append(path)
        return read_glossary(path)

    for module in ("cli.translate", "model.inputs_vaswani"):
        monkeypatch.setattr(f"vaswani_hf.{module}.read_glossary", read)
    path = str(glossary("hund\tÖl\n"))
    assert vaswani("translate", copier_checkpoint, "--text", "hund", "--glossary", path)[0] == 0
    assert paths == [path]
    code, _, sentence = vaswani("translate", copier_checkpoint, "--glossary", glossary("no tab\n"))
    assert code == 2 and "Line 1 of the glossary" in sentence


def test_a_copy_of_the_options_contains_the_glossary(glossary):
    path = glossary("hund\tÖl\n")
    options = TranslationOptions(glossary=path)
    Path(path).unlink()
    copied = pickle.loads(pickle.dumps(replace(options, window=1)))
    assert copied.glossary.phrases("hund") == ["Öl"]
    changed = replace(copied, glossary=glossary("hund\tja?\n"))
    assert changed.glossary.phrases("hund") == ["ja?"]


def test_translations_contain_the_terms(glossary, copier, caplog):
    path = glossary("hund\tÖl\nhund\tja?\neins\tnein nein\nzwei,\t\n")
    options = {"glossary": path, "num_beams": 3, "no_repeat_ngram_size": 1}
    first, second, third = copier.translate(["der Hund läuft", "eins", "zwei,"], **options)
    assert "Öl" in first and "nein nein" not in second and "zwei," in third
    messages = [record.getMessage() for record in caplog.records]
    assert any("Lines 1 and 2" in message for message in messages)
    assert any("asks for 'nein nein'" in message for message in messages)


LONG = "nein " * 12


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        ({}, r"the term has \d+ tokens, and the translation has room for \d+"),
        ({"no_repeat_ngram_size": 1}, "`no_repeat_ngram_size` is 1 and forbids a repetition in the term"),
        ({"suppress_tokens": [*range(5, 319)]}, r"`suppress_tokens` forbids the token \d+"),
    ],
    ids=["limit of the checkpoint", "repetition", "token"],
)
def test_a_term_that_no_translation_can_contain_is_reported_and_ignored(
    glossary, copier, caplog, settings, obstacle
):
    target = LONG if settings else LONG * 5
    (translation,) = copier.translate(["hund"], glossary=glossary(f"hund\t{target}\n"), **settings)
    (record,) = caplog.records
    message = (
        rf"The glossary asks for '{target[:40]}' in the translation of 'hund', but {obstacle}; the term is"
        " ignored."
    )
    assert re.fullmatch(message, record.getMessage())
    assert LONG.strip() not in translation


def test_a_term_as_long_as_the_translation_is_in_the_translation(glossary, copier, caplog):
    num_tokens = len(phrase_token_ids("nein nein", copier.target_tokenizer))
    path = glossary("hund\tnein nein\n")
    for settings in ({"max_new_tokens": num_tokens + 1}, {"max_length": num_tokens + 2}):
        assert list(copier.translate(["hund"], glossary=path, **settings)) == ["nein nein"]
    assert not caplog.records
    (translation,) = copier.translate(["hund"], glossary=path, max_new_tokens=num_tokens)
    assert "nein nein" not in translation and len(caplog.records) == 1


def test_a_term_that_the_target_prefix_leaves_no_room_for_is_ignored(glossary, copier, caplog):
    options = {"glossary": glossary("hund\tnein nein nein\n"), "target_prefixes": ["eins eins eins"]}
    for settings, is_ignored in (({"max_length": 9}, True), ({"max_length": 60}, False)):
        caplog.clear()
        (translation,) = copier.translate(["hund"], **options, **settings)
        assert translation.startswith("eins eins eins")
        assert ("nein nein nein" not in translation) == bool(caplog.records) == is_ignored


def test_a_glossary_cannot_be_combined_with_sampling(glossary, copier):
    with pytest.raises(ValueError, match="^`glossary` must be left out with `do_sample`, because sampling"):
        list(copier.translate(["eins"], glossary=glossary("hund\tÖl\n"), do_sample=True, num_beams=1))
