"""A full or read-only disk and a deleted folder: one sentence, and earlier files stay as they were."""

import re
import shutil
import subprocess

import pytest
from tiny_runs import names, same, unfinished, weights

import vaswani_hf.tasks.translation
import vaswani_hf.training.finished
import vaswani_hf.training.run_results
from vaswani_hf.training.callbacks import RunLogCallback
from vaswani_hf.training.trainer import VaswaniTrainer

SLOW = pytest.mark.slow
BOTH = ["checkpoint-4", "checkpoint-8"]
# For each stage: a function, the number of the call that fails, and the checkpoints that stay.
STAGES = {
    "a checkpoint": (VaswaniTrainer, "_save_checkpoint", 2, BOTH[:1]),
    "the optimizer": (VaswaniTrainer, "_save_optimizer_and_scheduler", 2, BOTH[:1]),
    "the log": (RunLogCallback, "_write", 5, BOTH[:1]),
    "the final weights": (vaswani_hf.training.finished, "save_model", 1, BOTH),
    "the translations": (vaswani_hf.tasks.translation, "translate_and_measure", 1, BOTH),
    "the picture": (vaswani_hf.training.run_results, "plot_training_curve", 1, BOTH),
}


def stages(*fast):
    """Mark each stage that is not an argument as a slow test."""
    return [pytest.param(stage, marks=[] if stage in fast else SLOW) for stage in STAGES]


@pytest.fixture
def disk(tmp_path):
    """A mounted disk of 3 MB that can be filled and made read-only; mounting needs rights."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)]
    if subprocess.run(command, capture_output=True).returncode:
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


def remount(place, how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


@pytest.fixture
def train_until(finished, train_command, monkeypatch):
    """Train in a folder and call a function before this stage; late stages use a finished run."""

    def train_until(folder, stage, function):
        owner, name, number, left = STAGES[stage]
        if left == BOTH:
            unfinished(shutil.copytree(finished, folder))
        original, calls = getattr(owner, name), []

        def changed(*args, **kwargs):
            calls.append(True)
            if len(calls) == number:
                function()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, changed)
        code, _, sentence = train_command("--resume=true", folder=folder)
        assert code == 1
        return sentence

    return train_until


def assert_goes_on(folder, stage, train_command, finished):
    assert names(folder) == STAGES[stage][-1]
    assert train_command("--resume=true", folder=folder)[0] == 0
    assert same(weights(folder), weights(finished))


@pytest.mark.parametrize("stage", stages("the optimizer", "the log", "the translations"))
def test_a_full_disk_costs_nothing_that_was_there(train_command, finished, disk, train_until, stage):
    folder = disk / "run"
    sentence = train_until(folder, stage, lambda: fill(disk))
    assert re.fullmatch(
        rf"'{folder}' could not be written: .* \([01] MiB are free there\); make room and try again.",
        sentence,
    )
    (disk / "filler").unlink()
    assert_goes_on(folder, stage, train_command, finished)


@pytest.mark.parametrize("stage", stages("the final weights"))
def test_a_disk_that_becomes_read_only_is_named(train_command, finished, disk, train_until, stage):
    folder = disk / "run"
    sentence = train_until(folder, stage, lambda: remount(disk, "ro"))
    assert sentence == (
        f"'{folder}' could not be written: Read-only file system; repair the disk, or give another folder."
    )
    remount(disk, "rw")
    assert_goes_on(folder, stage, train_command, finished)


def test_a_read_only_folder_is_named_before_anything_is_done(train_command, disk):
    remount(disk, "ro")
    code, _, sentence = train_command(folder=disk / "run")
    assert code == 1
    assert sentence == (
        f"'{disk}/run' could not be written: Read-only file system; repair the disk, or give another folder."
    )


@pytest.mark.parametrize("stage", stages("the optimizer", "the log", "the final weights", "the picture"))
def test_an_output_folder_that_vanishes_is_named(train_until, tmp_path, stage):
    folder = tmp_path / "run"
    sentence = train_until(folder, stage, lambda: shutil.rmtree(folder))
    assert sentence == f"'{folder}' has vanished while the run wrote into it; start the run again."


@pytest.mark.parametrize(
    ("lines", "errors"),
    [pytest.param(0, "apart", marks=SLOW), pytest.param(3, "apart", marks=SLOW), (3, "in the same pipe")],
)
def test_a_run_outlives_the_reader_of_its_output(run, python, tmp_path, lines, errors):
    command = [python, "-m", "vaswani_hf.cli", "train", str(run.recipe), f"--output_dir={tmp_path / 'run'}"]
    with open(tmp_path / "errors", "w+", encoding="utf-8") as file:
        stderr = file if errors == "apart" else subprocess.STDOUT
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
            for _ in range(lines):
                process.stdout.readline()
            process.stdout.close()
            code = process.wait(500)
        file.seek(0)
        said = file.read()
    assert code == 0, said
    assert "Traceback" not in said
    assert names(tmp_path / "run")[-1] == "checkpoint-8"
    assert (tmp_path / "run" / "results.json").exists()
