"""Sums the training losses of a step, and names the loss in the log. Creates the error that ends a run with
an infinite, NaN or exploded loss.
"""

from typing import Any

import torch
from transformers import TrainingArguments

from ..model.configuration_vaswani import VaswaniConfig
from ..optimization.regularizers import regularizer_of
from ..optimization.schedules import SCHEDULES, scheduled_rate
from ..optimization.section import AnyTraining
from .checkpoints import checkpoints_until
from .stopping import RunError


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
        # The first step of the latest series of steps with too high a loss (see `DivergenceDetector`); None
        # if the latest loss is not too high.
        self.suspect_since: int | None = None
        self._loss: Any = 0.0
        self._gradient_norm: Any = 0.0

    @property
    def name(self) -> str:
        """The name of the training loss in the log. The name mentions label smoothing and the regulariser,
        because the validation loss includes no label smoothing and no regulariser.
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
        # If the gradients are sharded, the norm is a DTensor. `full_tensor` then computes the norm over all
        # processes.
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self._gradient_norm = self._gradient_norm + whole

    def take(self) -> torch.Tensor:
        """Return two values about all batches since the last call, as a float32 tensor [2] on the device. The
        first element of the tensor is 1.0 if a loss or gradient was not finite, else 0.0. The second element
        is the sum of the losses.
        """
        loss = torch.as_tensor(self._loss, dtype=torch.float32, device=self.args.device)
        diverged = 1.0 - torch.isfinite(loss + self._gradient_norm).float()
        self._loss = 0.0
        self._gradient_norm = 0.0
        return torch.stack([diverged, loss])

    def error(self, what: str, step: int, good_until: int) -> DivergedRunError:
        """Return the error that ends a run. Checkpoints up to the step `good_until` were saved before the
        divergence.
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
