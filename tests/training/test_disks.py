"""A full or read-only disk and a deleted folder: one sentence, and earlier files stay as they were."""

import errno
import os
import re
import resource
import shutil
import subprocess

import pytest
from tiny_runs import names, same, unfinished, weights

import vaswani_hf.tasks.translation
import vaswani_hf.training.finished
import vaswani_hf.training.run_results
from vaswani_hf.training.callbacks import RunLogCallback
from vaswani_hf.training.trainer import VaswaniTrainer

BOTH = ["checkpoint-4", "checkpoint-8"]
# For each stage: a function, the number of the call that fails, and the checkpoints that stay.
STAGES = {
    "the optimizer": (VaswaniTrainer, "_save_optimizer_and_scheduler", 2, BOTH[:1]),
    "the log": (RunLogCallback, "_write", 5, BOTH[:1]),
    "the final weights": (vaswani_hf.training.finished, "save_model", 1, BOTH),
    "the translations": (vaswani_hf.tasks.translation, "translate_and_measure", 1, BOTH),
    "the picture": (vaswani_hf.training.run_results, "plot_training_curve", 1, BOTH),
}


def fail_as_read_only(*args, **kwargs):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


READ_ONLY = "'{}' could not be written: Read-only file system; repair the disk, or give another folder."


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


@pytest.mark.parametrize("stage", ["the optimizer", "the translations"])
def test_a_full_disk_costs_nothing_that_was_there(train_command, finished, tmp_path, train_until, stage):
    folder, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        sentence = train_until(
            folder, stage, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.fullmatch(
        rf"'{folder}' could not be written: .* \([\d,]+ MiB are free there\); free disk space and try again.",
        sentence,
    )
    assert_goes_on(folder, stage, train_command, finished)


def test_a_disk_that_becomes_read_only_is_named(train_command, finished, tmp_path, train_until):
    folder = tmp_path / "run"
    assert train_until(folder, "the final weights", fail_as_read_only) == READ_ONLY.format(folder)
    assert_goes_on(folder, "the final weights", train_command, finished)


def test_a_read_only_folder_is_named_before_anything_is_done(train_command, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", fail_as_read_only)
        code, _, sentence = train_command()
    assert (code, sentence) == (1, READ_ONLY.format(tmp_path / "run"))


@pytest.mark.parametrize("stage", ["the log", "the final weights", "the picture"])
def test_an_output_folder_that_vanishes_is_named(train_until, tmp_path, stage):
    folder = tmp_path / "run"
    sentence = train_until(folder, stage, lambda: shutil.rmtree(folder))
    assert sentence == f"'{folder}' has vanished while the run wrote into it; start the run again."


def test_a_run_outlives_the_reader_of_its_output(run, python, tmp_path):
    command = [python, "-m", "vaswani_hf.cli", "train", str(run.recipe), f"--output_dir={tmp_path / 'run'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for _ in range(3):
            process.stdout.readline()
        process.stdout.close()
        assert process.wait(500) == 0
    assert names(tmp_path / "run")[-1] == "checkpoint-8"
    assert (tmp_path / "run" / "results.json").exists()
