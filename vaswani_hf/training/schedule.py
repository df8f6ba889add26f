"""The paper's learning-rate schedule (Section 5.3), a pure function of the step, and the scheduler over it."""

from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


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


def _rate_after(completed_steps: int, d_model: int, warmup_steps: int, factor: float) -> float:
    return learning_rate(completed_steps + 1, d_model, warmup_steps, factor)


def paper_schedule(optimizer: Optimizer, d_model: int, warmup_steps: int, factor: float = 1.0) -> LambdaLR:
    """A scheduler that gives `optimizer` the learning rates of Section 5.3, whatever rate it was made with.

    Args:
        optimizer (Optimizer): Any optimizer of PyTorch.
        d_model (int): Width of the model.
        warmup_steps (int): Steps of linear increase.
        factor (float): 1 in the paper.

    Returns:
        LambdaLR: To be stepped once after each optimizer step.
    """
    # LambdaLR multiplies the rate that the optimizer was made with.
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = 1.0
    return LambdaLR(optimizer, partial(_rate_after, d_model=d_model, warmup_steps=warmup_steps, factor=factor))
