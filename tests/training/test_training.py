"""Whole runs of tiny recipes: the same twice, resumed to the bit, interrupted, refused, on two processes."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed.run
from tiny_runs import metrics, same, weights
from transformers import AutoModelForSeq2SeqLM

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.training.averaging import average_checkpoints
from vaswani_hf.training.trainer import VaswaniTrainer
from vaswani_hf.translation.translator import Translator

ROOT = Path(__file__).parents[2]


def test_a_run_leaves_a_checkpoint_that_anyone_loads_and_says_what_happened(finished):
    folder = finished
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(model).__name__ == "VaswaniForSeq2SeqLM"
    assert model.config.label_smoothing == 0.1
    assert model.config.use_cache
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 8)
    names = {path.name for path in folder.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "recipe.yaml",
    } <= names
    assert {"results.json", "metrics.jsonl", "training_curve.png", "test_translations.txt"} <= names
    assert len((folder / "test_translations.txt").read_text().split("\n")) == 21
    results = json.loads((folder / "results.json").read_text())
    assert results["training"]["steps"] == 8
    assert results["test"]["sentences"] == 20
    assert "tok:13a" in results["test"]["bleu_signature"]
    # The test split has 20 numbers of three digits and more; the shorter ones are scored too, though trained on.
    digits = results["test"]["digits"]
    assert [digits[length]["sentences"] for length in "12"] == [10, 90]
    assert sum(row["sentences"] for row in digits.values()) == 120
    assert {length: row["held_out"] for length, row in digits.items()} == {
        length: length not in "12" for length in digits
    }
    assert all(0 <= row["exact_match"] <= 100 for row in digits.values())
    rows = metrics(folder)
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 8]
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 8]
    assert rows[-1]["eval_perplexity"] == pytest.approx(
        torch.tensor(rows[-1]["eval_loss"]).exp().item(), rel=1e-4
    )
    assert rows[-1]["target_tokens"] == results["training"]["target_tokens"] > 0
    assert rows[0]["learning_rate"] == pytest.approx(16**-0.5 * 2 * 4**-1.5)


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(run, finished):
    first = weights(finished)
    assert same(first, weights(run("second")))
    assert not same(first, weights(run("third", "--seed", "2")))


@pytest.mark.parametrize(
    "extra", [(), ("--bpe_dropout", "0.2"), ("--streaming", "true")], ids=["plain", "dropout", "stream"]
)
def test_a_resumed_run_ends_with_exactly_the_weights_of_an_uninterrupted_one(run, finished, extra):
    whole = run("whole", *extra) if extra else finished
    # 3 steps of 2 batches: in the middle of an epoch, and between the checkpoints of the whole run.
    part = run("part", "--max_steps", "3", "--save_steps", "3", *extra)
    assert not same(weights(whole), weights(part))
    resumed = run("part", "--resume", "true", *extra)
    assert same(weights(whole), weights(resumed))
    assert [row["step"] for row in metrics(resumed) if "eval_loss" in row] == [3, 4, 8]
    assert metrics(resumed)[-1]["target_tokens"] == metrics(whole)[-1]["target_tokens"]


def test_an_earlier_run_is_not_overwritten_nor_mixed_with_another(run):
    folder = run("run", "--max_steps", "2")
    before = weights(folder)
    with pytest.raises(
        ValueError, match="holds an earlier run; continue it with `--resume true` or choose another"
    ):
        run("run")
    with pytest.raises(
        ValueError, match="`model.d_model` is 32, but the run in .* has 16; give it the same value"
    ):
        run("run", "--resume", "true", "--d_model", "32")
    assert same(before, weights(folder))


def test_a_finished_run_is_left_as_it_is(run, copied):
    folder = copied
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run("run", "--resume", "true")
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for checkpoint in checkpoints_in(folder):
        shutil.rmtree(checkpoint)
    run("run", "--resume", "true")
    with pytest.raises(ValueError, match="holds a finished model, but no checkpoint to continue from"):
        run("run", "--resume", "true", "--max_steps", "10")


def test_a_run_that_was_stopped_before_its_results_gets_them(run, copied):
    folder = copied
    before = weights(folder)
    for name in ("manifest.json", "results.json", "model.safetensors"):
        (folder / name).unlink()
    # Cut off while it was saved: the one before is the last complete one.
    (folder / "checkpoint-8" / "trainer_state.json").write_text("{")
    assert same(before, weights(run("run", "--resume", "true")))


def test_the_final_weights_are_the_average_if_the_recipe_says_so(run):
    folder = run("run", "--save_steps", "2", "--average_checkpoints", "3")
    last = checkpoints_in(folder)[-3:]
    assert [path.name for path in last] == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert same(weights(folder), average_checkpoints(last))


def test_early_stopping_ends_with_the_best_checkpoint(run):
    # No learning: the first checkpoint is never beaten, and the run ends after one evaluation without progress.
    folder = run(
        "run",
        *("--learning_rate_factor", "0", "--early_stopping_patience", "1", "--metric_for_best_model", "bleu"),
        *("--validation_bleu", "true", "--eval_steps", "2", "--save_steps", "2"),
    )
    rows = metrics(folder)
    assert [row["step"] for row in rows if "eval_bleu" in row] == [2, 4]
    assert same(weights(folder), weights(folder / "checkpoint-2"))


def test_two_vocabularies_are_trained_saved_and_used(run):
    folder = run(
        "run", "--shared_vocabulary", "false", "--target_vocab_size", "270", "--validation_bleu", "true"
    )
    config = AutoModelForSeq2SeqLM.from_pretrained(folder).config
    assert (config.vocab_size, config.decoder_vocab_size) == (280, 270)
    assert not config.share_encoder_decoder_embeddings
    translator = Translator.from_pretrained(str(folder))
    assert translator.source_tokenizer is not translator.target_tokenizer
    assert (folder / "target_tokenizer" / "tokenizer.json").exists()
    assert len(list(translator.translate(["one", "", "two"]))) == 3


def test_an_epoch_count_is_turned_into_steps(run):
    folder = run(
        "run",
        "--max_steps",
        "null",
        "--num_train_epochs",
        "1.5",
        "--logging_steps",
        "1",
        "--numbers_train_size",
        "900",
    )
    last = [row for row in metrics(folder) if "loss" in row][-1]
    assert last["epoch"] == pytest.approx(1.5, abs=0.1)


def test_a_signal_saves_a_checkpoint_and_the_run_can_go_on(run, vaswani, tmp_path, monkeypatch):
    step, sent, handler = VaswaniTrainer.training_step, [], signal.getsignal(signal.SIGINT)

    def interrupted(self, *args, **kwargs):
        if self.state.global_step == 2 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(VaswaniTrainer, "training_step", interrupted)
        folder = tmp_path / "run"
        code, _, sentence = vaswani("train", run.recipe, f"--output_dir={folder}", "--max_steps", "50")
    assert code == 130
    assert [path.name for path in checkpoints_in(folder)] == ["checkpoint-3"]
    assert (
        sentence == f"Interrupted after step 3, which is saved in '{folder}'; continue with `--resume true`."
    )
    assert signal.getsignal(signal.SIGINT) is handler
    run("run", "--resume", "true", "--max_steps", "5")
    assert metrics(folder)[-1]["step"] == 5


def test_two_processes_share_the_batches_and_agree(run, tmp_path):
    folder = tmp_path / "run"
    overrides = (f"--output_dir={folder}", "--max_steps", "4", "--validation_bleu", "true")
    script = str(ROOT / "scripts" / "train.py")
    torch.distributed.run.main(["--standalone", "--nproc_per_node", "2", script, str(run.recipe), *overrides])
    results = json.loads((folder / "results.json").read_text())
    assert results["training"]["processes"] == 2
    assert metrics(folder)[-1]["eval_bleu"] >= 0


def test_bad_data_is_one_sentence_and_leaves_nothing_behind(run, vaswani, tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n")
    files = (f"--train_source={tmp_path / 'a.en'}", f"--train_target={tmp_path / 'a.de'}", "--corpus", "null")
    code, _, sentence = vaswani("train", run.recipe, f"--output_dir={tmp_path / 'run'}", *files)
    assert code == 1
    assert sentence == (
        f"`data`, train split: {tmp_path / 'a.en'} and {tmp_path / 'a.de'} must have equally many lines, but have 2 and 1."
    )
    assert not (tmp_path / "run" / "recipe.yaml").exists()
