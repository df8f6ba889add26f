"""Sums the training losses of a step, and creates the name of the training loss in log lines. Detects an
exploded loss, and creates the error that ends a run with an infinite, NaN or exploded loss.
"""

import math
from collections import deque
from typing import Any

import torch
from transformers import TrainingArguments

from ..model.configuration_vaswani import VaswaniConfig
from ..optimization.regularizers import regularizer_of
from ..optimization.schedules import SCHEDULES, scheduled_rate
from ..optimization.section import AnyTraining
from .checkpoints import checkpoints_until
from .stopping import RunError

# `DivergenceDetector` computes the mean loss of `NUM_STEPS` steps. `DivergenceDetector` reports an exploded
# loss if the loss is above the higher limit for `NUM_STEPS` consecutive steps.
NUM_STEPS = 10
# `DivergenceDetector` reports an exploded loss at the latest after `MOST_STEPS` consecutive steps with a loss
# above the lower limit.
MOST_STEPS = 100
# A model "has learned something" if its lowest mean loss is more than `LEARNED` nats per token below the loss
# of a uniform guess.
LEARNED = 1.0


class DivergedRunError(RunError):
    """Raised if the loss or the gradient became infinite or NaN, or if the loss exploded."""


class TrainingLosses:
    """Sums the losses and the gradient norms of the batches of a step. The sums stay tensors on the device,
    because converting a tensor to a Python number forces a CUDA synchronisation.
    """

    def __init__(self, training: AnyTraining, config: VaswaniConfig, args: TrainingArguments):
        self.training = training
        self.config = config
        self.args = args
        # The step since which every loss has been too high (see `DivergenceDetector`); None if the latest
        # loss is not too high.
        self.suspect_since: int | None = None
        self._loss: Any = 0.0
        self._gradient_norm: Any = 0.0

    @property
    def name(self) -> str:
        """The name of the training loss in the log. The name of the training loss lists label smoothing and
        the regulariser, because the validation loss includes neither of the two terms.
        """
        terms = []
        if smoothing := self.config.label_smoothing:
            terms.append(f"label smoothing {smoothing:g}")
        if regularizer := regularizer_of(self.training):
            terms.append(f"{regularizer.strength} {getattr(self.training, regularizer.strength):g}")
        return f"loss ({', '.join(terms)})" if terms else "loss"

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add the loss of a batch."""
        self._loss = self._loss + loss

    def add_gradient_norm(self, norm: torch.Tensor) -> None:
        """Add the gradient norm of an optimizer step to the sum of the norms."""
        # If the gradients are sharded, the norm is a DTensor, and `full_tensor` computes the norm over all
        # processes.
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self._gradient_norm = self._gradient_norm + whole

    def take(self) -> torch.Tensor:
        """Return a float32 tensor [2] on the device, computed from all batches since the last call of `take`.
        The first element of the tensor is 1.0 if a loss or gradient was not finite, else 0.0. The second
        element is the sum of the losses.
        """
        loss = torch.as_tensor(self._loss, dtype=torch.float32, device=self.args.device)
        diverged = 1.0 - torch.isfinite(loss + self._gradient_norm).float()
        self._loss = 0.0
        self._gradient_norm = 0.0
        return torch.stack([diverged, loss])

    def error(self, what: str, step: int, good_until: int) -> DivergedRunError:
        """Return the error for a run whose loss diverged. Checkpoints up to the step `good_until` were saved
        before the divergence.
        """
        training = self.training
        last = checkpoints_until(self.args.output_dir, good_until)[-1:]
        rate = scheduled_rate(step, training, self.config.d_model, self.args.max_steps)
        key = SCHEDULES[training.lr_scheduler_type].rate_key
        saved = (
            f"the last good checkpoint is '{last[0]}'" if last else "no checkpoint was saved before this step"
        )
        return DivergedRunError(
            f"{what}, at a learning rate of {rate:.2e}; {saved}. Try a lower "
            f"`training.{key}`, more `training.warmup_steps`, `training.max_grad_norm: 1`"
            f"{' or `training.bf16: false`' if training.bf16 is True else ''}, in another `--output_dir`."
        )


class DivergenceDetector:
    """Decides from the loss of each step whether the training has diverged.

    The loss of a uniform guess over the V tokens of the vocabulary is log V nats per token, with and without
    label smoothing.

    - The lower limit applies after the model has learned something (see `LEARNED`). The lower limit is the
      average of a uniform guess's loss and the lowest mean loss of 10 consecutive steps so far. The loss has
      exploded if the loss is above the lower limit for N consecutive steps. N is a tenth of the number of
      steps of the run, but at least 10 and at most 100.

    - The higher limit applies in all steps. The higher limit is twice the larger of two losses: the loss of a
      uniform guess, and the first loss of the run. A bad initialization can make the first loss large. If the
      loss is above the higher limit for 10 consecutive steps, the loss has exploded.

    A warm-up, small batches, single spikes and a change of the training text do not count as explosions.
    `uniform` is the loss of a uniform guess. `earlier` lists the mean losses that a resumed run logged before
    the interruption, oldest first.
    """

    def __init__(self, uniform: float, max_steps: int, earlier: list[float]):
        self.uniform = uniform
        self.patience = min(max(max_steps // 10, NUM_STEPS), MOST_STEPS)
        self.first = earlier[0] if earlier else None
        self.lowest = min(earlier, default=math.inf)
        # The first step of the latest series of steps with a loss above `limit` (see `update`); None if the
        # latest loss is not above `limit`.
        self.since: int | None = None
        self._recent: deque[float] = deque(maxlen=NUM_STEPS)

    def update(self, step: int, loss: float) -> bool:
        """Record the loss of a step (nats per token). Return True if the loss has exploded."""
        if self.first is None:
            self.first = loss
        self._recent.append(loss)
        if len(self._recent) == NUM_STEPS:
            self.lowest = min(self.lowest, sum(self._recent) / NUM_STEPS)
        far_too_high = 2 * max(self.uniform, self.first)
        has_learned = self.lowest < self.uniform - LEARNED
        limit = (self.lowest + self.uniform) / 2 if has_learned else far_too_high
        if loss <= limit:
            self.since = None
            return False
        if self.since is None:
            self.since = step
        if len(self._recent) == NUM_STEPS and min(self._recent) > far_too_high:
            return True
        patience = self.patience if has_learned else NUM_STEPS
        return step - self.since + 1 >= patience

    def message(self, step: int) -> str:
        """Return the error message if the loss has exploded at `step`."""
        before = f"; the lowest mean loss before is {self.lowest:.2f}" if math.isfinite(self.lowest) else ""
        return (
            f"The loss has exploded: it has been too high since step {self.since:,}, and is "
            f"{self._recent[-1]:.2f} nats per token at step {step:,}{before}"
        )
