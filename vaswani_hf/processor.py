"""What the processor or GPU of this machine computes fast: its instructions, and where bfloat16 pays in training."""

from typing import Any

import torch

# The instructions that multiply bfloat16 on a processor (PyTorch's names: AMX, AVX-512, Arm). Each has the number of operations
# (FLOPs) in the products of one batch from which a training step in bfloat16 is at least 1.15 times as fast as in float32:
# with fewer operations, the conversions and the other work of a step take what the products gain.
# - avx512_bf16: measured on an AMD EPYC with two threads (scripts/benchmarks/bf16.md). The ratios are at most 1.12 up to 3.0e9
#   and at least 1.16 from 6.4e9 on.
# - amx_bf16 and Arm's bf16: not measured. They have the number of avx512_bf16.
_LEAST_FLOPS = {"amx_bf16": 5e9, "avx512_bf16": 5e9, "bf16": 5e9}


def capability(name: str) -> Any:
    """What the processor can, by PyTorch's name for it; None where PyTorch does not know."""
    # Older versions do not say.
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities.get(name)


def has_bfloat16(device: torch.device) -> bool:
    """True if a device multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and any(capability(name) for name in _LEAST_FLOPS)


def bfloat16_pays(device: torch.device, flops: float) -> bool:
    """True if a training step is expected to be at least 1.15 times as fast in bfloat16 as in float32.

    The answer depends on the device and on `flops` alone, so that it is the same each time on the same machine. On a GPU the
    hardware decides alone, because nothing was measured there.
    """
    if device.type == "cpu":
        return any(capability(name) and flops >= least for name, least in _LEAST_FLOPS.items())
    return has_bfloat16(device)
