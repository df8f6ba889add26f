"""Numbered checkpoints are complete or absent, damage is detected, and interruptions change nothing."""

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tiny_runs import DAMAGES, eval_steps, metrics, names, results, same, unfinished, weights, write_pairs
from transformers import TrainerState

from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.training.averaging import average_weights
from vaswani_hf.training.checkpoints import best_checkpoint, reason_to_stop
from vaswani_hf.training.losses import DivergedRunError
from vaswani_hf.training.run import InterruptedRunError

AVERAGED = "--average_checkpoints=3 --save_total_limit=3 --save_steps=2"


def send(number):
    """A function that sends a signal to this process."""
    return lambda trainer: os.kill(os.getpid(), number)


def damage(folder, name="optimizer.pt", kind="truncated"):
    DAMAGES[kind](unfinished(folder) / "checkpoint-8" / name)


def test_a_folder_without_a_final_model_lists_its_checkpoints(copied, vaswani, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_some")
    sentence = (
        f"`model` must be a finished model, but '{unfinished(copied)}' holds only checkpoints of a run (checkpoint-4, checkpoint-8); name a "
        f"checkpoint, such as '{copied}/checkpoint-8', or finish the run with `vaswani train` and `--resume true`."
    )
    assert vaswani("translate", copied, "--text", "one") == (2, "", sentence)
    # A run writes config.json at its end.
    (copied / "config.json").unlink()
    for words in (
        ["translate", copied, "--text", "one"],
        ["push", copied, "user/name"],
        ["export", copied, copied.parent / "out", "--format", "marian"],
    ):
        assert vaswani(*words) == (2, "", sentence)


def test_a_damaged_manifest_of_an_old_checkpoint_is_reported_when_it_is_deleted(run, copied, capsys):
    DAMAGES["flipped"](unfinished(copied) / "checkpoint-4" / "manifest.json")
    run("run", "--resume=true --max_steps=12 --save_total_limit=1")
    said = capsys.readouterr().out
    assert (
        f"deleting '{copied}/checkpoint-4', which is older than the kept checkpoints and damaged: manifest.json is damaged"
        in said
    )
    assert names(copied) == ["checkpoint-12"]


def test_a_checkpoint_that_a_killed_run_was_replacing_is_put_back_before_the_recipe_is_checked(run, copied):
    final = weights(copied)
    replaced = unfinished(copied) / ".saving" / "checkpoint-8.replaced"
    replaced.parent.mkdir()
    (copied / "checkpoint-8").rename(replaced)
    shutil.rmtree(copied / "checkpoint-4")
    with pytest.raises(ValueError, match="^`seed` is 2, but the run in"):
        run("run", "--resume=true --seed=2")
    assert names(copied) == ["checkpoint-8"]
    assert same(weights(run("run", "--resume=true")), final)
    assert not replaced.exists()


def test_a_save_that_is_cut_off_leaves_the_checkpoints_as_they_are(run, before_method, finished, tmp_path):
    def cut(trainer):
        raise KeyboardInterrupt

    before_method(8, cut, "_save_optimizer_and_scheduler")
    with pytest.raises(KeyboardInterrupt):
        run("run")
    assert names(tmp_path / "run") == ["checkpoint-4"]
    assert same(weights(run("run", "--resume=true")), weights(finished))
    assert not (tmp_path / "run" / ".saving").exists()


def test_a_checkpoint_that_was_saved_for_a_signal_takes_no_part_in_the_average(
    run, whole, before_method, tmp_path
):
    expected = whole(AVERAGED)
    before_method(6, send(signal.SIGTERM))
    with pytest.raises(InterruptedRunError):
        run("part", AVERAGED)
    # The additional checkpoint of an interruption does not cause the deletion of a scheduled checkpoint.
    assert names(tmp_path / "part") == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-7"]
    part = run("part", AVERAGED, "--resume=true")
    assert names(part) == names(expected) == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert results(part)["training"]["averaged_steps"] == [4, 6, 8]
    assert same(weights(part), weights(expected))


def test_a_signal_to_the_whole_group_leaves_the_loader_at_work(run, before_method, tmp_path):
    def signal_all(trainer):
        for process in (*multiprocessing.active_children(), multiprocessing.current_process()):
            os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.5)

    before_method(2, signal_all, "get_batch_samples")
    with pytest.raises(InterruptedRunError, match="after step 3, which is saved"):
        run("run", "--dataloader_num_workers=1 --gradient_accumulation_steps=4")
    assert names(tmp_path / "run") == ["checkpoint-3"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [("model.safetensors", "has changed since it was saved"), ("manifest.json", "is damaged\n")],
)
def test_a_damaged_checkpoint_takes_no_part_in_the_average(run, copy_of, capsys, name, fault):
    folder = unfinished(copy_of(AVERAGED))
    DAMAGES["flipped"](folder / "checkpoint-6" / name)
    run("run", AVERAGED, "--resume=true")
    said = capsys.readouterr().out
    assert f"'{folder}/checkpoint-6' is not used for the final weights: {name} {fault}" in said
    assert "averaging the last 2 checkpoints" in said
    expected = average_weights([folder / f"checkpoint-{step}" / "model.safetensors" for step in (4, 8)])
    assert same(weights(folder), expected)


