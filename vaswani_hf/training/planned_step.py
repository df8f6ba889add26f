"""Defines a planned run, and the loss and the unpadded batch of the training step in `vaswani plan`. The step
needs no Trainer and no corpus. step_cost.py counts the cost of the step, and measure.py measures its time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..optimization.regularizers import regularizer_of
from ..optimization.section import AnyTraining


@dataclass(frozen=True)
class PlannedRun:
    """The model of a planned run, and the section `training` of its recipe."""

    config: VaswaniConfig
    training: AnyTraining
    model_class: type[PreTrainedModel] = VaswaniForSeq2SeqLM


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
    """The shape of a batch without padding: the number of pairs, and the source and target lengths in
    tokens.
    """

    rows: int
    source_length: int
    target_length: int


def batch_shape(training: AnyTraining, length: int, largest_part: int | None = None) -> BatchShape:
    """Return the shape of a full batch of sentences of `length` tokens.

    `source_tokens_per_batch` and `target_tokens_per_batch` can differ. On the side (source or target) with
    more tokens per batch, sentences have `length` tokens. On the side with fewer tokens per batch, sentences
    are shorter in proportion. For example, if a batch has half as many target tokens as source tokens, a
    target sentence has about `length / 2` tokens. If the trainer divides batches, each part of a batch has at
    most `largest_part` source positions and at most `largest_part` target positions. If `largest_part` is
    given, return the shape of one part of the batch, not of the full batch. The sentences in one part of a
    batch are as long as the sentences in the full batch.
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
    """Return the arguments of `model.forward` for a batch without padding: `source` [B, S] and `labels` [B,
    T] (int64).
    """
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "labels": labels,
        "num_items_in_batch": torch.tensor(labels.numel(), device=labels.device),
    }
