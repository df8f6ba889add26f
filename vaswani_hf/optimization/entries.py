"""Defines the classes of the entries in the tables OPTIMIZERS, SCHEDULES and REGULARIZERS.

An entry declares its keys as the fields of a settings class. The section `training` of a recipe has the keys
of all entries (see section.py). If two entries share a key, their settings classes inherit the key from a
common class.
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
    """A function that creates an optimizer for a model. `settings` is the section `training` of a recipe.
    `bf16` is True if the run computes in bfloat16. The function need not set the learning rate, because the
    schedule sets the learning rate before each step.
    """

    def __call__(self, model: nn.Module, settings: Any, *, bf16: bool) -> torch.optim.Optimizer: ...


def accept_any_training(settings: Any) -> None:
    """Do nothing. An optimizer that works with all values of the other keys in the section `training` has
    this function as its `check`.
    """


@dataclass(frozen=True)
class Optimizer:
    """An entry of `OPTIMIZERS`.

    Attributes:
        name (str): The value of `training.optimizer`.
        build (BuildOptimizer): Creates the optimizer for a model.
        settings (type): The class with the keys of the optimizer in the section `training`.
        needs_whole_weights (bool): True if the optimizer does not work when FSDP or DeepSpeed shards weights
            or gradients.
        averages_weights (bool): True if the optimizer computes an average of the weights. The validations and
            the final checkpoint use the average. The method `eval` of the optimizer gives the model the
            averaged weights, and the method `train` gives the model the trained weights.
        check (Callable): A function that is called with the section `training` of a recipe if the recipe
            selects the optimizer. Raises a ValueError if the optimizer does not work with the other keys.
    """

    name: str
    build: BuildOptimizer
    settings: type[Settings] = Settings
    needs_whole_weights: bool = True
    averages_weights: bool = False
    check: Callable[[Any], None] = accept_any_training


class Rate(Protocol):
    """A function that computes the learning rate of a step. Steps are counted from 1."""

    def __call__(
        self, step: int, settings: Any, *, warmup_steps: int, max_steps: int, d_model: int
    ) -> float: ...


@dataclass(frozen=True)
class Schedule:
    """An entry of `SCHEDULES`.

    Attributes:
        name (str): The value of `training.lr_scheduler_type`.
        rate (Rate): Computes the learning rate of a step.
        settings (type): The class with the keys of the schedule in the section `training`.
        rate_key (str): The key that scales all learning rates. If a run diverges, the error message advises
            lowering the value of this key.
        depends_on_length (bool): True if the learning rates depend on the number of steps of the run. If
            true, a finished run cannot be continued for more steps.
    """

    name: str
    rate: Rate
    settings: type[Settings]
    rate_key: str
    depends_on_length: bool = False


class RegularizedLoss(Protocol):
    """A function that computes a loss. A run uses this loss instead of the loss of the model.

    `wrapped` is the model with its wrappers for distributed training. The loss is a sum over tokens divided
    by `num_items_in_batch`. `batch` has `input_ids` [B, S] int64, `attention_mask` [B, S] and `labels` [B, T]
    int64.
    """

    def __call__(
        self, wrapped: Any, num_items_in_batch: torch.Tensor | int | None = None, **batch: Any
    ) -> Seq2SeqLMOutput: ...


class BuildLoss(Protocol):
    """A function that creates a loss for a model.

    `autocast()` returns the autocast context in which the model computes its own loss.
    """

    def __call__(
        self, model: VaswaniForSeq2SeqLM, settings: Any, autocast: Callable[[], AbstractContextManager]
    ) -> RegularizedLoss: ...


def accept_any_model(settings: Any, model: ModelSettings) -> None:
    """Do nothing. This function is the `check` of a regulariser that works with every model."""


@dataclass(frozen=True)
class Regularizer:
    """An entry of `REGULARIZERS`.

    Attributes:
        name (str): The name of the regulariser in messages.
        build (BuildLoss): Creates the loss for a model.
        settings (type): The class with the keys of the regulariser in the section `training`.
        strength (str): The key that sets the strength of the regulariser. The value 0 turns the regulariser
            off.
        num_passes (int): The number of forward passes over a batch. The passes are computed at the same time,
            as one larger batch.
        needs_whole_weights (bool): True if the regulariser does not work when FSDP or DeepSpeed shards
            weights or gradients.
        needs_encoder_decoder (bool): True if the regulariser needs an encoder and a decoder. If true, the
            recipe of a language model does not have the keys of the regulariser.
        check (Callable): A function that is called with the sections `training` and `model` of a recipe if
            the recipe turns the regulariser on. Raises a ValueError if the regulariser has no effect with the
            settings of the recipe.
    """

    name: str
    build: BuildLoss
    settings: type[Settings]
    strength: str
    num_passes: int = 1
    needs_whole_weights: bool = True
    needs_encoder_decoder: bool = True
    check: Callable[[Any, ModelSettings], None] = accept_any_model
