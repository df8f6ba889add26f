"""Two processes that share every weight by FSDP2 train, save and continue as one process does."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from factories import tiny_model, write_recipe
from fsdp_worker import train_steps
from sentences import refused
from tiny_runs import metrics, results, weights

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.recipe import load_recipe
from vaswani_hf.training import train
from vaswani_hf.training.sharding import prepare_sharding

WORKER = Path(__file__).with_name("fsdp_worker.py")
ON = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
TIES = {
    "all": {},
    "embeddings": {"tie_word_embeddings": False},
    "output": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19},
}
OPTIONS = """
    --model.dropout=0 --max_steps=4 --source_tokens_per_batch=1300 --target_tokens_per_batch=1300
    --learning_rate_factor=0.02 --adam_epsilon=1e-4 --warmup_steps=2 --logging_steps=1 --eval_steps=2 --save_steps=2
    --average_checkpoints=2 --validation_bleu=true
"""


def run_two(python: str, *arguments: str, **environment: str) -> None:
    launcher = "-m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc_per_node=2".split()
    environment = os.environ | {"PYTHONPATH": str(WORKER.parents[2])} | environment
    command = [python, *launcher, str(WORKER), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_model_sharded_by_transformers_trains_and_saves_as_one_process(python, tmp_path):
    expected = {}
    for name, fields in TIES.items():
        model = tiny_model(norm_position="pre", **fields)
        model.save_pretrained(tmp_path / name / "start")
        expected[name] = train_steps(model)
        model.save_pretrained(tmp_path / name / "expected")
    run_two(python, "native", str(tmp_path))
    for name in TIES:
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["losses"] == pytest.approx(expected[name], abs=1e-6)
        end = weights(tmp_path / name / "end")
        torch.testing.assert_close(end, weights(tmp_path / name / "expected"), rtol=0, atol=1e-6)
        loaded = VaswaniForSeq2SeqLM.from_pretrained(tmp_path / name / "end")
        source = torch.tensor([[5, 6, 7, 2]])
        sequences = loaded.generate(source, num_beams=2, max_new_tokens=3, min_new_tokens=3)
        assert sequences.tolist() == result["sequences"]


@pytest.mark.parametrize("shared", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_sharded_run_ends_and_goes_on_as_one_process(python, tmp_path, monkeypatch, shared):
    monkeypatch.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 21)
    recipe = write_recipe(tmp_path / "recipe.yaml")
    options = [*OPTIONS.split(), f"--shared_vocabulary={shared}"]
    train(load_recipe(recipe, [*options, f"--output_dir={tmp_path / 'one'}"]))
    options += [f"--output_dir={tmp_path / 'two'}", "--gradient_accumulation_steps=1"]
    arguments = ("train", str(recipe), *options)
    if shared == "true":
        short = [word.replace("max_steps=4", "max_steps=2") for word in arguments]
        run_two(python, *short, **ON)
        assert (tmp_path / "two" / "checkpoint-2" / "pytorch_model_fsdp.bin").exists()
    run_two(python, *arguments, "--resume=true", **ON)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    torch.testing.assert_close(two, one, rtol=0, atol=1e-6)
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        for name in ("loss", "eval_loss", "eval_chrf"):
            assert one.get(name) == pytest.approx(two.get(name), abs=1e-6)
    assert results(tmp_path / "two")["training"]["processes"] == 2


def test_a_state_is_complete_without_the_copies_of_tied_weights():
    model = tiny_model()
    state = {
        name: tensor + 1
        for name, tensor in model.state_dict().items()
        if name not in model.all_tied_weights_keys
    }
    assert len(state) == len(model.state_dict()) - 3
    model.load_state_dict(state)
    assert torch.equal(model.lm_head.weight, state["model.shared.weight"])


def sharded(version: int) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=version)))


def zero(stage: int = 2, precision: str = "no", processes: int = 2) -> SimpleNamespace:
    state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=stage))
    return SimpleNamespace(state=state, mixed_precision=precision, num_processes=processes)


BF16 = (
    "The precision must be float32 with DeepSpeed, but is bf16; set `training.bf16` to false, or use FSDP2, "
    "because DeepSpeed would also keep the weights in bf16."
)
PROCESSES = (
    "'{}' was saved by 2 processes with DeepSpeed, but 3 are to resume it; start as many processes as before."
)
WITHOUT_FSDP = "'{}' was saved without FSDP; resume it without FSDP, not with it."


@pytest.mark.parametrize(
    ("accelerator", "has_checkpoint", "sentence"),
    [
        (
            zero(stage=3),
            True,
            "`zero_stage` must be at most 2, but is 3; to shard the weights too, use FSDP2.",
        ),
        (zero(precision="bf16"), True, BF16),
        (zero(processes=3), True, PROCESSES),
        (sharded(1), False, "`--fsdp_version` must be 2, but is 1."),
        (sharded(2), True, WITHOUT_FSDP),
    ],
)
def test_unsupported_sharding_is_refused(tmp_path, accelerator, has_checkpoint, sentence):
    (tmp_path / "latest").touch()
    (tmp_path / "global_step5").mkdir()
    for rank in range(2):
        (tmp_path / "global_step5" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    prepare_sharding(zero(), tmp_path, EncoderDecoderTraining())
    with refused(sentence.format(tmp_path)):
        prepare_sharding(accelerator, tmp_path if has_checkpoint else None, EncoderDecoderTraining())


@pytest.mark.parametrize(
    ("accelerator", "key", "value", "sentence"),
    [
        (zero(), "r_drop_alpha", 2.0, "must be 0.0 with DeepSpeed, but is 2.0."),
        (sharded(2), "torch_compile", True, "must be false with FSDP, but is True."),
        (sharded(2), "ema_decay", 0.9, "must be null with FSDP, but is 0.9."),
        (sharded(2), "optimizer", "muon", "must be adam or adamw with FSDP, but is muon."),
    ],
)
def test_unsupported_options_of_sharded_training_are_refused_by_name(accelerator, key, value, sentence):
    with refused(f"`training.{key}` {sentence}"):
        prepare_sharding(accelerator, None, EncoderDecoderTraining(**{key: value}))


def test_a_sharded_checkpoint_needs_sharding_and_a_cpu_says_that_it_does_not_shard(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    alone = SimpleNamespace(state=SimpleNamespace(), print=print)
    prepare_sharding(alone, None, EncoderDecoderTraining())
    assert (
        capsys.readouterr().out
        == "FSDP needs several accelerators: here every process keeps the whole model\n"
    )
    (tmp_path / "pytorch_model_fsdp.bin").touch()
    with refused(f"'{tmp_path}' was saved with FSDP; resume it with FSDP, not without it."):
        prepare_sharding(alone, tmp_path, EncoderDecoderTraining())
