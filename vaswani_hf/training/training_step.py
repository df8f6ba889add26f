"""Defines functions for a training step without the Trainer and without a corpus. step_cost.py counts the
cost of the training step, and measure.py measures the time of the training step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ..optimization.regularizers import regularizer_of
from ..optimization.section import AnyTraining
from .initialization import freeze


def set_up_training(model: PreTrainedModel, training: AnyTraining) -> None:
    """Prepare a model for training: turn the key-value cache off, freeze the weights in `training.frozen`,
    and turn on gradient checkpointing if the recipe asks for it.
    """
    model.train()
    model.config.use_cache = False
    freeze(model, training.frozen)
    if training.gradient_checkpointing:
        enable_gradient_checkpointing(model)


def enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Turn on gradient checkpointing: the backward pass computes the activations of the layers again instead
    of reading stored activations.
    """
    # transformers 5.23 has renamed `gradient_checkpointing_enable` to `activation_checkpointing_enable`. Call
    # the method by the name that exists in the installed version of transformers.
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


@dataclass(frozen=True)
class BatchShape:
    """The shape of a batch without padding: all sources have the same length, and all targets have the same
    length.

    Attributes:
        rows: The number of sentence pairs.
        source_length: The length of each source (tokens).
        target_length: The length of each target (tokens).
    """

    rows: int
    source_length: int
    target_length: int


def batch_shape(training: AnyTraining, length: int, largest_part: int | None = None) -> BatchShape:
    """Return the shape of a full batch of sentences of `length` tokens.

    If `source_tokens_per_batch` and `target_tokens_per_batch` differ, the sentences have `length` tokens only
    on the side (source or target) with the larger number. On the other side, the sentences are shorter by the
    ratio of the two numbers.

    If the trainer divides a batch into parts, `largest_part` is the largest number of source positions (and
    of target positions) in a part. Then the function returns the shape of a part. The sentences in a part
    have the same lengths as the sentences in the whole batch.
    """
    source = training.source_tokens_per_batch
    target = training.target_tokens_per_batch
    rows = max(1, max(source, target) // length)
    rows_of_part = rows if largest_part is None else max(1, largest_part // length)
    return BatchShape(
        rows=min(rows, rows_of_part),
        source_length=min(length, max(1, source // rows)),
        target_length=min(length, max(1, target // rows)),
    )


def full_batch(source: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch without padding for `model.forward`. `source` [B, S] and `labels` [B, T] are token ids
    (int64).
    """
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "labels": labels,
        "num_items_in_batch": torch.tensor(labels.numel(), device=labels.device),
    }
