"""Schedule-Free AdamW (Defazio et al. 2024). The final weights are a running average of the weights of all
steps, so the learning rate does not need to decay.
"""

from typing import Any

import torch
from torch import nn

from ...model.errors_vaswani import InvalidValueError
from ...version import install_command
from ..entries import Optimizer
from .adam import decay_groups
from .adamw import AdamWSettings

NAME = "schedule_free_adamw"


def build_schedule_free(model: nn.Module, settings: AdamWSettings, *, bf16: bool) -> torch.optim.Optimizer:
    """Return the optimizer AdamWScheduleFree of the library schedulefree."""
    try:
        from schedulefree import AdamWScheduleFree
    except ImportError:
        raise InvalidValueError(
            f"`training.optimizer` {NAME} needs the library schedulefree; install the library with "
            f"`{install_command('schedule_free')}`."
        ) from None
    groups = decay_groups(model, settings.weight_decay)
    betas = (settings.adam_beta1, settings.adam_beta2)
    optimizer = AdamWScheduleFree(groups, betas=betas, eps=settings.adam_epsilon)
    optimizer.train()
    return optimizer


def check_schedule_free(settings: Any) -> None:
    """Raise an error if `lr_scheduler_type` is not "constant", because the average of the weights replaces
    the decay of the learning rate. Raise an error for `adam_beta1: 0`, because schedulefree divides by
    `adam_beta1`.
    """
    wanted = f"with `training.optimizer: {NAME}`, but is"
    if settings.lr_scheduler_type != "constant":
        raise InvalidValueError(
            f"`training.lr_scheduler_type` must be constant {wanted} {settings.lr_scheduler_type!r}; set "
            "`training.lr_scheduler_type: constant` and `training.learning_rate`."
        )
    if settings.adam_beta1 == 0:
        raise InvalidValueError(
            f"`training.adam_beta1` must be above 0 {wanted} 0; leave `training.adam_beta1` out."
        )


SCHEDULE_FREE_ADAMW = Optimizer(
    NAME,
    build_schedule_free,
    AdamWSettings,
    needs_whole_weights=True,
    averages_weights=True,
    check=check_schedule_free,
)
