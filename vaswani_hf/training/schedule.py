"""The learning rate of each step, a pure function of the recipe, and the scheduler over it."""

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..recipe.schema import TrainingSection


def learning_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """The learning rate factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), Section 5.3, Eq. (3).

    Args:
        step (int): The optimizer step that the rate is for, counted from 1.
        d_model (int): Width of the model.
        warmup_steps (int): Steps of linear increase; the rate is highest at this step.
        factor (float): 1 in the paper.

    Returns:
        float: The learning rate.

    Raises:
        ValueError: If `step` or `warmup_steps` is less than 1.
    """
    for name, value in (("step", step), ("warmup_steps", warmup_steps)):
        if value < 1:
            raise ValueError(f"`{name}` must be a positive integer, but is {value}.")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def scheduled_rate(step: int, training: TrainingSection, d_model: int, max_steps: int) -> float:
    """The learning rate of a run: the paper's, or one that rises to `learning_rate` in `warmup_steps`.

    From there it falls with the inverse square root of the step, as half a period of a cosine to 0 at the last step
    (Loshchilov and Hutter 2017, Eq. (5), without restarts), or not at all.

    Args:
        step (int): The optimizer step that the rate is for, counted from 1.
        training (TrainingSection): The schedule.
        d_model (int): Width of the model.
        max_steps (int): The last step.

    Returns:
        float: The learning rate.
    """
    kind, highest, warmup = training.lr_scheduler_type, training.learning_rate, training.warmup_steps
    if kind == "paper" or highest is None:
        return learning_rate(step, d_model, warmup, training.learning_rate_factor)
    if step <= warmup:
        return highest * step / warmup
    if kind == "inverse_sqrt":
        return highest * math.sqrt(warmup / step)
    if kind == "cosine":
        # The rate after the last step, which nobody takes, is 0.
        return highest * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (max_steps + 1 - warmup)))) / 2
    return highest


def _rate_after(completed_steps: int, training: TrainingSection, d_model: int, max_steps: int) -> float:
    return scheduled_rate(completed_steps + 1, training, d_model, max_steps)


def scheduler_of(optimizer: Optimizer, training: TrainingSection, d_model: int, max_steps: int) -> LambdaLR:
    """A scheduler that gives `optimizer` the learning rates of a run, whatever rate it was made with.

    Args:
        optimizer (Optimizer): Any optimizer of PyTorch.
        training (TrainingSection): The schedule.
        d_model (int): Width of the model.
        max_steps (int): The last step.

    Returns:
        LambdaLR: To be stepped once after each optimizer step.
    """
    # LambdaLR multiplies the rate that the optimizer was made with.
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 1.0
    return LambdaLR(optimizer, partial(_rate_after, training=training, d_model=d_model, max_steps=max_steps))
