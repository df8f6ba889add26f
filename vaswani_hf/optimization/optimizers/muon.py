"""Defines the optimizer "muon": Muon trains the matrices of the layers; AdamW trains all other weights."""

from collections import ChainMap
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..entries import Optimizer
from .adam import fused_adamw
from .adamw import AdamWSettings

# The decay rate of the momentum (Jordan et al. 2024).
MOMENTUM = 0.95
# The coefficients and the number of iterations of the Newton-Schulz iteration (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_STEPS = 5
# The Newton-Schulz iteration is faster in bfloat16 than in float32 if a matrix has at least
# `LEAST_SIDE_IN_BFLOAT16` rows and columns. `LEAST_SIDE_IN_BFLOAT16` was measured on processors with
# AVX512-BF16 instructions (scripts/benchmarks/bf16.md).
LEAST_SIDE_IN_BFLOAT16 = 128


def orthogonalized(matrix: torch.Tensor, in_bfloat16: bool) -> torch.Tensor:
    """Return a matrix after the Newton-Schulz iteration: its singular values are near 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x.to(torch.bfloat16 if in_bfloat16 else torch.float32)
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(NUM_STEPS):
        square = x @ x.T
        x = a * x + torch.addmm(square, square, square, beta=b, alpha=c) @ x
    return (x.T if is_tall else x).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): a step changes a matrix by the orthogonalized Nesterov momentum.

    The weight decay is decoupled, as in AdamW. Muon scales the changes of a step to a root mean square of
    about 0.2 times the learning rate, because AdamW makes changes of a similar size (Liu et al. 2025, Section
    2.2). The run records the value of `bf16`, so that a resumed run computes in the same precision even on
    another processor.
    """

    def __init__(self, matrices: list[nn.Parameter], weight_decay: float, bf16: bool = False):
        self.bf16 = bf16
        super().__init__(matrices, {"lr": 1.0, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step_of(weight, group["lr"], group["weight_decay"])

    def _step_of(self, weight: nn.Parameter, rate: float, weight_decay: float) -> None:
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - MOMENTUM)
        in_bfloat16 = self.bf16 and min(weight.shape) >= LEAST_SIDE_IN_BFLOAT16
        step = orthogonalized(weight.grad.lerp(momentum, MOMENTUM), in_bfloat16)
        weight.mul_(1 - rate * weight_decay)
        weight.add_(step, alpha=-0.2 * rate * max(weight.shape) ** 0.5)


class MuonAndAdamW(torch.optim.Optimizer):
    """Combines the optimizers in `parts` (Muon, AdamW or both) into one optimizer."""

    def __init__(self, parts: list[torch.optim.Optimizer]):
        groups = [group for part in parts for group in part.param_groups]
        super().__init__([weight for group in groups for weight in group["params"]], {})
        self.parts = parts
        self._take_parts()

    def _take_parts(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = ChainMap(*(part.state for part in self.parts))  # type: ignore[assignment]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the weights that Muon trains and the weights that AdamW trains."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer states of Muon and of AdamW."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of Muon and of AdamW from a result of `state_dict`."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._take_parts()


def build_muon(model: nn.Module, settings: AdamWSettings, *, bf16: bool) -> MuonAndAdamW:
    """Return the optimizer "muon". Muon trains the matrices of the layers. AdamW trains embeddings, output
    projection, layer norms and biases, without weight decay. The learning rates of Muon and AdamW are equal.
    """
    matrices = []
    others = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        if weight.dim() == 2 and ".layers." in name:
            matrices.append(weight)
        else:
            others.append(weight)
    parts: list[torch.optim.Optimizer] = []
    # PyTorch raises an error for an empty list of weights. `matrices` is empty if all matrices are frozen.
    if matrices:
        parts.append(Muon(matrices, settings.weight_decay, bf16))
    if others:
        parts.append(fused_adamw([{"params": others, "weight_decay": 0.0}], settings))
    return MuonAndAdamW(parts)


# The Newton-Schulz iteration needs complete matrices, but FSDP and DeepSpeed divide matrices between
# processes.
MUON = Optimizer("muon", build_muon, AdamWSettings, needs_whole_weights=True)
