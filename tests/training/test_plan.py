"""The planned cost of a run equals built models, PyTorch's counts of operations, and measured memory."""

import json
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from factories import stacks
from huggingface_hub import JobHardware
from sentences import contains, rows
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.data.batching import PairCollator, cut_into_parts
from vaswani_hf.optimization.optimizers import OPTIMIZERS
from vaswani_hf.optimization.regularizers import regularizer_of
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.recipe import load_recipe
from vaswani_hf.settings.gpus import GPUS, PRICES
from vaswani_hf.tasks import TASKS
from vaswani_hf.training.measure import measure_speed
from vaswani_hf.training.plan import GIB, MEAN_LENGTH, paper_flops, plan_run, planned_run
from vaswani_hf.training.plan_text import plan_as_text
from vaswani_hf.training.planned_step import PlannedRun, batch_shape, full_batch
from vaswani_hf.training.recipe_model import (
    StackParameters,
    build_model,
    parameters_by_part,
    planned_config,
    planned_model,
)
from vaswani_hf.training.step_cost import StepCost, StepMemory, step_cost

CONFIGURATION = Path(__file__).parents[2] / "configuration"
BASE = CONFIGURATION / "wmt14" / "base_en_de.yaml"
NUMBERS = CONFIGURATION / "numbers.yaml"
LAYERS = 2
SMALL = {"vocab_size": 4000, "d_model": 128, "label_smoothing": 0.1}
SMALL |= stacks(layers=LAYERS, attention_heads=4, ffn_dim=512)
LENGTH = 32
ONE_LAYER = ("--encoder_layers=1", "--decoder_layers=1")


class Tokenizer:
    """The facts about a tokenizer that a model needs."""

    bos_token_id, pad_token_id, eos_token_id = 0, 1, 2

    def __init__(self, size):
        self.size = size
        self.init_kwargs = {}

    def __len__(self):
        return self.size


def built(recipe):
    """The model that a run would build, on the meta device."""
    source = target = Tokenizer(recipe.tokenizer.vocab_size)
    if not recipe.tokenizer.has_one_vocabulary:
        target = Tokenizer(recipe.tokenizer.planned_target_size)
    corpus = SimpleNamespace(source_tokenizer=source, target_tokenizer=target)
    task = TASKS[recipe.task]
    with torch.device("meta"):
        return build_model(recipe.model, task.model_class, corpus, recipe.decoding.settings(), recipe.seed)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("table3/e_learned_positions", []),
        ("numbers", ["--shared_vocabulary=false", "--target_vocab_size=900", "--norm_position=pre"]),
        ("numbers_causal", []),
        ("numbers_masked", []),
        ("parsing", []),
    ],
)
def test_planned_parameters_are_those_of_the_model_that_a_run_builds(name, overrides):
    recipe = load_recipe(CONFIGURATION / f"{name}.yaml", overrides, needs_data=False)
    planned = parameters_by_part(
        planned_model(planned_config(recipe.model, recipe.tokenizer), TASKS[recipe.task].model_class)
    )
    numbers = {id(parameter): parameter.numel() for parameter in built(recipe).parameters()}
    assert planned.total == sum(numbers.values())
    stacks = [stack for stack in (planned.encoder, planned.decoder) if stack is not None]
    assert planned.total == planned.embeddings + sum(stack.total for stack in stacks)
    assert all(stack.total == stack.attention + stack.feed_forward + stack.norms for stack in stacks)


def test_the_parameters_of_base_by_hand():
    d, f, classes = 512, 2048, 37000
    feed_forward = 6 * (2 * d * f + f + d)
    recipe = load_recipe(BASE)
    found = parameters_by_part(planned_model(planned_config(recipe.model, recipe.tokenizer)))
    assert found.total == classes * d + 18 * 4 * d * d + 2 * feed_forward + 30 * 2 * d
    assert found.embeddings == classes * d
    for stack, attention, norms in (
        (found.encoder, 6 * 4 * d * d, 12 * 2 * d),
        (found.decoder, 12 * 4 * d * d, 18 * 2 * d),
    ):
        parts = {"attention": attention, "feed_forward": feed_forward, "norms": norms}
        assert stack == StackParameters(total=sum(parts.values()), **parts)