@pytest.mark.parametrize(("where", "bf16"), [("loss", "true"), ("gradient", "false")])
def test_a_run_that_diverges_ends_before_anything_is_saved(
    train_command, before_method, tmp_path, where, bf16
):
    def diverge(trainer):
        parameter = trainer.model.model.encoder.layers[0].fc1.weight
        if where == "loss":
            parameter.data[0, 0] = float("nan")
        else:
            parameter.register_hook(lambda gradient: gradient * float("inf"))

    before_method(5, diverge)
    code, printed, sentence = train_command(f"--bf16={bf16} --save_steps=3 --eval_steps=3")
    folder = tmp_path / "run"
    remedy = " or `training.bf16: false`" if bf16 == "true" else ""
    assert code == 1
    assert sentence == (
        f"The loss or the gradient of step 6 is not finite, at a learning rate of 1.02e-01; the last good checkpoint is "
        f"'{folder}/checkpoint-3'. Try a lower `training.learning_rate_factor`, more `training.warmup_steps`, "
        f"`training.max_grad_norm: 1`{remedy}, in another `--output_dir`."
    )
    assert "loss 0.0" not in printed
    assert names(folder) == ["checkpoint-3"]
    assert not (folder / "results.json").exists()


def test_a_path_through_a_folder_that_does_not_exist_leads_to_the_run(run, copied, tmp_path):
    before = weights(copied)
    with pytest.raises(ValueError, match="holds an earlier run"):
        run("new/../run", "--max_steps=9")
    assert same(weights(copied), before) and not (tmp_path / "new").exists()


NOT_IMPROVED = "validation {} has not improved in the last {} validations"


@pytest.mark.parametrize(
    ("metric", "scores", "keys", "reason", "best"),
    [
        ("bleu", [3, 9, 4, 4], {"patience": 2}, NOT_IMPROVED.format("bleu", 2), "checkpoint-4"),
        ("bleu", [3, 9, 4, 4], {"patience": 3}, "", "checkpoint-4"),
        # The best validation has no checkpoint.
        ("bleu", [9, 3, 4, 4], {"patience": 3}, NOT_IMPROVED.format("bleu", 3), "checkpoint-8"),
        ("loss", [3, 1, 2, 1], {"patience": 2}, NOT_IMPROVED.format("loss", 2), "checkpoint-4"),
        ("loss", [9, 8, 7, 6], {"score": 6}, "validation loss has reached 6", "checkpoint-8"),
        ("perplexity", [3, 1, 2, 2], {"patience": 2}, NOT_IMPROVED.format("perplexity", 2), "checkpoint-4"),
        ("bleu", [0, 0, 0, 0], {"score": 0}, "validation bleu has reached 0", "checkpoint-4"),
        ("bleu", [1, 2, 3, 4], {"score": 4.1}, "", "checkpoint-8"),
        ("loss", [1, 2, 3, 4], {}, "", None),
    ],
)
def test_early_stopping_by_the_validations(metric, scores, keys, reason, best):
    """The run validates every two steps, and saves the steps 4 and 8."""
    keys = {f"early_stopping_{name}": value for name, value in keys.items()}
    training = EncoderDecoderTraining(metric_for_best_model=metric, **keys)
    log = [{"step": 2 * turn, f"eval_{metric}": score} for turn, score in enumerate(scores, 1)]
    assert reason_to_stop(TrainerState(log_history=log), training) == reason
    found = best_checkpoint([Path("checkpoint-4"), Path("checkpoint-8")], training, log)
    assert (found and found.name) == best


