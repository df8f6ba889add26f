"""What a run will cost: parameters as of built models, operations as PyTorch counts them, memory as it is measured."""

import functools
import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.cli import main
from vaswani_hf.recipe import load_recipe
from vaswani_hf.recipe.schema import TEXT_TASKS
from vaswani_hf.training.consistency import Consistency
from vaswani_hf.training.operations import meta_model, muon_flops, step_flops
from vaswani_hf.training.optimizer import muon_and_adamw
from vaswani_hf.training.plan import plan_run, planned_config
from vaswani_hf.training.run import build_model
from vaswani_hf.training.step_memory import StepSettings, activation_memory, step_memory

CONFIGURATION = Path(__file__).parents[2] / "configuration"
ROWS = [*sorted((CONFIGURATION / "table3").glob("*.yaml")), *sorted((CONFIGURATION / "wmt14").glob("*.yaml"))]
BASE = CONFIGURATION / "wmt14" / "base_en_de.yaml"
NUMBERS = CONFIGURATION / "numbers.yaml"
SMALL = {
    "vocab_size": 4000,
    "d_model": 128,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "label_smoothing": 0.1,
}


class Tokenizer:
    """All that a model needs to know of one."""

    bos_token_id, pad_token_id, eos_token_id = 0, 1, 2

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


def built(recipe) -> VaswaniForSeq2SeqLM:
    """The model that a run would build, on the meta device."""
    source = target = Tokenizer(recipe.tokenizer.vocab_size)
    if not recipe.tokenizer.shared_vocabulary:
        target = Tokenizer(recipe.tokenizer.target_vocab_size or recipe.tokenizer.vocab_size)
    with torch.device("meta"):
        return build_model(recipe, SimpleNamespace(source_tokenizer=source, target_tokenizer=target))


