"""Stores the weights of a model for an HTML page, in float32 or in int8. In int8, each row of a matrix has
its own scale.
"""

import copy

import torch
from safetensors.torch import save

from ..model.modeling_vaswani import VaswaniForSeq2SeqLM

# The largest absolute int8 value in a row. A weight is its int8 value multiplied by the scale of the row.
_LARGEST = 127


def packed_weights(model: VaswaniForSeq2SeqLM, is_int8: bool) -> bytes:
    """Return the weights of a model in the safetensors format. A tied weight is stored only once.

    If `is_int8` is True, a matrix with the name `NAME` [m, n] is stored in int8. The float32 vector
    `NAME.scale` [m] contains the scales of its rows. Vectors, such as biases, are always stored in float32.
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
    """Quantize a matrix [m, n]. Return the int8 values [m, n], and the float32 scales [m] of the rows."""
    largest = weight.float().abs().amax(dim=1)
    # Use the scale 1 for a row of zeros, because the weights of a row are divided by its scale.
    scales = torch.where(largest > 0, largest / _LARGEST, 1.0)
    integers = (weight.float() / scales.unsqueeze(1)).round().clamp(-_LARGEST, _LARGEST)
    return integers.to(torch.int8), scales


def with_int8_weights(model: VaswaniForSeq2SeqLM) -> VaswaniForSeq2SeqLM:
    """Return a float32 copy of a model whose matrices are rounded to the values that `packed_weights` stores
    in int8.
    """
    rounded = copy.deepcopy(model).float()
    with torch.no_grad():
        for weight in rounded.parameters():
            if weight.dim() == 2:
                integers, scales = _quantized(weight)
                weight.copy_(integers.float() * scales.unsqueeze(1))
    return rounded.eval()
