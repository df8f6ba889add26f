"""Runs of the tiny recipe."""

import functools
import shutil
from pathlib import Path

import pytest
from factories import write_recipe
from tiny_runs import call_before

from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import train

HELD_OUT = "vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT"


@pytest.fixture(autouse=True, scope="module")
def small_held_out():
    """Use few numbers for validation and test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HELD_OUT, 20)
        yield


@pytest.fixture(autouse=True)
def no_time_limit_after_a_signal(monkeypatch):
    """A run kills its process some seconds after a signal. A run on a slow machine would kill the process of
    the tests.
    """
    monkeypatch.setattr("vaswani_hf.training.stopping.SECONDS_TO_END", 10_000)
    monkeypatch.setattr("vaswani_hf.training.stopping.SECONDS_TO_SAVE", 10_000)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Give the folder of an uninterrupted run with these options. A process makes each run once; no test
    changes the folder.
    """

    @functools.cache
    def whole(options=""):
        folder = tmp_path_factory.mktemp("whole")
        path = write_recipe(folder / "recipe.yaml")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(HELD_OUT, 20)
            train(load_recipe(path, [f"--output_dir={folder / 'run'}", *options.split()]))
        return folder / "run"

    return whole


@pytest.fixture
def finished(whole):
    """The folder of a run of the recipe. No test changes the folder."""
    return whole()


@pytest.fixture
def copy_of(whole, tmp_path):
    """Copy the folder of an uninterrupted run with these options to the folder `run`."""

    def copy_of(options=""):
        return Path(shutil.copytree(whole(options), tmp_path / "run"))

    return copy_of


@pytest.fixture
def copied(copy_of):
    """A copy of the run of the recipe."""
    return copy_of()


@pytest.fixture
def run(tmp_path):
    """Train the recipe with these options, separated by spaces, in a folder of this name, and give the
    folder.
    """
    path = write_recipe(tmp_path / "recipe.yaml")

    def run(name, *options):
        train(load_recipe(path, [f"--output_dir={tmp_path / name}", *" ".join(options).split()]))
        return tmp_path / name

    run.recipe = path
    return run


@pytest.fixture
def train_command(run, vaswani, tmp_path):
    """Run `vaswani train` with these options in the folder `run`: the exit code, the output and the error
    sentence.
    """

    def train_command(*options, folder=tmp_path / "run"):
        return vaswani("train", run.recipe, f"--output_dir={folder}", *" ".join(options).split())

    return train_command


@pytest.fixture
def before_method(monkeypatch):
    """`call_before` for the duration of a test."""
    return functools.partial(call_before, set_attribute=monkeypatch.setattr)
