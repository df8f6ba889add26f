"""The wheel, the source distribution, the recipes of the package by name, and the instruction to install the
package.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from vaswani_hf.packaged import describe_recipes, find_recipe, packaged_folder, packaged_recipes
from vaswani_hf.recipe import load_recipe
from vaswani_hf.version import INSTALL_INSTRUCTION

ROOT = Path(__file__).parents[1]


@cache
def tracked_files() -> list[Path]:
    """The files of the repository, without what tools and runs have written.

    The source distribution and a copy without git have all files that .gitignore does not name.
    """
    if shutil.which("git"):
        command = ["git", "ls-files", "-z"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
        if tracked := [Path(name) for name in names if (ROOT / name).is_file()]:
            return tracked
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    ignored |= {".git", "_build"}
    found = []
    for folder, folders, names in os.walk(ROOT):
        # The environment `.venv` has thousands of files.
        folders[:] = [name for name in folders if name not in ignored]
        found += [Path(folder, name).relative_to(ROOT) for name in names if name not in ignored]
    return found


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with the wheel and the source distribution of a copy of the repository."""
    copy = tmp_path_factory.mktemp("copy")
    for path in tracked_files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy / path)
    (copy / "model_cards" / "a_card.md").write_text("A card that was committed.")
    (copy / "checkpoints").mkdir()
    (copy / "checkpoints" / "model.safetensors").write_text("A model that was trained.")
    code = "import hatchling.build as b; b.build_wheel('out'); b.build_sdist('out')"
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    return copy / "out"


def test_the_wheel_holds_the_recipes_and_the_template_and_no_tests(distributions):
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"vaswani_hf/model_cards/template.md", "vaswani_hf/py.typed"} <= {*names}
    for path in (ROOT / "configuration").rglob("*.yaml"):
        assert f"vaswani_hf/{path.relative_to(ROOT).as_posix()}" in names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"vaswani_hf"}
    assert not [name for name in names if "a_card" in name or "test" in name]


def test_the_source_distribution_holds_every_file_of_the_repository(distributions):
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {path.as_posix() for path in tracked_files()} <= names
    assert "checkpoints/model.safetensors" not in names


@pytest.fixture(scope="module")
def described() -> list[dict]:
    return describe_recipes()


def test_each_recipe_of_the_package_has_a_name_a_purpose_and_its_data(described):
    recipes = {recipe["name"]: recipe for recipe in described}
    assert {"numbers", "wmt14/base_en_de", "table3/c_n_2"} <= recipes.keys() == packaged_recipes().keys()
    for recipe in recipes.values():
        assert recipe["purpose"].endswith(".") and len(recipe["purpose"]) > 30 and recipe["data"]
    assert recipes["numbers"]["data"] == "none, because the package generates the corpus"
    assert recipes["table3/c_n_2"]["data"] == "the dataset wmt/wmt14 of the Hub"
    assert recipes["parsing_wsj"]["task"] == "parsing"


def test_a_recipe_of_the_package_runs_by_its_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("numbers").mkdir()
    assert load_recipe("numbers").training.max_steps == 2000
    assert load_recipe("wmt14/big_en_fr").model.d_model == 1024
    Path("mine.yaml").write_text("extends: numbers\noutput_dir: out\ntraining: {max_steps: 3}\n")
    mine = load_recipe("mine.yaml")
    assert (mine.output_dir, mine.training.max_steps, mine.data.corpus) == ("out", 3, "numbers")
    Path("parsing").write_text(Path("mine.yaml").read_text())
    assert load_recipe("parsing").task == "translation"
    assert find_recipe("numbers.yaml") == Path("numbers.yaml")


@pytest.mark.parametrize("name", ["numbrs", "configuration/numbers.yaml"])
def test_an_unknown_recipe_is_answered_by_similar_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="No such file .*; the package has recipes with the names numbers, "):
        load_recipe(name)


def test_vaswani_recipes_lists_and_prints(vaswani, described):
    code, out, _ = vaswani("recipes", "--json")
    assert code == 0 and json.loads(out) == described
    code, out, _ = vaswani("recipes")
    assert "\nnumbers\n    The recipe of the quick start" in out
    assert vaswani("recipes", "numbers")[1] == (ROOT / "configuration" / "numbers.yaml").read_text()
    assert vaswani("recipes", "--folder")[1] == f"{packaged_folder('configuration')}\n"
    assert "similar names are numbers," in vaswani("recipes", "numbrs")[2]


def test_no_text_advises_to_install_a_name_that_is_free_on_pypi():
    for name in ("README.md", "docs/tutorials/quick_start.md"):
        words = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert INSTALL_INSTRUCTION.removesuffix(".") in words, name
    for path in tracked_files():
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".txt", "") and path != Path(
            "tests/test_packaging.py"
        ):
            text = (
                (ROOT / path).read_text(encoding="utf-8").replace("Do not run `pip install vaswani_hf`", "")
            )
            assert not re.search(r"install\s+[\"']?vaswani[_-]hf", text), path
