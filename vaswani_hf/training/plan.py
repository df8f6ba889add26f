"""Estimates the cost of a run: parameters, FLOPs, memory, tokens and hours. The estimate does not read the
training data.

step_cost.py runs a training step of the real model without data, and counts FLOPs and memory. The paper does
not count FLOPs (Section 5.2, Table 2). The paper multiplies the training time by the number of GPUs and by
"an estimate of the sustained single-precision floating-point capacity of each GPU" (footnote 5). The paper's
numbers are larger than the counted FLOPs, because the paper assumes that each GPU computes at its full
sustained capacity. A real training is slower.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..optimization.section import PAPER_TOKENS_PER_BATCH, AnyTraining, EncoderDecoderTraining
from ..settings.data import DataSettings
from ..settings.sections import ModelSettings, TokenizerSettings
from ..tasks import TASKS
from .gpus import ASSUMED_UTILIZATION, GPUS, NUM_PAPER_GPUS, PAPER_GPUS, PRICES, gpu_name, gpu_seconds
from .measure import measure_speed
from .recipe_model import PARTS, parameters_by_part, planned_config, planned_model
from .step_cost import StepCost, step_cost
from .trainer import largest_part

# The assumed mean length of a sentence (tokens). `vaswani plan` also prints the FLOPs for sentences of
# `data.max_length` tokens.
MEAN_LENGTH = 32
# Limit the number of layers, because `vaswani plan` runs each layer. An encoder layer and a decoder layer
# take about 50 ms together.
MAX_LAYERS = 200
_PAPER_TRAINING = EncoderDecoderTraining(
    bf16=False,
    source_tokens_per_batch=PAPER_TOKENS_PER_BATCH,
    target_tokens_per_batch=PAPER_TOKENS_PER_BATCH,
)
_GIB = 2**30
_MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "loss")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The assumptions of a plan: the speed and the price of the hardware, and the mean sentence length.

    The caller must set at most one of `hardware`, `tokens_per_second` and `measure`.

    Attributes:
        hardware: The name of a GPU in gpus.py.
        tokens_per_second: The measured speed of a run in target tokens per second.
        measure: If True, the plan measures the speed on this machine.
        price_per_hour: The price of the hardware for one hour, in any currency.
        mean_length: The mean length of a sentence (tokens); None means `MEAN_LENGTH`.
    """

    hardware: str | None = None
    tokens_per_second: float | None = None
    measure: bool = False
    price_per_hour: float | None = None
    mean_length: int | None = None


def plan_run(
    task: str,
    data: DataSettings,
    tokenizer: TokenizerSettings,
    model: ModelSettings,
    training: AnyTraining,
    settings: PlanSettings,
) -> dict[str, Any]:
    """Plan a run of one process, and return the values that `plan_as_text` prints.

    If the recipe gives `num_train_epochs` instead of `max_steps`, values that depend on the number of steps
    are None. For several processes, the FLOPs are the sum over all processes.
    """
    model_class = TASKS[task].model_class
    config = planned_config(model, tokenizer)
    _refuse_unplannable(model, config)
    name = None if settings.hardware is None else gpu_name(settings.hardware)
    longest = data.max_length
    length = _mean_length(settings, longest)
    steps = training.max_steps

    on_accelerator = batch_cost(config, training, model_class, length)
    of_longest = batch_cost(config, training, model_class, longest)
    on_processor = _cost_on_processor(config, training, model_class, length, longest)
    flops = planned_flops(config, training, model_class, length, on_accelerator)
    flops["max_length"] = longest
    flops["counted_at_max_length"] = _with_run(_step_flops(of_longest, training), training)

    tokens_per_second = settings.tokens_per_second
    machine = ""
    if settings.measure:
        tokens_per_second, hardware_here = measure_speed(config, training, model_class, length)
        machine = f", measured on {hardware_here}"
    if tokens_per_second is None:
        seconds, speed = _seconds_on(name, flops, training)
    else:
        seconds = step_seconds(training, tokens_per_second)
        speed = f"{tokens_per_second:,.0f} target tokens/s{machine}"
    hours = None if seconds is None or steps is None else steps * seconds / 3600
    return {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": config.decoder_vocab_size,
        "parameters": parameters_by_part(planned_model(config, model_class)),
        "steps": steps,
        "num_train_epochs": training.num_train_epochs,
        **_tokens_of_run(training),
        "flops": flops,
        "memory": {
            "accelerator": _memory(on_accelerator, training),
            "processor": _memory(on_processor, training),
        },
        "hardware": None if name is None else f"{NUM_PAPER_GPUS if name in PAPER_GPUS else 1} x {name}",
        "tokens_per_second": tokens_per_second,
        "speed": speed,
        "hours": hours,
        "price": _price(hours, settings.price_per_hour, name),
        "jobs": _jobs(flops["counted"]["run"], training, on_accelerator.peak),
    }


