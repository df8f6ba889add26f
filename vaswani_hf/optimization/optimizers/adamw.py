"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

import torch
from torch import nn

from ...settings.keys import recipe_key
from ..entries import Optimizer
from .adam import AdamSettings, decay_groups, fused_adamw


class AdamWSettings(AdamSettings):
    """The recipe keys of AdamW."""

    weight_decay: float = recipe_key(0.0, ge=0)
    """The weight decay. Each step subtracts `weight_decay` * learning rate * weight from each weight, except
    biases and LayerNorm weights. With the optimizer `muon`, only the matrices of the layers have weight
    decay."""


def build_adamw(model: nn.Module, settings: AdamWSettings, *, bf16: bool) -> torch.optim.AdamW:
    """Return the optimizer AdamW for the weights of a model."""
    return fused_adamw(decay_groups(model, settings.weight_decay), settings)


ADAMW = Optimizer("adamw", build_adamw, AdamWSettings, needs_whole_weights=False)
