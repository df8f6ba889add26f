"""The numbered checkpoints of a run: whole or not there, damaged ones found, the same with and without interruptions."""

import errno
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import stat
import time

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import metrics, same, weights

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.training.averaging import average_checkpoints
from vaswani_hf.training.callbacks import RunLogCallback
from vaswani_hf.training.run import InterruptedRunError
from vaswani_hf.training.trainer import DivergedRunError, VaswaniTrainer


def names(folder):
    return [path.name for path in checkpoints_in(folder)]


def results_of(folder):
    return json.loads(
        (folder / "results.json").read_text(), parse_constant=lambda constant: pytest.fail(constant)
    )


@pytest.fixture
def at_step(monkeypatch):
    """Call a function in the first batch of a step, once."""

    def arrange(step, function):
        before, called = VaswaniTrainer.training_step, []

        def changed(self, *args, **kwargs):
            if self.state.global_step == step - 1 and not called:
                called.append(True)
                function(self)
            return before(self, *args, **kwargs)

        monkeypatch.setattr(VaswaniTrainer, "training_step", changed)

    return arrange


def unfinished(folder):
    """As if the run had been killed between its last checkpoint and its results."""
    for name in ("manifest.json", "results.json", "model.safetensors"):
        (folder / name).unlink()
    return folder


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip_a_bit,
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("optimizer.pt", "missing"),
        ("scheduler.pt", "missing"),
        ("model.safetensors", "flipped"),
        ("rng_state.pth", "zeroed"),
        ("optimizer.pt", "cut"),
        ("config.json", "empty"),
        ("trainer_state.json", "cut"),
        ("manifest.json", "missing"),
        ("manifest.json", "cut"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    run, finished, copied, capsys, name, damage
):
    DAMAGES[damage](unfinished(copied) / "checkpoint-8" / name)
    resumed = run("run", "--resume", "true")
    said = re.search(
        rf"'{copied}/checkpoint-8' is damaged: (.*); going on from 'checkpoint-4'", capsys.readouterr().out
    )
    assert said and name in said[1]
    assert same(weights(resumed), weights(finished))


def test_no_whole_checkpoint_is_one_sentence_and_nothing_is_lost(run, copied):
    for path in checkpoints_in(unfinished(copied)):
        (path / "optimizer.pt").unlink()
    with pytest.raises(
        ValueError, match="holds no whole checkpoint to continue from .*optimizer.pt is missing.*; choose"
    ):
        run("run", "--resume", "true")
    assert names(copied) == ["checkpoint-4", "checkpoint-8"]


def test_a_save_that_is_cut_off_leaves_the_checkpoints_as_they_are(
    run, at_step, finished, tmp_path, monkeypatch
):
    save = VaswaniTrainer._save_optimizer_and_scheduler

    def cut(self, output_dir):
        if self.state.global_step == 8:
            raise KeyboardInterrupt
        save(self, output_dir)

    with monkeypatch.context() as patched:
        patched.setattr(VaswaniTrainer, "_save_optimizer_and_scheduler", cut)
        with pytest.raises(KeyboardInterrupt):
            run("run")
    assert names(tmp_path / "run") == ["checkpoint-4"]
    assert same(weights(run("run", "--resume", "true")), weights(finished))
    assert not (tmp_path / "run" / ".saving").exists()


AVERAGED = ("--average_checkpoints", "3", "--save_total_limit", "3", "--save_steps", "2")


def test_a_checkpoint_that_was_saved_for_a_signal_takes_no_part_in_the_average(run, at_step, tmp_path):
    whole = run("whole", *AVERAGED)
    at_step(7, lambda trainer: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError):
        run("part", *AVERAGED)
    # It does not displace a scheduled one either.
    assert names(tmp_path / "part") == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-7"]
    part = run("part", *AVERAGED, "--resume", "true")
    assert names(part) == names(whole) == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert results_of(part)["training"]["averaged_steps"] == [4, 6, 8]
    assert same(weights(part), weights(whole))


