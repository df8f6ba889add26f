"""Whole runs of tiny recipes: their files, repeated runs, resumed and interrupted runs, and refused
recipes.
"""

import os
import signal

import pytest
import torch
from tiny_runs import eval_steps, metrics, names, results, same, weights
from transformers import AutoModelForSeq2SeqLM

from vaswani_hf.translation.translator import Translator

AUGMENT = '--augment={"typos":0.5,"placeholders":0.3}'


def test_a_run_leaves_a_checkpoint_that_anyone_loads_and_says_what_happened(finished):
    model = AutoModelForSeq2SeqLM.from_pretrained(finished)
    assert type(model).__name__ == "VaswaniForSeq2SeqLM"
    assert model.config.label_smoothing == 0.1
    assert model.config.use_cache
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 8)
    files = "config.json generation_config.json model.safetensors tokenizer.json recipe.yaml results.json"
    files += " metrics.jsonl training_curve.png test_translations.txt"
    assert {*files.split()} <= {path.name for path in finished.iterdir()}
    assert len((finished / "test_translations.txt").read_text().split("\n")) == 21
    found = results(finished)
    assert found["training"]["steps"] == 8
    assert found["test"]["sentences"] == 20
    assert "tok:13a" in found["test"]["bleu_signature"]
    # 20 numbers of the test split have three digits or more. The shorter ones are in the training.
    digits = found["test"]["digits"]
    assert [digits[length]["sentences"] for length in "12"] == [10, 90]
    assert sum(row["sentences"] for row in digits.values()) == 120
    assert {length: row["held_out"] for length, row in digits.items()} == {
        length: length not in "12" for length in digits
    }
    assert all(0 <= row["exact_match"] <= 100 for row in digits.values())
    rows = metrics(finished)
    assert (eval_steps(finished, "loss"), eval_steps(finished)) == ([2, 4, 6, 8], [4, 8])
    perplexity = torch.tensor(rows[-1]["eval_loss"]).exp().item()
    assert rows[-1]["eval_perplexity"] == pytest.approx(perplexity, rel=1e-4)
    assert rows[-1]["target_tokens"] == found["training"]["target_tokens"] > 0
    assert rows[0]["learning_rate"] == pytest.approx(16**-0.5 * 2 * 4**-1.5)


def test_the_final_weights_are_those_of_the_last_checkpoint_and_readable_by_others(finished, tmp_path):
    assert same(weights(finished), weights(finished / "checkpoint-8"))
    assert all(tensor.dtype == torch.float32 for tensor in weights(finished).values())
    (tmp_path / "new").touch()
    mode = (tmp_path / "new").stat().st_mode
    for path in (finished, finished / "checkpoint-8"):
        assert (path / "config.json").stat().st_mode == mode
        assert (path / "model.safetensors").stat().st_mode == mode


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(run):
    short = "--max_steps=2 --save_steps=2 --eval_steps=2"
    first, again, other = (
        run(f"run-{turn}", f"{short} --seed={seed}") for turn, seed in enumerate((1, 1, 2))
    )
    assert same(weights(first), weights(again))
    assert not same(weights(first), weights(other))


def loss_after_2_steps(folder) -> float:
    (loss,) = (row["loss"] for row in metrics(folder) if row["step"] == 2)
    return loss


