"""Formats the plan of a run as the text that `vaswani plan` prints."""

from ..settings.gpus import ASSUMED_UTILIZATION, NUM_PAPER_GPUS, PAPER_GPUS, PRICES
from .plan import GIB, Plan


def plan_as_text(plan: Plan) -> str:
    """Format a plan as lines of text."""
    lines = [
        *_parameter_lines(plan),
        *_length_lines(plan),
        *_flops_lines(plan),
        *_memory_lines(plan),
        *_job_lines(plan),
        *_hours_lines(plan),
    ]
    return "\n".join(lines)


def _parameter_lines(plan: Plan) -> list[str]:
    parameters = plan.parameters
    classes = " and ".join(f"{size:,}" for size in sorted({plan.vocab_size, plan.decoder_vocab_size}))
    lines = [
        f"parameters        {parameters.total:>15,}  with vocabularies of {classes} tokens; a small "
        "corpus may give fewer tokens",
        f"  embeddings      {parameters.embeddings:>15,}  with the output projection",
    ]
    for name, stack in (("encoder", parameters.encoder), ("decoder", parameters.decoder)):
        if stack is not None:
            lines.append(
                f"  {name:<15} {stack.total:>15,}  attention {stack.attention:,}, "
                f"feed-forward {stack.feed_forward:,}, norms {stack.norms:,}"
            )
    return lines


def _length_lines(plan: Plan) -> list[str]:
    if plan.steps is None:
        return [
            f"steps                     unknown  `training.num_train_epochs` = {plan.num_train_epochs:g} "
            "counts epochs of a corpus that is not read; give `training.max_steps` to plan the steps, the "
            "tokens and the hours"
        ]
    lines = [f"steps             {plan.steps:>15,}"]
    for side, tokens in (("source", plan.source_tokens), ("target", plan.target_tokens)):
        # Leave out the source of a language model, because a language model has no source.
        if tokens is not None:
            lines.append(f"{side} tokens     {tokens:>15,}  at most: positions, padding included")
    return lines


def _flops_lines(plan: Plan) -> list[str]:
    flops = plan.flops
    unit = "step" if plan.steps is None else "run"
    steps = "" if plan.steps is None else f"{plan.steps:,} steps x "
    counted, at_most, paper = (
        getattr(found, unit) for found in (flops.counted, flops.counted_at_max_length, flops.paper)
    )
    return [
        f"FLOPs of a {unit:<4}   {counted:>15.2e}  matrix products, also of the optimizer, for sentences of "
        f"{flops.mean_length} tokens (assumed); {at_most:.2e} for sentences of `data.max_length` = "
        f"{flops.max_length}",
        f"  by the paper    {paper:>15.2e}  {steps}{flops.paper.seconds_of_a_step:.3g} s x "
        f"{NUM_PAPER_GPUS} GPUs x {PAPER_GPUS['P100'] / 1e12} TFLOPS of a P100; the seconds "
        "are derived from those of the paper",
    ]


def _memory_lines(plan: Plan) -> list[str]:
    lines = []
    for device, memory in (("accelerator", plan.memory.accelerator), ("processor", plan.memory.processor)):
        sides = (memory.source_positions, memory.target_positions)
        positions = " + ".join(f"{side:,}" for side in sides if side)
        lines.append(
            f"GiB, {device:<12} {memory.peak / GIB:>15.2f}  at the peak of a step in {memory.dtype}, "
            f"{positions} positions at once: weights {memory.weights / GIB:.2f}, "
            f"gradients {memory.gradients / GIB:.2f}, optimizer {memory.optimizer / GIB:.2f}, "
            f"activations {memory.activations / GIB:.2f}, loss {memory.loss / GIB:.2f}"
        )
    return lines


def _job_lines(plan: Plan) -> list[str]:
    if not plan.jobs:
        return []
    lines = [
        f"US dollars on Hub jobs (prices: {PRICES}; speed: {ASSUMED_UTILIZATION:.0%} of the peak, assumed)"
    ]
    for job in plan.jobs:
        memory = "" if job.fits else ", but a step needs more memory than this GPU has"
        lines.append(
            f"  {job.flavor:<15} {_in_cents(job.price):>15}  {_in_digits(job.hours)} hours on 1 x {job.gpu}"
            f"{memory}"
        )
    return lines


def _in_cents(price: float) -> str:
    return f"{price:,.2f}" if price >= 0.01 else "< 0.01"


def _in_digits(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"


def _hours_lines(plan: Plan) -> list[str]:
    if plan.hours is None:
        has_speed = plan.hardware or plan.tokens_per_second
        why = "the number of steps is unknown" if has_speed else plan.speed
        return [f"hours                     unknown  {why}"]
    lines = [f"hours             {_in_digits(plan.hours):>15}  by {plan.speed}"]
    price = plan.price
    if price is not None:
        lines.append(
            f"price             {_in_cents(price.total):>15}  {_in_cents(price.per_hour)} per hour, {price.source}"
        )
    return lines
