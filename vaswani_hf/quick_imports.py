"""Imports transformers without two slow parts of PyTorch, for commands that neither train nor compile a model.

transformers imports `torch.distributed.tensor` for training on several devices, and `torch._dynamo` for decorators
of functions that `torch.compile` treats differently. Both import SymPy. The two parts take almost half of the time
that the import of transformers takes (measurements: scripts/benchmarks/serving.md).
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_DYNAMO = "torch._dynamo"
# The only submodule of `torch._dynamo` that transformers imports.
_INDEX_MODE = "torch._dynamo._trace_wrapped_higher_order_op"


class _DeferredDynamo(ModuleType):
    """Takes the place of `torch._dynamo`. The decorators return the function itself. All other names load the
    real module.
    """

    @staticmethod
    def _decorator(function: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
        return (lambda function: function) if function is None else function

    disable = allow_in_graph = assume_constant_result = _decorator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # The import system of Python asks for names such as `__path__`.
            raise AttributeError(name)
        _remove(self)
        import torch._dynamo as dynamo

        return getattr(dynamo, name)


class _DeferredIndexMode:
    """Creates an object of the real class. transformers uses the class for masks of some models."""

    def __new__(cls) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()


def _remove(module: ModuleType) -> None:
    """Remove a module from the table of imported modules, so that the next import loads the real module."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import transformers faster in the body of the `with` statement.

    Afterwards, `torch.distributed` counts as not available in this process, because the imported modules of
    transformers have no distributed tensors.
    """
    import torch

    if "transformers" in sys.modules or _DYNAMO in sys.modules:
        yield
        return
    torch.distributed.is_available = lambda: False
    dynamo = _DeferredDynamo(_DYNAMO)
    index_mode: Any = ModuleType(_INDEX_MODE)
    index_mode.TransformGetItemToIndex = _DeferredIndexMode
    for module in (dynamo, index_mode):
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for module in (dynamo, index_mode):
            _remove(module)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off in the body of the `with` statement, because imports create many objects that
    all stay in use. Afterwards, the collector ignores these objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