@pytest.mark.parametrize("path", ROWS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_planned_parameters_are_those_of_the_model_that_a_run_builds(path):
    recipe = load_recipe(path)
    planned = plan_run(recipe)["parameters"]
    numbers = {id(parameter): parameter.numel() for parameter in built(recipe).parameters()}
    assert planned["total"] == sum(numbers.values())
    stacks = [planned[stack] for stack in ("encoder", "decoder")]
    assert planned["total"] == planned["embeddings"] + sum(stack["total"] for stack in stacks)
    assert all(s["total"] == s["attention"] + s["feed_forward"] + s["norms"] for s in stacks)


def test_two_vocabularies_and_pre_norm_are_planned_as_they_are_built():
    overrides = "--shared_vocabulary false --target_vocab_size 900 --norm_position pre --attention_bias true".split()
    recipe = load_recipe(NUMBERS, overrides)
    assert plan_run(recipe)["parameters"]["total"] == built(recipe).num_parameters()


def test_the_parameters_of_base_by_hand():
    d, f, classes = 512, 2048, 37000
    feed_forward = 6 * (2 * d * f + f + d)
    assert plan_run(load_recipe(BASE))["parameters"] == {
        "total": classes * d + 18 * 4 * d * d + 2 * feed_forward + 30 * 2 * d,
        "embeddings": classes * d,
        "encoder": {
            "total": 6 * 4 * d * d + feed_forward + 12 * 2 * d,
            "attention": 6 * 4 * d * d,
            "feed_forward": feed_forward,
            "norms": 12 * 2 * d,
        },
        "decoder": {
            "total": 12 * 4 * d * d + feed_forward + 18 * 2 * d,
            "attention": 12 * 4 * d * d,
            "feed_forward": feed_forward,
            "norms": 18 * 2 * d,
        },
    }


def compute_layers_twice(model):
    # transformers 5.23 deprecates the name that earlier ones know.
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()


def batch_of(config, rows, length):
    tokens = torch.randint(4, config.decoder_vocab_size, (2, rows, length))
    ones = torch.ones(rows, length, dtype=torch.int64)
    return {"input_ids": tokens[0] % config.vocab_size, "attention_mask": ones, "labels": tokens[1]}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"d_k": 16, "d_v": 24, "norm_position": "pre"},
        {"encoder_layers": 1, "decoder_ffn_dim": 256, "decoder_vocab_size": 700},
        {"gradient_checkpointing": True},
        {"second_pass": "simcut"},
        {"second_pass": "r_drop"},
    ],
)
def test_planned_operations_are_those_that_pytorch_counts(fields):
    fields = dict(fields)
    checkpointing, second_pass = fields.pop("gradient_checkpointing", False), fields.pop("second_pass", None)
    has_one_vocabulary = "decoder_vocab_size" not in fields
    config = VaswaniConfig(**SMALL | fields, share_encoder_decoder_embeddings=has_one_vocabulary)
    # PyTorch's counter knows neither the fused kernel of processors nor a product that is added in place.
    model = VaswaniForSeq2SeqLM._from_config(config, attn_implementation="eager").train()
    if checkpointing:
        compute_layers_twice(model)
    in_place = {torch.ops.aten.addmm_: lambda of, a, b, **kwargs: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        called(model, second_pass)(**batch_of(config, 3, 20)).loss.backward()
    planned = step_flops(
        meta_model(config), (60, 60), 20, gradient_checkpointing=checkpointing, second_pass=second_pass
    )
    assert planned == counter.get_total_flops()


def called(model, second_pass):
    """What gives the loss of a batch: the model, or two passes of it."""
    if second_pass is None:
        return model
    return functools.partial(Consistency(model, 3.0, 0.05 if second_pass == "simcut" else None), model)


def test_planned_operations_of_muon_are_those_that_pytorch_counts():
    config = VaswaniConfig(**SMALL)
    model = VaswaniForSeq2SeqLM(config)
    optimizer = muon_and_adamw(model, load_recipe(NUMBERS).training)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert counter.get_total_flops() == muon_flops(meta_model(config)) > 0


def test_keys_and_values_of_the_source_are_products_at_its_positions():
    model, d, f = meta_model(VaswaniConfig(**SMALL)), 128, 512
    more = step_flops(model, (100, 60), 20) - step_flops(model, (60, 60), 20)
    # The encoder's matrices, two of each cross-attention, and the scores and sums of the encoder.
    assert more == 3 * 2 * 40 * (3 * (4 * d * d + 2 * d * f) + 3 * 2 * d * d + 3 * 20 * 2 * d)


def test_a_window_leaves_a_query_fewer_keys():
    config, windows = VaswaniConfig(**SMALL), VaswaniConfig(**SMALL, attention_window=2)
    whole, near = (step_flops(meta_model(c), (60, 60), 20) for c in (config, windows))
    # Of 20 keys 5 in the encoder and 3 in the decoder, in 3 layers each; 2 products of width 128, 3 times.
    assert whole - near == 3 * 3 * 2 * 2 * 128 * 60 * (15 + 17)


def peak_of_a_step(model, batch, bf16, second_pass=None) -> int:
    """The most bytes that a step has at once, beside the weights and Adam's moments."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = called(model, second_pass)(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    # The first step makes the moments.
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("fields", "rows", "bf16"),
    [
        ({}, 32, False),
        ({}, 32, True),
        # The gradients are the peak.
        ({}, 2, False),
        ({"norm_position": "pre", "d_k": 16}, 32, False),
        ({"activation_function": "gelu", "dropout": 0.0}, 32, False),
        ({"vocab_size": 12000, "d_model": 64}, 32, False),
        ({"gradient_checkpointing": True}, 64, False),
        ({"second_pass": "simcut"}, 16, False),
        ({"second_pass": "r_drop"}, 16, False),
        ({"second_pass": "simcut", "vocab_size": 12000, "d_model": 64}, 8, False),
    ],
)
def test_planned_memory_is_what_a_step_takes(fields, rows, bf16):
    fields = SMALL | fields
    checkpointing, second_pass = fields.pop("gradient_checkpointing", False), fields.pop("second_pass", None)
    model = VaswaniForSeq2SeqLM(VaswaniConfig(**fields)).train()
    if checkpointing:
        compute_layers_twice(model)
    config, parameters = model.config, model.num_parameters()
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    settings = StepSettings(
        (rows * 32,) * 2, 32, "cpu", bf16=bf16, gradient_checkpointing=checkpointing, second_pass=second_pass
    )
    planned = step_memory(config, parameters, matrices, settings)
    measured = peak_of_a_step(model, batch_of(config, rows, 32), bf16, second_pass)
    assert planned["peak"] - 12 * parameters == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    "fields", [{}, {"norm_position": "pre"}, {"d_k": 16, "d_v": 16}, {"d_k": 16}, {"activation_function": "gelu"}]
)
def test_planned_activations_are_what_autograd_keeps(fields):
    model = VaswaniForSeq2SeqLM(VaswaniConfig(**SMALL | fields)).train()
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(**batch_of(model.config, 32, 32)).loss
    assert loss.requires_grad
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept_bytes = sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)
    # The gradients that the loss has computed in the forward pass.
    kept_bytes -= 4 * 128 * (4000 + 32 * 32)
    planned = activation_memory(model.config, StepSettings((32 * 32,) * 2, 32, "cpu"))
    assert planned == pytest.approx(kept_bytes, rel=0.01)


def test_the_memory_of_an_accelerator_has_smaller_masks_and_of_a_processor_smaller_parts():
    memory = plan_run(load_recipe(BASE, ["--bf16", "false"]))["memory"]
    assert memory["accelerator"]["source_positions"] == 25_000
    # 2^19 numbers of 512.
    assert memory["processor"]["source_positions"] == 1024
    masks = 25_000 * 512 * (6 * 5 + 2) * 3
    whole = activation_memory(planned_config(load_recipe(BASE)), StepSettings((25_000, 25_000), 32, "cpu"))
    assert whole - memory["accelerator"]["activations"] == masks
    parts = memory["processor"]
    kept = ("weights", "gradients", "optimizer", "activations", "loss")
    # Gradients of the parts before lie beside the activations.
    assert parts["peak"] == sum(parts[name] for name in kept)


def test_the_paper_s_runs_take_the_paper_s_hours_and_operations():
    base, big = (
        plan_run(load_recipe(CONFIGURATION / "wmt14" / f"{name}_en_de.yaml"), hardware="P100")
        for name in ("base", "big")
    )
    # Section 5.2: 0.4 and 1.0 seconds a step on eight P100 of 9.5 TFLOPS.
    assert base["hours"] == pytest.approx(100_000 * 0.4 / 3600)
    assert base["flops"]["paper"]["run"] == pytest.approx(100_000 * 0.4 * 8 * 9.5e12)
    assert big["flops"]["paper"]["run"] == pytest.approx(300_000 * 1.0 * 8 * 9.5e12)
    assert (base["source_tokens"], base["target_tokens"], base["steps"]) == (2_500_000_000, 2_500_000_000, 100_000)
    slow = plan_run(load_recipe(BASE), hardware="k80")
    assert slow["hours"] == pytest.approx(base["hours"] * 9.5 / 2.8) and slow["hardware"] == "8 x K80"
    # Half the steps' tokens, half the time.
    half = load_recipe(BASE, ["--source_tokens_per_batch", "12500", "--target_tokens_per_batch", "12500"])
    assert plan_run(half, hardware="P100")["hours"] == pytest.approx(base["hours"] / 2)


def test_hours_by_a_measured_rate_are_of_all_batches_of_a_step():
    plan = plan_run(load_recipe(NUMBERS), tokens_per_second=1000)
    assert plan["target_tokens"] == 1300 * 2 * 512
    assert plan["hours"] == pytest.approx(1300 * 2 * 512 / 1000 / 3600)
    assert plan["flops"]["counted"]["run"] == 1300 * plan["flops"]["counted"]["step"]
    one = plan_run(load_recipe(NUMBERS, ["--gradient_accumulation_steps", "1"]))
    assert plan["flops"]["counted"]["step"] == 2 * one["flops"]["counted"]["step"]


def printed(capsys, *argv) -> str:
    assert main(["plan", *map(str, argv)]) == 0
    return capsys.readouterr().out


def test_nothing_is_read_for_a_plan(capsys, monkeypatch, tmp_path):
    def refuse(*args):
        raise AssertionError("a plan needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    plan = json.loads(printed(capsys, BASE, "--json"))
    assert plan == plan_run(load_recipe(BASE))
    assert (plan["hours"], plan["flops"]["mean_length"]) == (None, 32)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", sorted(CONFIGURATION.glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_is_planned_without_its_files(path):
    recipe = load_recipe(path, ["--init_from", "null"], needs_data=False)
    if recipe.task in TEXT_TASKS:
        with pytest.raises(ValueError) as error:
            plan_run(recipe)
        assert str(error.value) == (
            f"`vaswani plan` counts an encoder and a decoder, but the recipe has `task: {recipe.task}`, a model of one of them."
        )
        return
    assert plan_run(recipe)["flops"]["counted"]["run"] > 0


def test_an_average_and_muon_change_what_is_kept():
    def memory(*overrides):
        return plan_run(load_recipe(NUMBERS, [*overrides]))["memory"]["processor"]

    plain, averaged, muon = memory(), memory("--ema_decay=0.99"), memory("--optimizer=muon")
    parameters = plain["gradients"] // 4
    assert averaged["weights"] - plain["weights"] == 4 * parameters == averaged["peak"] - plain["peak"]
    model = meta_model(planned_config(load_recipe(NUMBERS)))
    linear = (module.weight for module in model.model.modules() if isinstance(module, torch.nn.Linear))
    matrices = sum(weight.numel() for weight in linear)
    assert plain["optimizer"] - muon["optimizer"] == 4 * matrices


def test_a_plan_for_people(capsys):
    text = printed(capsys, BASE, "--hardware", "P100", "--mean_length", "20")
    lines = {line[:16].strip(): line[16:].split() for line in text.splitlines()}
    assert lines["parameters"][0] == "63,045,632" and lines["encoder"][0] == "18,902,016"
    assert lines["hours"] == ["11.1", "by", "8", "x", "P100"]
    assert "sentences of 20 tokens (assumed)" in text and "100,000 steps x 0.4 s x 8 GPUs x 9.5 TFLOPS" in text
    assert printed(capsys, NUMBERS, "--tokens_per_second", "1000", "--seed", "3").endswith(
        "0.4  by 1,000 target tokens/s\n"
    )
    assert "unknown  give `--hardware` or a measured `--tokens_per_second`" in printed(capsys, NUMBERS)


def test_a_recipe_that_counts_epochs_has_no_steps_yet(capsys):
    epochs = ["--max_steps", "null", "--num_train_epochs", "2.5"]
    text = printed(capsys, NUMBERS, *epochs, "--hardware", "P100")
    assert (
        "unknown  `training.num_train_epochs` = 2.5 counts epochs of a corpus that is not read; with `training.max_steps` "
        "steps, tokens and hours are known\n" in text
    )
    assert "unknown  the number of steps is unknown" in text and "FLOPs of a step" in text
    plan = json.loads(printed(capsys, NUMBERS, *epochs, "--json"))
    assert plan["steps"] is plan["hours"] is plan["flops"]["counted"]["run"] is plan["target_tokens"] is None
    assert plan["flops"]["counted"]["step"] > 0 and plan["num_train_epochs"] == 2.5


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        (["no.yaml"], 1, "vaswani: The recipe 'no.yaml' cannot be read: No such file or directory.\n"),
        (
            [NUMBERS, "--hardware", "P10"],
            1,
            "vaswani: `--hardware` must be one of K80, K40, M40, P100, whose rates the paper gives, but is 'P10'; the nearest "
            "name is P100. For other hardware measure a rate, such as the one that the lines of a run show, and give it as "
            "`--tokens_per_second`.\n",
        ),
        (
            [NUMBERS, "--tokens_per_second", "0"],
            1,
            "vaswani: `--tokens_per_second` must be a positive number, but is 0.0.\n",
        ),
        (
            [NUMBERS, "--tokens_per_second", "nan"],
            1,
            "vaswani: `--tokens_per_second` must be a positive number, but is nan.\n",
        ),
        (
            [NUMBERS, "--tokens_per_second", "fast"],
            2,
            "vaswani plan: argument --tokens_per_second: invalid float value: 'fast'; see vaswani plan --help\n",
        ),
        (
            [NUMBERS, "--mean_length", "0"],
            2,
            "vaswani plan: argument --mean_length: must be a positive integer, but is '0'; see vaswani plan --help\n",
        ),
        (
            [NUMBERS, "--hardware", "P100", "--tokens_per_second", "3"],
            2,
            "vaswani plan: argument --tokens_per_second: not allowed with argument --hardware; see vaswani plan --help\n",
        ),
        (
            [NUMBERS, "--hardwear", "P100"],
            1,
            "vaswani: `--hardwear` is no key of a recipe; the nearest key is `--shared_vocabulary`.\n",
        ),
        (
            [NUMBERS, "--frozen", "encoder"],
            1,
            "vaswani: `training.frozen: encoder` is counted by no plan; leave it out with `--frozen []`, for a plan of the run in "
            "which all is trained.\n",
        ),
        (
            [NUMBERS, "--mean_length", "100000"],
            1,
            "vaswani: `--mean_length` must be at most `data.max_length`, 64, but is 100000.\n",
        ),
        (
            [NUMBERS, "--init_from", "user/name"],
            1,
            "vaswani: `model.init_from: user/name` would have to be read for a plan; leave it out with `--init_from null`, and give "
            "the fields of that model.\n",
        ),
        (["--json"], 2, "vaswani plan: the following arguments are required: recipe; see vaswani plan --help\n"),
    ],
)
def test_a_bad_command_is_one_sentence(capsys, argv, code, expected):
    try:
        found = main(["plan", *map(str, argv)])
    except SystemExit as end:
        found = end.code
    out, errors = capsys.readouterr()
    assert (found, out) == (code, "")
    assert errors == expected