def _mean_length(settings: PlanSettings, longest: int) -> int:
    """Return the mean length of a sentence (tokens). `longest` is the length of the longest sentence."""
    if settings.mean_length is not None and settings.mean_length > longest:
        raise InvalidValueError(
            f"`--mean_length` must be at most `data.max_length`, {longest}, but is {settings.mean_length}."
        )
    return min(settings.mean_length or MEAN_LENGTH, longest)


def _tokens_of_run(training: AnyTraining) -> dict[str, int | None]:
    """Return the numbers of source and target tokens in all batches of a run. A language model has no source
    tokens.
    """
    if training.max_steps is None:
        return {"source_tokens": None, "target_tokens": None}
    batches = training.max_steps * training.gradient_accumulation_steps
    has_source = len(training.batch_keys) == 2
    return {
        "source_tokens": batches * training.source_tokens_per_batch if has_source else None,
        "target_tokens": batches * training.target_tokens_per_batch,
    }


def _cost_on_processor(
    config: VaswaniConfig,
    training: AnyTraining,
    model_class: type[PreTrainedModel],
    length: int,
    longest: int,
) -> StepCost:
    """Return the cost of a batch on a CPU. If the trainer divides the batch into smaller batches, return the
    cost of one smaller batch.
    """
    largest = largest_part(training, config.d_model)
    if largest is not None:
        # A part of a batch has room for the longest sentence, because the trainer never divides a sentence.
        largest = max(largest, longest)
    return batch_cost(config, training, model_class, length, on_accelerator=False, largest_part=largest)


def step_seconds(training: AnyTraining, tokens_per_second: float) -> float:
    """Return the seconds of a training step for a speed of `tokens_per_second` target tokens per second."""
    return training.gradient_accumulation_steps * training.target_tokens_per_batch / tokens_per_second


def _seconds_on(name: str | None, flops: dict[str, Any], training: AnyTraining) -> tuple[float | None, str]:
    """Return the estimated seconds of a step on a GPU, and a text about the estimate."""
    if name is None:
        return None, "give `--hardware`, `--measure` or a measured `--tokens_per_second`"
    if name in PAPER_GPUS:
        seconds = flops["paper"]["step"] / (NUM_PAPER_GPUS * PAPER_GPUS[name])
        return seconds, f"{NUM_PAPER_GPUS} x {name}"
    gpu = GPUS[name]
    peak, dtype = gpu.peak(bf16=training.bf16 is not False)
    speed = (
        f"1 x {name}, if the run reaches {ASSUMED_UTILIZATION:.0%} of the peak of {peak / 1e12:g} TFLOPS in "
        f"{dtype}; no GPU run of this package has been measured; peak: {gpu.source}"
    )
    return gpu_seconds(gpu, flops["counted"]["step"], training.bf16 is not False), speed


def _jobs(flops: float | None, training: AnyTraining, peak_memory: int) -> list[dict[str, Any]]:
    """Return the estimated hours and price of the run on each one-GPU machine that Hugging Face Jobs offers.

    `flops` is the number of FLOPs of the run, or None. If `flops` is None, the list is empty. `peak_memory`
    is the number of bytes that a training step needs on a GPU.
    """
    if flops is None:
        return []
    jobs = []
    for name, gpu in GPUS.items():
        if gpu.flavor is None or gpu.price is None:
            continue
        hours = gpu_seconds(gpu, flops, training.bf16 is not False) / 3600
        fits = peak_memory < gpu.memory * _GIB
        jobs.append(
            {
                "flavor": gpu.flavor,
                "gpu": name,
                "hours": hours,
                "price": hours * gpu.price,
                "fits": fits,
            }
        )
    return sorted(jobs, key=lambda job: job["price"])


def _price(hours: float | None, price_per_hour: float | None, name: str | None) -> dict[str, Any] | None:
    """Return the price of the run. Return None if the price per hour or the number of hours is unknown."""
    source = "by `--price_per_hour`"
    if price_per_hour is None and name in GPUS:
        price_per_hour = GPUS[name].price
        source = f"US dollars, by {PRICES}"
    if hours is None or price_per_hour is None:
        return None
    return {"total": hours * price_per_hour, "per_hour": price_per_hour, "source": source}


