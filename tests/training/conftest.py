"""A tiny recipe and its runs."""

import shutil
from pathlib import Path

import pytest
from tiny_runs import RECIPE

from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import train


@pytest.fixture(autouse=True, scope="module")
def small_held_out():
    """Few numbers to validate and test on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 20)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of the recipe, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "recipe").write_text(RECIPE, encoding="utf-8")
    train(load_recipe(folder / "recipe", [f"--output_dir={folder / 'run'}"]))
    return folder / "run"


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of that folder, as if the run had been made in it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def run(tmp_path):
    """Train the recipe with these overrides in a folder of this name, and give back the folder."""
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")

    def run(name, *overrides):
        train(load_recipe(path, [f"--output_dir={tmp_path / name}", *overrides]))
        return tmp_path / name

    run.recipe = path
    return run
