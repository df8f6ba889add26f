"""Weights that all test processes of pytest-xdist share: one process trains a model, and the others load its
weights.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from torch import nn

# conftest.py sets the folder that all test processes share.
folder: Path | None = None


def train_once(model: nn.Module, train: Callable[[], None], description: object) -> None:
    """Train a model, or load its weights if a test process has already trained a model with this
    description.
    """
    name = hashlib.sha256(repr(description).encode()).hexdigest()
    weights = folder / f"{name}.pt"
    with FileLock(f"{weights}.lock"):
        if not weights.exists():
            train()
            torch.save(model.state_dict(), weights)
    model.load_state_dict(torch.load(weights, weights_only=True))