def small_config(**fields) -> VaswaniConfig:
    return VaswaniConfig(**SMALL | fields)


def cost(fields=None, rows=3, length=LENGTH, on_accelerator=False, **training):
    """The planned cost of a step of a small model."""
    training = {f"{side}_tokens_per_batch": rows * length for side in ("source", "target")} | training
    run = PlannedRun(small_config(**(fields or {})), EncoderDecoderTraining(**training))
    return step_cost(run, length, on_accelerator=on_accelerator)


class RealStep:
    """A training step of a small model with random tokens, for comparison with a plan."""

    def __init__(self, fields, rows, **training):
        torch.manual_seed(0)
        self.training = EncoderDecoderTraining(**training)
        self.model = VaswaniForSeq2SeqLM(small_config(**fields)).train()
        self.model.config.use_cache = False
        if self.training.gradient_checkpointing:
            # transformers 5.23 deprecates the older name of this method.
            enable = getattr(self.model, "activation_checkpointing_enable", None)
            (enable or self.model.gradient_checkpointing_enable)()
        build = OPTIMIZERS[self.training.optimizer].build
        self.optimizer = build(self.model, self.training, bf16=self.training.bf16 is True)
        tokens = torch.randint(4, SMALL["vocab_size"], (2, rows, LENGTH))
        ones = torch.ones(rows, LENGTH, dtype=torch.int64)
        self.batch = {"input_ids": tokens[0], "attention_mask": ones, "labels": tokens[1]}

    def autocast(self):
        return torch.autocast("cpu", torch.bfloat16, enabled=self.training.bf16 is True)

    def run(self):
        regularizer = regularizer_of(self.training)
        compute = self.model
        if regularizer is not None:
            compute = partial(regularizer.build(self.model, self.training, self.autocast), self.model)
        with self.autocast():
            output = compute(**self.batch)
        output.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def peak(self):
        """The most bytes that a step uses at once, without the weights and the optimizer's state."""
        # The first step creates the state of the optimizer.
        self.run()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self.run()
        events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
        now = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return most


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"gradient_checkpointing": True},
        {"simcut_alpha": 3.0},
        {"r_drop_alpha": 3.0},
        {"optimizer": "muon"},
    ],
    ids=str,
)
def test_planned_operations_are_those_that_pytorch_counts(monkeypatch, training):
    # An accelerator computes the loss at ignored positions, too, because counting the other positions would
    # take longer.
    for module in ("model.loss_vaswani", "optimization.regularizers.two_passes"):
        monkeypatch.setattr(f"vaswani_hf.{module}.needs_sync", lambda states: True)
    # `FlopCounterMode` knows neither the fused kernel of processors nor a product that is added in place.
    eager = {"attn_implementation": "eager"}
    in_place = {torch.ops.aten.addmm_: lambda of, a, b, **kwargs: 2 * a[0] * a[1] * b[1]}
    step = RealStep(eager, 3, **training)
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        step.run()
    planned = cost(eager, **training)
    assert planned.batch_flops + planned.optimizer_flops == counter.get_total_flops()


def test_the_operations_of_a_step_by_hand():
    d, f, classes, positions = 128, 512, 4000, 3 * LENGTH
    matrices = LAYERS * (4 * d * d + 2 * d * f) + LAYERS * (8 * d * d + 2 * d * f) + classes * d
    # Each weight takes two operations per position in the forward pass, and four in the backward pass.
    products = 6 * matrices * positions
    # Scores and weighted sums of three attentions per layer; the backward pass computes the scores again.
    attention = 3 * LAYERS * 7 * 2 * positions * LENGTH * d
    assert cost(on_accelerator=True).batch_flops == products + attention


def test_a_window_leaves_a_query_fewer_keys():
    def flops(**fields):
        return cost(fields, rows=1, length=256, on_accelerator=True).batch_flops

    # In a block, 64 queries have 68 keys in the encoder and 66 keys in the decoder, instead of 256 keys.
    fewer = LAYERS * 7 * 2 * 256 * 128 * (256 - 68 + 256 - 66)
    assert flops() - flops(attention_window=2) == fewer


