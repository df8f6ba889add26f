"""Every code block of README and of the manual runs as written, one process per page."""

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from blocks import LANGUAGES, RUNNABLE, Block, blocks_of
from page_runner import small_recipe

from vaswani_hf.data.toy_corpora import english_words, german_words
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import train

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).parent / "page_runner.py"
WARM_COMMAND = Path(__file__).parent / "warm_command.py"
# Pages that scripts generate have no other code blocks than the pages of the manual.
GENERATED = {"commands.md", "recipe_keys.md"}
# This page only runs the script that the page includes. The build of the manual runs the script: see
# test_build.py.
BUILT = {"paper.md"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED | BUILT)
# The commands of these pages train or push several times, or start several processes. Other tests run each of
# these commands.
SLOW = {"ablation.md", "distill.md", "own_attention.md", "private_pushes.md", "several_processes.md"}
# A page that has this command makes the checkpoint of the quick start itself. All other pages find the
# checkpoint.
QUICK_START = re.compile(r"^vaswani train numbers$", re.MULTILINE)
COMMANDS = {
    "vaswani": f'"{WARM_COMMAND}" vaswani',
    "python": "",
    "accelerate": "-m accelerate.commands.accelerate_cli",
    "hf": f'"{WARM_COMMAND}" hf',
}
# Output lines that show that the commands of a page worked.
PRINTED = {
    "docs/how_to/private_pushes.md": "checked: downloaded at ",
    "docs/how_to/resume.md": "continuing from 'last-checkpoint' of user/numbers-run, step 2",
    "docs/tutorials/sharing.md": "'translation_text': ",
}
# Python blocks with this word run without the package, as on the machine of somebody who has not installed
# it.
WITHOUT_PACKAGE = "trust_remote_code"
ABSENT = """
import sys
# Python raises ModuleNotFoundError for a module that is None.
sys.modules["vaswani_hf"] = None
"""


def runnable(page: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.language in RUNNABLE and block.mark is None]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder with recipes, checkpoints and text files under the names that the pages use."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "configuration", folder / "configuration")
    for recipe in (folder / "configuration").glob("*.yaml"):
        recipe.write_text(yaml.safe_dump(small_recipe(yaml.safe_load(recipe.read_text()))))
    # A file that exists takes the place of the recipe of the package with the same name.
    shutil.copy(folder / "configuration" / "numbers.yaml", folder / "numbers")
    for name in ("scripts", "tests", "vaswani_hf", "Makefile"):
        (folder / name).symlink_to(ROOT / name)
    _write_pairs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 10)
        train(load_recipe("configuration/numbers.yaml"))
    return folder


def _write_pairs(folder: Path) -> None:
    """Parallel text files: numbers in words."""
    numbers = random.Random(1).sample(range(1000), 240)
    for name, part in (("train", numbers[:200]), ("valid", numbers[200:220]), ("test", numbers[220:])):
        (folder / f"{name}.en").write_text("".join(f"{english_words(number)}\n" for number in part))
        (folder / f"{name}.de").write_text("".join(f"{german_words(number)}\n" for number in part))
    # A file in the format of manythings.org.
    rows = [f"{english_words(number)}\t{german_words(number)}\tCC-BY 2.0\n" for number in numbers]
    (folder / "deu.txt").write_text("".join(rows))


@pytest.fixture
def folder_of_page(prepared, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(prepared, folder, symlinks=True)
    return folder


@pytest.fixture
def environment(python, hub, tmp_path):
    """The environment of a block: a warm interpreter, and a user who is logged in to the local Hub."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, arguments in COMMANDS.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{python}" {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    token = hub.add_token("user")
    variables = hub.environment(token) | {"HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    variables["HF_HUB_DISABLE_UPDATE_CHECK"] = "1"
    return {**os.environ, **variables, "PATH": f"{commands}:{os.environ['PATH']}"}


def run(python: str, blocks: list[Block], folder: Path, environment: dict[str, str]) -> str:
    """Run blocks in one process and give back what they print."""
    path = folder / "blocks.json"
    path.write_text(json.dumps([dataclasses.asdict(block) for block in blocks]))
    command = [python, str(RUNNER), str(path)]
    result = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in SLOW else page for page in PAGES],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_code_block_of_a_page_runs(page, request):
    text = page.read_text(encoding="utf-8")
    unknown = [block for block in blocks_of(text) if block.language not in LANGUAGES]
    assert not unknown, f"{page.name}:{unknown[0].line}: the language must be one of {', '.join(LANGUAGES)}."
    blocks = runnable(text)
    if not blocks:
        return
    # Only pages with blocks need these fixtures.
    folder = request.getfixturevalue("folder_of_page")
    variables = request.getfixturevalue("environment")
    python = request.getfixturevalue("python")
    if any(QUICK_START.search(block.code) for block in blocks):
        shutil.rmtree(folder / "checkpoints/numbers")
    warm = [block for block in blocks if WITHOUT_PACKAGE not in block.code]
    printed = run(python, warm, folder, variables)
    assert PRINTED.get(page.relative_to(ROOT).as_posix(), "") in printed
    for block in blocks:
        if block not in warm:
            # A Python that has not imported the package.
            fresh_python = request.getfixturevalue("fresh_python")
            subprocess.run([fresh_python, "-c", ABSENT + block.code], cwd=folder, env=variables, check=True)


@pytest.mark.slow
def test_the_exports_of_a_page_write_graphs(monkeypatch, request):
    monkeypatch.setenv("TRACE", "1")
    test_every_code_block_of_a_page_runs(ROOT / "docs" / "how_to" / "fast_serving.md", request)
    assert list(request.getfixturevalue("folder_of_page").rglob("*.onnx"))


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "false\ntrue\n"),
        ("python", "raise ValueError\n"),
        ("yaml", "training: {max_step: 3}\n"),
        ("yaml", "output_dir: out\n"),
    ],
)
def test_a_block_that_does_not_run_is_found(language, code, python, tmp_path):
    with pytest.raises(AssertionError, match=f"The {language} block in line 7 does not run"):
        run(python, [Block(7, language, code)], tmp_path, dict(os.environ))


def test_only_a_visible_mark_excludes_a_block():
    page = "Text.\n\n*Needs a GPU.*\n\n```bash\nfalse\n```\n\nIt needs a GPU.\n\n```bash\ntrue\n```\n"
    first, second = blocks_of(page)
    assert (first.mark, first.line) == ("a GPU", 6)
    assert second.mark is None
    assert runnable(page) == [second]
