"""If a finished run is resumed, damaged files are restored bitwise or named, and no score is lost."""

import itertools
import json
import os
import shutil

import pytest
from tiny_runs import DAMAGES, contents, metrics, results, write_pairs

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.checkpoint.manifest import metadata_of, read_manifest, verify_manifest, write_manifest
from vaswani_hf.data.toy_corpora import number_pairs

FINAL = """
    model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json recipe.yaml results.json
    training_curve.png test_translations.txt
""".split()
KINDS = ["missing", "truncated", "flipped"]
AVERAGED = "--average_checkpoints=3 --save_total_limit=3 --save_steps=2"


def changed(folder, expected):
    """The names of the files that differ from the expected files; the manifest must describe all files."""
    found = contents(folder)
    assert found.keys() == expected.keys()
    assert verify_manifest(folder) is None
    return {name for name in expected if found[name] != expected[name]}


def delete_checkpoints(folder):
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)


def test_a_finished_run_that_is_whole_is_only_read(run, copied, capsys):
    def state():
        return {
            path: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in copied.rglob("*.*")
            if path.is_file()
        }

    before = state()
    assert {*FINAL, "manifest.json"} <= contents(copied).keys()
    run("run", "--resume=true")
    assert f"the run in '{copied}' is finished; nothing is left to do\n" in capsys.readouterr().out
    assert state() == before
    delete_checkpoints(copied)
    # A key that is missing in the recipe of the finished run, with its default.
    run("run", "--resume=true --attention_dropout=0.0")
    with pytest.raises(ValueError, match="holds a finished model, but no checkpoint to continue from"):
        run("run", "--resume=true --max_steps=10")


@pytest.mark.parametrize(
    "damaged",
    [
        FINAL,
        ["results.json", "recipe.yaml"],
        ["training_curve.png"],
        ["test_translations.txt"],
        FINAL[3:0:-1],
    ],
)
def test_damaged_files_of_a_finished_run_are_made_again(run, copied, capsys, damaged):
    expected = contents(copied)
    for name, kind in zip(damaged, itertools.cycle(KINDS), strict=False):
        DAMAGES[kind](copied / name)
    run("run", "--resume=true")
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in damaged)
    assert "written again, but differ from the original files" not in said
    assert not changed(copied, expected)
    run("run", "--resume=true")
    assert f"the run in '{copied}' is finished; nothing is left to do\n" in capsys.readouterr().out
    assert not changed(copied, expected)


def test_a_file_that_is_made_again_with_different_bytes_is_recorded(run, copied, capsys):
    config = copied / "config.json"
    files = {name: copied / name for name in read_manifest(copied)["files"]}
    config.write_text(config.read_text() + "\n")
    write_manifest(copied, metadata_of(copied), files)
    config.unlink()
    run("run", "--resume=true")
    assert "written again, but differ from the original files: config.json\n" in capsys.readouterr().out
    run("run", "--resume=true")
    assert f"the run in '{copied}' is finished; nothing is left to do\n" in capsys.readouterr().out


def test_weights_are_made_again_from_an_earlier_checkpoint_where_the_last_one_is_damaged_too(run, copied):
    expected = contents(copied)
    (copied / "model.safetensors").unlink()
    DAMAGES["truncated"](copied / "checkpoint-8" / "optimizer.pt")
    run("run", "--resume=true")
    # The resumed run logs other times, so the log and the curve may differ.
    assert changed(copied, expected) <= {"metrics.jsonl", "training_curve.png"}


def test_without_checkpoints_unrecoverable_files_are_named_and_nothing_is_changed(train_command, copied):
    delete_checkpoints(copied)
    expected = contents(copied)
    for name in ("recipe.yaml", "results.json", "training_curve.png"):
        (copied / name).unlink()
    assert train_command("--resume=true")[0] == 0
    assert not changed(copied, expected)
    (copied / "tokenizer.json").unlink()
    os.truncate(copied / "model.safetensors", 1000)
    before = contents(copied)
    code, _, sentence = train_command("--resume=true")
    size = len(expected["model.safetensors"])
    assert code == 1
    assert sentence == (
        f"The run in '{copied}' is finished, but model.safetensors has 1,000 bytes, but was saved with {size:,} bytes; tokenizer.json is missing; no "
        "whole checkpoint is left to make these files again, so restore them from a copy, or choose another `--output_dir`."
    )
    assert contents(copied) == before
    # The manifest does not describe the run, and the run has no weights.
    DAMAGES["truncated"](copied / "manifest.json")
    (copied / "model.safetensors").unlink()
    code, _, sentence = train_command("--resume=true")
    assert code == 1 and "no whole checkpoint is left to make these files again" in sentence


@pytest.mark.parametrize("options", [AVERAGED, "--ema_decay=0.8", "--early_stopping_patience=9"])
def test_averaged_and_chosen_weights_are_made_again(run, copy_of, options):
    folder = copy_of(options)
    expected = contents(folder)
    (folder / "model.safetensors").unlink()
    run("run", options, "--resume=true")
    assert not changed(folder, expected)


