"""Estimates the cost of a run (parameters, FLOPs, memory, tokens and hours) without reading the training
data.

step_cost.py runs a training step of the real model without data, and counts FLOPs and memory. The paper
estimates FLOPs (Section 6.1, Table 2): the training time times the number of GPUs times "an estimate of the
sustained single-precision floating-point capacity of each GPU" (footnote 5). The paper's method assumes the
sustained capacity during the whole training time, but the GPUs compute more slowly. Therefore the paper's
numbers are larger than the counted FLOPs.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..optimization.section import PAPER_TOKENS_PER_BATCH, AnyTraining, EncoderDecoderTraining
from ..recipe.recipe import Recipe
from ..settings.gpus import (
    ASSUMED_UTILIZATION,
    GPUS,
    NUM_PAPER_GPUS,
    PAPER_GPUS,
    PRICES,
    gpu_name,
    gpu_seconds,
)
from ..settings.sections import ModelSettings
from ..tasks import TASKS
from .batches import largest_part
from .measure import measure_speed
from .planned_step import PlannedRun
from .recipe_model import Parameters, parameters_by_part, planned_config, planned_model
from .step_cost import StepCost, StepMemory, step_cost

# The assumed mean length of a sentence (tokens).
MEAN_LENGTH = 32
# The largest number of layers (both stacks together) that `vaswani plan` accepts, because `vaswani plan` runs
# each layer. `vaswani plan` runs one encoder layer and one decoder layer in about 50 ms.
MAX_LAYERS = 200
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Flops:
    """The counted FLOPs of the matrix products of a step and of the run. If the number of steps of the run is
    unknown, the field `run` is None.
    """

    step: int
    run: int | None


@dataclass(frozen=True, kw_only=True)
class PaperFlops:
    """The FLOPs, estimated as in the paper: the time, times the number of GPUs, times the speed of a GPU.
    `seconds_of_a_step` is the time on the paper's eight P100 GPUs.
    """

    seconds_of_a_step: float
    step: float
    run: float | None


@dataclass(frozen=True, kw_only=True)
class PlannedFlops:
    """The counted FLOPs, and the FLOPs by the paper's method (training time times sustained FLOP/s of the
    GPUs).

    The fields `counted` and `paper` contain the FLOPs for sentences of `mean_length` tokens.
    `counted_at_max_length` assumes sentences of `max_length` tokens, the value of `data.max_length`.
    """

    mean_length: int
    counted: Flops
    paper: PaperFlops
    max_length: int
    counted_at_max_length: Flops


@dataclass(frozen=True, kw_only=True)
class PlannedMemory:
    """The memory of a training step: on a GPU (the field `accelerator`) and on a CPU (the field `processor`).
    If the trainer computes a batch in several parts on a CPU, `processor` is the memory for one part.
    """

    accelerator: StepMemory
    processor: StepMemory


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a run. `source` says where the price per hour comes from."""

    total: float
    per_hour: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """The estimated cost of a run on a one-GPU machine of Hugging Face Jobs.

    Attributes:
        flavor: The value of `hf jobs run --flavor`.
        gpu: The name of the GPU.
        hours: The hours of the run.
        price: The price of the run in US dollars.
        fits: True if a training step fits into the memory of the GPU.
    """

    flavor: str
    gpu: str
    hours: float
    price: float
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The estimated cost of a run. The field names are the keys of `vaswani plan --json`.

    Attributes:
        vocab_size: The number of tokens in the source vocabulary.
        decoder_vocab_size: The number of tokens in the target vocabulary.
        parameters: The numbers of parameters of the model and of its parts.
        steps: The number of optimizer steps; None if the recipe gives `num_train_epochs`.
        num_train_epochs: The number of epochs; None if the recipe gives `max_steps`.
        source_tokens: The maximum number of source positions (tokens and padding) in the whole run; None for
            a language model, or for an unknown number of steps.
        target_tokens: The maximum number of target positions (tokens and padding) in the whole run; None if
            the number of steps is unknown.
        flops: The FLOPs of a step and of the run, for a run of one process.
        memory: The memory of a training step.
        hardware: The number and the name of the GPUs, such as "8 x P100"; None without `--hardware`.
        tokens_per_second: The given or measured speed in target tokens per second; None without such a speed.
        speed: A text that names the speed on which `hours` is based, or says which options give a speed.
        hours: The hours of the run; None if the speed or the number of steps is unknown.
        price: The price of the run; None if `hours` or the price of the hardware is unknown.
        jobs: The cost on each one-GPU machine of Hugging Face Jobs, the cheapest first; empty if the number
            of steps is unknown.
    """

    vocab_size: int
    decoder_vocab_size: int
    parameters: Parameters
    steps: int | None
    num_train_epochs: float | None
    source_tokens: int | None
    target_tokens: int | None
    flops: PlannedFlops
    memory: PlannedMemory
    hardware: str | None
    tokens_per_second: float | None
    speed: str
    hours: float | None
    price: Price | None
    jobs: list[Job]

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON. "parameters" has no key for a stack that the model does not have."""
        plan = dataclasses.asdict(self)
        plan["parameters"] = {name: part for name, part in plan["parameters"].items() if part is not None}
        return plan


