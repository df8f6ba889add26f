"""`vaswani evaluate`: files and checkpoints, comparisons, split compounds, COMET, and bad input."""

import json
import shutil
import sys

import pytest
import torch
from factories import files_in, save_checkpoint, tiny_model, tiny_tokenizer, write_recipe

import vaswani_hf.evaluation.comparison as comparison
from vaswani_hf.cli import main
from vaswani_hf.data.perturbations import PERTURBATIONS
from vaswani_hf.evaluation.bleu import (
    COUNT_CHARACTERS_NOTE,
    SHORT_TEXTS_NOTE,
    SPLIT_COMPOUNDS_NOTE,
    score_translations,
)
from vaswani_hf.evaluation.robustness import perturbed_test_sets
from vaswani_hf.translation.translator import Translator

SOURCES = [f"one two {word}" for word in ("three", "four", "five")] * 4
REFERENCES = ["eins zwei drei-vier eins zwei"] * 6 + ["vier drei zwei eins"] * 6
TRANSLATIONS = {"a": REFERENCES[:3] + ["eins zwei"] * 9, "b": [f"{line} drei" for line in REFERENCES]}
# A replacement for comet-score that writes a list of scores for each file name.
STAND_IN = """#!/bin/sh
''''exec "{python}" "$0" "$@" # '''
import json, sys
arguments = sys.argv[1:]
files = arguments[arguments.index("-t") + 1 : arguments.index("--model")]
assert arguments[arguments.index("--gpus") + 1] == "{gpus}"
if arguments[arguments.index("--model") + 1] == "no/model":
    sys.exit("Traceback ...\\nKeyError: 'Model no/model not supported by COMET.'")
lines = [open(file, encoding="utf-8").read().split("\\n")[:-1] for file in files]
scores = {{file: [{{"mt": line, "COMET": len(line) / 100}} for line in own] for file, own in zip(files, lines)}}
if arguments[arguments.index("--model") + 1] == "half/model":
    scores = {{file: own[1:] for file, own in scores.items()}}
print("stdout of comet-score")
json.dump(scores, open(arguments[arguments.index("--to_json") + 1], "w"))
"""


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    monkeypatch.setattr(comparison, "RESAMPLES", 50)
    monkeypatch.setattr(comparison, "TRIALS", 50)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    files = {"source": SOURCES, "reference": [f"{line} " for line in REFERENCES], "short": ["eins"]}
    files |= TRANSLATIONS
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def comet(folder, monkeypatch):
    (folder / "bin").mkdir()
    command = folder / "bin" / "comet-score"
    command.write_text(STAND_IN.format(python=sys.executable, gpus=int(torch.cuda.is_available())))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    texts = ["one two three four five", "eins zwei drei vier"]
    tokenizer = tiny_tokenizer(texts, 280, model_max_length=40)
    folders = []
    for num_layers in (2, 1):
        folder = tmp_path_factory.mktemp(f"{num_layers}_layers")
        fields = {"encoder_layers": num_layers, "tie_word_embeddings": False}
        save_checkpoint(folder, tiny_model(vocab_size=len(tokenizer), **fields), tokenizer)
        folders.append(str(folder))
    return folders


@pytest.fixture
def evaluate(folder, capfdbinary):
    """Run the command on the test set, and return the exit code, standard output and standard error."""

    def run(*options):
        code = main(["evaluate", *options, "--source", "source", "--reference", "reference"])
        sys.stdout.flush()
        out, errors = capfdbinary.readouterr()
        return code, out.decode(), errors.decode()

    return run


def test_the_baseline_is_the_model_or_the_first_to_compare_and_nothing_is_left_to_chance(evaluate):
    code, out, _ = evaluate("a", "--compare", "b", "--json")
    assert code == 0
    assert evaluate("--compare", "a", "b", "--json")[1] == out
    found = json.loads(out)
    assert found["baseline"] == "a" and found["sentences"] == 12
    for row in found["systems"]:
        direct = score_translations(TRANSLATIONS[row["system"]], REFERENCES)
        assert row["bleu"]["score"] == pytest.approx(direct["bleu"])
        assert row["chrf"]["score"] == pytest.approx(direct["chrf"])
    assert 0 < found["systems"][1]["bleu"]["p_bootstrap"] < 1
    assert 0 < found["systems"][1]["chrf"]["p_randomization"] < 1