def test_other_weights_than_those_that_a_run_has_ended_with_are_refused(train_command, copy_of):
    folder, options = copy_of(AVERAGED), f"{AVERAGED} --resume=true"
    before_results = (folder / "results.json").read_bytes()
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "checkpoint-4")
    before = contents(folder)
    code, _, sentence = train_command(options)
    assert code == 1
    assert sentence == (
        f"The run in '{folder}' is finished, but model.safetensors is missing, and its checkpoints give other weights than "
        "the finished run had; restore the files from a copy, or delete manifest.json to finish the run again with "
        "the weights of its checkpoints."
    )
    assert contents(folder) == before
    # Without a manifest the run accepts other final weights.
    (folder / "manifest.json").unlink()
    assert train_command(options)[0] == 0
    assert results(folder)["training"]["averaged_steps"] == [6, 8]
    assert (folder / "results.json").read_bytes() != before_results
    expected = contents(folder)
    shutil.rmtree(folder / "checkpoint-6")
    (folder / "tokenizer.json").unlink()
    assert train_command(options)[0] == 0
    assert not changed(folder, expected)


def test_a_run_without_a_whole_manifest_is_ended_again(run, copied):
    expected, training = contents(copied), results(copied)["training"]
    DAMAGES["truncated"](copied / "manifest.json")
    run("run", "--resume=true")
    # The recipe now records that the run was resumed, and the results have the new time of the scoring.
    assert changed(copied, expected) <= {"recipe.yaml", "results.json", "manifest.json"}
    assert results(copied)["training"] == training


def test_a_finished_run_refuses_other_training_data_and_another_recipe(run, train_command, tmp_path):
    corpus = write_pairs(tmp_path / "train.jsonl", number_pairs(40, 1, "train"))
    held_out = write_pairs(tmp_path / "held-out.jsonl", number_pairs(5, 1, "train"))
    options = f"--corpus=null --train_pairs={corpus} --test_pairs={held_out} --max_steps=2 --save_steps=2"
    folder = run("run", options)
    expected, rows = contents(folder), corpus.read_text()
    resumed = f"{options} --resume=true"
    refused = f"The training pairs differ from the pairs that the run in '{folder}' was begun with (40 pairs"
    for is_whole in (True, False):
        corpus.write_text(rows.replace("eins", "zwei"))
        code, _, sentence = train_command(resumed)
        assert code == 1 and sentence.startswith(refused)
        code, _, sentence = train_command(resumed, "--seed=2")
        assert code == 2 and sentence.startswith("`seed` is 2, but the run in ")
        corpus.write_text(rows)
        if is_whole:
            assert contents(folder) == expected
            (folder / "tokenizer.json").unlink()
    assert train_command(resumed)[0] == 0
    assert not changed(folder, expected)
    # Other test texts in a file of the same name are scored.
    (tmp_path / "other").mkdir()
    other = write_pairs(tmp_path / "other" / "held-out.jsonl", number_pairs(7, 1, "train"))
    assert train_command(resumed.replace(str(held_out), str(other)))[0] == 0
    assert results(folder)["test"]["sentences"] == 7
    held_out.write_text(other.read_text())
    expected = contents(folder)
    assert train_command(resumed)[0] == 0
    assert not changed(folder, expected)
    delete_checkpoints(folder)
    held_out.write_text(rows)
    code, said, _ = train_command(resumed)
    assert (code, "but the run has no checkpoint left to score\n" in said) == (0, True)
    assert contents(folder) == expected
    corpus.write_text(rows.replace("eins", "zwei"))
    assert train_command(resumed)[2].startswith(refused)
    assert contents(folder) == expected


def test_a_finished_run_of_an_earlier_version_is_finished(run, copied, capsys):
    recorded = results(copied)
    del recorded["finished_with"]
    (copied / "results.json").write_text(json.dumps(recorded))
    for folder in (copied, *checkpoints_in(copied)):
        (folder / "manifest.json").unlink()
    run("run", "--resume=true")
    assert "is finished; nothing is left to do" in capsys.readouterr().out
    with pytest.raises(ValueError, match="manifest.json is missing, so the checkpoint is"):
        run("run", "--resume=true --num_beams=3")


def test_a_finished_run_is_ended_in_another_way_and_goes_on(run, copied):
    calibration = {"calibration.json", "calibration.png"}
    for name in calibration:
        (copied / name).write_text('{"weights": [0, 0, 0, 0]}')
    run("run", "--resume=true --num_beams=3 --examples=[seven]")
    assert results(copied)["decoding"]["num_beams"] == 3
    assert [example["source"] for example in results(copied)["examples"]] == ["seven"]
    run("run", "--resume=true --num_beams=3 --examples=[two]")
    assert [example["source"] for example in results(copied)["examples"]] == ["two"]
    assert len(metrics(copied)) == len({json.dumps(row) for row in metrics(copied)})
    # The weights are the same, so their calibration stays.
    assert calibration < contents(copied).keys()
    run("run", "--resume=true --max_steps=10")
    assert verify_manifest(copied) is None
    assert results(copied)["training"]["steps"] == 10
    recorded = json.loads((copied / "manifest.json").read_text())
    assert recorded["recipe"] == (copied / "recipe.yaml").read_text()
    assert "max_steps: 10" in recorded["recipe"]
    assert not calibration & contents(copied).keys()
