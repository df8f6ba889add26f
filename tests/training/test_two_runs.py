"""Two runs in one folder: the second is refused and changes nothing, until the first run has ended or was
killed.
"""

import re

import pytest
from factories import files_in
from mortal_runs import live, slow_at
from tiny_runs import same, weights

from vaswani_hf.checkpoint.locks import InUseError
from vaswani_hf.training.callbacks import RunLogCallback
from vaswani_hf.training.run import finish_run

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.mark.parametrize(
    ("processes", "stage"), [(1, "_load_corpus"), pytest.param(2, "finish_run", marks=pytest.mark.slow)]
)
def test_a_second_run_in_a_folder_is_refused_and_the_first_goes_on_when_it_was_killed(
    run, whole, tmp_path, processes, stage
):
    folder, options = tmp_path / "run", [f"--gradient_accumulation_steps={2 // processes}"]
    if processes == 2:
        options.append("--dataloader_num_workers=1")
    moment = slow_at("vaswani_hf.training.run", stage)
    first = live(run.recipe, folder, *options, processes=processes, moment=moment)
    first.wait_for_slow(folder)
    before = files_in(folder)
    # Use another seed, because another seed would give other weights.
    other = live(run.recipe, tmp_path / "run" / ".." / "run", *options, "--seed=2", processes=processes)
    assert other.wait() == [1] * processes
    assert re.fullmatch(
        rf"vaswani: `output_dir` '{folder}' is in use by process {first.processes[0].pid} on \S+ since [\d: +-]+; "
        "wait until it ends, or choose another `--output_dir`.\n",
        other.said(),
    )
    assert files_in(folder) == before
    # Kill the first process only, so that the workers and the other process of the run live longer.
    first.processes[0].kill()
    first.processes[0].join()
    again = live(run.recipe, folder, *options, processes=processes)
    first.processes[-1].kill()
    assert again.wait() == [0] * processes, again.said()
    assert not (folder / ".lock").exists()
    expected = whole()
    if processes == 2:
        expected = tmp_path / "whole"
        assert live(run.recipe, expected, *options, processes=2).wait() == [0, 0]
    assert same(weights(folder), weights(expected))


def test_two_runs_in_one_process_are_two(run, tmp_path, monkeypatch):
    sentences = []

    def finish(recipe, trainer):
        with pytest.raises(InUseError) as raised:
            run("run", "--resume=true")
        sentences.append(str(raised.value))
        finish_run(recipe, trainer)

    monkeypatch.setattr("vaswani_hf.training.run.finish_run", finish)
    folder = run("run", "--max_steps=1")
    assert len(sentences) == 1 and "is in use by process" in sentences[0]
    assert not (folder / ".lock").exists()
    # A run that is refused before it has written anything leaves no folder.
    with pytest.raises(ValueError, match="frozen"):
        run("new/folder", "--frozen=none")
    assert not (tmp_path / "new").exists()


def test_a_run_does_not_write_into_the_folder_of_another_run(train_command, tmp_path, monkeypatch):
    folder, moved = tmp_path / "run", tmp_path / "moved"
    write = RunLogCallback._write

    def replace(self, row):
        if not moved.exists():
            folder.rename(moved)
            folder.mkdir()
            (folder / "recipe.yaml").write_text("of another run")
        write(self, row)

    monkeypatch.setattr(RunLogCallback, "_write", replace)
    code, _, sentence = train_command()
    assert code == 1
    assert sentence == (
        f"'{folder}' was replaced by another folder while the run wrote into it; start the run again, in another folder."
    )
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]
