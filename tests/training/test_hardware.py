"""Settings of a run that depend on the machine."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from device_waiting import Waiting
from factories import tiny_model
from tiny_runs import results, same, weights

from vaswani_hf import processor
from vaswani_hf.model import fast_path_vaswani
from vaswani_hf.recipe import load_recipe
from vaswani_hf.tasks import TASKS
from vaswani_hf.training import batches, hardware
from vaswani_hf.training.hardware import describe_computation, resolve_defaults
from vaswani_hf.training.recipe_model import planned_config, planned_model
from vaswani_hf.training.trainer import VaswaniTrainer

CONFIGURATION = Path(__file__).parents[2] / "configuration"


@pytest.fixture
def machine(monkeypatch, set_bfloat16):
    """A function that makes PyTorch report this device, and bfloat16 in hardware as present or absent."""

    def found(device: str, bf16: bool):
        accelerator = None if device == "cpu" else torch.device(device)
        set_bfloat16(bf16)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *args, **kwargs: accelerator)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator is not None)

    return found


# The recipe of these tests says `bf16: false`.
AUTO = ["--bf16", "auto"]
# Larger widths and larger batches than in the recipe.
LARGE = [*AUTO, "--source_tokens_per_batch=1000000", "--model.d_model=256", "--model.encoder_ffn_dim=2048"]


def model_of(recipe):
    return planned_model(planned_config(recipe.model, recipe.tokenizer), TASKS[recipe.task].model_class)


def resolved(recipe):
    return resolve_defaults(recipe.training, None, model_of(recipe), streams=recipe.data.streaming)


IN_BFLOAT16 = "computing in bfloat16 (to compute in float32: `--bf16 false`)"
IN_FLOAT32 = "computing in float32 (to compute in bfloat16: `--bf16 true`)"
WITHOUT_HARDWARE = "computing in float32 (no bfloat16 in the hardware of this {})"


@pytest.mark.parametrize(
    ("device", "bf16", "words", "means"),
    [
        ("cpu", False, LARGE, WITHOUT_HARDWARE.format("cpu")),
        ("cpu", True, LARGE, IN_BFLOAT16),
        ("cpu", True, [*LARGE[2:], "--bf16", "false"], IN_FLOAT32),
        ("cpu", True, AUTO, IN_FLOAT32),
        ("cpu", True, ["--bf16", "true"], IN_BFLOAT16),
        ("cpu", False, ["--bf16", "true"], IN_BFLOAT16),
        ("cuda", True, AUTO, f"{IN_BFLOAT16}, batches prepared by 2 processes"),
        ("cuda", True, [*AUTO, "--dataloader_num_workers", "0"], IN_BFLOAT16),
        ("cuda", True, [*AUTO, "--streaming", "true"], IN_BFLOAT16),
        (
            "cuda",
            False,
            [*AUTO, "--dataloader_num_workers", "1", "--torch_compile", "true"],
            f"{WITHOUT_HARDWARE.format('cuda')}, compiled (to turn compilation off: `--torch_compile false`), "
            "batches prepared by 1 process",
        ),
    ],
)
def test_a_machine_decides_what_a_recipe_leaves_to_it(run, machine, device, bf16, words, means):
    machine(device, bf16)
    recipe = load_recipe(run.recipe, words)
    assert describe_computation(resolved(recipe), torch.device(device)) == means


@pytest.mark.parametrize("capability", ["amx_bf16", "avx512_bf16", "bf16"])
@pytest.mark.parametrize(("recipe", "pays"), [("numbers", False), ("multi30k_en_de", True)])
def test_bfloat16_is_on_where_the_products_of_a_batch_are_large(
    machine, monkeypatch, capability, recipe, pays
):
    machine("cpu", True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True})
    recipe = load_recipe(CONFIGURATION / f"{recipe}.yaml", needs_data=False)
    assert resolved(recipe).bf16 is pays


def test_what_counts_are_the_positions_that_a_processor_computes_at_once(machine):
    machine("cpu", True)
    words = ["--vocab_size=2000", "--source_tokens_per_batch=1000000", "--target_tokens_per_batch=1000000"]
    recipe = load_recipe(CONFIGURATION / "numbers.yaml", words)
    # A part has 2**19 / 128 = 4,096 positions, with 6 operations for each weight of layers and projection.
    assert hardware._flops_at_once(recipe.training, model_of(recipe)) == 6 * 4096 * (655_360 + 2000 * 128)


def test_a_processor_computes_a_large_batch_in_parts_to_the_same_end(run, monkeypatch, capsys):
    # Use the learning rate of the paper, because a much higher rate would amplify rounding.
    words = (
        "--model.dropout=0 --training.learning_rate_factor=0.01 --max_steps=3 --save_steps=3 --eval_steps=9 "
        "--training.source_tokens_per_batch=600 --training.target_tokens_per_batch=600"
    )
    positions, compute_loss = [], VaswaniTrainer.compute_loss

    def counted(self, model, inputs, *args, **kwargs):
        positions.append(max(inputs["input_ids"].numel(), inputs["labels"].numel()))
        return compute_loss(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(VaswaniTrainer, "compute_loss", counted)
    whole = weights(run("whole", words))
    assert "in parts" not in capsys.readouterr().out
    number = len(positions)
    monkeypatch.setattr(batches, "MAX_PART_SIZE", 200 * 16)
    in_parts = weights(run("parts", words))
    assert "batches of more than 200 positions per side are computed in parts" in capsys.readouterr().out
    assert max(positions[:number]) > 400 and max(positions[number:]) <= 200
    torch.testing.assert_close(in_parts, whole, rtol=0, atol=1e-5)


def test_deepspeed_leaves_a_run_in_float32(run, machine, monkeypatch):
    machine("cuda", True)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    training = resolved(load_recipe(run.recipe, [*AUTO, "--dataloader_num_workers=0"]))
    assert training.bf16 is False
    assert describe_computation(training, torch.device("cuda")) == "computing in float32 (as DeepSpeed needs)"


def test_too_many_processes_for_batches_are_refused_before_they_are_started(train_command, tmp_path):
    code, _, sentence = train_command("--dataloader_num_workers=1000000")
    assert code == 2
    assert "`training.dataloader_num_workers` must be at most" in sentence
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_as_it_began_on_another_machine(run, machine, monkeypatch, capsys):
    # Let bfloat16 be faster than float32 for every model size.
    monkeypatch.setitem(processor._LEAST_FLOPS, "avx512_bf16", 0)
    options = "--bf16=auto --eval_steps=9 --save_steps=1 --max_steps="
    machine("cpu", True)
    folder = run("run", options + "1")
    assert IN_BFLOAT16 in capsys.readouterr().out
    assert load_recipe(folder / "recipe.yaml").training.bf16 is True
    assert results(folder)["training"]["dtype"] == "bfloat16"
    machine("cpu", False)
    run("run", options + "2 --resume=true")
    assert load_recipe(folder / "recipe.yaml").training.bf16 is True
    assert (folder / "checkpoint-2").is_dir()
    machine("cpu", True)
    assert same(weights(run("whole", options + "2")), weights(folder))
    sentence = "`training.bf16` is False, but the run in '.*' that is to be resumed has True"
    with pytest.raises(ValueError, match=sentence):
        run("run", "--max_steps=3 --resume=true --bf16=false")


def test_bfloat16_on_a_processor_attends_in_float32(monkeypatch):
    """On a CPU attention is float32, because the backward pass of the fused kernel is slow in bfloat16."""
    kinds, fused = set(), torch.nn.functional.scaled_dot_product_attention

    def watched(query, *args, **kwargs):
        kinds.add(query.dtype)
        return fused(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 8, 2]])}
    model = tiny_model().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    assert kinds == {torch.float32}
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    assert loss.item() == pytest.approx(model(**batch).loss.item(), rel=0.02)


def test_steps_of_a_run_wait_for_a_device_once_each_and_that_late(run, monkeypatch):
    """A step waits only for the flags of the previous step, which the GPU has already sent."""
    totals = []
    for steps in (2, 5):
        monkeypatch.setattr(fast_path_vaswani, "QUEUING_DEVICES", ("cpu",))
        with Waiting(monkeypatch) as waiting:
            run(f"run-{steps}", f"--max_steps={steps} --logging_steps=99 --eval_steps=99 --save_steps=99")
        # Ignore reads in data/, because the loader's tensors are not on a device yet.
        totals.append(Counter({place: n for place, n in waiting.places.items() if "/data/" not in place}))
        monkeypatch.undo()
    of_steps = totals[1] - totals[0]
    assert {place.split("/")[-1].split(":")[0] for place in of_steps} == {"callbacks.py"}, of_steps
    assert of_steps.total() == 3


def test_a_build_for_gpus_on_a_machine_without_one_is_on_the_processor(run, monkeypatch):
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *args, **kwargs: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    training = resolved(load_recipe(run.recipe))
    assert training.dataloader_num_workers == 0
