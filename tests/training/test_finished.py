"""A finished run that is resumed: whatever is damaged is made again to the bit, or named, and no score is lost."""

import json
import os
import shutil

import pytest

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.checkpoint.manifest import verify_manifest
from vaswani_hf.data.toy_corpora import number_pairs

FINAL = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "recipe.yaml",
    "results.json",
    "training_curve.png",
    "test_translations.txt",
)
DAMAGES = {
    "missing": lambda path: path.unlink(),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1"),
}


def contents(folder):
    """The bytes of the final files, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def same_end(folder, expected):
    """True if the final files are the same to the byte, and their manifest is that of them."""
    found = contents(folder)
    assert {name for name in expected if found.get(name) != expected[name]} == set()
    assert found.keys() == expected.keys()
    assert verify_manifest(folder) is None
    return True


def test_a_finished_run_that_is_whole_is_only_read(run, copied, capsys):
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in copied.rglob("*") if path.is_file()
    }
    assert {*FINAL, "manifest.json"} <= contents(copied).keys()
    run("run", "--resume=true")
    assert f"the run in '{copied}' is finished; nothing is left to do\n" in capsys.readouterr().out
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in copied.rglob("*") if path.is_file()
    }
    assert after == before


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", FINAL)
def test_what_is_damaged_of_a_finished_run_is_made_again_to_the_bit(run, copied, capsys, name, kind):
    expected = contents(copied)
    DAMAGES[kind](copied / name)
    run("run", "--resume=true")
    said = capsys.readouterr().out
    assert f"{name} " in said
    assert "made again, but with different bytes" not in said
    assert same_end(copied, expected)
    run("run", "--resume=true")
    assert f"the run in '{copied}' is finished; nothing is left to do\n" in capsys.readouterr().out
    assert same_end(copied, expected)


def test_all_of_a_finished_run_but_its_manifest_is_made_again(run, copied):
    expected = contents(copied)
    for name in FINAL:
        (copied / name).unlink()
    run("run", "--resume=true")
    assert same_end(copied, expected)


def test_weights_are_made_again_from_an_earlier_checkpoint_where_the_last_one_is_damaged_too(run, copied):
    expected = contents(copied)
    (copied / "model.safetensors").unlink()
    os.truncate(copied / "checkpoint-8" / "optimizer.pt", 100)
    run("run", "--resume=true")
    # The log has other times.
    found = contents(copied)
    assert {name for name in expected if found[name] != expected[name]} <= {
        "metrics.jsonl",
        "training_curve.png",
    }
    assert verify_manifest(copied) is None


def test_without_checkpoints_what_cannot_be_made_again_is_named_and_nothing_is_changed(run, vaswani, copied):
    for checkpoint in checkpoints_in(copied):
        shutil.rmtree(checkpoint)
    expected = contents(copied)
    for name in ("recipe.yaml", "results.json", "training_curve.png"):
        (copied / name).unlink()
    assert vaswani("train", run.recipe, f"--output_dir={copied}", "--resume=true")[0] == 0
    assert same_end(copied, expected)
    (copied / "tokenizer.json").unlink()
    os.truncate(copied / "model.safetensors", 1000)
    before = contents(copied)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={copied}", "--resume=true")
    size = len(expected["model.safetensors"])
    assert code == 1
    assert sentence == (
        f"The run in '{copied}' is finished, but model.safetensors has 1,000 bytes of {size:,}; tokenizer.json is missing; no "
        "whole checkpoint is left to make these files again, so restore them from a copy, or choose another `--output_dir`."
    )
    assert contents(copied) == before


AVERAGED = ("--average_checkpoints=3", "--save_total_limit=3", "--save_steps=2")


@pytest.mark.parametrize("keys", [AVERAGED, ("--ema_decay=0.8",), ("--early_stopping_patience=9",)])
def test_averaged_and_chosen_weights_are_made_again(run, keys):
    folder = run("run", *keys)
    expected = contents(folder)
    (folder / "model.safetensors").unlink()
    run("run", *keys, "--resume=true")
    assert same_end(folder, expected)


def test_other_weights_than_those_that_a_run_has_ended_with_are_refused(run, vaswani, tmp_path):
    folder = run("run", *AVERAGED)
    results = (folder / "results.json").read_bytes()
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "checkpoint-4")
    before = contents(folder)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}", *AVERAGED, "--resume=true")
    assert code == 1
    assert sentence == (
        f"The run in '{folder}' is finished, but model.safetensors is missing, and its checkpoints give other weights than "
        "the finished run had; restore them from a copy, or delete manifest.json to end the run with the other weights."
    )
    assert contents(folder) == before
    # Without them, other files are made again.
    (folder / "manifest.json").unlink()
    assert vaswani("train", run.recipe, f"--output_dir={folder}", *AVERAGED, "--resume=true")[0] == 0
    assert json.loads((folder / "results.json").read_text())["training"]["averaged_steps"] == [6, 8]
    assert (folder / "results.json").read_bytes() != results
    expected = contents(folder)
    shutil.rmtree(folder / "checkpoint-6")
    (folder / "tokenizer.json").unlink()
    assert vaswani("train", run.recipe, f"--output_dir={folder}", *AVERAGED, "--resume=true")[0] == 0
    assert same_end(folder, expected)


@pytest.mark.parametrize("damaged", ["missing", "truncated"])
def test_a_run_without_a_whole_manifest_is_ended_again(run, copied, damaged):
    expected = contents(copied)
    DAMAGES[damaged](copied / "manifest.json")
    run("run", "--resume=true")
    found = contents(copied)
    # The recipe says now that the run was resumed, and the results how long the scoring took.
    changed = {name for name in expected if found[name] != expected[name]}
    assert changed <= {"recipe.yaml", "results.json", "manifest.json"}
    training = [json.loads(of["results.json"])["training"] for of in (found, expected)]
    assert training[0] == training[1]
    assert verify_manifest(copied) is None


def test_a_finished_run_refuses_other_training_data_and_another_recipe(run, vaswani, tmp_path):
    for name, size in (("train", 40), ("held-out", 5)):
        rows = [{"en": pair["source"], "de": pair["target"]} for pair in number_pairs(size, 1, "train")]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = tmp_path / "train.jsonl"
    keys = (
        "--corpus=null",
        f"--train_pairs={corpus}",
        f"--test_pairs={tmp_path / 'held-out.jsonl'}",
        "--max_steps=4",
    )
    folder = run("run", *keys)
    expected, rows = contents(folder), corpus.read_text()
    resumed = ("train", run.recipe, f"--output_dir={folder}", "--resume=true", *keys)
    for is_whole in (True, False):
        corpus.write_text(rows.replace("eins", "zwei"))
        code, _, sentence = vaswani(*resumed)
        assert code == 1
        assert sentence.startswith(
            f"The training pairs are not those that the run in '{folder}' was begun with (40 pairs"
        )
        code, _, sentence = vaswani(*resumed, "--seed=2")
        assert code == 1 and sentence.startswith("`seed` is 2, but the run in ")
        corpus.write_text(rows)
        if is_whole:
            assert contents(folder) == expected
            (folder / "tokenizer.json").unlink()
    assert vaswani(*resumed)[0] == 0
    assert same_end(folder, expected)
    # Without checkpoints, too.
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)
    corpus.write_text(rows.replace("eins", "zwei"))
    assert vaswani(*resumed)[2].startswith("The training pairs are not those that")
    assert contents(folder) == expected


def test_a_run_that_goes_on_has_no_earlier_end(run, copied):
    run("run", "--resume=true", "--max_steps=10")
    assert verify_manifest(copied) is None
    assert json.loads((copied / "results.json").read_text())["training"]["steps"] == 10
    recorded = json.loads((copied / "manifest.json").read_text())
    assert recorded["recipe"] == (copied / "recipe.yaml").read_text()
    assert "max_steps: 10" in recorded["recipe"]