def test_a_signal_to_the_whole_group_leaves_the_loader_at_work(run, tmp_path, monkeypatch):
    fetch = VaswaniTrainer.get_batch_samples

    def interrupted(self, *args, **kwargs):
        if self.state.global_step == 2:
            for process in (*multiprocessing.active_children(), multiprocessing.current_process()):
                os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.5)
        return fetch(self, *args, **kwargs)

    monkeypatch.setattr(VaswaniTrainer, "get_batch_samples", interrupted)
    with pytest.raises(InterruptedRunError, match="after step 3, which is saved"):
        run("run", "--dataloader_num_workers", "1", "--gradient_accumulation_steps", "4")
    assert names(tmp_path / "run") == ["checkpoint-3"]


def test_a_damaged_checkpoint_takes_no_part_in_the_average(run, copied, capsys):
    folder = run("average", *AVERAGED)
    unfinished(folder)
    flip_a_bit(folder / "checkpoint-6" / "model.safetensors")
    run("average", *AVERAGED, "--resume", "true")
    assert (
        "checkpoint-6' is not used for the final weights: model.safetensors is not as it was"
        in capsys.readouterr().out
    )
    expected = average_checkpoints([folder / "checkpoint-4", folder / "checkpoint-8"])
    assert same(weights(folder), expected)


@pytest.mark.parametrize("bf16", ["false", "true"])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_run_that_diverges_ends_before_anything_is_saved(run, at_step, vaswani, tmp_path, where, bf16):
    def diverge(trainer):
        parameter = trainer.model.model.encoder.layers[0].fc1.weight
        if where == "loss":
            parameter.data[0, 0] = float("nan")
        else:
            parameter.register_hook(lambda gradient: gradient * float("inf"))

    at_step(6, diverge)
    folder = tmp_path / "run"
    code, printed, sentence = vaswani(
        "train", run.recipe, f"--output_dir={folder}", f"--bf16={bf16}", "--save_steps=3", "--eval_steps=3"
    )
    assert code == 1
    remedy = " or `training.bf16: false`" if bf16 == "true" else ""
    assert sentence == (
        f"The loss or the gradient of step 6 is not finite, at a learning rate of 1.02e-01; the last good checkpoint is "
        f"'{folder}/checkpoint-3'. Try a lower `training.learning_rate_factor`, more `training.warmup_steps`, "
        f"`training.max_grad_norm: 1`{remedy}, in another `--output_dir`."
    )
    assert "loss 0.0" not in printed
    assert names(folder) == ["checkpoint-3"]
    assert not (folder / "results.json").exists()


def test_results_are_json_whatever_the_scores(run, monkeypatch):
    monkeypatch.setattr("vaswani_hf.evaluation.evaluate.perplexity", lambda loss: float("inf"))
    monkeypatch.setattr("vaswani_hf.training.trainer.perplexity", lambda loss: float("inf"))
    folder = run("run", "--max_steps", "2", "--eval_steps", "2")
    assert results_of(folder)["test"]["perplexity"] is None
    assert [row["eval_perplexity"] for row in metrics(folder) if "eval_loss" in row] == [None]


