"""Adam (Kingma and Ba 2015), the optimizer of the paper (Section 5.3)."""

from typing import Any

import torch
from torch import nn

from ...settings.base import Settings
from ...settings.keys import recipe_key
from ..entries import Optimizer


class AdamSettings(Settings):
    """The recipe keys of Adam. The default values are the values of the paper (Section 5.3)."""

    adam_beta1: float = recipe_key(0.9, ge=0, lt=1)
    """The decay rate of the mean of the gradients."""
    adam_beta2: float = recipe_key(0.98, ge=0, lt=1)
    """The decay rate of the mean of the squared gradients."""
    adam_epsilon: float = recipe_key(1e-9, ge=0)
    """A number that Adam adds to the denominator of a step, to avoid a division by 0."""


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: weights with weight decay, and biases and layer norms without weight
    decay, as in the Trainer of transformers.
    """
    decaying = []
    others = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        if "bias" in name or "norm" in name:
            others.append(weight)
        else:
            decaying.append(weight)
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def fused_adamw(groups: list[dict[str, Any]], settings: AdamSettings) -> torch.optim.AdamW:
    """Return PyTorch's fused AdamW for parameter groups. With a weight decay of 0, AdamW equals Adam."""
    betas = (settings.adam_beta1, settings.adam_beta2)
    return torch.optim.AdamW(groups, betas=betas, eps=settings.adam_epsilon, fused=True)


def build_adam(model: nn.Module, settings: AdamSettings, *, bf16: bool) -> torch.optim.AdamW:
    """Return the optimizer Adam for the weights of a model."""
    return fused_adamw(decay_groups(model, 0.0), settings)


ADAM = Optimizer("adam", build_adam, AdamSettings, needs_whole_weights=False)