# With the learning rate 0, no validation is better than the first, so the run stops early.
STOPPING = "--learning_rate_factor=0 --metric_for_best_model=bleu --validation_bleu=true --eval_steps=2 --save_steps=2"


def test_a_run_that_stopped_early_trains_no_more_when_it_was_killed_before_its_results(run, tmp_path, capsys):
    patience = "--early_stopping_patience={}"
    folder = run("run", STOPPING, patience.format(1))
    said = "stopped early at step 4: validation bleu has not improved in the last 1 validation; the final weights"
    assert said in capsys.readouterr().out
    moved = unfinished(folder).rename(tmp_path / "moved")
    run("moved", STOPPING, patience.format(1), "--resume=true")
    assert names(moved) == ["checkpoint-2", "checkpoint-4"]
    assert eval_steps(moved, "eval_bleu") == [2, 4]
    assert same(weights(moved), weights(moved / "checkpoint-2"))
    # The resumed run has a larger patience than the saved checkpoint, so the run trains further.
    unfinished(moved)
    run("moved", STOPPING, patience.format(2), "--resume=true")
    assert eval_steps(moved, "eval_bleu") == [2, 4, 6]


def test_early_stopping_compares_only_scores_of_the_same_texts_and_metric(run, train_command, tmp_path):
    train, validation = (
        write_pairs(tmp_path / f"{name}.jsonl", number_pairs(40, seed, "train"))
        for seed, name in enumerate(("train", "validation"))
    )
    files = f"--corpus=null --train_pairs={train} --validation_pairs={validation}"
    options = f"{STOPPING} {files} --early_stopping_score=101"
    folder = run("run", options, "--max_steps=2")
    longer = f"{options} --max_steps=4 --resume=true"
    end = f"the run in '{folder}' that is to be resumed, and early stopping would compare different scores;"
    code, _, sentence = train_command(longer, "--tokenize=char")
    assert code == 2 and sentence.startswith(f"`evaluation.tokenize` is 'char', but '13a' in {end}")
    rows = validation.read_text()
    validation.write_text(rows.replace("eins", "zwei"))
    code, _, sentence = train_command(longer)
    assert code == 2 and sentence.startswith(f"The validation texts differ from the texts of {end}")
    assert names(folder) == ["checkpoint-2"]
    # Without early stopping, or without a further validation, the run continues.
    assert train_command(f"{options} --max_steps=2 --resume=true --tokenize=char")[0] == 0
    assert train_command(longer.replace("score=101", "score=null"))[0] == 0


def test_the_best_checkpoint_survives_rotation(run):
    options = f"{STOPPING} --early_stopping_patience=3 --save_total_limit=2"
    folder = run("run", options)
    assert names(folder) == ["checkpoint-2", "checkpoint-8"]
    # If the best checkpoint is damaged, the best of the remaining checkpoints is used.
    (unfinished(folder) / "checkpoint-2" / "model.safetensors").write_bytes(b"")
    run("run", options, "--resume=true")
    assert same(weights(folder), weights(folder / "checkpoint-8"))


