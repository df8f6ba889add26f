"""Parsing from a recipe to the command line: training, `vaswani parse`, `vaswani evaluate --trees`, and what
they refuse.
"""

import json

import pytest
import torch
from factories import write_recipe
from safetensors.torch import load_file
from sentences import rows

from vaswani_hf.cli import main
from vaswani_hf.data.trees import tree_from_text
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe

DATA = {"language": "en", "corpus": "trees", "trees_train_size": 60, "max_length": 128}
CHANGES = {
    **dict.fromkeys(("training.source_tokens_per_batch", "training.target_tokens_per_batch"), 256),
    **{"training.max_steps": 4, "training.gradient_accumulation_steps": 1, "tokenizer.vocab_size": 300},
}
DECODING = {"num_beams": 2, "length_penalty": 0.3, "max_length_b": 30}
GOLD = "(S (NP-SBJ (PRP He)) (VP (VBD gave) (PRT (RP up))) (. .))\n( (S (NP (NN dog)) (VP (VBZ barks))))\n"


def write(path, changes=(), **keys):
    """Writes a recipe of a parser."""
    keys = {
        "task": "parsing",
        "data": DATA,
        "decoding": DECODING,
        "output_dir": str(path.parent / "run"),
        **keys,
    }
    return write_recipe(path, CHANGES | dict(changes), **keys)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A parser that has been trained for four steps, on the quick corpus."""
    folder = tmp_path_factory.mktemp("parsing")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("vaswani_hf.data.toy_corpora.TREES_HELD_OUT", 10)
        assert main(["train", str(write(folder / "recipe.yaml"))]) == 0
    return folder / "run"


def test_a_run_ends_with_its_scores(checkpoint):
    results = json.loads((checkpoint / "results.json").read_text())
    test = results["test"]
    assert test["sentences"] == 10 and 0 <= test["f1"] <= 100
    assert test["f1"] == pytest.approx(
        200 * test["matched_brackets"] / (test["gold_brackets"] + test["predicted_brackets"])
    )
    assert len((checkpoint / "test_trees.txt").read_text().splitlines()) == 10
    assert results["decoding"]["num_beams"] == 2 and results["corpus"]["train"]["kept"] == 60
    recipe = load_recipe(checkpoint / "recipe.yaml")
    assert recipe.task == "parsing" and not recipe.tokenizer.has_one_vocabulary


def test_sentences_are_parsed_line_by_line(checkpoint, vaswani, tmp_path):
    sentences = ["the dog sees the cat .", "", "( x )", "go"]
    (tmp_path / "in.txt").write_text("\n".join(sentences) + "\n")
    code, out, _ = vaswani("parse", checkpoint, "--input", tmp_path / "in.txt")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 4 and lines[1] == ""
    assert [tree_from_text(line).sentence if line else "" for line in lines] == sentences
    assert vaswani("parse", checkpoint, "--text", sentences[0])[1] == lines[0] + "\n"
    record = json.loads(vaswani("parse", checkpoint, "--text", "go", "--json", "--num_beams", "21")[1])
    assert tree_from_text(record["text"]).words == ("go",) and record["score"] < 0


def test_a_parser_and_finished_trees_are_scored(checkpoint, vaswani, tmp_path):
    gold, finished = tmp_path / "gold.mrg", tmp_path / "finished.txt"
    gold.write_text(GOLD)
    finished.write_text(
        "(TOP (S (NP (PRP He)) (VP (VBD gave) (ADVP (RP up))) (. .)))\n(S (NP (NN dog)) (VP (XX barks)))\n"
    )
    code, out, _ = vaswani("evaluate", finished, "--trees", gold)
    assert code == 0 and out.splitlines() == [
        "F1 100.00  labelled brackets by the rules of evalb",
        "precision 100.00",
        "recall 100.00  7 of 7 brackets",
        "exact match 100.00 %",
        "2 sentences",
    ]
    code, out, _ = vaswani(
        "evaluate", checkpoint, "--trees", gold, "--json", "--output", tmp_path / "trees.txt"
    )
    scores = json.loads(out)
    assert code == 0 and scores["gold_brackets"] == 7 and scores["sentences"] == 2
    # `vaswani evaluate` gives the same scores for the file of trees that the command wrote.
    again = json.loads(vaswani("evaluate", tmp_path / "trees.txt", "--trees", gold, "--json")[1])
    assert again.items() <= scores.items()


def test_a_parser_is_no_language_model_and_no_translation_model(checkpoint, vaswani):
    code, _, sentence = vaswani("evaluate", checkpoint, "--text_file", checkpoint / "config.json")
    assert code == 2
    assert sentence.startswith(f"`model` must be a language model, but '{checkpoint}' is a parser; evaluate")
    card = str(model_card(checkpoint, "user/parser"))
    assert "constituency trees" in card and "- F1 " in card and "labelled bracketing F1" in card
    assert "translat" not in card.replace("translation_text", "")
    assert 'Parser.from_pretrained("user/parser")' in card


# The first words of the message for a command line.
REFUSED = {
    "{checkpoint} --trees unclosed": (
        "unclosed, line 2: the tree that begins here lacks a closing bracket before the next tree begins in "
        "line 3;"
    ),
    "{checkpoint} --trees none.mrg": "`trees` must be an existing file, but none.mrg does not exist.",
    "none.txt --trees gold": "`model` must be a parser or a file with the trees of a parser, but 'none.txt' does not exist",
    "--trees gold": "`vaswani evaluate --trees` needs a parser, or a file with the trees of a parser.",
    "other --trees gold": "gold and other must have equally many trees with words, but have 2 and 1.",
    "{checkpoint} --trees gold --source gold": "`--source` has no effect with `--trees`; leave `--source` out.",
    "other --trees gold --num_beams 8": "`--num_beams` has no effect with files and no model (other); leave `--num_beams`",
    "other --trees gold --revision x": "`--revision` is the revision of a repository, but 'other' is a file; leave",
    "{checkpoint} --trees empty": "`--trees` must have a tree with words in it, but empty has none.",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_what_cannot_be_scored_is_refused_in_a_sentence(
    checkpoint, vaswani, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gold").write_text(GOLD)
    (tmp_path / "other").write_text("(S (NN a))")
    (tmp_path / "unclosed").write_text("(S (NN a))\n(S (NP (NN b))\n(S (NN c))\n")
    (tmp_path / "empty").write_text("(S (-NONE- *))")
    code, out, sentence = vaswani("evaluate", *words.format(checkpoint=checkpoint).split())
    # The messages about the content of a file begin with the file.
    assert (code, out) == (1 if message.startswith(("gold", "unclosed")) else 2, "")
    assert sentence.startswith(message)


def test_treebanks_of_files_are_trained_on(vaswani, tmp_path, checkpoint, caplog):
    treebank = tmp_path / "train.mrg"
    treebank.write_text(GOLD + "( (S (NP (-NONE- *)))\n")
    data = {"language": "en", "train_trees": str(treebank), "test_trees": [str(treebank)], "max_length": 128}
    recipe = write(tmp_path / "recipe.yaml", data=data)
    code, _, error = vaswani("train", recipe)
    assert code == 1 and not (tmp_path / "run" / "results.json").exists()
    assert error.startswith(
        f"The train split of `data`: {treebank}, line 3: the tree that begins here lacks a closing"
    )
    treebank.write_text(GOLD + "( (S (NP (-NONE- *))))\n")
    assert vaswani("train", recipe)[0] == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["test"]["gold_brackets"] == 7
    # A tree without words is written as an empty line.
    lines = (tmp_path / "run" / "test_trees.txt").read_text().split("\n")
    assert [bool(line) for line in lines] == [True, True, False, False]
    code, out, _ = vaswani("evaluate", tmp_path / "run" / "test_trees.txt", "--trees", treebank, "--json")
    assert code == 0
    # Both the run and the command print the warning.
    assert caplog.messages.count("1 of 3 trees have no words and are left out of the scores.") == 2
    assert json.loads(out).items() <= results["test"].items()
    words = ["--trees", treebank, "--output", tmp_path / "again.txt", "--device", "cpu"]
    assert vaswani("evaluate", tmp_path / "run", *words)[0] == 0
    assert (tmp_path / "again.txt").read_text().split("\n") == lines
    counts = {"kept": 2, "empty": 1, "too_long": 0, "ratio": 0, "too_many_characters": 0}
    assert results["corpus"]["train"] == counts


WRONG_RECIPES = """
--corpus numbers | `data.corpus` must be 'trees', but is 'numbers'.
--bpe_dropout 0.1 | `tokenizer.bpe_dropout` belongs to `task: translation`, but is 0.1 in a recipe of
--train_trees a.mrg | Exactly one of `data.corpus` and `data.train_trees` must be given, but
--test_trees a.mrg | `data.test_trees` and `data.corpus` cannot be given together; give only one of these keys.
--trees_train_size 0 | `data.trees_train_size` must be greater than 0, but is 0.
"""


@pytest.mark.parametrize(("overrides", "message"), rows(WRONG_RECIPES))
def test_a_wrong_recipe_is_one_sentence(tmp_path, overrides, message):
    with pytest.raises(ValueError) as error:
        load_recipe(write(tmp_path / "recipe.yaml"), overrides.split())
    assert str(error.value).startswith(message)


def test_the_recipe_of_the_paper_has_its_numbers():
    recipe = load_recipe("configuration/parsing_wsj.yaml")
    shape = [getattr(recipe.model, name) for name in ("encoder_layers", "decoder_layers", "d_model")]
    assert shape == [4, 4, 1024] and recipe.tokenizer.vocab_size == 16000
    search = {"num_beams": 21, "length_penalty": 0.3, "length_penalty_type": "gnmt", "max_length_a": 1}
    assert (search | {"max_length_b": 300}).items() <= recipe.decoding.settings().items()


def test_trees_are_not_translated(tmp_path):
    data = {"source_language": "en", "target_language": "de", "corpus": "trees"}
    with pytest.raises(ValueError, match="^`data.corpus` must be 'numbers', but is 'trees'.$"):
        load_recipe(write(tmp_path / "recipe.yaml", task=None, data=data))


def test_a_parser_begins_with_a_parser_and_lends_its_tokenizers_to_nobody_else(
    checkpoint, tmp_path, vaswani, monkeypatch
):
    monkeypatch.setattr("vaswani_hf.data.toy_corpora.TREES_HELD_OUT", 10)
    recipe = write(tmp_path / "recipe.yaml", {"training.max_steps": 1, "tokenizer": {}})
    code, out, error = vaswani("train", recipe, "--init_from", checkpoint, "--learning_rate_factor", "0")
    assert code == 0, error
    assert "its vocabulary covers 100.0% of the vocabulary of the run" in out
    begun, found = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "run"))
    assert all(torch.equal(begun[name], found[name]) for name in begun)
    text = tmp_path / "text"
    numbers = {"language": "en", "corpus": "numbers", "numbers_train_size": 100}
    causal = {
        "task": "causal_lm",
        "data": numbers,
        "model": {"init_from": str(checkpoint)},
        "output_dir": str(text),
    }
    changes = {"tokenizer": None, "decoding": None, "training": {"bf16": False, "max_steps": 1}}
    other = write_recipe(tmp_path / "text.yaml", **causal, **changes)
    code, _, error = vaswani("train", other)
    assert code == 2 and error.startswith(
        f"`model.init_from` must have tokenizers for `task: causal_lm`, but '{checkpoint}' is a parser with a target vocabulary of trees"
    )
    assert vaswani("train", other, "--keep", "false", "--vocab_size", "300")[0] == 0
    words = ["--output_dir", tmp_path / "other"]
    code, _, error = vaswani("train", recipe, "--init_from", text, *words)
    assert code == 2 and "`model.init_from` needs a model with an encoder" in error
    part = write(tmp_path / "part.yaml", {"tokenizer": {}, "model": {"init_from": {"decoder": str(text)}}})
    code, _, error = vaswani("train", part, *words)
    assert code == 2 and error.startswith(
        f"`model.init_from` must have tokenizers for `task: parsing`, but '{text}' has no target vocabulary of trees"
    )
