"""Replaces the weights of linear layers by int8 weights, for translation on the CPU. The library torchao
quantizes the weights, and int8 kernels of PyTorch multiply the matrices.

If PyTorch has no int8 kernel for the processor, torchao multiplies the matrices instead, in about twelve
operations per layer. On a processor without int8 instructions, torchao is much slower than float32
(scripts/benchmarks/generation.md).

In tensor shapes, R is the number of rows of hidden states, I the number of input features of a linear layer,
and O the number of output features.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ..model.errors_vaswani import InvalidValueError
from ..processor import capability
from ..version import install_command

# `_HARMLESS` lists the methods of an `Int8Weight` that are allowed, because they do not read the values of
# the weight. `_VIEWS` lists the attributes of an `Int8Weight` that must not be read: each access raises an
# error. Without an error, reading an attribute such as `T` would return a tensor with invalid values, because
# an `Int8Weight` stores no float values.
_HARMLESS = {
    "dim",
    "size",
    "numel",
    "is_floating_point",
    "is_complex",
    "element_size",
    "__hash__",
    "__repr__",
}
_VIEWS = {"T", "mT", "H", "mH", "data", "real"}
_ONLY_MULTIPLIES = (
    "An int8 weight can only be used in a linear layer, but {} is called on the weight; load the model "
    "without `quantization` to save, move, copy or train it."
)
# The scale and the zero point that quantize values from -1 to 1 to integers from 1 to 255.
_ROW_SCALE = (1 / 127, 128)


class Int8Weight(nn.Parameter):
    """The int8 weight [O, I] of a linear layer. `product` computes the output of the layer for given states.

    Except for `nn.functional.linear`, all operations on the values of the weight raise an error. Therefore an
    `Int8Weight` cannot be saved, moved, copied or trained. The layer is still an `nn.Linear`, because the
    fast code paths of this package expect an `nn.Linear`.
    """

    product: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]

    def __deepcopy__(self, memo):
        raise ValueError(_ONLY_MULTIPLIES.format("a copy"))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is nn.functional.linear:
            return _linear(*args, **kwargs)
        is_attribute = func.__name__ == "__get__"
        name = func.__self__.__name__ if is_attribute else func.__name__
        if name in _VIEWS if is_attribute else name not in _HARMLESS:
            raise ValueError(_ONLY_MULTIPLIES.format(f"`{name}`"))
        return super().__torch_function__(func, types, args, kwargs)


def _linear(input: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    return weight.product(input, bias)


def check_quantization(quantization: str | None, dtype: Any, device: str | None) -> None:
    """Raise an error if `quantization` is unknown, or does not fit the dtype, the device or the libraries."""
    if quantization is None:
        return
    if quantization != "int8":
        raise InvalidValueError(f'`quantization` must be "int8", but is {quantization!r}.')
    if dtype not in (None, torch.float32):
        raise InvalidValueError(
            f"`quantization` int8 needs `dtype` float32 for all other operations, but `dtype` is {dtype}; "
            "leave `dtype` out."
        )
    if device is not None and torch.device(device).type != "cpu":
        raise InvalidValueError(
            f"`quantization` int8 is for the CPU, but `device` is {device}; use `dtype` bfloat16 on this "
            "device."
        )
    try:
        from torchao.quantization import Int8Tensor  # noqa: F401
    except ImportError:
        raise InvalidValueError(
            f"`quantization` int8 needs torchao; install it with `{install_command('int8')}`."
        ) from None


def quantize(model: Any) -> Any:
    """Replace the weights of the linear layers of a float32 model on the CPU by int8 weights, in place.
    Embeddings stay in float32, even if an embedding shares its weight with the output projection.
    """
    kernel = _kernel()
    reduce_range = kernel is not None and _overflows(kernel)
    for module in model.modules():
        # torchao cannot quantize a layer with one input feature. A user's position encoding can contain a
        # layer with one input feature.
        if type(module) is nn.Linear and module.in_features > 1:
            module.weight = _in_int8(module.weight.detach(), kernel, reduce_range)
    return model


def _kernel() -> Callable[[torch.Tensor, torch.Tensor], Callable] | None:
    """Choose the int8 kernel for this processor: FBGEMM, oneDNN, or None if torchao must multiply the
    matrices.
    """
    if capability("architecture") != "x86_64" or not torch.backends.mkldnn.is_available():
        return None
    # Use oneDNN if the processor has AMX, because FBGEMM does not use AMX. Without AMX, use FBGEMM: with
    # AVX2, oneDNN needs the same time as FBGEMM for a batch of 64 sentences, but twice the time for one
    # sentence. FBGEMM needs `quantize_per_channel`. PyTorch 2.13 warns that a later version removes
    # `quantize_per_channel`.
    has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines and hasattr(
        torch, "quantize_per_channel"
    )
    return _with_fbgemm if has_fbgemm and not capability("amx_int8") else _with_onednn


def _overflows(kernel: Callable[[torch.Tensor, torch.Tensor], Callable]) -> bool:
    """Return True if a kernel adds int8 products in 16-bit integers, so that the sum of the largest products
    overflows. Test the kernel instead of reading the list of processor instructions, because environment
    variables such as ONEDNN_MAX_CPU_ISA can turn off listed instructions.
    """
    weight = torch.full((16, 64), 127, dtype=torch.int8)
    multiply = kernel(weight, torch.full((16,), 1 / 127))
    sums = multiply(torch.ones(1, 64))
    return not torch.allclose(sums, torch.tensor(64.0))


def _in_int8(weight: torch.Tensor, kernel: Callable | None, reduce_range: bool) -> nn.Parameter:
    """Return the int8 weight of a float32 weight, with 7 bits per value if `reduce_range` is true."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, PerRow, quantize_

    if kernel is None:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        quantize_(layer, Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
        return layer.weight
    quantized = Int8Tensor.from_hp(weight, PerRow(), reduce_range=reduce_range)
    own = Int8Weight(torch.empty(()).expand(weight.shape), requires_grad=False)
    own.product = partial(_product, kernel(quantized.qdata, quantized.scale.flatten()))
    return own


def _product(multiply: Callable, states: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the output [..., O] of a linear layer for states [..., I]. `multiply` multiplies rows [R, I] by
    the int8 weight. Each row is divided by its own largest absolute value, so that the result for a row does
    not depend on other rows of the batch.
    """
    rows = states.reshape(-1, states.shape[-1])
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_(min=torch.finfo(rows.dtype).tiny)
    output = multiply(rows / largest)
    output = output.mul_(largest) if bias is None else torch.addcmul(bias, output, largest)
    return output.view(*states.shape[:-1], -1)


def _with_fbgemm(weight: torch.Tensor, scales: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that multiplies rows [R, I] of values from -1 to 1 by a weight [O, I] with scales
    [O].
    """
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
            quantized = torch.quantize_per_channel(weight * scales[:, None], scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = before
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return lambda rows: multiply(rows, *_ROW_SCALE, packed)


def _with_onednn(weight: torch.Tensor, scales: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that multiplies rows [R, I] of values from -1 to 1 by a weight [O, I] with scales
    [O].
    """
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    scale, zero = _ROW_SCALE
    # Include the scale of the rows (the inputs) in the scales of the weight, and pass 1 as the scale of the
    # rows. With two separate scales, some kernels would multiply an integer sum by one scale after the other,
    # and other kernels by the product of the scales. oneDNN chooses the kernel by the number of rows, so the
    # rounding errors of a row would then depend on the number of rows.
    given: Any = (1.0, zero, packed, scales * scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")
    # Add 0.5, so that the conversion to uint8 rounds to the nearest integer instead of truncating.
    return lambda rows: torch.ops.onednn.qlinear_pointwise(
        (rows / scale).add_(zero + 0.5).to(torch.uint8), *given
    )
