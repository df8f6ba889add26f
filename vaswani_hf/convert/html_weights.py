"""Stores the weights of a model for an HTML page: float32, or int8 with one scale for each row of a matrix."""

import copy

import torch
from safetensors.torch import save

from ..model.modeling_vaswani import VaswaniForSeq2SeqLM

# The largest integer of a row. The weight is the integer multiplied by the scale of the row.
_LARGEST = 127


def packed_weights(model: VaswaniForSeq2SeqLM, is_int8: bool) -> bytes:
    """Return the weights of a model in the format safetensors, each tied weight once.

    If `is_int8` is True, each matrix `NAME` [m, n] is int8, and `NAME.scale` [m] float32 has the scales of its
    rows. Vectors, such as biases, are always float32.
    """
    tied = model.all_tied_weights_keys
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        if is_int8 and tensor.dim() == 2:
            tensors[name], tensors[f"{name}.scale"] = _quantized(tensor)
        else:
            tensors[name] = tensor.float().contiguous()
    return save(tensors)


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integers [m, n] int8 and the scales [m] float32 of a matrix [m, n]."""
    largest = weight.float().abs().amax(dim=1)
    # Use the scale 1 for a row of zeros, because a scale of 0 would divide by zero.
    scales = torch.where(largest > 0, largest / _LARGEST, 1.0)
    integers = (weight.float() / scales.unsqueeze(1)).round().clamp(-_LARGEST, _LARGEST)
    return integers.to(torch.int8), scales


def with_int8_weights(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """Return a copy of a model whose weights are the values that `packed_weights` stores in int8."""
    rounded = copy.deepcopy(model).float()
    with torch.no_grad():
        for weight in rounded.parameters():
            if weight.dim() == 2:
                integers, scales = _quantized(weight)
                weight.copy_(integers.float() * scales.unsqueeze(1))
    return rounded.eval()
