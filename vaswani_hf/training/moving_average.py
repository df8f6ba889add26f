"""Computes the exponential moving average of the weights. A run uses the average for the validation and as
the final weights.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback

from ..checkpoint.files import AVERAGED_WEIGHTS_FILE


class MovingAverage(TrainerCallback):
    """Keeps an exponential moving average of the weights of a model. Step `t` = 1, 2, … sets the average to
    `d * average + (1 - d) * weights`.

    `d` is the smaller of `decay` and `(1 + t) / (10 + t)`, as in tf.train.ExponentialMovingAverage. `d` is
    small in the first steps, so that the random initial weights soon have no influence.
    """

    def __init__(self, model: nn.Module, decay: float, checkpoint: Path | None = None):
        self.weights = dict(model.named_parameters())
        self.decay = decay
        self.averages = {name: weight.detach().float().clone() for name, weight in self.weights.items()}
        if checkpoint is not None:
            saved = load_file(checkpoint / AVERAGED_WEIGHTS_FILE)
            for name, average in self.averages.items():
                average.copy_(saved[name])

    @torch.no_grad()
    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Update the average with the current weights."""
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        for average, weight in zip(self.averages.values(), self.weights.values(), strict=True):
            average.lerp_(weight.float(), 1 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager that replaces the weights of the model by the averaged weights."""
        kept = [weight.detach().clone() for weight in self.weights.values()]
        self._assign([*self.averages.values()])
        try:
            yield
        finally:
            self._assign(kept)

    @torch.no_grad()
    def _assign(self, values: list[torch.Tensor]) -> None:
        for weight, value in zip(self.weights.values(), values, strict=True):
            weight.copy_(value)

    def save(self, folder: Path) -> None:
        """Write the averages into the folder of a checkpoint, in float32."""
        save_file(
            {name: average.cpu() for name, average in self.averages.items()}, folder / AVERAGED_WEIGHTS_FILE
        )
