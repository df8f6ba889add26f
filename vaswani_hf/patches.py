"""Replaces functions and modules of other libraries while a program runs.

- `hide_warnings_of_torchao` hides log lines and warnings that do not concern the package.
- To make imports faster, `import_quantizers_without_torchao` and `quick_imports` replace the module torchao,
  one function of `transformers.quantizers`, `torch.distributed.is_available` and modules of `torch._dynamo`.
- `without_initial_values` replaces functions of `torch.nn.init`, so that a checkpoint loads faster.
- `accept_numbered_cpus` makes `torch.load` accept devices such as "cpu:0", so that several processes on a CPU
  can resume a run.

registration.py also changes transformers, because registration.py adds the pipeline tasks of the package.

The module level of this file imports neither torch nor transformers, because some of its functions must run
before the import of transformers.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_DYNAMO = "torch._dynamo"
# The name of the only submodule of `torch._dynamo` that transformers imports.
_INDEX_MODE = "torch._dynamo._trace_wrapped_higher_order_op"
# The functions of `torch.nn.init` that the layers of PyTorch call to initialize their weights.
_INITIALIZERS = ("normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "constant_", "zeros_", "ones_")


def hide_warnings_of_torchao() -> None:
    """Hide messages about CUDA parts of torchao that cannot be loaded, about `register_constant`, and about
    invalid escape sequences in torchao.
    """
    logging.getLogger("torchao").addFilter(lambda record: "Failed to load" not in record.getMessage())
    logging.getLogger("torch.utils._pytree").addFilter(
        lambda record: "register_constant" not in record.getMessage()
    )
    warnings.filterwarnings("ignore", message=".*invalid escape sequence", module=r".*\btorchao\b")


def import_quantizers_without_torchao() -> None:
    """Import the quantizers of transformers without importing torchao.

    If torchao is installed, transformers imports torchao, although only one function of one quantizer needs
    torchao. The import of torchao takes a second and prints warnings, but this package needs torchao only for
    int8 weights.
    """
    if not {"torchao", "transformers.quantizers"}.isdisjoint(sys.modules):
        return
    from transformers.utils import is_torchao_available

    # A module whose entry in `sys.modules` is None counts as not installed.
    sys.modules["torchao"] = None  # type: ignore[assignment]
    try:
        import transformers.quantizers.quantizer_torchao as quantizer
    finally:
        del sys.modules["torchao"]
        is_torchao_available.cache_clear()
    if is_torchao_available():
        quantizer.flatten_tensor_state_dict = _flatten_tensor_state_dict  # type: ignore[attr-defined]


def _flatten_tensor_state_dict(*args: Any) -> Any:
    """Call the function `flatten_tensor_state_dict` of torchao. Import torchao only when this function is
    called.
    """
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    return flatten_tensor_state_dict(*args)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import transformers faster in the `with` block, for commands that neither train nor compile a model.

    transformers is imported without `torch.distributed.tensor` and `torch._dynamo`, because both modules
    import SymPy, which takes a large part of the import time. After the `with` block,
    `torch.distributed.is_available()` returns False in the rest of the program. If transformers or
    `torch._dynamo` is already imported, this function changes nothing.
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


class _DeferredDynamo(ModuleType):
    """Replaces the module `torch._dynamo`. The decorators of the replacement, such as `disable`, do nothing.
    If a program reads another attribute of `torch._dynamo`, such as `config`, the replacement imports the
    real module.
    """

    @staticmethod
    def _decorator(function: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
        return (lambda function: function) if function is None else function

    disable = allow_in_graph = assume_constant_result = _decorator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Do not import `torch._dynamo` for an attribute such as `__path__`, because Python's import
            # system reads `__path__` during imports of other modules.
            raise AttributeError(name)
        _remove(self)
        import torch._dynamo as dynamo

        return getattr(dynamo, name)


class _DeferredIndexMode:
    """Replaces PyTorch's class `TransformGetItemToIndex`, and imports the class only when transformers needs
    an instance for an attention mask.
    """

    def __new__(cls) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()


def _remove(module: ModuleType) -> None:
    """Remove a module from `sys.modules`, so that the next import loads the real module."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


@contextmanager
def without_initial_values() -> Iterator[None]:
    """Prevent PyTorch from initializing the weights of new layers in the `with` block.

    PyTorch's initial values are not needed, because transformers initializes the weights that a checkpoint
    lacks, and loads all other weights. On the meta device, the functions of `torch.nn.init` import
    `torch._dynamo`, which takes seconds.
    """
    from torch.nn import init

    originals = {name: getattr(init, name) for name in _INITIALIZERS}
    try:
        for name in _INITIALIZERS:
            setattr(init, name, _unchanged)
        yield
    finally:
        for name, function in originals.items():
            setattr(init, name, function)


def _unchanged(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor


def accept_numbered_cpus() -> None:
    """Let `torch.load` accept devices such as "cpu:0". If several processes train on a CPU, older versions of
    transformers, such as 5.17, load the state of the optimizer to the device "cpu:0".
    """
    import torch

    try:
        torch.serialization.default_restore_location(torch.UntypedStorage(), "cpu:0")
    except RuntimeError:
        torch.serialization.register_package(11, lambda storage: None, _stay_on_cpu)


def _stay_on_cpu(storage: Any, device: str) -> Any:
    """Return the storage of a tensor unchanged if `device` is a CPU with a number, such as "cpu:0", otherwise
    None.
    """
    return storage if device.startswith("cpu:") else None