@dataclass(frozen=True)
class _Speed:
    """The speed of a run, and a text about the speed for the user. `seconds` is the time of a step, or None
    if the time is unknown. `tokens_per_second` (target tokens) is None if the speed was neither given nor
    measured.
    """

    seconds: float | None
    text: str
    tokens_per_second: float | None = None


def plan_run(
    recipe: Recipe,
    *,
    hardware: str | None = None,
    tokens_per_second: float | None = None,
    measure: bool = False,
    price_per_hour: float | None = None,
    mean_length: int | None = None,
) -> Plan:
    """Plan a run of one process. If the number of steps is unknown, the values that depend on the number of
    steps are None.

    The training speed comes from at most one of three arguments: `hardware` is the name of a GPU in
    settings/gpus.py, `tokens_per_second` is the measured speed of a run in target tokens per second, and
    `measure=True` measures the speed on this machine. `price_per_hour` is the price of the hardware for one
    hour, in any currency. `mean_length` is the mean length of a sentence in tokens (default: `MEAN_LENGTH`).
    """
    run = planned_run(recipe)
    config = run.config
    training = run.training
    _refuse_unplannable(recipe.model, config)
    gpu = None if hardware is None else gpu_name(hardware)
    longest = recipe.data.max_length
    length = _mean_length(mean_length, longest)

    on_accelerator = step_cost(run, length)
    of_longest = step_cost(run, longest)
    on_processor = _cost_on_processor(run, length, longest)
    flops = PlannedFlops(
        mean_length=length,
        counted=counted_flops(on_accelerator, training),
        paper=paper_flops(run, length, on_accelerator),
        max_length=longest,
        counted_at_max_length=counted_flops(of_longest, training),
    )
    if measure:
        measured, machine = measure_speed(run, length)
        speed = _speed_by_tokens(measured, training, f", measured on {machine}")
    elif tokens_per_second is not None:
        speed = _speed_by_tokens(tokens_per_second, training)
    else:
        speed = _speed_on(gpu, flops, training)
    steps = training.max_steps
    hours = None if speed.seconds is None or steps is None else steps * speed.seconds / 3600
    batches = None if steps is None else steps * training.gradient_accumulation_steps
    has_source = len(training.batch_keys) == 2
    return Plan(
        vocab_size=config.vocab_size,
        decoder_vocab_size=config.decoder_vocab_size or config.vocab_size,
        parameters=parameters_by_part(planned_model(config, run.model_class)),
        steps=steps,
        num_train_epochs=training.num_train_epochs,
        source_tokens=batches * training.source_tokens_per_batch if batches and has_source else None,
        target_tokens=batches * training.target_tokens_per_batch if batches else None,
        flops=flops,
        memory=PlannedMemory(accelerator=on_accelerator.memory, processor=on_processor.memory),
        hardware=None if gpu is None else f"{_number_of_gpus(gpu)} x {gpu}",
        tokens_per_second=speed.tokens_per_second,
        speed=speed.text,
        hours=hours,
        price=_price(hours, price_per_hour, gpu),
        jobs=_jobs(flops.counted.run, training, on_accelerator.memory.peak),
    )


