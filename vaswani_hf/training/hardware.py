"""The name of the hardware that a run is trained on."""

import os
import platform
from pathlib import Path

import torch


def hardware_name(device: torch.device, num_processes: int) -> str:
    """The hardware of a run: "8 x NVIDIA H100", or the model of the CPU, its logical cores, and the threads in use.

    Args:
        device (torch.device): The device of each process.
        num_processes (int): The number of processes.
    """
    if device.type == "cuda":
        return f"{num_processes} x {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"{num_processes} x {device.type} of {_cpu_name()}"
    threads = _counted(torch.get_num_threads(), "thread")
    shares = f"{num_processes} processes of {threads}" if num_processes > 1 else threads
    return f"{_cpu_name()}, {_counted(os.cpu_count() or 1, 'logical core')}, {shares}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cpu_name() -> str:
    # On Linux `platform` knows the architecture only.
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