def _refuse_unplannable(model: ModelSettings, config: VaswaniConfig) -> None:
    if names := model.bases():
        raise InvalidValueError(
            "`model.init_from` must be null for a plan, because a plan loads no other models, but is "
            f"{' and '.join(names)}; give `--init_from null` and the config fields of the model."
        )
    layers = config.encoder_layers + config.decoder_layers
    if layers > MAX_LAYERS:
        raise InvalidValueError(
            f"`vaswani plan` runs every layer and accepts at most {MAX_LAYERS} layers in both stacks "
            f"together, but the model has {layers:,}; plan a smaller number of layers."
        )


def batch_cost(
    config: VaswaniConfig,
    training: AnyTraining,
    model_class: type[PreTrainedModel],
    length: int,
    *,
    on_accelerator: bool = True,
    largest_part: int | None = None,
) -> StepCost:
    """Return the cost of a training step with a full batch of sentences of `length` tokens.

    The numbers `source_tokens_per_batch` and `target_tokens_per_batch` can differ. On the side (source or
    target) with more tokens per batch, the function assumes sentences of `length` tokens. On the side with
    fewer tokens per batch, the function assumes proportionally shorter sentences. If the trainer divides a
    batch into parts, `largest_part` is the largest number of source positions (and of target positions) in a
    part. If `largest_part` is not None, the function returns the cost of one part of the batch.
    """
    source = training.source_tokens_per_batch
    target = training.target_tokens_per_batch
    if largest_part is not None:
        source = min(source, largest_part)
        target = min(target, largest_part)
    rows = max(1, max(source, target) // length)
    return step_cost(
        config,
        training,
        model_class,
        rows=rows,
        source_length=min(length, max(1, source // rows)),
        target_length=min(length, max(1, target // rows)),
        on_accelerator=on_accelerator,
        accumulates=largest_part is not None or training.gradient_accumulation_steps > 1,
    )


def planned_flops(
    config: VaswaniConfig,
    training: AnyTraining,
    model_class: type[PreTrainedModel],
    length: int,
    cost: StepCost,
) -> dict[str, Any]:
    """Return the FLOPs of a step and of the whole run for sentences of `length` tokens: the counted FLOPs,
    and the FLOPs by the paper's method of estimation.
    """
    in_paper = cost
    if training.gradient_checkpointing:
        # For the paper's method, count the FLOPs without gradient checkpointing, because the paper does not
        # use gradient checkpointing.
        in_paper = batch_cost(config, training.replace(gradient_checkpointing=False), model_class, length)

    seconds = paper_seconds(_step_flops(in_paper, training), length)
    return {
        "mean_length": length,
        "counted": _with_run(_step_flops(cost, training), training),
        "paper": {
            "seconds_of_a_step": seconds,
            **_with_run(seconds * NUM_PAPER_GPUS * PAPER_GPUS["P100"], training),
        },
    }


def _step_flops(cost: StepCost, training: AnyTraining) -> int:
    return training.gradient_accumulation_steps * cost.batch_flops + cost.optimizer_flops


def _with_run(step: float, training: AnyTraining) -> dict[str, float | None]:
    return {"step": step, "run": None if training.max_steps is None else training.max_steps * step}


def _memory(cost: StepCost, training: AnyTraining) -> dict[str, Any]:
    return {
        "source_positions": cost.source_positions,
        "target_positions": cost.target_positions,
        "dtype": "bfloat16" if training.bf16 is True else "float32",
        **{part: getattr(cost, part) for part in (*_MEMORY_PARTS, "peak")},
    }


def paper_seconds(flops: float, length: int) -> float:
    """Return the estimated seconds of a step on the paper's eight P100 GPUs (Section 5.2: base 0.4 s, big 1.0
    s).

    The estimate assumes the FLOPs per second that the paper reached with its base model or with its big
    model. The function chooses the model (base or big) whose FLOPs per step are nearer to `flops`. `flops`
    must be counted for sentences of `length` tokens.
    """
    reference, seconds = min(_paper_steps(length), key=lambda step: abs(math.log(step[0] / flops)))
    return seconds * flops / reference


@cache
def _paper_steps(length: int) -> list[tuple[int, float]]:
    """Return the counted FLOPs and the seconds of a step for the paper's base model and big model (Table 3)."""
    base = VaswaniConfig()
    big = VaswaniConfig(
        d_model=1024,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
        encoder_ffn_dim=4096,
        decoder_ffn_dim=4096,
    )
    return [(_paper_flops(base, length), 0.4), (_paper_flops(big, length), 1.0)]


def _paper_flops(config: VaswaniConfig, length: int) -> int:
    return batch_cost(config, _PAPER_TRAINING, VaswaniForSeq2SeqLM, length).batch_flops


def plan_as_text(plan: dict[str, Any]) -> str:
    """Format the result of `plan_run` as lines of text."""
    parameters = plan["parameters"]
    classes = " and ".join(f"{size:,}" for size in sorted({plan["vocab_size"], plan["decoder_vocab_size"]}))
    lines = [
        f"parameters        {parameters['total']:>15,}  with vocabularies of {classes} tokens; a small "
        "corpus may give fewer tokens",
        f"  embeddings      {parameters['embeddings']:>15,}  with the output projection",
    ]
    for stack in ("encoder", "decoder"):
        if stack not in parameters:
            continue
        shares = ", ".join(f"{part.replace('_', '-')} {parameters[stack][part]:,}" for part in PARTS.values())
        lines.append(f"  {stack:<15} {parameters[stack]['total']:>15,}  {shares}")
    return "\n".join(
        [
            *lines,
            *_length_lines(plan),
            *_flops_lines(plan),
            *_memory_lines(plan),
            *_job_lines(plan),
            *_hours_lines(plan),
        ]
    )


def _length_lines(plan: dict[str, Any]) -> list[str]:
    if plan["steps"] is None:
        return [
            f"steps                     unknown  `training.num_train_epochs` = {plan['num_train_epochs']:g} "
            "counts epochs of a corpus that is not read; give `training.max_steps` to plan the steps, the "
            "tokens and the hours"
        ]
    lines = [f"steps             {plan['steps']:>15,}"]
    for side in ("source", "target"):
        # Leave out the line for source tokens, because a language model has no source.
        if plan[f"{side}_tokens"] is not None:
            lines.append(
                f"{side} tokens     {plan[f'{side}_tokens']:>15,}  at most: positions, padding included"
            )
    return lines


def _flops_lines(plan: dict[str, Any]) -> list[str]:
    flops = plan["flops"]
    unit = "step" if plan["steps"] is None else "run"
    steps = "" if plan["steps"] is None else f"{plan['steps']:,} steps x "
    counted, at_most, paper = (flops[name][unit] for name in ("counted", "counted_at_max_length", "paper"))
    return [
        f"FLOPs of a {unit:<4}   {counted:>15.2e}  matrix products, forward and backward, for sentences of "
        f"{flops['mean_length']} tokens (assumed); {at_most:.2e} for sentences of `data.max_length` = "
        f"{flops['max_length']}",
        f"  by the paper    {paper:>15.2e}  {steps}{flops['paper']['seconds_of_a_step']:.3g} s x "
        f"{NUM_PAPER_GPUS} GPUs x {PAPER_GPUS['P100'] / 1e12} TFLOPS of a P100; seconds scaled from the "
        "paper's",
    ]


def _memory_lines(plan: dict[str, Any]) -> list[str]:
    lines = []
    for device, memory in plan["memory"].items():
        sides = (memory["source_positions"], memory["target_positions"])
        positions = " + ".join(f"{side:,}" for side in sides if side)
        parts = ", ".join(f"{part} {memory[part] / _GIB:.2f}" for part in _MEMORY_PARTS)
        lines.append(
            f"GiB, {device:<12} {memory['peak'] / _GIB:>15.2f}  at the peak of a step in {memory['dtype']}, "
            f"{positions} positions at once: {parts}"
        )
    return lines


def _job_lines(plan: dict[str, Any]) -> list[str]:
    if not plan["jobs"]:
        return []
    lines = [
        f"US dollars on Hub jobs (prices: {PRICES}; speed: {ASSUMED_UTILIZATION:.0%} of the peak, assumed)"
    ]
    for job in plan["jobs"]:
        memory = "" if job["fits"] else ", but a step needs more memory than this GPU has"
        lines.append(
            f"  {job['flavor']:<15} {job['price']:>15,.2f}  {_in_digits(job['hours'])} hours on 1 x "
            f"{job['gpu']}{memory}"
        )
    return lines


def _in_digits(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"


def _hours_lines(plan: dict[str, Any]) -> list[str]:
    hours = plan["hours"]
    if hours is None:
        has_speed = plan["hardware"] or plan["tokens_per_second"]
        why = "the number of steps is unknown" if has_speed else plan["speed"]
        return [f"hours                     unknown  {why}"]
    lines = [f"hours             {_in_digits(hours):>15}  by {plan['speed']}"]
    if plan["price"] is not None:
        price = plan["price"]
        lines.append(
            f"price             {price['total']:>15,.2f}  {price['per_hour']:,.2f} per hour, "
            f"{price['source']}"
        )
    return lines