def test_checkpoints_and_files_are_compared_with_the_same_options(evaluate, checkpoints, folder):
    first, second = checkpoints
    options = ["--max_new_tokens", "6", "--num_beams", "2", "--tokenize", "none", "--json"]
    code, out, errors = evaluate(first, "--compare", second, "b", *options, "--picture", "picture.png")
    assert code == 0, errors
    rows = {row["system"]: row for row in json.loads(out)["systems"]}
    assert list(rows) == [first, second, "b"]
    for name in (first, second):
        found = Translator.from_pretrained(name).translate(SOURCES, max_new_tokens=6, num_beams=2)
        direct = score_translations(list(found), REFERENCES, tokenize="none")
        assert rows[name]["chrf"]["score"] == pytest.approx(direct["chrf"])
        assert direct["chrf"] > 0
    assert rows[first]["chrf"] != rows[second]["chrf"]
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_robustness_of_two_systems_is_a_table_or_json(evaluate, checkpoints):
    words = ["--compare", *checkpoints, "--robustness", "--max_new_tokens=3", "--num_beams=1", "--lowercase"]
    code, out, _ = evaluate(*words, "--json")
    assert code == 0
    results = json.loads(out)
    assert "case:lc" in results["bleu_signature"]
    assert [row["system"] for row in results["systems"]] == checkpoints
    translator = Translator.from_pretrained(checkpoints[1], "cpu")
    test_sets = perturbed_test_sets(SOURCES, REFERENCES)
    assert list(test_sets) == ["clean", *PERTURBATIONS]
    for name, (sources, references) in test_sets.items():
        found = results["systems"][1]["scores"][name]
        translations = list(translator.translate(sources, max_new_tokens=3, num_beams=1))
        expected = score_translations(translations, references, lowercase=True)
        assert found["bleu"] == pytest.approx(expected["bleu"])
        assert found["chrf"] == pytest.approx(expected["chrf"])
    of_system = results["systems"][0]["scores"]
    changed = [of_system[name]["changed_sentences"] for name in ("clean", "placeholders")]
    assert changed == [0, 12]
    # The tiny model is not trained and copies no placeholder.
    assert of_system["placeholders"]["placeholders_kept"] == 0
    code, table, _ = evaluate(*words)
    assert code == 0
    rows = [line.split() for line in table.split("\n")]
    assert [row[0] for row in rows[2:9]] == list(test_sets)
    scores = [of["scores"]["clean"][key] for of in results["systems"] for key in ("bleu", "chrf")]
    assert rows[2][1:] == ["0", *(f"{score:.2f}" for score in scores)]


def test_a_file_of_translations_is_scored_alone(evaluate):
    code, out, _ = evaluate("a", "--robustness", "false")
    direct = score_translations(TRANSLATIONS["a"], REFERENCES)
    assert code == 0
    assert out == (
        f"BLEU {direct['bleu']:.2f}  {direct['bleu_signature']}\nchrF {direct['chrf']:.2f}  {direct['chrf_signature']}\n"
        "exact match 25.00 %\n12 sentences\n"
    )


def test_the_recipe_of_a_checkpoint_sets_tokenization_and_case(evaluate, checkpoints, folder):
    for name, source, tokenize in (("one", checkpoints[0], "none"), ("two", checkpoints[1], "char")):
        shutil.copytree(source, folder / name)
        write_recipe(folder / name / "recipe.yaml", evaluation={"tokenize": tokenize, "lowercase": True})
    short = ["--max_new_tokens", "6", "--num_beams", "1"]
    scores = json.loads(evaluate("one", *short, "--json")[1])
    assert "case:lc" in scores["bleu_signature"] and "tok:none" in scores["bleu_signature"]
    note = (
        "The scores use `tokenize: none` and `lowercase: true` from the recipe of one; `--tokenize` and `--lowercase` "
        "would override the recipe."
    )
    assert scores["recipe_note"] == note and f"\n{note}" in evaluate("one", *short)[1]
    # The options of the user take precedence over the recipe.
    out = evaluate("one", *short, "--lowercase", "false", "--tokenize", "13a")[1]
    assert "case:mixed" in out and "tok:13a" in out and "recipe" not in out
    out = evaluate("one", *short, "--tokenize", "13a")[1]
    assert "case:lc" in out and "use `lowercase: true` from the recipe of one; `--lowercase` would" in out
    # A comparison scores models and files of translations in the same way.
    out = evaluate("one", "--compare", "b", *short)[1]
    assert "case:lc" in out and "tok:none" in out and f"\n{note}\n" in out
    message = (
        "vaswani: `--tokenize` must be given, because `evaluation.tokenize` differs between the recipes of the systems "
        "('none' for one, 'char' for two), and all systems must be scored alike.\n"
    )
    assert evaluate("one", "--compare", "two", "b", *short) == (2, "", message)
    out = evaluate("one", "--compare", "two", "b", *short, "--tokenize", "intl")[1]
    assert "tok:intl" in out and "from the recipe of one and two;" in out