@pytest.mark.parametrize(
    ("fields", "rows", "training"),
    [
        ({}, 16, {"bf16": True}),
        # In this case, the memory is largest when all gradients exist.
        ({}, 2, {}),
        ({"norm_position": "pre", "d_k": 16, "activation_function": "gelu", "dropout": 0.0}, 16, {}),
        ({"attention_score": "additive"}, 8, {}),
        ({}, 32, {"gradient_checkpointing": True}),
        ({}, 8, {"r_drop_alpha": 3.0}),
    ],
    ids=str,
)
def test_planned_memory_is_what_a_step_takes(fields, rows, training):
    planned = cost(fields, rows, **training).memory
    measured = RealStep(fields, rows, **training).peak()
    # PyTorch adds gradients of fake tensors out of place, so the gradient of an embedding may exist twice.
    embedding = 4 * SMALL["vocab_size"] * SMALL["d_model"]
    assert planned.peak - planned.weights - planned.optimizer == pytest.approx(
        measured, rel=0.03, abs=1.1 * embedding
    )


def test_the_activations_on_an_accelerator_by_hand():
    """Bytes per position: residual sums, dropout masks (1 byte), and the inputs of matrix products."""
    d, f, heads, rows = 128, 512, 4, 32
    # Queries, keys, values and output, one softmax statistic per head, and the additive mask.
    attention = 4 * (4 * d) + 4 * heads + 4 * LENGTH
    feed_forward = 4 * (d + f)
    norm_and_mask = 4 * d + 8 + d
    encoder_layer = 4 * d + attention + feed_forward + 2 * norm_and_mask
    decoder_layer = 2 * (4 * d + attention) + feed_forward + 3 * norm_and_mask
    # The embeddings of both stacks have dropout masks, and the last states of both stacks exist.
    by_hand = rows * LENGTH * (LAYERS * (encoder_layer + decoder_layer) + 2 * d + 2 * 4 * d)
    planned = cost(rows=rows, on_accelerator=True).memory.activations
    assert planned == pytest.approx(by_hand, rel=0.002)
    in_bfloat16 = cost(rows=rows, on_accelerator=True, bf16=True).memory.activations
    assert 0.5 < in_bfloat16 / planned < 0.8


def test_gradients_of_earlier_batches_lie_beside_the_activations():
    once = cost(rows=32).memory
    again = cost(rows=32, gradient_accumulation_steps=2).memory
    parts = ("weights", "gradients", "optimizer", "activations", "loss")
    assert again.peak >= sum(getattr(again, part) for part in parts)
    assert once.peak < again.peak <= once.peak + once.gradients


def test_average_muon_and_frozen_weights_change_what_is_kept():
    plain = cost()
    matrices = 4 * LAYERS * (12 * 128**2 + 4 * 128 * 512)
    assert cost(ema_decay=0.99).memory.weights == 2 * plain.memory.weights
    assert plain.memory.optimizer - cost(optimizer="muon").memory.optimizer == pytest.approx(
        matrices, abs=1000
    )
    frozen = cost(frozen=["encoder.layers"])
    encoder = 4 * parameters_by_part(planned_model(small_config())).encoder.total
    assert plain.memory.gradients - frozen.memory.gradients == encoder
    assert frozen.batch_flops < plain.batch_flops


def test_the_side_with_fewer_tokens_has_shorter_sentences():
    found = cost(source_tokens_per_batch=128, target_tokens_per_batch=512).memory
    assert (found.source_positions, found.target_positions) == (16 * 8, 16 * 32)


