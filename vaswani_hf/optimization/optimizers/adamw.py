"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

from dataclasses import dataclass

import torch
from torch import nn

from ..entries import NOT_NEGATIVE, Optimizer, key
from .adam import AdamSettings, fused_adamw


@dataclass
class AdamWSettings(AdamSettings):
    """The keys of AdamW."""

    weight_decay: float = key(0.0, NOT_NEGATIVE)


def build_adamw(model: nn.Module, settings: AdamWSettings, *, bf16: bool) -> torch.optim.AdamW:
    """AdamW for a model."""
    return fused_adamw(model, settings, settings.weight_decay)


ADAMW = Optimizer("adamw", build_adamw, AdamWSettings, needs_whole_weights=False)
