"""Decides where faster code can replace a method without changing the result.

Examples of faster code are a fused attention kernel, and a decoding step without calls of `forward`. If a
subclass overrides a method, the method of the subclass is called instead of the faster code. To understand
what a model computes, you need not read this file.

This file is saved with every checkpoint because the models and the search use fast paths.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.utils.output_capturing import OutputRecorder

# The methods that a fast path can replace: two methods of PyTorch, and the methods that `fast_path` marks.
_FAST_PATH_METHODS: set[Any] = {nn.Linear.forward, nn.LayerNorm.forward}

# Device types that execute operations asynchronously. Reading a value of a tensor on an asynchronous device
# waits until all queued operations are finished.
QUEUING_DEVICES = ("cuda",)


def needs_sync(tensor: torch.Tensor) -> bool:
    """Return True if reading a value of the tensor makes the CPU wait for the GPU."""
    return tensor.device.type in QUEUING_DEVICES


class DelayedValues:
    """Copies a tensor from a GPU to the CPU. The CPU waits for the GPU only in the method `tolist`."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        # On a GPU, the CUDA event that completes when the tensor has been copied to the CPU, else None.
        self.copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            # With `non_blocking=True`, PyTorch copies the tensor to pinned memory.
            self.tensor = tensor.to("cpu", non_blocking=True)
            self.copied = torch.cuda.current_stream(tensor.device).record_event()

    def tolist(self) -> list[Any]:
        """Wait until the copy is complete, and return the values of the tensor."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.tensor.tolist()


def fast_path(*methods: str) -> Callable[[type], type]:
    """Return a class decorator that marks the methods with the names `methods` as replaceable. Faster code
    can replace a marked method, unless a subclass overrides the method.
    """

    def register(kind: type) -> type:
        _FAST_PATH_METHODS.update(getattr(kind, name) for name in methods)
        return kind

    return register


def class_permits_fast_path(kind: type, *methods: str) -> bool:
    """Return True if faster code can replace all `methods` of the class `kind`. A method that a subclass
    overrides cannot be replaced.
    """
    return all(getattr(kind, name) in _FAST_PATH_METHODS for name in methods)


def permits_fast_path(module: nn.Module, *methods: str) -> bool:
    """Return True if faster code can replace all `methods` of a module. Return False if a subclass or an
    attribute of the module overrides one of the `methods`. If `methods` contains "forward", also return False
    for a module that has hooks or is compiled.
    """
    is_replaced = any(name in vars(module) for name in methods)
    if is_replaced or not class_permits_fast_path(type(module), *methods):
        return False
    if "forward" not in methods:
        return True
    # Ignore the hooks that transformers installs at the first call with `output_attentions` or
    # `output_hidden_states`. The hooks of transformers stay on the module, but do nothing in calls without
    # these two arguments.
    has_forward_hooks = any(
        hook.__module__ != OutputRecorder.__module__ for hook in module._forward_hooks.values()
    )
    has_hooks = (
        has_forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
    return not has_hooks and module._compiled_call_impl is None


def are_plain(kind: type[nn.Module], *modules: nn.Module) -> bool:
    """Return True if the class of each module is exactly `kind`, and no module has hooks or is compiled."""
    return all(type(module) is kind and permits_fast_path(module, "forward") for module in modules)
