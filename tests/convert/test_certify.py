"""`vaswani certify`: one row per engine, with the limits of float32 and int8, and the certificate in the
card.
"""

import json
import random
import shutil
from dataclasses import replace
from importlib.util import find_spec

import pytest
from factories import add_languages, loaded_recipe, save_checkpoint, tiny_config, tiny_model, tiny_tokenizer
from safetensors.torch import load_file, save_file
from word_model import WORDS, random_sentences, trained_on_words

from vaswani_hf.cli import main, recorded_split
from vaswani_hf.convert import certify as module
from vaswani_hf.convert.certify import certify, faults
from vaswani_hf.convert.export import EXPORT_FORMATS
from vaswani_hf.convert.marian import MARIAN, MarianEngine
from vaswani_hf.model.errors_vaswani import InvalidValueError
from vaswani_hf.publish.certificate import Certificate, CertificateRow
from vaswani_hf.publish.model_card import model_card

SOURCES, REFERENCES = random_sentences(8, random.Random(1000))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    tokenizer = tiny_tokenizer([" ".join(WORDS), " ".join(WORDS.values())], 290, model_max_length=40)
    config = tiny_config(vocab_size=len(tokenizer), d_model=32)
    model = trained_on_words(config, tokenizer, 100)
    return save_checkpoint(tmp_path_factory.mktemp("certify") / "checkpoint", model, tokenizer)


def with_search(checkpoint, tmp_path, **settings):
    """A copy of the checkpoint with other search settings in its generation_config.json."""
    folder = shutil.copytree(checkpoint, tmp_path / "copy")
    config = json.loads((folder / "generation_config.json").read_text())
    config |= {"_from_model_config": False, **settings}
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def parallel_files(tmp_path):
    paths = [tmp_path / "test.en", tmp_path / "test.de"]
    for path, lines in zip(paths, (SOURCES, REFERENCES), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return [str(path) for path in paths]


def test_a_model_with_language_tokens_is_refused(checkpoint, tmp_path):
    folder = with_search(checkpoint, tmp_path)
    add_languages(folder, en="x", de="y")
    with pytest.raises(
        InvalidValueError,
        match="'copy' has language tokens; use the difference between checkpoint and export that",
    ):
        certify(folder, SOURCES, REFERENCES)


class WrongEngine(MarianEngine):
    """An engine with other log-probabilities, whose runtime has only greedy search."""

    beam_search = "none"

    def log_probs(self, source_ids, target_ids):
        return [[value + 0.01 for value in row] for row in super().log_probs(source_ids, target_ids)]


class OtherSearchEngine(MarianEngine):
    """An engine with exact log-probabilities, whose beam search follows other rules."""

    beam_search = "other"

    def translate(self, texts, num_beams):
        translations = super().translate(texts, num_beams)
        return translations if num_beams == 1 else translations[::-1]


class BrokenEngine(MarianEngine):
    """An engine that can translate only with several beams."""

    beam_search = "other"

    def translate(self, texts, num_beams):
        if num_beams == 1:
            raise RuntimeError("the runtime\nhas ended")
        return super().translate(texts, num_beams)


def test_the_command_writes_the_certificate_of_each_engine(checkpoint, parallel_files, capsys, monkeypatch):
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    source, reference = parallel_files
    words = ["certify", str(checkpoint), "--source", source, "--reference", reference]
    assert (
        main([*words, "--num_sentences", "6", "--num_beams", "3", "--formats", "marian", "ctranslate2"]) == 0
    )
    printed = capsys.readouterr()
    certificate = json.loads((checkpoint / "certificate.json").read_text())
    own, exact, *rows = certificate["rows"]
    assert (own["engine"], own["sentences"], own["largest_difference"]) == ("vaswani_hf", 6, None)
    # CTranslate2 is compared with the search that stops when no better translation is possible.
    assert [row["length_penalty"] for row in (own, exact)] == ["power 1", "power 1, early stopping never"]
    names = [(row["engine"], row["weights"], row["status"]) for row in rows]
    assert names == [
        ("MarianMT", "float32", "measured"),
        ("CTranslate2", "float32", "measured"),
        ("CTranslate2", "float16", "measured"),
        ("CTranslate2", "int8", "measured"),
    ]
    for row, baseline in zip(rows[:2], (own, exact), strict=True):
        assert 0 <= row["largest_difference"] < 1e-4
        assert (row["changed"], row["message"]) == (0, "")
        assert row["length_penalty"] == baseline["length_penalty"]
        assert row["bleu"] == baseline["bleu"]
    assert 1e-4 < rows[3]["largest_difference"] > rows[2]["largest_difference"]
    assert printed.out.count("| 0 of 6 |") >= 2
    assert "2 of 4: CTranslate2 (float32): 3 beams, largest difference" in printed.err
    # The model card shows the certificate, unless the weights have changed.
    card = str(model_card(checkpoint, "user/words"))
    assert f"on 6 sentences of\n`test.en` ({certificate['hardware']})." in card
    assert printed.out.splitlines()[4] in card
    weights = load_file(checkpoint / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, checkpoint / "model.safetensors")
    try:
        assert "Exports" not in str(model_card(checkpoint, "user/words"))
    finally:
        save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})


