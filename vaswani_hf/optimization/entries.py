"""Defines the classes `Optimizer`, `Schedule` and `Regularizer` of the entries in the tables OPTIMIZERS,
SCHEDULES and REGULARIZERS.

Each optimizer, schedule and regulariser declares its recipe keys as the fields of a settings class. The
section `training` of a recipe has the keys of all optimizers and schedules, and of all regularisers that the
task can use (see section.py). If two optimizers, schedules or regularisers need the same key, their settings
classes inherit the key from a common base class.
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
    """Creates an optimizer. The initial learning rate of the optimizer has no effect, because the schedule
    sets the learning rate before each step.
    """

    def __call__(self, model: nn.Module, settings: Any, *, bf16: bool) -> torch.optim.Optimizer: ...


def accept_any_training(settings: Any) -> None:
    """Do nothing, because the optimizer supports all values of the recipe section `training`.
    `accept_any_training` is the default of `Optimizer.check`.
    """


@dataclass(frozen=True)
class Optimizer:
    """An entry of `OPTIMIZERS`.

    Attributes:
        name (str): The value of `training.optimizer`.
        build (BuildOptimizer): Creates the optimizer for a model.
        settings (type): The settings class with the recipe keys of the optimizer.
        needs_whole_weights (bool): True if FSDP and DeepSpeed must not divide weights between processes.
        averages_weights (bool): True if the methods `eval` and `train` of the optimizer switch the model to
            averaged weights and back.
        check (Callable): Raises a ValueError if the optimizer does not support the value of another key in
            the section `training`.
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
        rate_key (str): The recipe key that scales all learning rates of the schedule: `learning_rate` or
            `learning_rate_factor`.
        depends_on_length (bool): True if the learning rates depend on the total number of steps. If
            `depends_on_length` is True, a resumed run cannot change the number of steps.
    """

    name: str
    rate: Rate
    settings: type[Settings]
    rate_key: str
    depends_on_length: bool = False


class RegularizedLoss(Protocol):
    """Computes the training loss of a batch: a sum over tokens, divided by `num_items_in_batch`.

    `wrapped` is the model, possibly inside a wrapper such as DistributedDataParallel. `batch` contains
    `input_ids` [B, S] int64, `attention_mask` [B, S] and `labels` [B, T] int64.
    """

    def __call__(
        self, wrapped: Any, num_items_in_batch: torch.Tensor | int | None = None, **batch: Any
    ) -> Seq2SeqLMOutput: ...


class BuildLoss(Protocol):
    """Creates the loss of a regulariser. `autocast()` returns the autocast context of the forward pass."""

    def __call__(
        self, model: VaswaniForSeq2SeqLM, settings: Any, autocast: Callable[[], AbstractContextManager]
    ) -> RegularizedLoss: ...


def accept_any_model(settings: Any, model: ModelSettings) -> None:
    """Do nothing, because the regulariser works with every model. `accept_any_model` is the default of
    `Regularizer.check`.
    """


@dataclass(frozen=True)
class Regularizer:
    """An entry of `REGULARIZERS`.

    Attributes:
        name (str): The key of the regulariser in `REGULARIZERS`.
        build (BuildLoss): Creates the loss for a model.
        settings (type): The settings class with the recipe keys of the regulariser.
        strength (str): The recipe key for the strength of the regulariser. The value 0 turns the regulariser
            off.
        num_passes (int): The number of forward passes over a batch. The model computes all forward passes in
            one call, on copies of the batch.
        needs_whole_weights (bool): True if FSDP and DeepSpeed must not divide weights between processes.
        needs_encoder_decoder (bool): True for a regulariser that cannot be used for language models. If
            `needs_encoder_decoder` is True, recipes of language models have no keys for the regulariser.
        check (Callable): Raises a ValueError if the regulariser would have no effect.
    """

    name: str
    build: BuildLoss
    settings: type[Settings]
    strength: str
    num_passes: int = 1
    needs_whole_weights: bool = True
    needs_encoder_decoder: bool = True
    check: Callable[[Any, ModelSettings], None] = accept_any_model