def planned_run(recipe: Recipe) -> PlannedRun:
    """Return the config, the training and the class of the model that a recipe describes."""
    config = planned_config(recipe.model, recipe.tokenizer)
    return PlannedRun(config, recipe.training, TASKS[recipe.task].model_class)


def _refuse_unplannable(model: ModelSettings, config: VaswaniConfig) -> None:
    if names := model.bases():
        raise InvalidValueError(
            "`model.init_from` must be null, because a plan loads no other models, but is "
            f"{' and '.join(names)}; give `--init_from null` and the config fields of the model."
        )
    # The config of a language model has two stacks of equal shape, but the model has one stack.
    layers = sum(config.shape_of(stack).num_layers for stack in model.stacks)
    if layers > MAX_LAYERS:
        raise InvalidValueError(
            f"`vaswani plan` runs every layer and accepts at most {MAX_LAYERS} layers in both stacks "
            f"together, but the model has {layers:,}; plan a smaller number of layers."
        )


def _mean_length(mean_length: int | None, longest: int) -> int:
    """Return the mean length of a sentence (tokens). `longest` is the length of the longest sentence."""
    if mean_length is not None and mean_length > longest:
        raise InvalidValueError(
            f"`--mean_length` must be at most `data.max_length`, {longest}, but is {mean_length}."
        )
    return min(mean_length or MEAN_LENGTH, longest)


def _cost_on_processor(run: PlannedRun, length: int, longest: int) -> StepCost:
    """Return the FLOPs and the memory of a batch on a CPU. If the trainer divides the batch, return the FLOPs
    and the memory of one part of the batch.
    """
    largest = largest_part(run.training, run.config.d_model)
    if largest is not None:
        # The trainer never divides a sentence between two parts of a batch. Therefore the maximum number of
        # positions in a part of a batch is at least the length of the longest sentence.
        largest = max(largest, longest)
    return step_cost(run, length, on_accelerator=False, largest_part=largest)


def counted_flops(cost: StepCost, training: AnyTraining) -> Flops:
    """Return the counted FLOPs of a step and of the run. `cost` contains the FLOPs of a batch and of an
    optimizer step.
    """
    step = training.gradient_accumulation_steps * cost.batch_flops + cost.optimizer_flops
    return Flops(step=step, run=None if training.max_steps is None else training.max_steps * step)


def paper_flops(run: PlannedRun, length: int, cost: StepCost) -> PaperFlops:
    """Return the FLOPs of a step and of the run by the paper's method (Section 6.1). The FLOPs are the
    estimated time, times the number of the paper's GPUs, times the FLOP/s of one GPU. `cost` is the cost of a
    batch whose sentences have `length` tokens each.

    The estimated time assumes as many FLOPs per second as in the paper's training of the base model or the
    big model. Of the base model and the big model, the estimate uses the model whose FLOPs per step are
    closer to the FLOPs per step of the run.
    """
    training = run.training
    if training.gradient_checkpointing:
        # Count the FLOPs without gradient checkpointing, because the paper does not use gradient
        # checkpointing.
        plain = dataclasses.replace(run, training=training.replace(gradient_checkpointing=False))
        cost = step_cost(plain, length)
    counted = counted_flops(cost, training).step
    of_paper, seconds_of_paper = min(_paper_steps(length), key=lambda step: abs(math.log(step[0] / counted)))
    seconds = seconds_of_paper * counted / of_paper
    step = seconds * NUM_PAPER_GPUS * PAPER_GPUS["P100"]
    total = None if training.max_steps is None else training.max_steps * step
    return PaperFlops(seconds_of_a_step=seconds, step=step, run=total)