def test_other_training_data_of_the_same_name_is_refused(run, tmp_path):
    def write(last):
        lines = [f"{word} {other}" for word in "abcdefgh" for other in "abcdefgh"]
        (tmp_path / "text.en").write_text("\n".join([*lines, last]) + "\n")
        (tmp_path / "text.de").write_text("\n".join([*lines, last]) + "\n")

    names = [f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target")]
    files = [f"--{name}={tmp_path / 'text'}.{'en' if 'source' in name else 'de'}" for name in names]
    write("x y")
    run("run", "--corpus", "null", *files, "--max_steps", "4")
    write("x z")
    with pytest.raises(
        ValueError, match=r"are not those that the run .* was begun with \(65 pairs, .* now, 65 pairs, .*then"
    ):
        run("run", "--corpus", "null", *files, "--resume", "true", "--max_steps", "6")
    write("x y")
    os.utime(tmp_path / "text.en", (1, 1))
    run("run", "--corpus", "null", *files, "--resume", "true", "--max_steps", "6")


def test_another_number_of_batches_per_step_is_refused_and_what_fits_is_named(run, copied):
    with pytest.raises(ValueError) as raised:
        run("run", "--resume", "true", "--max_steps", "10", "--gradient_accumulation_steps", "3")
    assert str(raised.value) == (
        "`training.gradient_accumulation_steps` is 3 in 1 process, which makes 3 batches per step, but the run in "
        f"'{copied}' that is to be resumed has 2; set it to 2."
    )


def test_the_oldest_by_step_is_deleted_whatever_the_times_of_the_folders(run, copied):
    # A copy may have made the newest one first.
    for age, path in enumerate(checkpoints_in(copied)):
        os.utime(path, (time.time() - 1000 * age,) * 2)
    run("run", "--resume", "true", "--max_steps", "12", "--save_total_limit", "2")
    assert names(copied) == ["checkpoint-8", "checkpoint-12"]


def test_a_way_through_a_folder_that_is_not_there_leads_to_the_run(run, tmp_path):
    before = weights(run("run"))
    with pytest.raises(ValueError, match="holds an earlier run"):
        run("new/../run", "--max_steps", "9")
    assert same(weights(tmp_path / "run"), before) and not (tmp_path / "new").exists()


def stopping(patience):
    return (
        *(
            "--learning_rate_factor",
            "0",
            "--early_stopping_patience",
            patience,
            "--metric_for_best_model",
            "bleu",
        ),
        *("--validation_bleu", "true", "--eval_steps", "2", "--save_steps", "2"),
    )


def test_a_run_that_stopped_early_trains_no_more_when_it_was_killed_before_its_results(run, tmp_path, capsys):
    folder = unfinished(run("run", *stopping("1")))
    assert (
        "stopped early at step 4: validation bleu has not improved 1 times; the best checkpoint"
        in capsys.readouterr().out
    )
    moved = folder.rename(tmp_path / "moved")
    run("moved", *stopping("1"), "--resume", "true")
    assert names(moved) == ["checkpoint-2", "checkpoint-4"]
    assert [row["step"] for row in metrics(moved) if "eval_bleu" in row] == [2, 4]
    assert same(weights(moved), weights(moved / "checkpoint-2"))
    # More patience than the checkpoint has been saved with.
    unfinished(moved)
    run("moved", *stopping("2"), "--resume", "true")
    assert [row["step"] for row in metrics(moved) if "eval_bleu" in row] == [2, 4, 6]


def test_the_best_checkpoint_survives_rotation(run):
    folder = run("run", *stopping("3"), "--save_total_limit", "2")
    assert names(folder) == ["checkpoint-2", "checkpoint-8"]
    unfinished(folder)
    # The next best of those that are left.
    (folder / "checkpoint-2" / "model.safetensors").write_bytes(b"")
    run("run", *stopping("3"), "--save_total_limit", "2", "--resume", "true")
    assert same(weights(folder), weights(folder / "checkpoint-8"))


def test_the_best_of_the_saved_ones_is_taken_where_a_better_one_was_not_saved(run):
    keys = (
        "--early_stopping_patience",
        "9",
        "--save_steps",
        "4",
        "--eval_steps",
        "1",
        "--learning_rate_factor",
        "0",
    )
    folder = run("run", *keys)
    assert same(weights(folder), weights(folder / "checkpoint-4"))


def test_everybody_may_read_what_the_mask_lets_them(finished):
    for path in (finished, finished / "checkpoint-8"):
        mode = stat.S_IMODE((path / "config.json").stat().st_mode)
        assert stat.S_IMODE((path / "model.safetensors").stat().st_mode) == mode != 0o600


def test_a_full_disk_is_named_with_its_folder_and_the_run_goes_on_later(
    run, vaswani, finished, tmp_path, at_step
):
    folder = tmp_path / "run"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    at_step(6, lambda trainer: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1])))
    try:
        code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1
    assert re.fullmatch(
        rf"'{folder}' could not be written: .* \([\d,]+ MiB are free there\); make room and try again.",
        sentence,
    )
    assert names(folder) == ["checkpoint-4"]
    assert same(weights(run("run", "--resume", "true")), weights(finished))


def test_a_longer_run_ends_as_if_it_had_been_asked_for_at_once(run):
    whole = run("whole", *AVERAGED)
    run("part", *AVERAGED, "--max_steps", "5")
    part = run("part", *AVERAGED, "--resume", "true")
    assert names(part) == names(whole)
    assert same(weights(part), weights(whole))


