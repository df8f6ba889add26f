"""Parsing from a recipe to the command line: training, `vaswani parse`, `vaswani evaluate --trees`, and what they refuse."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from vaswani_hf.cli import main
from vaswani_hf.data.trees import tree_from_text
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.recipe import load_recipe

RECIPE = {
    "task": "parsing",
    "data": {"language": "en", "corpus": "trees", "trees_train_size": 60, "max_length": 128},
    "tokenizer": {"vocab_size": 300},
    "model": {
        **{
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
        },
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
    "training": {
        "bf16": False,
        "max_steps": 4,
        "source_tokens_per_batch": 256,
        "target_tokens_per_batch": 256,
        "eval_steps": 4,
        "save_steps": 4,
    },
    "decoding": {"num_beams": 2, "length_penalty": 0.3, "max_length_b": 30},
}
GOLD = "(S (NP-SBJ (PRP He)) (VP (VBD gave) (PRT (RP up))) (. .))\n( (S (NP (NN dog)) (VP (VBZ barks))))\n"


def write(path, **content):
    path.write_text(
        yaml.safe_dump({**RECIPE, "output_dir": str(path.parent / "run"), **content}), encoding="utf-8"
    )
    return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A parser that has been trained for four steps, on the quick corpus."""
    folder = tmp_path_factory.mktemp("parsing")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("vaswani_hf.data.toy_corpora.TREES_HELD_OUT", 10)
        assert main(["train", write(folder / "recipe.yaml")]) == 0
    return folder / "run"