def test_a_bleu_of_zero_for_short_texts_is_explained(evaluate, folder):
    (folder / "short").write_text("eins\nzwei drei\n" * 6)
    (folder / "reference").write_text("eins\nzwei drei\n" * 6)
    out = evaluate("short")[1]
    assert out.startswith("BLEU 0.00 ") and "exact match 100.00 %" in out
    assert out.endswith(f"{SHORT_TEXTS_NOTE} {COUNT_CHARACTERS_NOTE}\n")
    out = evaluate("short", "--compare", "a", "b")[1]
    assert f"short: {SHORT_TEXTS_NOTE}" in out and f"a: {SHORT_TEXTS_NOTE}" not in out
    assert "bleu_note" not in json.loads(evaluate("short", "--tokenize", "char", "--json")[1])


@pytest.mark.parametrize("systems", [["b"], ["a", "--compare", "b"]])
def test_split_compounds_are_another_score_that_says_so(evaluate, systems):
    code, out, _ = evaluate(*systems, "--split_compounds")
    assert code == 0
    assert SPLIT_COMPOUNDS_NOTE in out and "tok:13a+split_compounds" in out
    other = evaluate(*systems)[1]
    assert "split" not in other


def test_comet_is_asked_for_all_systems_at_once(evaluate, comet):
    code, out, _ = evaluate("a", "--compare", "b", "--comet", "some/model", "--json")
    assert code == 0
    found = json.loads(out)
    for row in found["systems"]:
        lines = TRANSLATIONS[row["system"]]
        assert row["comet"]["score"] == pytest.approx(sum(map(len, lines)) / len(lines) / 100)
    assert found["comet_model"] == "some/model"
    assert found["lengths"][0]["systems"][0]["comet"] == found["systems"][0]["comet"]
    code, out, _ = evaluate("b", "--comet", "some/model")
    assert f"COMET {found['systems'][1]['comet']['score']:.4f}  some/model\n" in out
    assert "COMET by number of source words" in evaluate("a", "--compare", "b", "--comet", "some/model")[1]


def test_a_comet_model_that_cannot_be_had_costs_no_other_score(evaluate, comet, checkpoints, monkeypatch):
    code, out, errors = evaluate("a", "--comet", "no/model")
    assert code == 1 and out.startswith("BLEU ") and "COMET" not in out
    message = "vaswani: comet-score failed with 'no/model' (exit code 1: KeyError: 'Model no/model not supported by COMET.')"
    assert errors.startswith(f"{message}; check that the model can be downloaded") and errors.count("\n") == 1
    code, _, errors = evaluate("a", "--comet", "half/model")
    assert code == 1
    assert errors == "vaswani: comet-score has not scored each of the 12 sentences; update comet-score.\n"
    # The command must fail before a model translates.
    monkeypatch.setattr(Translator, "from_pretrained", lambda *_, **__: pytest.fail("The model was loaded."))
    code, out, errors = evaluate(checkpoints[0], "--comet", "no/model")
    assert (code, out) == (1, "") and errors.startswith(message)
    message = "vaswani: `--comet` must be user/name on the Hub or an existing .ckpt file, but is no.ckpt.\n"
    assert evaluate("a", "--comet", "no.ckpt")[2] == message
    monkeypatch.setenv("PATH", ".")
    message = "vaswani: `--comet` needs the command comet-score, which is not on PATH; install it in"
    assert evaluate("a", "--comet", "some/model")[2].startswith(message)


