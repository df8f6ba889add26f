"""The log of a run has warnings before the training, an estimate of the hours, the name of the loss, and a
last line.
"""

import queue
import re

import pytest
from tiny_runs import metrics, results

from vaswani_hf import messages
from vaswani_hf.cli import main
from vaswani_hf.tasks.translation import TranslationData
from vaswani_hf.training import callbacks, recipe_model

PAIRS = [(f"the number {number}", f"die Zahl {number}") for number in range(60)]


@pytest.fixture
def files(tmp_path):
    """Two files of lines, as options of a recipe."""
    for side, column in (("en", 0), ("de", 1)):
        (tmp_path / f"train.{side}").write_text("".join(f"{pair[column]}\n" for pair in PAIRS))
    return f"--corpus=null --train_source={tmp_path / 'train.en'} --train_target={tmp_path / 'train.de'}"


def test_a_run_without_validation_estimates_its_time_and_ends_with_the_loss_and_the_checkpoint(
    run, files, capsys, monkeypatch
):
    monkeypatch.setattr(callbacks, "LEAST_SECONDS", 0.0)
    folder = run("run", files, "--max_steps=5 --logging_steps=3 --save_steps=5 --r_drop_alpha=2")
    lines = capsys.readouterr().out.splitlines()
    (estimate,) = [line for line in lines if line.startswith("estimated time: 0.00 hours in total, ")]
    assert "(mean of 3 steps); validations and the scores at the end take more time" in estimate
    name = "loss (label smoothing 0.1, r_drop_alpha 2)"
    steps = [line for line in lines if line.startswith("step ")]
    assert [line.split(" · ")[0] for line in steps] == ["step 3/5", "step 5/5"]
    assert all(f" · {name} " in line for line in steps)
    loss = metrics(folder)[-1]["loss"]
    assert lines[-1] == f"finished at step 5 · last {name} {loss:.4f} · the checkpoint is in '{folder}'"


def test_the_end_of_a_run_names_both_losses_and_sizes_are_checked_before_the_training(
    run, capsys, monkeypatch
):
    monkeypatch.setattr(recipe_model, "SMALL_VOCABULARY", 200)
    monkeypatch.setattr(recipe_model, "LEAST_TOKENS_PER_ENTRY", 10_000)
    monkeypatch.setattr(recipe_model, "MOST_PARAMETERS_PER_TOKEN", 0.1)
    folder = run("run", "--label_smoothing=0 --warmup_steps=9")
    lines = capsys.readouterr().out.splitlines()
    first_step = next(number for number, line in enumerate(lines) if line.startswith("step "))
    warnings = [line for line in lines[:first_step] if line.startswith("warning: ")]
    # This warning needs no data, so it is the first line.
    assert lines[0].startswith("warning: `training.warmup_steps` is 9, but the run has 8 steps")
    assert "`tokenizer.vocab_size` is 280 and far too large for the corpus" in warnings[1]
    assert warnings[1].endswith("give a smaller number, or add training data.")
    assert "the model is far too large for the corpus, because its layers have 4," in warnings[2]
    losses = [row for row in metrics(folder) if "eval_loss" in row]
    expected = (
        f"last loss {metrics(folder)[-2]['loss']:.4f} · last validation loss {losses[-1]['eval_loss']:.4f}"
    )
    assert lines[-1] == f"finished at step 8 · {expected} · the checkpoint is in '{folder}'"


def test_a_run_takes_its_validation_and_test_pairs_out_of_two_files(run, files, capsys):
    options = f"{files} --validation_size=7 --test_size=5"
    folder = run("run", options, "--max_steps=2 --save_steps=2")
    assert "validation: 7 examples were taken out of the training data" in capsys.readouterr().out
    counts = {split: report["kept"] for split, report in results(folder)["corpus"].items()}
    assert counts == {"train": 48, "validation": 7}
    assert results(folder)["test"]["sentences"] == 5
    assert results(folder)["data"]["test"]["split"] == "5 examples of the training data"
    run(
        "run",
        options,
        "--max_steps=4 --save_steps=2 --resume=true --early_stopping_patience=2 --eval_steps=2",
    )
    assert metrics(folder)[-1]["step"] == 4
    with pytest.raises(ValueError, match="`data.test_size` is 6"):
        run("run", f"{files} --validation_size=7 --test_size=6 --resume=true")


def test_one_file_for_both_sides_is_warned_about(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "train.en")
    keys = {"train_source": str(tmp_path / "train.en"), "train_target": str(tmp_path / "link")}
    (warning,) = TranslationData(source_language="en", target_language="de", **keys).warnings()
    assert warning.startswith("`data.train_source` and `data.train_target` both name the file ")


def test_a_run_shows_no_progress_bars_without_a_terminal(run, capfd):
    words = ["train", str(run.recipe), "--max_steps=1", f"--output_dir={run.recipe.parent / 'out'}"]
    assert main(words) == 0
    assert "examples/s" not in capfd.readouterr().err


def test_long_steps_print_lines_at_intervals_without_a_terminal(monkeypatch):
    monkeypatch.setattr(messages, "SECONDS_BETWEEN_LINES", 0.01)
    lines = queue.Queue()
    monkeypatch.setattr(messages, "say", lines.put)
    with messages.said_at_intervals("preparing the data"):
        for _ in range(2):
            assert re.fullmatch(r"preparing the data: \d+ seconds so far", lines.get(timeout=60))