def test_the_copy_of_a_run_goes_on_without_the_original(run, finished, copied, tmp_path):
    shutil.rmtree(copied / "checkpoint-8")
    unfinished(copied)
    (copied / "metrics.jsonl").unlink()
    resumed = run("run", "--resume", "true")
    assert same(weights(resumed), weights(finished))
    assert (
        results_of(resumed)["training"]["target_tokens"] == results_of(finished)["training"]["target_tokens"]
    )


def test_the_final_weights_are_those_of_the_last_checkpoint(finished):
    assert same(weights(finished), load_file(finished / "checkpoint-8" / "model.safetensors"))
    assert all(tensor.dtype == torch.float32 for tensor in weights(finished).values())
    assert issubclass(DivergedRunError, Exception)


def test_a_checkpoint_behind_a_damaged_later_one_stays(run, at_step, copied, capsys):
    os.truncate(unfinished(copied) / "checkpoint-8" / "optimizer.pt", 100)
    keys = ("--resume", "true", "--save_total_limit", "1")
    at_step(6, lambda trainer: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError, match="after step 6, which is saved"):
        run("run", *keys)
    assert names(copied) == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    run("run", *keys)
    assert "going on from 'checkpoint-6'" in capsys.readouterr().out
    assert names(copied) == ["checkpoint-8"]


def test_a_divergence_behind_a_damaged_checkpoint_does_not_call_that_one_good(run, at_step, copied):
    os.truncate(unfinished(copied) / "checkpoint-8" / "optimizer.pt", 100)
    at_step(6, lambda trainer: trainer.model.model.encoder.layers[0].fc1.weight.data.fill_(float("nan")))
    with pytest.raises(DivergedRunError, match="the last good checkpoint is '.*checkpoint-4'"):
        run("run", "--resume", "true")


def test_one_signal_that_comes_twice_is_one_and_a_later_one_ends_at_once(run, at_step, tmp_path, monkeypatch):
    def signal_twice(trainer):
        # As a scheduler and a launcher that it signals too.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)

    # SIGTERM would end the process of the tests.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        at_step(3, signal_twice)
        with pytest.raises((InterruptedRunError, KeyboardInterrupt)) as raised:
            run("run")
        assert raised.type is InterruptedRunError
        assert names(tmp_path / "run") == ["checkpoint-3"]
        monkeypatch.setattr("vaswani_hf.training.stopping.SECONDS_OF_ONE_SIGNAL", -1)
        at_step(5, signal_twice)
        with pytest.raises(KeyboardInterrupt):
            run("run", "--resume", "true")
        assert names(tmp_path / "run") == ["checkpoint-4"]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("method", ["evaluate", "_complete_checkpoint"])
def test_a_signal_after_the_last_step_ends_the_run_before_its_scores(
    run, finished, tmp_path, monkeypatch, method
):
    before = getattr(VaswaniTrainer, method)

    def interrupted(self, *args, **kwargs):
        if self.state.global_step == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return before(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(VaswaniTrainer, method, interrupted)
        with pytest.raises(InterruptedRunError, match="after step 8, which is saved"):
            run("run")
    assert not (tmp_path / "run" / "results.json").exists()
    assert same(weights(run("run", "--resume", "true")), weights(finished))


def test_a_full_disk_is_named_with_its_folder_where_the_log_is_written(run, vaswani, tmp_path, monkeypatch):
    def full(self, row):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunLogCallback, "_write", full)
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={tmp_path / 'run'}")
    assert code == 1
    assert re.fullmatch(rf"'{tmp_path}/run' could not be written: .* make room and try again.", sentence)


def test_a_damaged_log_is_no_end_and_results_do_not_need_it(run, finished, copied):
    for name in ("manifest.json", "results.json", "metrics.jsonl"):
        (copied / name).unlink()
    run("run", "--resume", "true")
    counts = [
        {key: results_of(folder)["training"][key] for key in ("steps", "target_tokens")}
        for folder in (copied, finished)
    ]
    assert counts[0] == counts[1]
    (copied / "metrics.jsonl").write_bytes(b'\xff\xfe\n12\n{"a": 1}\n{"step": 8, "lo')
    run("run", "--resume", "true", "--max_steps", "10")
    assert metrics(copied)[-1]["step"] == 10


