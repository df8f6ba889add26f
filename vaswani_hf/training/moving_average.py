"""Averages of the weights over the steps of a run. If a run averages the weights over its steps, the
validation scores and the final weights come from the averaged weights.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback

from ..checkpoint.files import AVERAGED_WEIGHTS_FILE


class WeightAverage(ABC):
    """An average of the weights of a model over the steps of a run."""

    def __init__(self, model: nn.Module):
        self.weights = dict(model.named_parameters())

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights in the `with` block, and restore the trained weights after the
        block.
        """
        kept = [weight.detach().clone() for weight in self.weights.values()]
        self._put_average_in_place()
        try:
            yield
        finally:
            self._put_back(kept)

    def save(self, folder: Path) -> None:
        """Write the averaged weights into the folder of a checkpoint, in float32."""
        with self.in_place():
            averages = {name: weight.detach().float().cpu() for name, weight in self.weights.items()}
            save_file(averages, folder / AVERAGED_WEIGHTS_FILE)

    @abstractmethod
    def _put_average_in_place(self) -> None: ...

    def _put_back(self, kept: list[torch.Tensor]) -> None:
        self._assign(kept)

    @torch.no_grad()
    def _assign(self, values: list[torch.Tensor]) -> None:
        for weight, value in zip(self.weights.values(), values, strict=True):
            weight.copy_(value)


class MovingAverage(WeightAverage, TrainerCallback):
    """An exponential moving average of the weights.

    Step `t` = 1, 2, … sets the average to `d * average + (1 - d) * weights`. The decay `d` of step `t` is the
    smaller of `decay` and `(1 + t) / (10 + t)`, as in tf.train.ExponentialMovingAverage. In the first steps,
    `d` is small, so that the random initial weights soon have no influence on the average.
    """

    def __init__(self, model: nn.Module, decay: float, checkpoint: Path | None = None):
        super().__init__(model)
        self.decay = decay
        self.averages = {name: weight.detach().float().clone() for name, weight in self.weights.items()}
        if checkpoint is not None:
            saved = load_file(checkpoint / AVERAGED_WEIGHTS_FILE)
            for name, average in self.averages.items():
                average.copy_(saved[name])

    @torch.no_grad()
    def on_step_end(self, args, state, control, **kwargs) -> None:
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        for average, weight in zip(self.averages.values(), self.weights.values(), strict=True):
            average.lerp_(weight.float(), 1 - decay)

    def _put_average_in_place(self) -> None:
        self._assign([*self.averages.values()])


class OptimizerAverage(WeightAverage):
    """Uses the averages of an optimizer that averages the weights itself, for example Schedule-Free AdamW.

    `optimizer.eval()` gives the model the averaged weights. `optimizer.train()` gives the model the trained
    weights again, but with rounding errors. Therefore this class copies the trained weights before
    `optimizer.eval()`, and restores the copies after `optimizer.train()`.
    """

    def __init__(self, model: nn.Module, optimizer: Any):
        super().__init__(model)
        self.optimizer = optimizer

    def _put_average_in_place(self) -> None:
        self.optimizer.eval()

    def _put_back(self, kept: list[torch.Tensor]) -> None:
        self.optimizer.train()
        super()._put_back(kept)
