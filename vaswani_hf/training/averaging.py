"""Checkpoint averaging (Section 6.1: the paper averages the last 5 checkpoints of base models, 20 of big ones)."""

from pathlib import Path

import torch
from safetensors.torch import load_file


def checkpoints_in(folder: str | Path) -> list[Path]:
    """The checkpoints that a training run left, oldest first.

    Args:
        folder (str or Path): The run's output folder.

    Returns:
        list: Folders named checkpoint-STEP, by step.
    """
    numbered = [(path.name.removeprefix("checkpoint-"), path) for path in Path(folder).glob("checkpoint-*")]
    return [path for step, path in sorted((int(step), path) for step, path in numbered if step.isdecimal())]


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
    first = load_file(folders[0] / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in first.items()}
    total = {name: tensor.float() for name, tensor in first.items()}
    for folder in folders[1:]:
        weights = load_file(folder / "model.safetensors")
        if {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise ValueError(f"'{folder}' and '{folders[0]}' hold different models; average checkpoints of one run.")
        for name, tensor in weights.items():
            total[name] += tensor.float()
    return {name: (tensor / len(folders)).to(first[name].dtype) for name, tensor in total.items()}