# The first words of the message for each command line.
BAD_INPUT = {
    "": "`vaswani evaluate` needs a model or a file of translations, or several models or files as `--compare A B`.",
    "--compare a": "`--compare` must have two systems or more, but there is only a; name another system, or leave",
    "a --compare b ./a": "`--compare` names ./a twice; name it once.",
    "a --compare short": "source and short must have equally many lines, but have 12 and 1.",
    "a --compare bad": "bad must be UTF-8 text, but line 2 is not.",
    "a --compare .": "`model` must be a checkpoint, but '.' has no config.json; check the name, or copy the whole checkpoint again.",
    "a --compare ../x/y/z": "`model` must be a checkpoint or a file of translations, but '../x/y/z' is not a file, and loading it as a checkpoint fails: `model` must be a checkpoint",
    "--compare a b --revision v1": "`--revision` is for MODEL, but MODEL is not given; name the systems of",
    "a --device cpu": "`--device` has no effect with files and no model (a); leave `--device` out.",
    "no/model --tokenize 13b": "`tokenize` must be one of ",
    "a --tokenize ja-mecab": "`tokenize` is 'ja-mecab', which needs a package or a file that is missing; ",
    "a --compare b --output new": "`--output` has no effect with `--compare`; leave `--output` out.",
    "a --picture new.png": "`--picture` has no effect with one system; leave `--picture` out.",
    "a --compare b --picture new.pdf": "`--picture` must end in .png, but is new.pdf.",
    "a --compare b --picture old.png": "`--picture` must be a new file, but old.png exists; give another name.",
    "a --robustness": "`--robustness` needs models, because a model must translate, but a is a file of",
    "no/model --robustness --output new": "`--output` has no effect with `--robustness`; leave `--output` out.",
    "no/model --calibration check --lowercase": "`--lowercase` has no effect with `--calibration`; leave `--lowercase`",
    "no/model --calibration fit --compare a": "`--compare` has no effect with `--calibration`; leave `--compare` out.",
    "a --calibration check": "`--calibration` needs models, because a model must translate, but a is a file of",
    "no/model --calibration fit": "`--calibration fit` writes into the folder of the checkpoint, but no/model is not",
    "a --compare 1 2 3 4 5 6 7 8 --picture new.png": "`--picture` shows at most 8 systems, but there are 9; compare",
}


def test_a_read_only_checkpoint_is_refused_before_the_translation(evaluate, checkpoints, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, _, errors = evaluate(checkpoints[0], "--calibration", "fit")
    assert code == 2 and "is not a local folder with write permission; name the folder of a" in errors


@pytest.mark.parametrize("words", BAD_INPUT)
def test_bad_input_is_one_sentence_and_leaves_files_alone(evaluate, folder, words):
    (folder / "bad").write_bytes(b"eins\n\xff\n")
    (folder / "old.png").write_bytes(b"old")
    before = files_in(folder)
    code, out, errors = evaluate(*words.split())
    is_content = "equally many" in BAD_INPUT[words] or "UTF-8" in BAD_INPUT[words]
    assert (code, out) == (1 if is_content else 2, "")
    assert errors.startswith(f"vaswani: {BAD_INPUT[words]}") and errors.count("\n") == 1
    assert files_in(folder) == before


@pytest.mark.parametrize(
    ("side", "content", "fault"),
    [("--source", b"", "is empty"), ("--reference", b"\r\n \t\r\n" * 6, "has only empty lines")],
)
def test_a_side_without_text_is_refused(folder, vaswani, side, content, fault):
    (folder / "blank").write_bytes(content)
    files = {"--source": "source", "--reference": "reference"} | {side: "blank"}
    words = [word for pair in files.items() for word in pair]
    message = f"`{side}` must hold text, but blank {fault}."
    assert vaswani("evaluate", "no/model", *words) == (2, "", message)


def test_single_empty_lines_and_other_ends_of_lines_change_no_score(folder, evaluate):
    (folder / "source").write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree\r\n\r\nfive")
    (folder / "reference").write_bytes(b"eins zwei drei vier\r\nzwei\r\n\r\n\r\nf\xc3\xbcnf")
    (folder / "out").write_text("eins zwei drei vier\n\ndrei\n\nfünf\n", encoding="utf-8")
    expected = score_translations(
        ["eins zwei drei vier", "", "drei", "", "fünf"], ["eins zwei drei vier", "zwei", "", "", "fünf"]
    )
    code, out, _ = evaluate("out", "--json")
    assert code == 0 and json.loads(out) == {**expected, "sentences": 5}
    # A system whose translations are all empty has the score 0.
    (folder / "nothing").write_text("\n" * 5)
    code, out, _ = evaluate("--compare", "out", "nothing", "--json")
    scores = [row["bleu"]["score"] for row in json.loads(out)["systems"]]
    assert code == 0 and scores == [pytest.approx(expected["bleu"]), 0]
