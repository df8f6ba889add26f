"""Imports transformers without two slow modules of PyTorch, for commands that neither train nor compile a
model.

`torch.distributed.tensor` is for training on several devices, and `torch._dynamo` is for `torch.compile`.
`torch.distributed.tensor` and `torch._dynamo` import SymPy, and take a large part of the time of `import
transformers`.
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
    """Replaces the module `torch._dynamo`. The decorators of `_DeferredDynamo` return the decorated function
    unchanged. Access to another attribute imports the real module.
    """

    @staticmethod
    def _decorator(function: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
        return (lambda function: function) if function is None else function

    disable = allow_in_graph = assume_constant_result = _decorator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Do not import the real module for a name such as `__path__`, because Python reads such names
            # during the imports of other modules.
            raise AttributeError(name)
        _remove(self)
        import torch._dynamo as dynamo

        return getattr(dynamo, name)


class _DeferredIndexMode:
    """Replaces PyTorch's class `TransformGetItemToIndex`, which transformers uses for the attention masks of
    some models. A call imports the real class, and returns an object of the real class.
    """

    def __new__(cls) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()


def _remove(module: ModuleType) -> None:
    """Remove a module from `sys.modules`, so that the next import loads the real module."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


@contextmanager
def quick_imports() -> Iterator[None]:
    """Context manager in whose body `import transformers` is faster.

    After the body, `torch.distributed.is_available()` returns False until the process ends, because
    transformers was imported without `torch.distributed.tensor`.
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
    """Context manager for imports: turns the garbage collector off in its body, because imports create many
    objects and delete almost none. Later, the garbage collector ignores the objects that exist at the end of
    the body.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