@pytest.fixture
def vaswani(capsys):
    """Run a command: its exit code, standard output, and the last line on stderr."""

    def vaswani(*words):
        code = main([*map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, (captured.err.strip().splitlines() or [""])[-1]

    return vaswani


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
    output = tmp_path / "out.txt"
    output.write_text(lines[0] + "\n(S (NP")
    assert (
        vaswani("parse", checkpoint, "--input", tmp_path / "in.txt", "--output", output, "--resume")[0] == 0
    )
    assert output.read_text() == out
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
    # What it wrote has the same scores.
    again = json.loads(vaswani("evaluate", tmp_path / "trees.txt", "--trees", gold, "--json")[1])
    assert again.items() <= scores.items()


def test_a_parser_does_not_translate_and_its_card_does_not_say_so(checkpoint, vaswani):
    code, out, error = vaswani("translate", checkpoint, "--text", "go")
    assert code == 1 and not out
    assert error == (
        f"vaswani: `model` must be a translation model, but '{checkpoint}' is a parser; it is used by `vaswani parse`, and by "
        "`Parser` of vaswani_hf.parsing."
    )
    code, out, error = vaswani("evaluate", checkpoint, "--text", checkpoint / "config.json")
    assert code == 1 and not out
    assert error == (
        f"vaswani: `model` must be a language model, but '{checkpoint}' is a parser; it is evaluated by `--trees`."
    )
    card = str(model_card(checkpoint, "user/parser"))
    assert "constituency trees" in card and "- F1 " in card and "labelled bracketing F1" in card
    assert "translat" not in card.replace("translation_text", "")
    assert 'Parser.from_pretrained("user/parser")' in card


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        (
            {"gold": "(S (NN a))\n(S (NP (NN b))\n(S (NN c))\n"},
            ["{checkpoint}", "--trees", "{gold}"],
            "{gold}, line 2: the tree that begins here lacks a closing bracket before the next tree begins in line 3; add what is "
            "missing, or indent the lines that go on with a tree.",
        ),
        (
            {},
            ["{checkpoint}", "--trees", "none.mrg"],
            "A treebank must be an existing file, but none.mrg is none.",
        ),
        (
            {"gold": "(S (NN a))"},
            ["none.txt", "--trees", "{gold}"],
            "`model` must be a parser or a file of finished trees, but there is no 'none.txt' here; check its name.",
        ),
        (
            {"gold": "(S (NN a))"},
            ["--trees", "{gold}"],
            "`vaswani evaluate --trees` needs a model, or a file of finished trees.",
        ),
        (
            {"gold": GOLD, "other": "(S (NN a))"},
            ["{other}", "--trees", "{gold}"],
            "{gold} and {other} must have equally many trees with words, but have 2 and 1.",
        ),
        (
            {"gold": GOLD},
            ["{checkpoint}", "--trees", "{gold}", "--source", "{gold}"],
            "`--source` is for translations, but `--trees` is for a parser; leave one of them out.",
        ),
        (
            {"gold": GOLD, "other": GOLD},
            ["{other}", "--trees", "{gold}", "--num_beams", "8"],
            "`--num_beams` is for a parser, but {other} is a file of trees; leave it out.",
        ),
        (
            {"gold": GOLD, "other": GOLD},
            ["{other}", "--trees", "{gold}", "--device", "cuda:7"],
            "`--device` is for a parser, but {other} is a file of trees; leave it out.",
        ),
        (
            {"gold": "(S (-NONE- *))"},
            ["{checkpoint}", "--trees", "{gold}"],
            "`--trees` must have a tree with words in it, but {gold} has none.",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_in_a_sentence(checkpoint, vaswani, tmp_path, files, words, message):
    places = {"checkpoint": checkpoint, **{name: tmp_path / f"{name}.mrg" for name in files}}
    for name, content in files.items():
        places[name].write_text(content)
    code, out, error = vaswani("evaluate", *(word.format(**places) for word in words))
    assert (code, out, error) == (1, "", "vaswani: " + message.format(**places))


def test_treebanks_of_files_are_trained_on(vaswani, tmp_path, checkpoint, caplog):
    treebank = tmp_path / "train.mrg"
    treebank.write_text(GOLD + "( (S (NP (-NONE- *)))\n")
    data = {"language": "en", "train_trees": str(treebank), "test_trees": [str(treebank)], "max_length": 128}
    recipe = write(tmp_path / "recipe.yaml", data=data)
    code, _, error = vaswani("train", recipe)
    assert code == 1 and not (tmp_path / "run" / "results.json").exists()
    assert error == (
        f"vaswani: `data`, train split: {treebank}, line 3: the tree that begins here lacks a closing bracket at the end of the "
        "file; add what is missing, or indent the lines that go on with a tree."
    )
    treebank.write_text(GOLD + "( (S (NP (-NONE- *))))\n")
    assert vaswani("train", recipe)[0] == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["test"]["gold_brackets"] == 7
    # A tree without words keeps its line.
    lines = (tmp_path / "run" / "test_trees.txt").read_text().split("\n")
    assert [bool(line) for line in lines] == [True, True, False, False]
    code, out, _ = vaswani("evaluate", tmp_path / "run" / "test_trees.txt", "--trees", treebank, "--json")
    assert code == 0
    # The run says so, and the command too.
    assert caplog.messages.count("1 of 3 trees have no words and are left out of the scores.") == 2
    assert json.loads(out).items() <= results["test"].items()
    words = ["--trees", treebank, "--output", tmp_path / "again.txt", "--device", "cpu"]
    assert vaswani("evaluate", tmp_path / "run", *words)[0] == 0
    assert (tmp_path / "again.txt").read_text().split("\n") == lines
    assert results["corpus"]["train"] == {
        **{"kept": 2, "empty": 1, "too_long": 0, "ratio": 0, "too_many_characters": 0}
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["--corpus", "numbers"],
            "`data.corpus` must be 'trees', but is 'numbers'.",
        ),
        (
            ["--train_source", "a.txt"],
            "`data.train_source` belongs to `task: translation`, but is 'a.txt' in a recipe of `task: parsing`; leave it out.",
        ),
        (
            ["--bpe_dropout", "0.1"],
            "`tokenizer.bpe_dropout` belongs to `task: translation`, but is 0.1 in a recipe of `task: parsing`; leave it out.",
        ),
        (
            ["--task", "masked_lm"],
            "`data.trees_train_size` belongs to `task: parsing`, but is 60 in a recipe of `task: masked_lm`; leave it out.",
        ),
        (
            ["--train_trees", "a.mrg"],
            "Exactly one of `data.corpus` and `data.train_trees` must be given, but `data.corpus` and `data.train_trees` are; set "
            "the others to null.",
        ),
        (
            ["--test_trees", "a.mrg"],
            "`data.test_trees` and `data.corpus` cannot be given together; leave one of them out.",
        ),
        (["--language", ""], "`data.language` must be text that is not empty, but is ''."),
        (["--trees_train_size", "0"], "`data.trees_train_size` must be greater than 0, but is 0."),
    ],
)
def test_recipes_of_other_tasks_are_told_apart(tmp_path, overrides, message):
    with pytest.raises(ValueError) as error:
        load_recipe(write(tmp_path / "recipe.yaml"), overrides)
    assert str(error.value) == message


def test_the_recipe_of_the_paper_has_its_numbers():
    recipe = load_recipe("configuration/parsing_wsj.yaml")
    shape = [getattr(recipe.model, name) for name in ("encoder_layers", "decoder_layers", "d_model")]
    assert shape == [4, 4, 1024] and recipe.tokenizer.vocab_size == 16000
    settings = recipe.decoding.settings()
    assert (settings["num_beams"], settings["length_penalty"], settings["length_penalty_type"]) == (
        21,
        0.3,
        "gnmt",
    )
    assert (settings["max_length_a"], settings["max_length_b"]) == (1, 300)


def test_trees_are_not_translated(tmp_path):
    path = tmp_path / "recipe.yaml"
    data = {"source_language": "en", "target_language": "de", "corpus": "trees"}
    path.write_text(yaml.safe_dump({"output_dir": "runs/a", "data": data, "training": {"max_steps": 10}}))
    with pytest.raises(ValueError) as error:
        load_recipe(path)
    assert str(error.value) == ("`data.corpus` must be 'numbers', but is 'trees'.")


def test_a_parser_begins_with_a_parser_and_lends_its_tokenizers_to_nobody_else(
    checkpoint, tmp_path, vaswani, monkeypatch
):
    monkeypatch.setattr("vaswani_hf.data.toy_corpora.TREES_HELD_OUT", 10)
    recipe = write(tmp_path / "recipe.yaml", tokenizer={}, training={**RECIPE["training"], "max_steps": 1})
    code, out, error = vaswani("train", recipe, "--init_from", checkpoint, "--learning_rate_factor", "0")
    assert code == 0, error
    assert "which knows 100.0% of the pieces" in out
    begun, found = (
        load_file(checkpoint / "model.safetensors"),
        load_file(tmp_path / "run" / "model.safetensors"),
    )
    assert all(torch.equal(begun[name], found[name]) for name in begun)
    text = {"output_dir": str(tmp_path / "text"), "task": "causal_lm"}
    text["training"] = {"bf16": False, "max_steps": 1}
    text["data"] = {"language": "en", "corpus": "numbers", "numbers_train_size": 100}
    text["model"] = {"init_from": str(checkpoint)}
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(text))
    code, _, error = vaswani("train", tmp_path / "text.yaml")
    assert code == 1 and error == (
        f"vaswani: '{checkpoint}', which `model.init_from` begins with, is a parser, whose target vocabulary is of trees, and cannot "
        "lend its tokenizers to a recipe of `task: causal_lm`; train new ones with `tokenizer.keep: false`."
    )
    assert vaswani("train", tmp_path / "text.yaml", "--keep", "false", "--vocab_size", "300")[0] == 0
    code, _, error = vaswani(
        "train", recipe, "--init_from", tmp_path / "text", "--output_dir", tmp_path / "other"
    )
    assert code == 1 and "`model.init_from` needs a model with an encoder" in error
    parts = f"{{decoder: {tmp_path / 'text'}}}"
    with_part = write(tmp_path / "part.yaml", tokenizer={}, model={"init_from": yaml.safe_load(parts)})
    code, _, error = vaswani("train", with_part, "--output_dir", tmp_path / "other")
    assert code == 1 and error == (
        f"vaswani: '{tmp_path / 'text'}', which `model.init_from` begins with, has no vocabulary of trees, and cannot lend its "
        "tokenizers to a recipe of `task: parsing`; train new ones with `tokenizer.keep: false`."
    )