def test_an_engine_without_the_length_penalty_of_the_checkpoint_has_its_own_baseline(checkpoint, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    folder = with_search(checkpoint, tmp_path, length_penalty_type="gnmt", length_penalty=0.6, num_beams=4)
    rows = certify(folder, SOURCES, REFERENCES, formats=["marian", "ctranslate2"]).rows

    assert [row.length_penalty for row in rows] == ["gnmt 0.6", "power 1", "power 1"] + ["gnmt 0.6"] * 3
    for row in rows[2:4]:
        assert (row.changed, row.message) == (0, "")


def test_each_engine_returns_one_translation_of_each_text_without_sampling(checkpoint, tmp_path):
    folder = with_search(
        checkpoint, tmp_path, num_beams=4, num_return_sequences=2, do_sample=True, temperature=9.0
    )
    rows = certify(folder, SOURCES, REFERENCES, formats=["marian"], num_beams=1).rows
    assert [(row.status, row.changed) for row in rows] == [("measured", 0)] * 2


@pytest.mark.parametrize("settings", [{}, {"forced_eos_token_id": 2}], ids=str)
def test_translations_that_the_length_limit_stopped_are_counted_separately(checkpoint, tmp_path, settings):
    folder = with_search(checkpoint, tmp_path, max_length_a=0, max_length_b=3, **settings)
    sources = ["one", *SOURCES[:5]]
    _, row = certify(folder, sources, sources, formats=["marian"]).rows
    # The export to MarianMT does not keep `max_length_b`.
    assert (row.changed, row.message) == (0, "")
    assert 0 < row.changed_at_length_limit <= 5


def test_translations_of_sources_that_were_cut_are_counted_separately(checkpoint):
    # The checkpoint reads at most 40 tokens of a text, and MarianMT reads the whole text.
    sources = [" ".join(SOURCES), *SOURCES[:5]]
    _, row = certify(checkpoint, sources, sources, formats=["marian"]).rows
    assert (row.changed, row.changed_at_length_limit) == (0, 1)


def test_an_engine_that_differs_or_fails_ends_the_command_with_an_error(
    checkpoint, parallel_files, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(EXPORT_FORMATS, "wrong", replace(MARIAN, name="wrong", engine=WrongEngine))
    monkeypatch.setitem(EXPORT_FORMATS, "broken", replace(MARIAN, name="broken", engine=BrokenEngine))
    source, reference = parallel_files
    words = ["certify", str(checkpoint), "--source", source, "--reference", reference]
    output = tmp_path / "out"
    assert main([*words, "--formats", "broken", "wrong", "marian", "--output", str(output)]) == 1
    printed = capsys.readouterr()
    assert (
        "vaswani: MarianMT: the runtime has ended; MarianMT: the log-probabilities differ by 0.01, more"
        in (printed.err)
    )
    certificate = json.loads((output / "certificate.json").read_text())
    own, greedy, *measured, wrong, marian = certificate["rows"]
    # The measurement with several beams is kept if the engine fails with one beam.
    assert [(row["num_beams"], row["status"]) for row in measured] == [(4, "measured"), (1, "failed")]
    # The engine without beam search is compared with greedy search.
    assert [own["num_beams"], greedy["num_beams"], wrong["num_beams"]] == [4, 1, 1]
    assert [wrong["status"], marian["status"], wrong["changed"]] == ["measured", "measured", 0]
    assert len(faults(Certificate(**certificate))) == 2
    assert "- MarianMT (float32): the runtime has ended" in printed.out
    # The second run ends before the measurement, because the output exists.
    assert main([*words, "--formats", "marian", "--output", str(output)]) == 2
    printed = capsys.readouterr()
    assert "exists and is not an empty folder" in printed.err and "1 of 1" not in printed.err
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(words) == 2
    assert "is not a local folder with write permission" in capsys.readouterr().err


def test_a_beam_search_with_other_rules_is_also_measured_with_one_beam(checkpoint, monkeypatch):
    monkeypatch.setitem(EXPORT_FORMATS, "other", replace(MARIAN, name="other", engine=OtherSearchEngine))
    lines = []
    rows = certify(checkpoint, SOURCES, REFERENCES, formats=["other"], report=lines.append).rows
    beams, greedy = rows[2:]
    assert [row.num_beams for row in rows] == [4, 1, 4, 1]
    assert (beams.changed > 0, greedy.changed) == (True, 0)
    assert max(beams.largest_difference, greedy.largest_difference) < 1e-4
    assert [line.partition(",")[0] for line in lines] == [
        "1 of 1: MarianMT (float32): 4 beams",
        "1 of 1: MarianMT (float32): 1 beam",
    ]


def test_the_numbers_of_beams_of_each_engine():
    beam_counts = {name: entry.engine.beam_counts(4) for name, entry in EXPORT_FORMATS.items()}
    one_beam = dict.fromkeys(["transformers_js", "argos"], [1])
    assert beam_counts == dict.fromkeys(EXPORT_FORMATS, [4]) | one_beam | {"marian_npz": [4, 1]}
    assert EXPORT_FORMATS["marian_npz"].engine.beam_counts(1) == [1]


@pytest.mark.skipif(find_spec("pymarian") is None, reason="needs pymarian: pip install pymarian")
def test_marian_translates_equally_with_one_beam(checkpoint):
    rows = certify(checkpoint, SOURCES, REFERENCES, formats=["marian_npz"]).rows
    assert [(row.engine, row.num_beams) for row in rows[-2:]] == [("Marian (C++)", 4), ("Marian (C++)", 1)]
    assert (rows[-1].changed, rows[-1].message) == (0, "")


def test_formats_that_cannot_be_measured_have_a_row(checkpoint, tmp_path, monkeypatch):
    folder = tmp_path / "windows"
    tokenizer = tiny_tokenizer([" ".join(WORDS), " ".join(WORDS.values())], 290)
    save_checkpoint(folder, tiny_model(vocab_size=len(tokenizer), attention_window=2), tokenizer)
    monkeypatch.setattr("vaswani_hf.version.find_spec", lambda name: None if name == "ctranslate2" else name)
    certificate = certify(folder, ["one"], ["eins"], formats=["marian", "ctranslate2"])
    rows = {(row.engine, row.weights): row for row in certificate.rows}
    assert rows["MarianMT", "float32"].status == "not expressible"
    assert "`attention_window` is 2, which MarianMT cannot express" in rows["MarianMT", "float32"].message
    for weights in ("float32", "float16", "int8"):
        row = rows["CTranslate2", weights]
        assert row.status == "not installed"
        assert row.message.startswith("not installed; install it with `pip install 'ctranslate2")
    assert faults(certificate) == []


def test_int8_may_change_a_twentieth_of_the_translations():
    row = {"engine": "E", "status": "measured", "sentences": 100, "bleu": 30.0}
    own = CertificateRow(engine="vaswani_hf", weights="float32", status="measured", bleu=30.2)

    def exceeded_limit(**changes):
        return module._exceeded_limit(CertificateRow(**row | changes), own)

    row |= {"weights": "int8", "changed": 5, "largest_difference": 0.1}
    assert exceeded_limit() == ""
    assert "6.0% of the translations" in exceeded_limit(changed=6)
    assert "BLEU is lower by 0.40" in exceeded_limit(bleu=29.8)
    # One of 100 translations may change, because two translations with equal scores may change places.
    row |= {"weights": "float32", "changed": 1, "largest_difference": 1e-5}
    assert exceeded_limit() == ""
    assert "2.0% of the translations" in exceeded_limit(changed=2)
    assert "differ by nan" in exceeded_limit(largest_difference=float("nan"))


def test_the_test_set_of_the_recipe_is_the_default(tmp_path):
    sources, references, name = recorded_split.recorded_test_set(
        loaded_recipe(tmp_path / "recipe.yaml"), "--source", "give `--source`"
    )
    assert len(sources) == len(references) == 1000
    assert name == "numbers"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`--source` must be given, because the checkpoint has no recipe; give `--source` and"),
        (["--source", "x"], "`--source` and `--reference` must be given together."),
        (["--source", "{0}", "--reference", "{1}", "--formats", "tflite"], "`formats` must be"),
        (["--source", "{0}", "--reference", "{1}", "--num_sentences", "0"], "`--num_sentences` must be"),
    ],
)
def test_wrong_options_are_named(checkpoint, parallel_files, capsys, words, message):
    assert main(["certify", str(checkpoint), *(word.format(*parallel_files) for word in words)]) == 2
    assert message in capsys.readouterr().err
