"""Muon for the matrices of the layers and AdamW for everything else, as one optimizer."""

from collections import ChainMap
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from ..recipe.schema import TrainingSection


class MuonAndAdamW(Optimizer):
    """Muon (Jordan et al. 2024) for matrices, whose hidden features have no order of their own, and AdamW for the other weights.

    One learning rate serves both: Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, Section 2.2).

    Args:
        matrices (list): The weights [rows, columns] for Muon.
        others (list): All other weights.
        training (TrainingSection): Adam's numbers, and the decay of the matrices.
    """

    def __init__(self, matrices: list[nn.Parameter], others: list[nn.Parameter], training: TrainingSection):
        super().__init__([*matrices, *others], {})
        adam = {"betas": (training.adam_beta1, training.adam_beta2), "eps": training.adam_epsilon, "fused": True}
        self.parts: list[Optimizer] = [
            Muon(matrices, weight_decay=training.weight_decay, adjust_lr_fn="match_rms_adamw"),
            AdamW(others, weight_decay=0.0, **adam),
        ]
        self._take_parts()

    def _take_parts(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = ChainMap(*(part.state for part in self.parts))  # type: ignore[assignment]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of each."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` has given."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._take_parts()


def muon_and_adamw(model: nn.Module, training: TrainingSection) -> MuonAndAdamW:
    """The optimizer of a model: embeddings, the output projection, norms and biases are AdamW's.

    Args:
        model (Module): Its stacks have their layers under the name `layers`.
        training (TrainingSection): The optimisation.
    """
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    is_matrix = {name: weight.dim() == 2 and ".layers." in name for name, weight in named}
    matrices, others = ([weight for name, weight in named if is_matrix[name] == kind] for kind in (True, False))
    return MuonAndAdamW(matrices, others, training)