@pytest.mark.parametrize(
    "extra",
    [
        "",
        f"--bpe_dropout=0.2 --optimizer=muon {AUGMENT}",
        pytest.param("--streaming=true", marks=pytest.mark.slow),
        f"--streaming=true {AUGMENT}",
    ],
)
def test_a_resumed_run_ends_with_exactly_the_weights_of_an_uninterrupted_one(run, whole, extra):
    expected = whole(extra)
    # Stop after 3 steps of 2 batches, in an epoch and between two checkpoints of the whole run.
    part = run("part", "--max_steps=3 --save_steps=3", extra)
    assert not same(weights(expected), weights(part))
    # These two comparisons fail if the runs differ before the interruption.
    assert (part / "tokenizer.json").read_bytes() == (expected / "tokenizer.json").read_bytes()
    assert loss_after_2_steps(part) == loss_after_2_steps(expected)
    resumed = run("part", "--resume=true", extra)
    assert same(weights(expected), weights(resumed))
    assert eval_steps(resumed) == [3, 4, 8]
    assert metrics(resumed)[-1]["target_tokens"] == metrics(expected)[-1]["target_tokens"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "holds an earlier run; continue it with `--resume true` or choose another"),
        (
            "--resume=true --d_model=32",
            "`model.d_model` is 32, but the run in .* has 16; give `model.d_model` the value of that run, or",
        ),
        (
            "--resume=true --max_steps=10 --gradient_accumulation_steps=3",
            "^`training.gradient_accumulation_steps` is 3 with 1 process, so a step has 3 batches, but the run in '.*' that "
            "is to be resumed has 2 batches in a step; set the key to 2.$",
        ),
        (
            "--resume=true --max_steps=4",
            "`training.max_steps` is 4, so the last step is 4, but the run .* is already at step 8; give a",
        ),
        (
            "--resume=true --max_steps=null --num_train_epochs=1",
            "`training.num_train_epochs` is 1.0, so the last step is 3, but the run .* is already at step 8",
        ),
    ],
)
def test_an_earlier_run_is_not_overwritten_nor_mixed_with_another(run, copied, options, sentence):
    before = weights(copied), (copied / "recipe.yaml").read_text()
    with pytest.raises(ValueError, match=sentence):
        run("run", options)
    assert same(before[0], weights(copied))
    assert (copied / "recipe.yaml").read_text() == before[1]


def test_a_recipe_of_the_user_is_not_overwritten(run):
    before = run.recipe.read_text()
    with pytest.raises(ValueError, match="`output_dir` must not hold a recipe that you have written, but"):
        run(".")
    assert run.recipe.read_text() == before


def test_two_vocabularies_are_trained_saved_and_used(run):
    folder = run(
        "run", "--shared_vocabulary=false --target_vocab_size=270 --validation_bleu=true --max_steps=4"
    )
    config = AutoModelForSeq2SeqLM.from_pretrained(folder).config
    assert (config.vocab_size, config.decoder_vocab_size) == (280, 270)
    assert not config.share_encoder_decoder_embeddings
    translator = Translator.from_pretrained(str(folder))
    assert translator.source_tokenizer is not translator.target_tokenizer
    assert (folder / "target_tokenizer" / "tokenizer.json").exists()
    assert len(list(translator.translate(["one", "", "two"]))) == 3


def test_an_epoch_count_is_turned_into_steps(run, capsys):
    options = "--max_steps=null --num_train_epochs=1.5 --logging_steps=1 --warmup_steps=50"
    folder = run("run", options, "--numbers_train_size=600")
    # The number of steps is known when the corpus has been read.
    assert "warning: `training.warmup_steps` is 50, but the run has " in capsys.readouterr().out
    last = [row for row in metrics(folder) if "loss" in row][-1]
    assert last["epoch"] == pytest.approx(1.5, abs=0.1)


def test_a_signal_saves_a_checkpoint_and_the_run_can_go_on(run, train_command, before_method, tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    before_method(2, lambda trainer: os.kill(os.getpid(), signal.SIGINT))
    code, _, sentence = train_command("--max_steps=50")
    folder = tmp_path / "run"
    assert code == 130
    assert names(folder) == ["checkpoint-3"]
    assert (
        sentence == f"Interrupted after step 3, which is saved in '{folder}'; continue with `--resume true`."
    )
    assert signal.getsignal(signal.SIGINT) is handler
    run("run", "--resume=true --max_steps=5")
    assert metrics(folder)[-1]["step"] == 5


def test_bad_data_is_one_sentence_and_leaves_nothing_behind(train_command, tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n")
    files = f"--train_source={tmp_path}/a.en --train_target={tmp_path}/a.de"
    code, _, sentence = train_command(files, "--corpus=null")
    assert code == 1
    assert sentence == (
        f"The train split of `data`: {tmp_path}/a.en and {tmp_path}/a.de must have equally many lines, but have 2 and 1."
    )
    assert not (tmp_path / "run" / "recipe.yaml").exists()
