"""`vaswani init`: a recipe that fits the files, and that trains."""

import json
from pathlib import Path

import pytest
import yaml
from factories import files_in
from sentences import rows

from vaswani_hf.data.toy_corpora import english_words, german_words
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import train

INIT = ("init", "mine.yaml", "--source", "train.en", "--target", "train.de", "--seconds", "0.01")


@pytest.fixture
def pairs(tmp_path, monkeypatch) -> Path:
    """A folder with 300 sentence pairs in two text files and in a file of JSON lines."""
    monkeypatch.chdir(tmp_path)
    rows = [{"en": english_words(number), "de": german_words(number)} for number in range(0, 90_000, 300)]
    for side in ("en", "de"):
        Path(f"train.{side}").write_text("".join(f"{row[side]}\n" for row in rows))
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_recipe_fits_the_files_and_trains(pairs, vaswani):
    code, out, err = vaswani(*INIT)
    assert code == 0 and "300 sentence pairs" in out and "hours on this machine" in out
    # The test has no terminal, so the command prints no progress bars of `datasets`.
    assert "examples/s" not in err
    text = Path("mine.yaml").read_text()
    assert "300 sentence pairs with about " in text and "measured training steps of this model" in text
    short = "--max_steps 2 --num_beams 1 --validation_bleu false --bf16 false"
    recipe = load_recipe("mine.yaml", short.split())
    assert recipe.output_dir == "checkpoints/mine"
    assert recipe.data.source_language == "en" and recipe.data.train_target == "train.de"
    assert recipe.data.validation_size == recipe.data.test_size == 15
    # The targets have one word.
    assert recipe.evaluation.tokenize == "char"
    results = train(recipe.replace(model=recipe.model.replace(d_model=16)))
    assert results["test"]["sentences"] == 15


def test_pairs_in_other_formats_need_the_languages(pairs, vaswani):
    words = ("init", "mine.yaml", "--pairs", "train.jsonl", "--seconds", "0.01")
    assert vaswani(*words)[2].startswith("`--source_language` must be given")
    assert vaswani(*words, "--source_language", "en", "--target_language", "de")[0] == 0
    assert yaml.safe_load(Path("mine.yaml").read_text())["data"]["train_pairs"] == "train.jsonl"


WRONG = """
train.en --source train.en --target train.de | `recipe` must be a new file, but train.en exists; give another name.
no/mine.yaml --source train.en --target train.de | `recipe` must be the name of a .yaml file in an existing folder
mine --source train.en --target train.de | `recipe` must be the name of a .yaml file in an existing folder
mine.yaml --source train.en | Either `--source` and `--target`, or `--pairs` must be given
mine.yaml --source train.en --target gone.de | `--target` must be an existing file, but is gone.de.
few.yaml --source few.en --target few.de | The training data must have at least 100 sentence pairs, but has 1;
few.yaml --source train.en --target few.de | train.en and few.de must have equally many lines, but have 300 and 1.
"""


@pytest.mark.parametrize(("words", "message"), rows(WRONG))
def test_wrong_options_and_files_are_one_sentence_and_write_nothing(pairs, vaswani, words, message):
    Path("few.en").write_text("one\n")
    Path("few.de").write_text("eins\n")
    before = files_in(pairs)
    code, _, said = vaswani("init", *words.split())
    assert code != 0 and message in said
    assert files_in(pairs) == before
