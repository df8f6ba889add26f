"""Defines the classes `Optimizer`, `Schedule` and `Regularizer` of the entries in the tables OPTIMIZERS,
SCHEDULES and REGULARIZERS.

Each optimizer, schedule and regulariser declares its recipe keys as the fields of a settings class. The
section `training` of a recipe has the keys of all optimizers, schedules and regularisers (see section.py). If
two entries need the same key, their settings classes inherit the key from a common base class.
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
    `bf16` is True if the run computes in bfloat16. The initial learning rate of the optimizer has no effect,
    because the schedule sets the learning rate before each step.
    """

    def __call__(self, model: nn.Module, settings: Any, *, bf16: bool) -> torch.optim.Optimizer: ...


def accept_any_training(settings: Any) -> None:
    """Accept every section `training` without a check. `accept_any_training` is the `check` of each optimizer
    that is compatible with all values of the other recipe keys.
    """


@dataclass(frozen=True)
class Optimizer:
    """An entry of `OPTIMIZERS`.

    Attributes:
        name (str): The value of `training.optimizer`.
        build (BuildOptimizer): Creates the optimizer for a model.
        settings (type): The settings class with the recipe keys of the optimizer.
        needs_whole_weights (bool): True if the optimizer works only if each process stores all weights and
            gradients of the model. Such an optimizer does not work if FSDP or DeepSpeed divides weights and
            gradients between processes.
        averages_weights (bool): True if the optimizer computes an average of the weights. Validations and the
            final checkpoint use the averaged weights. The method `eval` of the optimizer puts the averaged
            weights into the model, and the method `train` restores the trained weights.
        check (Callable): A function that checks the section `training` of a recipe that selects the
            optimizer. `check` raises a ValueError if the optimizer is not compatible with the values of the
            other keys in the section.
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
        settings (type): The settings class with the recipe keys of the schedule.
        rate_key (str): The recipe key whose value multiplies the learning rate of every step. The error
            message about a diverging run advises lowering the value of this key.
        depends_on_length (bool): True if the learning rates depend on the total number of steps of the run. A
            finished run with such a schedule cannot be continued for more steps.
    """

    name: str
    rate: Rate
    settings: type[Settings]
    rate_key: str
    depends_on_length: bool = False


class RegularizedLoss(Protocol):
    """A function that computes the training loss of a batch. If a regulariser is on, a run trains on the
    regularised loss instead of the loss that the model returns.

    `wrapped` is the model, possibly inside a wrapper for distributed training, such as
    DistributedDataParallel. The loss is a sum over tokens, divided by `num_items_in_batch`. `batch` contains
    `input_ids` [B, S] int64, `attention_mask` [B, S] and `labels` [B, T] int64.
    """

    def __call__(
        self, wrapped: Any, num_items_in_batch: torch.Tensor | int | None = None, **batch: Any
    ) -> Seq2SeqLMOutput: ...


class BuildLoss(Protocol):
    """A function that creates the loss of a regulariser for a model.

    `autocast()` returns the autocast context of the model's forward pass.
    """

    def __call__(
        self, model: VaswaniForSeq2SeqLM, settings: Any, autocast: Callable[[], AbstractContextManager]
    ) -> RegularizedLoss: ...


def accept_any_model(settings: Any, model: ModelSettings) -> None:
    """Do nothing: the `check` of a regulariser that works with every model."""


@dataclass(frozen=True)
class Regularizer:
    """An entry of `REGULARIZERS`.

    Attributes:
        name (str): The name of the regulariser in messages.
        build (BuildLoss): Creates the loss for a model.
        settings (type): The settings class with the recipe keys of the regulariser.
        strength (str): The recipe key that sets the strength of the regulariser. The value 0 turns the
            regulariser off.
        num_passes (int): The number of forward passes over a batch. A run computes all forward passes over a
            batch together, as one larger batch.
        needs_whole_weights (bool): True if the regulariser works only if each process stores all weights of
            the model. Such a regulariser does not work if FSDP or DeepSpeed divides weights or gradients
            between processes.
        needs_encoder_decoder (bool): True if the regulariser works only with encoder-decoder models. Recipes
            of language models have no keys for regularisers that need an encoder-decoder model.
        check (Callable): A function that checks the sections `training` and `model` of a recipe that selects
            the regulariser. `check` raises a ValueError if the regulariser would have no effect.
    """

    name: str
    build: BuildLoss
    settings: type[Settings]
    strength: str
    num_passes: int = 1
    needs_whole_weights: bool = True
    needs_encoder_decoder: bool = True
    check: Callable[[Any, ModelSettings], None] = accept_any_model
