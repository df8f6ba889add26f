"""Defines the learning rate schedules, and a scheduler of PyTorch that applies a schedule to an optimizer.

The learning rate of a step depends only on the recipe, the step number and, for the schedule "cosine", the
total number of steps. To add a schedule, add a function and an entry of `SCHEDULES`.
"""

import math
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..model.errors_vaswani import InvalidValueError
from ..settings.base import Settings
from ..settings.keys import recipe_key
from .entries import Schedule


class PaperSettings(Settings):
    """The recipe key `learning_rate_factor`, which only the paper's schedule (Section 5.3) has."""

    learning_rate_factor: float = recipe_key(1.0, ge=0)
    """A factor that multiplies all learning rates of the schedule "paper". Apart from `learning_rate_factor`,
    the learning rate of a step depends only on `d_model` and `warmup_steps`.
    """


class HighestRateSettings(Settings):
    """The recipe key `learning_rate`, which all schedules have except the schedule "paper"."""

    learning_rate: float = recipe_key(gt=0)
    """The highest learning rate, which the schedule reaches at the last step of the warm-up."""


def learning_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Return the learning rate of Equation 3 (Section 5.3), multiplied by `factor`."""
    for name, value in (("step", step), ("warmup_steps", warmup_steps)):
        if value < 1:
            raise InvalidValueError(f"`{name}` must be a positive integer, but is {value}.")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def _paper(step: int, settings: PaperSettings, *, warmup_steps: int, max_steps: int, d_model: int) -> float:
    return learning_rate(step, d_model, warmup_steps, settings.learning_rate_factor)


def _inverse_sqrt(step: int, settings: Any, *, warmup_steps: int, max_steps: int, d_model: int) -> float:
    """After the warm-up, the learning rate is proportional to 1 / sqrt(step)."""
    highest = settings.learning_rate
    if step <= warmup_steps:
        return highest * step / warmup_steps
    return highest * math.sqrt(warmup_steps / step)


def _cosine(step: int, settings: Any, *, warmup_steps: int, max_steps: int, d_model: int) -> float:
    """After the warm-up, the learning rate follows half a period of a cosine: Equation 5 of Loshchilov and
    Hutter 2017, without restarts.
    """
    highest = settings.learning_rate
    if step <= warmup_steps:
        return highest * step / warmup_steps
    # Add 1 to `max_steps`, because the learning rate of the last step would otherwise be 0.
    share = min(1.0, (step - warmup_steps) / (max_steps + 1 - warmup_steps))
    return highest * (1 + math.cos(math.pi * share)) / 2


def _constant(step: int, settings: Any, *, warmup_steps: int, max_steps: int, d_model: int) -> float:
    highest = settings.learning_rate
    if step <= warmup_steps:
        return highest * step / warmup_steps
    return highest


SCHEDULES: dict[str, Schedule] = {
    entry.name: entry
    for entry in (
        Schedule("paper", _paper, PaperSettings, rate_key="learning_rate_factor"),
        Schedule("inverse_sqrt", _inverse_sqrt, HighestRateSettings, rate_key="learning_rate"),
        Schedule("cosine", _cosine, HighestRateSettings, rate_key="learning_rate", depends_on_length=True),
        Schedule("constant", _constant, HighestRateSettings, rate_key="learning_rate"),
    )
}


def scheduled_rate(step: int, training: Any, d_model: int, max_steps: int) -> float:
    """Return the learning rate of a step of a run. Steps are counted from 1."""
    schedule = SCHEDULES[training.lr_scheduler_type]
    return schedule.rate(
        step, training, warmup_steps=training.warmup_steps, max_steps=max_steps, d_model=d_model
    )


def _rate_after(completed_steps: int, training: Any, d_model: int, max_steps: int) -> float:
    return scheduled_rate(completed_steps + 1, training, d_model, max_steps)


def scheduler_of(optimizer: Optimizer, training: Any, d_model: int, max_steps: int) -> LambdaLR:
    """Return a scheduler that sets the learning rates of `optimizer` during a run."""
    # Set the initial learning rate to 1, because LambdaLR multiplies the initial learning rate by the
    # learning rate of the schedule.
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 1.0
    return LambdaLR(optimizer, partial(_rate_after, training=training, d_model=d_model, max_steps=max_steps))