@pytest.mark.parametrize(("source", "target"), [(9000, 20_000), (20_000, 9000), (500, 2000), (2000, 2000)])
def test_a_planned_part_of_a_batch_is_a_part_that_the_trainer_cuts(source, target):
    training = EncoderDecoderTraining(source_tokens_per_batch=source, target_tokens_per_batch=target)
    shape = batch_shape(training, LENGTH)
    source_ids = torch.ones(shape.rows, shape.source_length, dtype=torch.int64)
    batch = full_batch(source_ids, torch.ones(shape.rows, shape.target_length, dtype=torch.int64))
    del batch["num_items_in_batch"]
    first, *_ = cut_into_parts(batch, 1024, PairCollator(pad_token_id=1).trim)
    planned = batch_shape(training, LENGTH, 1024)
    assert planned.rows == pytest.approx(len(first["labels"]), abs=1)
    assert (planned.source_length, planned.target_length) == (
        first["input_ids"].size(1),
        first["labels"].size(1),
    )
    assert planned.rows * max(planned.source_length, planned.target_length) <= 1024


BATCH_FLOPS, OPTIMIZER_FLOPS = 10**12, 10**9
SIZES = {"weights": 4, "gradients": 3, "optimizer": 2, "activations": 1, "loss": 1}


def constant_cost(*args, on_accelerator=True, **kwargs):
    """The cost of each batch in the plans of the following tests."""
    sizes = {name: size * GIB for name, size in (SIZES | {"peak": 20 if on_accelerator else 5}).items()}
    memory = StepMemory(source_positions=512, target_positions=512, dtype="float32", **sizes)
    return StepCost(batch_flops=BATCH_FLOPS, optimizer_flops=OPTIMIZER_FLOPS, memory=memory)


STEPS = 2000
STEP_FLOPS = 2 * BATCH_FLOPS + OPTIMIZER_FLOPS
HOURS_BY_TOKENS = STEPS * 2 * 512 / 1000 / 3600
HOURS_OF_PAPER = STEPS * 0.4 * STEP_FLOPS / 10**15 / 3600
HOURS_ON_A100 = STEPS * STEP_FLOPS / (0.3 * 312e12) / 3600


@pytest.fixture
def constant_paper(monkeypatch):
    """Replace the costs of the paper's models by a constant, so that these models need not run."""
    monkeypatch.setattr("vaswani_hf.training.plan._paper_steps", lambda length: [(10**15, 0.4)])


@pytest.fixture
def planned(constant_paper, monkeypatch):
    """Plan the recipe of numbers with these options. No model runs, because each batch has the same cost."""
    monkeypatch.setattr("vaswani_hf.training.plan.step_cost", constant_cost)
    monkeypatch.setattr("vaswani_hf.training.plan.measure_speed", lambda *args: (1000.0, "a machine"))
    return lambda *options, **assumptions: plan_run(load_recipe(NUMBERS, options), **assumptions)


SPEEDS = [
    ({"tokens_per_second": 1000}, HOURS_BY_TOKENS, None, "0.569  by 1,000 target tokens/s"),
    ({"measure": True}, HOURS_BY_TOKENS, None, "0.569  by 1,000 target tokens/s, measured on a machine"),
    ({"measure": True, "price_per_hour": 2}, HOURS_BY_TOKENS, 2, "1.14  2.00 per hour, by `--price_"),
    ({"hardware": "P100"}, HOURS_OF_PAPER, None, "0.000445  by 8 x P100"),
    ({"hardware": "k80"}, HOURS_OF_PAPER * 9.5 / 2.8, None, "0.00151  by 8 x K80"),
    ({"hardware": "a100"}, HOURS_ON_A100, 2.5, f"0.03  2.50 per hour, US dollars, by {PRICES}"),
    ({"hardware": "a100", "price_per_hour": 0.1}, HOURS_ON_A100, 0.1, "< 0.01  0.10 per hour, by"),
    (
        {"hardware": "T4"},
        HOURS_ON_A100 * 312 / 8.1,
        0.4,
        "by 1 x T4, if the run reaches 30% of the peak of 8.1 TFLOPS in float32; no GPU run of this package has",
    ),
]


@pytest.mark.parametrize(("settings", "hours", "price_per_hour", "words"), SPEEDS, ids=str)
def test_the_hours_and_the_price_of_a_run(planned, settings, hours, price_per_hour, words):
    plan = planned("--bf16=auto", **settings)
    assert plan.hours == pytest.approx(hours)
    assert (plan.price and plan.price.per_hour) == price_per_hour
    assert plan.price is None or plan.price.total == pytest.approx(price_per_hour * hours)
    assert words in plan_as_text(plan)
    assert plan.hardware is None or f"by {plan.hardware}" in plan_as_text(plan)


