"""The average of the weights of several checkpoints; which ones, is said in checkpoints.py.

Section 6.1: the paper averages the last 5 checkpoints of base models, and 20 of big ones.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from ..checkpoint.files import WEIGHTS_FILE


def average_checkpoints(folders: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of several checkpoints, summed in float32 with one checkpoint in memory at a time.

    Args:
        folders (list): Folders that hold a `model.safetensors` of the same model.

    Returns:
        dict: Tensors by name, in the dtype of the first checkpoint.

    Raises:
        ValueError: If there is nothing to average or the checkpoints are not of one model.
    """
    if not folders:
        raise ValueError("`average_checkpoints` needs at least one checkpoint, but was given none.")
    first = load_file(folders[0] / WEIGHTS_FILE)
    shapes = {name: tensor.shape for name, tensor in first.items()}
    total = {name: tensor.float() for name, tensor in first.items()}
    for folder in folders[1:]:
        weights = load_file(folder / WEIGHTS_FILE)
        if {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise ValueError(f"'{folder}' and '{folders[0]}' hold different models; average checkpoints of one run.")
        for name, tensor in weights.items():
            total[name] += tensor.float()
    return {name: (tensor / len(folders)).to(first[name].dtype) for name, tensor in total.items()}