@cache
def _paper_steps(length: int) -> list[tuple[int, float]]:
    """For the base model and the big model, return the number of FLOPs per step, and the seconds per step
    that the paper reports (Section 5.2).
    """
    training = EncoderDecoderTraining(
        bf16=False,
        source_tokens_per_batch=PAPER_TOKENS_PER_BATCH,
        target_tokens_per_batch=PAPER_TOKENS_PER_BATCH,
    )
    base = PlannedRun(VaswaniConfig(), training)
    big = PlannedRun(
        VaswaniConfig(
            d_model=1024,
            encoder_attention_heads=16,
            decoder_attention_heads=16,
            encoder_ffn_dim=4096,
            decoder_ffn_dim=4096,
        ),
        training,
    )
    return [(step_cost(base, length).batch_flops, 0.4), (step_cost(big, length).batch_flops, 1.0)]


def step_seconds(training: AnyTraining, tokens_per_second: float) -> float:
    """Return the duration of a training step (seconds) at a speed of `tokens_per_second` target tokens per
    second.
    """
    return training.gradient_accumulation_steps * training.target_tokens_per_batch / tokens_per_second


def _number_of_gpus(name: str) -> int:
    """Return the number of GPUs that the plan assumes: the eight GPUs of the paper, or one newer GPU."""
    return NUM_PAPER_GPUS if name in PAPER_GPUS else 1


def _speed_by_tokens(tokens_per_second: float, training: AnyTraining, machine: str = "") -> _Speed:
    seconds = step_seconds(training, tokens_per_second)
    return _Speed(seconds, f"{tokens_per_second:,.0f} target tokens/s{machine}", tokens_per_second)


def _speed_on(name: str | None, flops: PlannedFlops, training: AnyTraining) -> _Speed:
    if name is None:
        return _Speed(None, "give `--hardware`, `--measure` or a measured `--tokens_per_second`")
    if name in PAPER_GPUS:
        return _Speed(flops.paper.step / (NUM_PAPER_GPUS * PAPER_GPUS[name]), f"{NUM_PAPER_GPUS} x {name}")
    gpu = GPUS[name]
    bf16 = training.bf16 is not False
    peak, dtype = gpu.peak(bf16)
    text = (
        f"1 x {name}, if the run reaches {ASSUMED_UTILIZATION:.0%} of the peak of {peak / 1e12:g} TFLOPS in "
        f"{dtype}; no GPU run of this package has been measured; peak: {gpu.source}"
    )
    return _Speed(gpu_seconds(gpu, flops.counted.step, bf16), text)


def _jobs(flops: float | None, training: AnyTraining, peak_memory: int) -> list[Job]:
    """Return the cost on each one-GPU machine of Hugging Face Jobs, the cheapest first. `flops` is the number
    of FLOPs of the run, if known. `peak_memory` is the largest memory use during a training step, in bytes.
    """
    if flops is None:
        return []
    jobs = []
    for name, gpu in GPUS.items():
        if gpu.flavor is None or gpu.price is None:
            continue
        hours = gpu_seconds(gpu, flops, training.bf16 is not False) / 3600
        fits = peak_memory < gpu.memory * GIB
        jobs.append(Job(flavor=gpu.flavor, gpu=name, hours=hours, price=hours * gpu.price, fits=fits))
    return sorted(jobs, key=lambda job: job.price)


def _price(hours: float | None, price_per_hour: float | None, name: str | None) -> Price | None:
    """Return the price of the run. Return None if the price per hour or the number of hours is unknown."""
    source = "by `--price_per_hour`"
    if price_per_hour is None and name in GPUS:
        price_per_hour = GPUS[name].price
        source = f"US dollars, by {PRICES}"
    if hours is None or price_per_hour is None:
        return None
    return Price(total=hours * price_per_hour, per_hour=price_per_hour, source=source)