def test_a_plan_for_people(planned):
    plan = planned("--max_steps=100000", mean_length=20)
    assert plan.source_tokens == plan.target_tokens == 100_000 * 2 * 512
    assert plan.flops.counted.run == 100_000 * STEP_FLOPS
    text = plan_as_text(plan)
    lines = {line[:16].strip(): line[16:].split() for line in text.splitlines()}
    assert lines["parameters"][0] == f"{plan.parameters.total:,}"
    assert lines["encoder"][0] == f"{plan.parameters.encoder.total:,}"
    assert (lines["GiB, accelerator"][0], lines["GiB, processor"][0]) == ("20.00", "5.00")
    assert "512 + 512 positions at once: weights 4.00, gradients 3.00, optimizer 2.00, " in text
    assert "sentences of 20 tokens (assumed)" in text
    assert "100,000 steps x 0.0008 s x 8 GPUs x 9.5 TFLOPS" in text
    unknown = "unknown  give `--hardware`, `--measure` or a measured `--tokens_per_second`"
    assert text.endswith(unknown) and "price" not in lines


def test_a_recipe_that_counts_epochs_has_no_steps_yet(planned):
    plan = planned("--max_steps=null", "--num_train_epochs=2.5", hardware="P100")
    assert plan.steps is plan.hours is plan.flops.counted.run is plan.target_tokens is None
    assert (plan.flops.counted.step, plan.num_train_epochs, plan.jobs) == (STEP_FLOPS, 2.5, [])
    text = plan_as_text(plan)
    assert (
        "unknown  `training.num_train_epochs` = 2.5 counts epochs of a corpus that is not read; give `training.max_steps` "
        "to plan the steps, the tokens and the hours\n" in text
    )
    assert "unknown  the number of steps is unknown" in text and "FLOPs of a step" in text


def test_the_price_on_each_machine_of_the_hubs_jobs(planned):
    plan = planned("--bf16=auto", "--max_steps=100000000")
    jobs = {job.flavor: job for job in plan.jobs}
    assert set(jobs) <= {hardware.value for hardware in JobHardware}
    price = 2.5 * HOURS_ON_A100 * 100_000_000 / STEPS
    assert jobs["a100-large"].price == pytest.approx(price)
    assert [job.price for job in plan.jobs] == sorted(job.price for job in plan.jobs)
    text = plan_as_text(plan)
    (line,) = [line for line in text.splitlines() if line.startswith("  a100-large")]
    assert line.split()[1] == f"{price:,.2f}" and "needs more memory" not in line
    hours = jobs["t4-small"].hours
    assert f"{hours:,.1f} hours on 1 x T4, but a step needs more memory than this GPU has" in text


