"""The commands and snippets of the README's section "Share a model", run as written against the local Hub."""

import re
import shlex
import subprocess
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from factories import loaded_recipe
from huggingface_hub import constants

from vaswani_hf.cli import main
from vaswani_hf.training import train

README = Path(__file__).parents[2] / "README.md"
# The quick start's recipe, small enough to be run here.
CHANGES = {
    "tokenizer.vocab_size": 270,
    "training.max_steps": 4,
    "training.save_steps": 1,
    "training.logging_steps": 1,
}
SWITCHES = {"HF_HUB_DISABLE_XET=1", "HF_HUB_OFFLINE=1"}
ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vaswani_hf":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def blocks_of(section):
    """The indented blocks of a section, without their indentation."""
    text = README.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)]


def run_commands(block, environment):
    for command in block.replace("\\\n", " ").strip().splitlines():
        if not command.strip():
            continue
        words = shlex.split(command)
        switches = [word.removesuffix("=1") for word in words if word in SWITCHES]
        if words[len(switches)] == ".venv/bin/vaswani":
            # In this process, which has imported everything already, with what these variables would have set.
            with pytest.MonkeyPatch.context() as patch:
                for name in switches:
                    patch.setattr(constants, name, True)
                assert main(words[len(switches) + 1 :]) == 0, command
        else:
            result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
            assert result.returncode == 0, f"{command}\n{result.stderr}"


def write_command(folder, name, python):
    """A script that runs a command of the environment in a Python that has imported torch."""
    (entry,) = entry_points(group="console_scripts", name=name)
    program = f"import sys; from {entry.module} import {entry.attr} as main; sys.exit(main())"
    (folder / name).write_text(f'#!/bin/sh\nexec {python} -c "{program}" "$@"\n')
    (folder / name).chmod(0o755)


@pytest.fixture
def machine(hub, few_numbers, fresh_python, tmp_path, monkeypatch):
    """A folder with a small quick start behind it, a user with a token, and the environment of the commands."""
    token = hub.add_token("user")
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    Path(".venv/bin").mkdir(parents=True)
    for name in ("hf", "vaswani"):
        write_command(Path(".venv/bin"), name, fresh_python)
    Path("configuration").mkdir()
    train(loaded_recipe(Path("configuration/numbers.yaml"), CHANGES, output_dir="checkpoints/numbers"))
    return hub.environment(token) | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_UPDATE_CHECK": "1"}


def test_every_command_and_snippet_of_sharing_runs(python, fresh_python, hub, machine, tmp_path, capsys):
    # The run of the README is stopped half-way, which is after 450 of its steps.
    blocks = [block.replace("--max_steps 450", "--max_steps 2") for block in blocks_of("Share a model")]
    assert len(blocks) >= 8 and sum("import" in block for block in blocks) == 2
    for block in blocks:
        if "import" not in block:
            run_commands(block, machine)
        else:
            # Where the package is absent nothing may have imported it.
            command = (
                [fresh_python, "-c", ABSENT + block]
                if "trust_remote_code" in block
                else [python, "-c", block]
            )
            result = subprocess.run(command, capture_output=True, text=True, env=machine)
            assert result.returncode == 0, result.stderr
            assert "translation_text" in result.stdout
    assert {"v1.0", "experiment"} <= {
        name.split("/")[-1] for name in hub.repository("user/numbers-en-de").refs()
    }
    assert hub.repository("user/numbers-private").private
    printed = capsys.readouterr().out
    assert printed.count("checked: downloaded at ") >= 7
    assert "continuing from 'last-checkpoint' of user/numbers-run, step 2" in printed
