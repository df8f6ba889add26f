"""A training step without the Trainer and without a corpus. step_cost.py counts the cost of the step, and
measure.py measures the time of the step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ..optimization.regularizers import regularizer_of
from ..optimization.section import AnyTraining
from .initialization import freeze


def set_up_training(model: PreTrainedModel, training: AnyTraining) -> None:
    """Switch a model to training: no key-value cache, frozen weights, and gradient checkpointing."""
    model.train()
    model.config.use_cache = False
    freeze(model, training.frozen)
    if training.gradient_checkpointing:
        enable_gradient_checkpointing(model)


def enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Compute the activations of the layers again in the backward pass instead of storing them."""
    # Use the method under either of its names, because transformers 5.23 has renamed
    # `gradient_checkpointing_enable` to `activation_checkpointing_enable`.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()


def loss_function(
    model: PreTrainedModel, training: AnyTraining, device_type: str
) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """Return a function that computes the loss of a batch, with the autocast and the regulariser of the
    recipe.
    """
    autocast = partial(torch.autocast, device_type, torch.bfloat16, enabled=training.bf16 is True)
    regularizer = regularizer_of(training)
    compute: Callable[..., Any] = model
    if regularizer is not None:
        compute = partial(regularizer.build(model, training, autocast), model)

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with autocast():
            return compute(**batch).loss

    return loss


def full_batch(source: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch without padding. `source` [B, S] and `labels` [B, T] are token ids (int64)."""
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "labels": labels,
        "num_items_in_batch": torch.tensor(labels.numel(), device=labels.device),
    }