@pytest.mark.usefixtures("constant_paper")
def test_nothing_is_read_for_a_plan(vaswani, monkeypatch, tmp_path):
    def refuse(*args):
        raise AssertionError("a plan needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    options = ["--corpus=null", "--source_tokens_per_batch=25000", *ONE_LAYER]
    code, printed, _ = vaswani("plan", NUMBERS, *options, "--json")
    plan = json.loads(printed)
    recipe = load_recipe(NUMBERS, options, needs_data=False)
    assert (code, plan) == (0, plan_run(recipe).as_json())
    assert (plan["hours"], plan["flops"]["mean_length"]) == (None, 32)
    assert not list(tmp_path.iterdir())
    # At once, an accelerator has 781 sentences of 32 tokens, and a processor 4,096 positions (2**19 numbers).
    memory = plan["memory"]
    positions = [memory[device]["source_positions"] for device in ("accelerator", "processor")]
    assert positions == [781 * 32, 4096]


@pytest.mark.usefixtures("constant_paper")
@pytest.mark.parametrize(
    ("name", "layers"),
    [("numbers_causal", ONE_LAYER[1:]), ("numbers_masked", ONE_LAYER[:1]), ("parsing", ONE_LAYER)],
)
def test_every_task_is_planned(vaswani, name, layers):
    code, text, _ = vaswani("plan", CONFIGURATION / f"{name}.yaml", "--max_steps", "10", *layers)
    assert code == 0
    assert ("source tokens" in text) == (" + " in text) == (name == "parsing")
    assert ("  encoder " in text) == (name != "numbers_causal")
    assert ("  decoder " in text) == (name != "numbers_masked")
    assert "GiB, accelerator" in text


@pytest.mark.parametrize(("name", "steps", "seconds"), [("base", 100_000, 0.4), ("big", 300_000, 1.0)])
def test_the_paper_s_runs_take_the_paper_s_operations(name, steps, seconds):
    # Section 5.2: a step takes 0.4 seconds (base) or 1.0 seconds (big) on eight P100 GPUs of 9.5 TFLOPS each.
    recipe = load_recipe(CONFIGURATION / "wmt14" / f"{name}_en_de.yaml")
    run = planned_run(recipe)
    found = paper_flops(run, MEAN_LENGTH, step_cost(run, MEAN_LENGTH))
    assert found.run == pytest.approx(steps * seconds * 8 * 9.5e12)


ERRORS = """
no.yaml | `recipe` must be an existing file or the name of a recipe, but is no.yaml; `vaswani recipes` lists all recipes of the package.
NUMBERS --hardware=P10 | `--hardware` must be one of H200, ... K80, K40, M40, P100, but is 'P10'; the nearest name is P100. For other
NUMBERS --tokens_per_second=0 | `--tokens_per_second` must be greater than 0, but is 0.0.
NUMBERS --tokens_per_second=nan | `--tokens_per_second` must be a finite number, but is nan.
NUMBERS --mean_length=0 | `--mean_length` must be 1 or more, but is 0.
NUMBERS --hardware=P100 --tokens_per_second=3 | `--hardware` and `--tokens_per_second` must not be given together, because each of them sets the training speed; keep only one of them.
NUMBERS --price_per_hour=2 | `--price_per_hour` is 2, but the price needs a training speed; give `--hardware`, `--measure` or `--tokens_per_second`.
NUMBERS --measure --price_per_hour=0 | `--price_per_hour` must be greater than 0, but is 0.0.
NUMBERS --encoder_layers=100000 | at most 200 layers in both stacks together, but the model has 100,002; plan a smaller number
numbers_causal --decoder_layers=201 | at most 200 layers in both stacks together, but the model has 201; plan a smaller number
NUMBERS --mean_length=100000 | `--mean_length` must be at most `data.max_length`, 64, but is 100000.
NUMBERS --init_from=user/name | `model.init_from` must be null, because a plan loads no other models, but is user/name; give `--init_from null`
"""


@pytest.mark.parametrize(("argv", "parts"), rows(ERRORS))
def test_a_bad_command_is_one_sentence(vaswani, argv, parts):
    code, out, sentence = vaswani("plan", *argv.replace("NUMBERS", str(NUMBERS)).split())
    assert (code, out) == (2, "")
    assert contains(sentence, parts), sentence


def test_the_manual_has_the_numbers_of_each_gpu():
    page = (CONFIGURATION.parent / "docs" / "how_to" / "plan.md").read_text(encoding="utf-8")
    for name, gpu in GPUS.items():
        price = "" if gpu.price is None else f"{gpu.price:.2f}"
        flavor = f"`{gpu.flavor}`" if gpu.flavor else ""
        assert f"| {name} | {gpu.bf16 or 'none'} | {gpu.fp32} | {price} | {flavor} | " in page
        assert f"({gpu.source}) |" in page


@pytest.mark.parametrize("task", ["translation", "masked_lm"])
def test_training_steps_are_measured(task):
    recipe = load_recipe(NUMBERS if task == "translation" else CONFIGURATION / "numbers_masked.yaml")
    run = planned_run(recipe.replace(training=recipe.training.replace(bf16=False)))
    rate, hardware = measure_speed(run, 16, seconds=0.05)
    assert rate > 0 and "thread" in hardware
