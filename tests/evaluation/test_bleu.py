"""BLEU and chrF: values by hand and by sacrebleu's command, the protocol of `evaluate`, files and errors."""

import json
import math
import shutil
import subprocess
import sys

import evaluate
import pytest

from vaswani_hf.evaluation.bleu import (
    COUNT_CHARACTERS_NOTE,
    SHORT_TEXTS_NOTE,
    exact_match_by,
    score_translations,
    split_compounds,
)
from vaswani_hf.evaluation.metric import TranslationMetric

PREDICTIONS = [
    "The small dog runs through the wet grass, again.",
    "She reads a book.",
    "Two birds sing in a tree",
]
REFERENCES = [
    [
        "The little dog runs through the wet grass again.",
        "A small dog is running through the wet grass, again.",
    ],
    ["She reads a book.", "She is reading a book."],
    ["two birds sing in the tree", "Two birds are singing in a tree!"],
]
FIRST_REFERENCES = [entry[0] for entry in REFERENCES]


@pytest.fixture
def metric():
    return TranslationMetric()


def command_line(directory, *options):
    """The BLEU and the chrF dictionary that `sacrebleu` itself prints."""
    (directory / "predictions").write_text("\n".join(PREDICTIONS) + "\n", encoding="utf-8")
    for index in range(2):
        lines = [entry[index] for entry in REFERENCES]
        (directory / f"references{index}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *options, *"-i predictions -m bleu chrf -w 10".split()]
    finished = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return json.loads(finished.stdout)


def test_bleu_equals_the_value_by_hand():
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples and 1 of 3 quadruples: (5/6 · 3/5 · 2/4 · 1/3)^(1/4) =
    # (1/12)^(1/4).
    scores = score_translations(["the cat sat on the mat"], ["the cat sat on a mat"])
    assert (scores["bleu"], scores["brevity_penalty"]) == (pytest.approx(100 * (1 / 12) ** 0.25), 1.0)
    short = score_translations(["a b c d"], ["a b c d e f"])
    assert (
        short["brevity_penalty"] == pytest.approx(math.exp(1 - 6 / 4)) == pytest.approx(short["bleu"] / 100)
    )


@pytest.mark.parametrize(
    ("options", "references", "keywords"),
    [
        (["references0", "references1"], REFERENCES, {}),
        (["references0", "-lc", "--chrf-lowercase"], FIRST_REFERENCES, {"lowercase": True}),
        (["references0", "-tok", "char"], FIRST_REFERENCES, {"tokenize": "char"}),
    ],
)
def test_scores_and_signatures_equal_those_of_the_command_line(options, references, keywords, tmp_path):
    bleu, chrf = command_line(tmp_path, *options)
    scores = score_translations(PREDICTIONS, references, **keywords)
    assert scores["bleu"] == pytest.approx(bleu["score"], abs=1e-9)
    assert scores["chrf"] == pytest.approx(chrf["score"], abs=1e-9)
    assert (scores["bleu_signature"], scores["chrf_signature"]) == (bleu["signature"], chrf["signature"])


@pytest.mark.parametrize(
    ("prediction", "tokenize", "note"),
    [
        ("a b c", "13a", f"{SHORT_TEXTS_NOTE} {COUNT_CHARACTERS_NOTE}"),
        ("one two", "char", None),
        ("abc", "char", SHORT_TEXTS_NOTE),
        ("", "char", None),
        ("", "13a", None),
    ],
)
def test_a_note_explains_a_bleu_of_zero_for_short_texts(prediction, tokenize, note):
    scores = score_translations([prediction], ["a b c d"], tokenize=tokenize)
    assert scores.get("bleu_note") == note


def test_exact_match_is_the_percentage_of_equal_translations():
    predictions = ["one", "two", "Three", "four "]
    references = [["eins", "one"], "two", "three", "four"]
    assert score_translations(predictions, references)["exact_match"] == 50.0
    assert score_translations(predictions, references, lowercase=True)["exact_match"] == 75.0


def test_exact_match_of_each_group():
    predictions, references = ["null", "eins", "zehn", "Elf", "elf"], ["null", "ein", "zehn", "elf", "elf"]
    assert exact_match_by([1, 1, 10, 2, 2], predictions, references) == {
        1: {"exact_match": 50.0, "sentences": 2},
        2: {"exact_match": 50.0, "sentences": 2},
        10: {"exact_match": 100.0, "sentences": 1},
    }


def test_translations_can_be_added_singly_and_in_batches_of_either_form(metric):
    metric.add(prediction=PREDICTIONS[0], reference=REFERENCES[0])
    metric.add_batch(predictions=PREDICTIONS[1:2], references=FIRST_REFERENCES[1:2])
    # The number of references varies.
    expected = score_translations(PREDICTIONS, [REFERENCES[0], FIRST_REFERENCES[1], REFERENCES[2]])
    assert expected["bleu_signature"].startswith("nrefs:var|")
    assert metric.compute(predictions=PREDICTIONS[2:], references=REFERENCES[2:]) == expected
    # The metric forgets translations that were scored.
    metric.add(prediction="a", reference="b")
    assert metric.compute() == score_translations(["a"], ["b"])


def test_options_of_compute_override_those_of_the_constructor_once(metric):
    metric = TranslationMetric(tokenize="char", lowercase=True)
    own = score_translations(PREDICTIONS, REFERENCES, tokenize="char", lowercase=True)
    other = score_translations(PREDICTIONS, REFERENCES, tokenize="13a", lowercase=False)
    given = {"predictions": PREDICTIONS, "references": REFERENCES}
    assert metric.compute(**given) == own
    assert metric.compute(**given, tokenize="13a", lowercase=False) == other
    assert metric.compute(**given) == own


def test_metrics_keep_their_sentences_apart_and_write_no_file(metric, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    other = TranslationMetric()
    metric.add(prediction="a", reference="a")
    other.add(prediction="b", reference="c")
    assert (metric.compute()["exact_match"], other.compute()["exact_match"]) == (100.0, 0.0)
    assert list(tmp_path.rglob("*")) == []


REFERENCES_OF = (
    "`references` must have one entry, with at least one reference, for each of the {} predictions, but"
)
WRONG_INPUTS = [
    ([], [], "13a", "`predictions` must hold at least one translation, but is empty."),
    (["a", "b"], ["a"], "13a", f"{REFERENCES_OF.format(2)} the number of entries with references is 1."),
    (["a"], [[]], "13a", f"{REFERENCES_OF.format(1)} the number of entries with references is 0."),
    (["a"], ["a"], "14a", '`tokenize` must be one of "none", "zh", "13a", "intl", "char", '),
]


@pytest.mark.parametrize(("predictions", "references", "tokenize", "message"), WRONG_INPUTS)
def test_wrong_inputs_are_refused_and_the_metric_goes_on(metric, predictions, references, tokenize, message):
    for call in (score_translations, metric.compute):
        with pytest.raises(ValueError) as caught:
            call(predictions=predictions, references=references, tokenize=tokenize)
        assert str(caught.value).startswith(message)
    assert metric.compute(predictions=["a"], references=["a"])["exact_match"] == 100.0
    with pytest.raises(
        ValueError, match="^`predictions` must be given to `compute`, or added with `add` first"
    ):
        metric.compute()
    with pytest.raises(ValueError, match=", but is '14a'.$"):
        TranslationMetric(tokenize="14a")


COMPOUNDS = [
    ("rich-text format", "rich ##AT##-##AT## text format"),
    # A single hyphen, a hyphen at an end of a word, and two hyphens in a row.
    ("a - b -c d- -", "a - b -c d- -"),
    ("x--y", "x ##AT##-##AT## -y"),
    # A match includes the letters at both sides of the hyphen, so the next match begins after these letters.
    ("a-b-c", "a ##AT##-##AT## b-c"),
    ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
    # perl reads a non-ASCII letter as two characters.
    ("a-ö-c", "a ##AT##-##AT## ö ##AT##-##AT## c"),
    ("\u00a0-\u2003", "\u00a0 ##AT##-##AT## \u2003"),
    ("", ""),
]


def test_compounds_are_split_as_by_hand_and_by_perl():
    assert [split_compounds(text) for text, _ in COMPOUNDS] == [expected for _, expected in COMPOUNDS]
    if shutil.which("perl") is None:
        pytest.skip("perl, by which the published scores were prepared, is not installed")
    text = "\n".join(text for text, _ in COMPOUNDS) + "\n"
    command = ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"]
    finished = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    assert finished.stdout.decode() == "".join(f"{expected}\n" for _, expected in COMPOUNDS)


def test_compound_split_bleu_is_that_of_text_split_after_tokenization():
    predictions = ["Das rich-text-Format (1-2) ist da."]
    references = ["Das rich-Text-Format (1-2) war da."]
    tokenized = [
        ["Das rich ##AT##-##AT## text ##AT##-##AT## Format ( 1 - 2 ) ist da ."],
        ["Das rich ##AT##-##AT## Text ##AT##-##AT## Format ( 1 - 2 ) war da ."],
    ]
    for options in ({}, {"lowercase": True}):
        scores = score_translations(predictions, references, split_compounds=True, **options)
        plain = score_translations(*tokenized, tokenize="none", **options)
        assert scores["bleu"] == pytest.approx(plain["bleu"])
        assert scores["chrf"] == score_translations(predictions, references, **options)["chrf"]
        assert "|tok:13a+split_compounds|" in scores["bleu_signature"]
        assert "is not sacreBLEU's" in scores["bleu_note"]
    assert "bleu_note" not in score_translations(predictions, references)