def test_a_checkpoint_before_a_damaged_later_one_stays(run, before_method, copied, capsys):
    damage(copied)
    options = "--resume=true --save_total_limit=1"
    before_method(5, send(signal.SIGTERM))
    with pytest.raises(InterruptedRunError, match="after step 6, which is saved"):
        run("run", options)
    assert names(copied) == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    run("run", options)
    assert "continuing from 'checkpoint-6'" in capsys.readouterr().out
    assert names(copied) == ["checkpoint-8"]


def test_a_divergence_before_a_damaged_checkpoint_does_not_call_that_one_good(run, before_method, copied):
    damage(copied)
    before_method(
        5, lambda trainer: trainer.model.model.encoder.layers[0].fc1.weight.data.fill_(float("nan"))
    )
    with pytest.raises(DivergedRunError, match="the last good checkpoint is '.*checkpoint-4'"):
        run("run", "--resume=true")


@pytest.mark.parametrize("method", ["evaluate", "_complete_checkpoint"])
def test_a_signal_after_the_last_step_ends_the_run_before_its_scores(
    run, finished, before_method, tmp_path, method
):
    before_method(8, send(signal.SIGTERM), method)
    with pytest.raises(InterruptedRunError, match="after step 8, which is saved"):
        run("run")
    assert not (tmp_path / "run" / "results.json").exists()
    assert same(weights(run("run", "--resume=true")), weights(finished))


def test_a_damaged_log_is_no_end_and_results_do_not_need_it(run, finished, copied):
    for name in ("manifest.json", "results.json", "metrics.jsonl"):
        (copied / name).unlink()
    run("run", "--resume=true")
    for key in ("steps", "target_tokens"):
        assert results(copied)["training"][key] == results(finished)["training"][key]
    (copied / "metrics.jsonl").write_bytes(b'\xff\xfe\n12\n{"a": 1}\n{"step": 8, "lo')
    run("run", "--resume=true --max_steps=10")
    assert metrics(copied)[-1]["step"] == 10


def test_a_split_to_score_on_may_be_given_when_a_run_has_ended(run, tmp_path, monkeypatch):
    for name, size in (("train", 30), ("test", 5)):
        write_pairs(tmp_path / f"{name}.jsonl", number_pairs(size, 1, "train"))
    options = f"--corpus=null --train_pairs={tmp_path}/train.jsonl --save_steps=2"
    folder = run("run", options, "--max_steps=2")
    before = results(folder)
    assert "test" not in before
    # Resume on another machine; the record of the training does not change.
    monkeypatch.setattr("vaswani_hf.training.run_results.hardware_name", lambda *_: "another machine")
    monkeypatch.setattr("vaswani_hf.training.run_results.__version__", "99.0")
    resumed = f"{options} --resume=true --max_steps="
    run("run", f"{resumed}2 --test_pairs={tmp_path}/test.jsonl")
    after = results(folder)
    assert after["test"]["sentences"] == 5
    assert after["training"] == before["training"]
    # If the resumed run does not name the test split, the scores stay.
    run("run", f"{resumed}2")
    assert results(folder) == after

    def interrupted(*_, **__):
        raise InterruptedRunError("A signal came while the test split was scored.")

    for place in ("tasks.translation.translate_and_measure", "training.finished.save_model"):
        with monkeypatch.context() as patched:
            patched.setattr(f"vaswani_hf.{place}", interrupted)
            with pytest.raises(InterruptedRunError):
                run("run", f"{resumed}2 --test_pairs={tmp_path}/train.jsonl")
    run("run", f"{resumed}2 --test_pairs={tmp_path}/train.jsonl")
    assert results(folder)["test"]["sentences"] == 30
    assert results(folder)["training"] == before["training"]
    run("run", f"{resumed}4")
    assert results(folder)["training"]["versions"]["vaswani_hf"] == "99.0"


def test_a_run_without_its_recipe_is_not_continued(run, copied):
    (copied / "manifest.json").unlink()
    (copied / "recipe.yaml").unlink()
    sentence = "holds an earlier run without its recipe.yaml; copy the whole folder of the run"
    with pytest.raises(ValueError, match=sentence):
        run("run", "--resume=true --max_steps=10")
