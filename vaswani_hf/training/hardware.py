"""The hardware that a run is trained on: its name, and what is fast and safe on it."""

import os
import platform
from dataclasses import replace
from pathlib import Path

import torch

from ..recipe.schema import Recipe, TrainingSection
from ..translation.precision import has_bfloat16

# Processes that prepare batches for an accelerator, which would wait for them; a processor has better things to do.
WORKERS_OF_AN_ACCELERATOR = 2
# More of them for each core could only be meant otherwise, and take all of the memory.
WORKERS_OF_A_CORE = 16


def settled(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    """A recipe with what it leaves to the machine: bfloat16 where there is hardware for it, processes that prepare batches.

    Args:
        recipe (Recipe): The run.
        earlier (Recipe, optional): What the run to be resumed has recorded, which it goes on with.

    Returns:
        Recipe: The same for all processes, if the first one decides.

    Raises:
        ValueError: If more processes are to prepare batches than make sense on any machine.
    """
    training, data = recipe.training, recipe.data
    # A build for GPUs names one where none is.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = accelerator or torch.device("cpu")
    bf16, workers = training.bf16, training.dataloader_num_workers
    if bf16 is None:
        # With DeepSpeed, which would keep the weights in it, it is refused.
        fits = has_bfloat16(device) and os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true"
        bf16 = earlier.training.bf16 if earlier and earlier.training.bf16 is not None else fits
    most = WORKERS_OF_A_CORE * (os.cpu_count() or 1)
    if workers is not None and workers > most:
        raise ValueError(
            f"`training.dataloader_num_workers` must be at most {most} on this machine, but is {workers:,}."
        )
    if workers is None:
        workers = 0 if device.type == "cpu" or data.streaming else WORKERS_OF_AN_ACCELERATOR
    return replace(recipe, training=replace(training, bf16=bf16, dataloader_num_workers=workers))


def described(training: TrainingSection, device: torch.device) -> str:
    """What a run computes with, for its first lines.

    Args:
        training (TrainingSection): That of a `settled` recipe.
        device (torch.device): The device of this process.
    """
    parts = ["bfloat16 (off by `--bf16 false`)" if training.bf16 else "float32"]
    if not training.bf16 and not has_bfloat16(device):
        parts = [f"float32 (no bfloat16 in the hardware of this {device.type})"]
    if training.torch_compile:
        parts.append("compiled (off by `--torch_compile false`)")
    if workers := training.dataloader_num_workers:
        parts.append(f"batches prepared by {workers:,} process{'' if workers == 1 else 'es'}")
    return ", ".join(parts)


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