def test_a_disk_that_became_read_only_is_not_told_to_make_room(run, vaswani, tmp_path, monkeypatch):
    def refuse(self, row):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(RunLogCallback, "_write", refuse)
    _, _, sentence = vaswani("train", run.recipe, f"--output_dir={tmp_path / 'run'}")
    assert sentence == (
        f"'{tmp_path}/run' could not be written: Read-only file system; mend the disk, or take another folder."
    )


def test_a_finished_run_is_finished_anew_where_its_end_is_asked_for_in_another_way(run, copied):
    run("run", "--resume", "true", "--num_beams", "3")
    assert results_of(copied)["decoding"]["num_beams"] == 3
    assert len(metrics(copied)) == len({json.dumps(row) for row in metrics(copied)})


def test_a_split_to_score_on_may_be_given_when_a_run_has_ended(run, tmp_path, monkeypatch):
    for name, size in (("train", 30), ("test", 5)):
        rows = [{"en": pair["source"], "de": pair["target"]} for pair in number_pairs(size, 1, "train")]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ("--corpus=null", f"--train_pairs={tmp_path / 'train.jsonl'}", "--save_steps=2")
    folder = run("run", *keys, "--max_steps=2")
    before = results_of(folder)
    assert "test" not in before
    # On another machine; what trained the model is what it was.
    monkeypatch.setattr("vaswani_hf.training.results.hardware_name", lambda *_: "another machine")
    monkeypatch.setattr("vaswani_hf.training.results.__version__", "99.0")
    run("run", *keys, "--max_steps=2", f"--test_pairs={tmp_path / 'test.jsonl'}", "--resume=true")
    after = results_of(folder)
    assert after["test"]["sentences"] == 5
    assert after["training"] == before["training"]
    # Not named again, it stays scored.
    run("run", *keys, "--max_steps=2", "--resume=true")
    assert results_of(folder) == after

    def interrupted(*_, **__):
        raise InterruptedRunError("A signal came while the test split was scored.")

    for place in ("tasks.translation.translate_and_measure", "training.run.save_model"):
        with monkeypatch.context() as patched:
            patched.setattr(f"vaswani_hf.{place}", interrupted)
            with pytest.raises(InterruptedRunError):
                run(
                    "run", *keys, "--max_steps=2", f"--test_pairs={tmp_path / 'train.jsonl'}", "--resume=true"
                )
    run("run", *keys, "--max_steps=2", f"--test_pairs={tmp_path / 'train.jsonl'}", "--resume=true")
    assert results_of(folder)["test"]["sentences"] == 30
    assert results_of(folder)["training"] == before["training"]
    run("run", *keys, "--max_steps=4", "--resume=true")
    assert results_of(folder)["training"]["versions"]["vaswani_hf"] == "99.0"


def test_a_finished_run_of_an_earlier_version_is_finished(run, copied, capsys):
    results = results_of(copied)
    del results["asked"]
    (copied / "results.json").write_text(json.dumps(results))
    for folder in (copied, *checkpoints_in(copied)):
        (folder / "manifest.json").unlink()
    run("run", "--resume", "true")
    assert "is finished; nothing is left to do" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match="manifest.json, which is written last, is missing: the folder was not"
    ):
        run("run", "--resume", "true", "--num_beams", "3")


def test_a_run_does_not_end_before_the_step_that_it_has_come_to(run, copied):
    before = (copied / "recipe.yaml").read_text()
    with pytest.raises(
        ValueError, match="`training.max_steps` is 4, 4 steps, but the run .* has come to step 8; ask for"
    ):
        run("run", "--resume", "true", "--max_steps", "4")
    epochs = ("--max_steps", "null", "--num_train_epochs", "1")
    with pytest.raises(
        ValueError, match="`training.num_train_epochs` is 1.0, 3 steps, but the run .* has come to step 8"
    ):
        run("run", "--resume", "true", *epochs)
    assert (copied / "recipe.yaml").read_text() == before


def test_a_run_without_its_recipe_is_not_continued(run, copied):
    (copied / "manifest.json").unlink()
    (copied / "recipe.yaml").unlink()
    with pytest.raises(
        ValueError, match="holds an earlier run without its recipe.yaml; copy the whole folder of the run"
    ):
        run("run", "--resume", "true", "--max_steps", "10")
