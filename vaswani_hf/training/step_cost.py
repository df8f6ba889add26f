"""Counts the FLOPs and the memory of a training step by running the real step on fake tensors.

The step has a forward pass, a loss, a backward pass and an optimizer step. The training step uses the
recipe's regulariser, gradient checkpointing, autocast and moving average of the weights. Fake tensors have
shapes, dtypes and devices but no data (https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html).
The fake tensors have the device CPU, because a build of PyTorch without CUDA cannot compute with fake CUDA
tensors.
"""

import contextlib
import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import PreTrainedModel

from ..optimization.optimizers import OPTIMIZERS
from .moving_average import MovingAverage
from .planned_step import BatchShape, PlannedRun, batch_shape, full_batch, loss_function
from .recipe_model import planned_model, prepare_for_training

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The memory of a training step with one batch, in bytes.

    Attributes:
        source_positions: The number of source positions (tokens and padding); 0 for a language model.
        target_positions: The number of target positions (tokens and padding).
        dtype: The dtype of the computation: "bfloat16" or "float32".
        weights: Bytes of the weights and of their moving average.
        gradients: Bytes of the gradients.
        optimizer: Bytes of the optimizer state.
        activations: Bytes of the tensors that the layers keep for the backward pass, including bfloat16
            copies of weights.
        loss: Bytes that the computation of the loss needs in addition to the activations.
        peak: Bytes of the peak memory in the step, without PyTorch itself and without unused memory of
            PyTorch's allocator.
    """

    source_positions: int
    target_positions: int
    dtype: str
    weights: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    peak: int


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The cost of a training step with one batch. `batch_flops` are the FLOPs of the forward and backward
    pass. `optimizer_flops` are the FLOPs of the optimizer's matrix products: 0 for Adam.
    """

    batch_flops: int
    optimizer_flops: int
    memory: StepMemory


def step_cost(
    run: PlannedRun, length: int, *, on_accelerator: bool = True, largest_part: int | None = None
) -> StepCost:
    """Run a training step on fake tensors, with a full batch of sentences of `length` tokens, and count its
    cost. If the trainer divides the batch into parts (`largest_part` is given), count the cost of one part.
    If `on_accelerator` is true, count the cost of the kernels for a GPU, otherwise of the kernels for a CPU.
    """
    training = run.training
    with FakeTensorMode(), _Counter() as counter:
        kernels: contextlib.AbstractContextManager = contextlib.nullcontext()
        if on_accelerator:
            kernels = _AcceleratorKernels(torch.bfloat16 if training.bf16 is True else torch.float32)
        model = _fake_model(run, kernels)
        # Keep the moving average until the end of the step, as a real run does.
        average = None if training.ema_decay is None else MovingAverage(model, training.ema_decay)
        weights = counter.now

        # Take one optimizer step before the forward pass, because the first optimizer step creates the
        # optimizer state. Also count the FLOPs of this first optimizer step.
        optimizer = OPTIMIZERS[training.optimizer].build(model, training, bf16=training.bf16 is True)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight)
        gradients = counter.now - weights
        optimizer.step()
        optimizer_flops = counter.flops
        state = counter.now - weights - gradients
        # Keep the gradients if the step has several batches or parts, because the gradients of the earlier
        # batches or parts exist while the last one is computed.
        if largest_part is None and training.gradient_accumulation_steps == 1:
            optimizer.zero_grad()

        batch = _fake_batch(batch_shape(training, length, largest_part))
        before = counter.now
        counter.peak = before
        after_layers: list[int] = []
        model.base_model.register_forward_hook(lambda *_: after_layers.append(counter.now))
        with kernels:
            loss = loss_function(model, training, "cpu")(batch)
        forward_peak = counter.peak
        loss.backward()
        batch_flops = counter.flops - optimizer_flops
        optimizer.step()
        del average
    activations = after_layers[-1] - before
    memory = StepMemory(
        source_positions=batch["input_ids"].numel() if model.config.is_encoder_decoder else 0,
        target_positions=batch["labels"].numel(),
        dtype="bfloat16" if training.bf16 is True else "float32",
        weights=weights,
        gradients=gradients,
        optimizer=state,
        activations=activations,
        loss=forward_peak - before - activations,
        peak=counter.peak,
    )
    return StepCost(batch_flops=batch_flops, optimizer_flops=optimizer_flops, memory=memory)


def _fake_model(run: PlannedRun, kernels: contextlib.AbstractContextManager) -> PreTrainedModel:
    """Return a model with fake weights. The backward pass computes checkpointed layers again in the context
    `kernels`.
    """
    model = planned_model(copy.deepcopy(run.config), run.model_class)
    weights = {name: torch.empty(weight.shape, device="cpu") for name, weight in model.named_parameters()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    prepare_for_training(model, run.training, recomputation=kernels)
    return model


def _fake_batch(shape: BatchShape) -> dict[str, torch.Tensor]:
    source = torch.ones(shape.rows, shape.source_length, dtype=torch.int64)
    labels = torch.ones(shape.rows, shape.target_length, dtype=torch.int64)
    return full_batch(source, labels)


# Use the formulas of similar operations for `addmm_` and for the attention kernels of a CPU, because PyTorch
# has no FLOP formulas for them.
_FORMULAS = flop_registry | {
    aten.addmm_: flop_registry[aten.addmm],
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


class _Counter(TorchDispatchMode):
    """Counts FLOPs, and the current and the peak number of bytes in tensor storages. A storage that several
    tensors share counts once. PyTorch's `FlopCounterMode` is not used, because its hooks would keep tensors
    that gradient checkpointing discards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            # Answer calls that only read the device of a tensor here, because more than half of all calls are
            # such calls, and FakeTensorMode needs more time for such a call.
            return args[0].fake_device
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        formula = _FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=results)
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, torch.Tensor) and result.device.type != "meta":
                self._add(result.untyped_storage())
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes()

        def free(_: Any) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, free)
        self.now += size
        self.peak = max(self.peak, self.now)


class _AcceleratorKernels(TorchFunctionMode):
    """In the mode `_AcceleratorKernels`, operations on fake CPU tensors use the same functions and sizes as
    on a GPU: the attention kernel with tensors of the dtype `dtype`, the dropout kernel, and the size of the
    chunks of the loss. PyTorch leaves the mode during a backward pass. Therefore `prepare_for_training`
    enters the mode again for checkpointed layers.
    """

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.replaced: dict[Callable, Callable] = {
            nn.functional.scaled_dot_product_attention: partial(_attention, dtype),
            nn.functional.dropout: _dropout,
            # The loss reads `is_cpu` to choose the size of its chunks.
            torch.Tensor.is_cpu.__get__: lambda tensor: False,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.replaced.get(func, func)(*args, **kwargs or {})


def _attention(
    dtype, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    # Convert the tensors to `dtype`, because autocast on a CPU leaves attention in float32.
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    bias = attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros(attn_mask.shape, dtype=dtype).masked_fill_(~attn_mask, float("-inf"))
    if bias is not None:
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    kernel = aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]


def _dropout(input, p=0.5, training=True, inplace=False):
    # `native_dropout` keeps a mask of one byte per element, as the dropout of a GPU does.
    return torch.native_dropout(input, p, training)[0] if training and p else input
