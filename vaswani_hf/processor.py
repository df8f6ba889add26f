"""Determines whether a processor or GPU has bfloat16 instructions, and whether training in bfloat16 is faster
than in float32.
"""

import platform
from pathlib import Path
from typing import Any

import torch

# Maps PyTorch's name of each set of bfloat16 instructions (AMX, AVX-512, Arm) to a threshold for the FLOPs of
# a batch. A batch below the FLOP threshold is not expected to train much faster in bfloat16 than in float32.
# If the matrix products of a batch reach the FLOP threshold, a training step in bfloat16 is expected to be at
# least 1.15 times as fast as in float32. For smaller batches, the conversions between dtypes take most or all
# of the time that the faster matrix products save.
# - avx512_bf16: measured on an AMD EPYC with two threads (scripts/benchmarks/bf16.md). bfloat16 is at most
#   1.12 times as fast as float32 up to 3.0e9 FLOPs, and at least 1.16 times as fast as float32 from 6.4e9
#   FLOPs on.
# - amx_bf16 and Arm's bf16: not measured. The package uses the FLOP threshold of avx512_bf16 for amx_bf16 and
# bf16 too.
_LEAST_FLOPS = {"amx_bf16": 5e9, "avx512_bf16": 5e9, "bf16": 5e9}


def capability(name: str) -> Any:
    """Return the value of a CPU property, such as "avx512_bf16", or None if PyTorch does not report the
    property.
    """
    # Use the default `dict`, which returns an empty dict, because older versions of PyTorch do not have
    # `get_capabilities`.
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities.get(name)


def processor_name() -> str:
    """Return the name of the processor of this machine."""
    # On Linux, read the name from /proc/cpuinfo, because the module `platform` gives only the architecture,
    # such as x86_64.
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def has_bfloat16(device: torch.device) -> bool:
    """Return True if a device has instructions for bfloat16 multiplication."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and any(capability(name) for name in _LEAST_FLOPS)


def bfloat16_pays(device: torch.device, flops: float) -> bool:
    """Return True if a training step is expected to be faster in bfloat16 than in float32.

    `flops` is the number of FLOPs of the matrix products of a batch.
    """
    if device.type == "cpu":
        return any(capability(name) and flops >= least for name, least in _LEAST_FLOPS.items())
    return has_bfloat16(device)
