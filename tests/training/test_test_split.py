"""The test scores of a run count every line, and equal the scores of `vaswani evaluate` on the same lines."""

import json

import pytest

from vaswani_hf.cli import main

SOURCES = ["one two", "", "three", "  ", "five six", "seven " * 40, "two\tone", "eight"]
REFERENCES = ["eins zwei", "nichts", "", " ", "fünf sechs", "sieben " * 40, "zwei eins", "acht"]
TRAINING = [
    ("one two three five six", "eins zwei drei fünf sechs"),
    ("seven eight", "sieben acht"),
    ("", "leer"),
] * 6
# Use one beam, because with one beam the translations do not depend on the shapes of batches.
OPTIONS = "--max_steps=2 --save_steps=2 --data.max_length=30 --num_beams=1 --learning_rate_factor=2"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write the lines to files, and return the options of a recipe that trains on the files."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "train.en": [source for source, _ in TRAINING],
        "train.de": [target for _, target in TRAINING],
        "test.en": SOURCES,
        "test.de": REFERENCES,
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    rows = ({"en": source, "de": target or None} for source, target in zip(SOURCES, REFERENCES, strict=True))
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    return f"{OPTIONS} --corpus=null --train_source=train.en --train_target=train.de"


def test_a_test_set_is_scored_whole_as_evaluate_scores_it(run, files, capfd):
    folder = run("run", files, "--test_pairs=test.jsonl")
    assert "train: 18 pairs read, 12 kept; dropped: 6 with an empty side" in capfd.readouterr().out
    scores = json.loads((folder / "results.json").read_text())["test"]
    words = "--source test.en --reference test.de --device cpu --json --output out"
    assert main(["evaluate", str(folder), *words.split()]) == 0
    expected = json.loads(capfd.readouterr().out)
    assert scores["sentences"] == expected["sentences"] == len(SOURCES)
    for name in ("bleu", "chrf", "exact_match", "loss", "perplexity"):
        assert scores[name] == pytest.approx(expected[name], rel=1e-5), name
    with open("out", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    assert (folder / "test_translations.txt").read_text(encoding="utf-8").split("\n") == lines
    assert len(lines) == len(SOURCES) + 1
    assert [bool(line) for line in lines[:4]] == [True, False, True, False]
    # The line of 42 tokens is longer than every training sentence, and is translated in pieces.
    assert lines[5]


def test_a_validation_by_translation_scores_each_line(run, files, monkeypatch):
    scored = []
    monkeypatch.setattr(
        "vaswani_hf.tasks.translation.score_translations",
        lambda translations, references, **_: (
            scored.append((translations, references)) or {"bleu": 0.0, "chrf": 0.0, "exact_match": 0.0}
        ),
    )
    validation = "--validation_source=test.en --validation_target=test.de --validation_bleu=true"
    run("run", files, validation, "--eval_steps=2")
    ((translations, references),) = scored
    assert len(translations) == len(SOURCES)
    assert references == [line.strip() for line in REFERENCES]


def test_a_translation_of_several_lines_is_one_line_of_the_file(run, files, tmp_path, monkeypatch):
    rows = [{"en": "one\ntwo", "de": "eins\nzwei"}, {"en": "five", "de": "fünf"}]
    (tmp_path / "lines.json").write_text(json.dumps(rows))
    monkeypatch.setattr(
        "vaswani_hf.evaluation.evaluate.translate_test_set",
        lambda translator, sources, **_: ["eins\nzwei", "fünf"],
    )
    folder = run("run", files, "--test_pairs=lines.json")
    assert (folder / "test_translations.txt").read_text(encoding="utf-8") == "eins zwei\nfünf\n"
    assert json.loads((folder / "results.json").read_text())["test"]["exact_match"] == 100
