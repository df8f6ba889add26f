"""A disk that is full, a folder that is read-only or has vanished: one sentence, and everything earlier stays as it was."""

import re
import shutil
import subprocess

import pytest
from tiny_runs import same, weights

import vaswani_hf.tasks.translation
import vaswani_hf.training.results
import vaswani_hf.training.run
from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.training.callbacks import RunLogCallback
from vaswani_hf.training.trainer import VaswaniTrainer


@pytest.fixture
def before_call(monkeypatch):
    """Do something, once, before the call of this number of a method or function."""

    def arrange(owner, name, function, call=1):
        original, calls = getattr(owner, name), []

        def changed(*args, **kwargs):
            calls.append(True)
            if len(calls) == call:
                function()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, changed)

    return arrange


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, mounted, which can be filled and made read-only; needs the rights to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)], capture_output=True
    ).returncode:
        pytest.skip("needs the rights to mount a disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place):
    with (place / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


STAGES = {
    "a checkpoint": (VaswaniTrainer, "_save_checkpoint", 2, ["checkpoint-4"]),
    "the optimizer": (VaswaniTrainer, "_save_optimizer_and_scheduler", 2, ["checkpoint-4"]),
    "the log": (RunLogCallback, "_write", 5, ["checkpoint-4"]),
    "the final weights": (vaswani_hf.training.run, "save_model", 1, ["checkpoint-4", "checkpoint-8"]),
    "the translations": (
        vaswani_hf.tasks.translation,
        "translate_and_measure",
        1,
        ["checkpoint-4", "checkpoint-8"],
    ),
    "the picture": (vaswani_hf.training.results, "plot_training_curve", 1, ["checkpoint-4", "checkpoint-8"]),
}


def remount(place, how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_costs_nothing_that_was_there(
    run, vaswani, finished, disk, before_call, monkeypatch, stage
):
    owner, name, call, left = STAGES[stage]
    folder = disk / "run"
    before_call(owner, name, lambda: fill(disk), call)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}")
    assert code == 1
    assert re.fullmatch(
        rf"'{folder}' could not be written: .* \(0 MiB are free there\); make room and try again.", sentence
    )
    assert [path.name for path in checkpoints_in(folder)] == left
    (disk / "filler").unlink()
    assert vaswani("train", run.recipe, f"--output_dir={folder}", "--resume=true")[0] == 0
    assert same(weights(folder), weights(finished))


@pytest.mark.parametrize("stage", ["a checkpoint", "the final weights", "the picture"])
def test_a_disk_that_becomes_read_only_is_named(run, vaswani, finished, disk, before_call, stage):
    owner, name, call, left = STAGES[stage]
    folder = disk / "run"
    before_call(owner, name, lambda: remount(disk, "ro"), call)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}")
    assert code == 1
    assert sentence == (
        f"'{folder}' could not be written: Read-only file system; mend the disk, or take another folder."
    )
    remount(disk, "rw")
    assert [path.name for path in checkpoints_in(folder)] == left
    assert vaswani("train", run.recipe, f"--output_dir={folder}", "--resume=true")[0] == 0
    assert same(weights(folder), weights(finished))


def test_a_read_only_folder_is_named_before_anything_is_done(run, vaswani, disk):
    remount(disk, "ro")
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={disk / 'run'}")
    assert code == 1
    assert sentence == (
        f"'{disk}/run' could not be written: Read-only file system; mend the disk, or take another folder."
    )


@pytest.mark.parametrize("stage", STAGES)
def test_an_output_folder_that_vanishes_is_named(run, vaswani, tmp_path, before_call, stage):
    owner, name, call, _ = STAGES[stage]
    folder = tmp_path / "run"
    before_call(owner, name, lambda: shutil.rmtree(folder), call)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}")
    assert code == 1
    assert sentence == f"'{folder}' has vanished while the run wrote into it; start the run again."


@pytest.mark.parametrize(("lines", "errors"), [(0, "apart"), (3, "apart"), (3, "in the same pipe")])
def test_a_run_outlives_the_reader_of_its_output(run, python, tmp_path, lines, errors):
    command = [python, "-m", "vaswani_hf.cli", "train", str(run.recipe), f"--output_dir={tmp_path / 'run'}"]
    with open(tmp_path / "errors", "w+", encoding="utf-8") as file:
        stderr = file if errors == "apart" else subprocess.STDOUT
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
            for _ in range(lines):
                process.stdout.readline()
            process.stdout.close()
            code = process.wait(120)
        file.seek(0)
        said = file.read()
    assert code == 0, said
    assert "Traceback" not in said
    assert checkpoints_in(tmp_path / "run")[-1].name == "checkpoint-8"
    assert (tmp_path / "run" / "results.json").exists()
