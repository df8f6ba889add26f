"""Two runs in one folder: the second is refused in one sentence and changes nothing, until the first has ended or was killed."""

import re
import time

import pytest
from mortal_runs import PATIENCE, live, slow_at
from tiny_runs import RECIPE, same, weights

from vaswani_hf.checkpoint.locks import InUseError
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import train
from vaswani_hf.training.callbacks import RunLogCallback
from vaswani_hf.training.run import finish_run

FLOAT32 = "--bf16=false"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def wait_for(path):
    end = time.monotonic() + PATIENCE.total_seconds()
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert path.exists()


@pytest.mark.parametrize(("processes", "stage"), [(1, "_load_corpus"), (2, "finish_run")])
def test_a_second_run_in_a_folder_is_refused_and_the_first_goes_on_when_it_was_killed(
    tmp_path, processes, stage
):
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(RECIPE, encoding="utf-8")
    keys = (FLOAT32, f"--gradient_accumulation_steps={2 // processes}", "--dataloader_num_workers=1")
    first = live(recipe, folder, *keys, processes=processes, moment=slow_at("vaswani_hf.training.run", stage))
    wait_for(folder.with_suffix(".slow"))
    before = contents(folder)
    # With another seed, which would make other weights.
    other = live(recipe, tmp_path / "run" / ".." / "run", *keys, "--seed=2", processes=processes)
    assert other.wait() == [1] * processes
    assert re.fullmatch(
        rf"vaswani: `output_dir` '{folder}' is in use by process {first.processes[0].pid} on \S+ since [\d: +-]+; "
        "wait until it ends, or choose another `--output_dir`.\n",
        other.said(),
    )
    assert contents(folder) == before
    # Its workers and the other process of the run live longer.
    first.processes[0].kill()
    first.processes[0].join()
    again = live(recipe, folder, *keys, processes=processes)
    first.processes[-1].kill()
    assert again.wait() == [0] * processes, again.said()
    assert not (folder / ".lock").exists()
    whole = live(recipe, tmp_path / "whole", *keys, processes=processes)
    assert whole.wait() == [0] * processes
    assert same(weights(folder), weights(tmp_path / "whole"))


def test_two_runs_in_one_process_are_two(run, tmp_path, monkeypatch):
    sentences = []

    def finish(recipe, trainer):
        with pytest.raises(InUseError) as raised:
            train(load_recipe(run.recipe, [f"--output_dir={tmp_path / 'run'}", "--resume=true"]))
        sentences.append(str(raised.value))
        finish_run(recipe, trainer)

    monkeypatch.setattr("vaswani_hf.training.run.finish_run", finish)
    folder = run("run", FLOAT32, "--max_steps=1")
    assert len(sentences) == 1 and "is in use by process" in sentences[0]
    assert not (folder / ".lock").exists()
    # A run that is refused before it has written anything leaves no folder.
    with pytest.raises(ValueError, match="frozen"):
        run("new/folder", "--frozen=none")
    assert not (tmp_path / "new").exists()


def test_a_run_does_not_write_into_the_folder_of_another_run(run, vaswani, tmp_path, monkeypatch):
    folder, moved = tmp_path / "run", tmp_path / "moved"
    write = RunLogCallback._write

    def replace(self, row):
        if not moved.exists():
            folder.rename(moved)
            folder.mkdir()
            (folder / "recipe.yaml").write_text("of another run")
        write(self, row)

    monkeypatch.setattr(RunLogCallback, "_write", replace)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}", FLOAT32)
    assert code == 1
    assert sentence == (
        f"'{folder}' was replaced by another folder while the run wrote into it; start the run again, in another folder."
    )
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]
