"""The classes of the entries of the tables.

An entry declares its keys as a class of settings. The fields become keys of the recipe's section `training` (see
section.py). Two entries that share a key inherit it from one class.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers.modeling_outputs import Seq2SeqLMOutput

from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..settings.base import Settings
from ..settings.sections import ModelSettings


class BuildOptimizer(Protocol):
    """The function that makes an optimizer for a model; its learning rate does not matter, because the
    schedule sets it.

    `bf16` is True if the run computes in bfloat16.
    """

    def __call__(self, model: nn.Module, settings: Any, *, bf16: bool) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class Optimizer:
    """An entry of `OPTIMIZERS`.

    Attributes:
        name (str): The value of `training.optimizer`.
        build (BuildOptimizer): Makes the optimizer.
        settings (type): The class with the keys that the optimizer has in the section `training`.
        needs_whole_weights (bool): The optimizer does not work if FSDP or DeepSpeed shards weights or
            gradients.
    """

    name: str
    build: BuildOptimizer
    settings: type[Settings] = Settings
    needs_whole_weights: bool = True


class Rate(Protocol):
    """The function that gives the learning rate of a step, which is counted from 1."""

    def __call__(
        self, step: int, settings: Any, *, warmup_steps: int, max_steps: int, d_model: int
    ) -> float: ...


@dataclass(frozen=True)
class Schedule:
    """An entry of `SCHEDULES`.

    Attributes:
        name (str): The value of `training.lr_scheduler_type`.
        rate (Rate): Gives the learning rate of a step.
        settings (type): The class with the keys that the schedule has in the section `training`.
        rate_key (str): The key that makes all rates smaller; a run that diverges advises to lower it.
        depends_on_length (bool): The rates depend on the number of steps of the run, so that a run cannot be
            made longer.
    """

    name: str
    rate: Rate
    settings: type[Settings]
    rate_key: str
    depends_on_length: bool = False


class RegularizedLoss(Protocol):
    """The loss that a run computes in place of the loss of the model.

    `wrapped` is the model as it is called in training, `num_items_in_batch` divides all sums, and `batch` has
    `input_ids` [B, S] int64, `attention_mask` [B, S] and `labels` [B, T] int64.
    """

    def __call__(
        self, wrapped: Any, num_items_in_batch: torch.Tensor | int | None = None, **batch: Any
    ) -> Seq2SeqLMOutput: ...


class BuildLoss(Protocol):
    """The function that makes a loss for a model.

    `autocast` gives the context in which the model computes its own loss.
    """

    def __call__(
        self, model: VaswaniForSeq2SeqLM, settings: Any, autocast: Callable[[], AbstractContextManager]
    ) -> RegularizedLoss: ...


def accept_any_model(settings: Any, model: ModelSettings) -> None:
    """Accept every recipe."""


@dataclass(frozen=True)
class Regularizer:
    """An entry of `REGULARIZERS`.

    Attributes:
        name (str): The name in messages.
        build (BuildLoss): Makes the loss.
        settings (type): The class with the keys that the regulariser has in the section `training`.
        strength (str): The key that turns the regulariser on if its value is not 0.
        num_passes (int): Forward passes over a batch that are computed at once.
        needs_whole_weights (bool): The regulariser does not work if FSDP or DeepSpeed shards weights or
            gradients.
        needs_encoder_decoder (bool): Only the tasks that train an encoder and a decoder have the keys.
        check (Callable): Receives the section `training` and the section `model` of a recipe in which the
            regulariser is on, and raises a ValueError if the regulariser has no effect with them.
    """

    name: str
    build: BuildLoss
    settings: type[Settings]
    strength: str
    num_passes: int = 1
    needs_whole_weights: bool = True
    needs_encoder_decoder: bool = True
    check: Callable[[Any, ModelSettings], None] = accept_any_model
