"""Determines the name of the hardware of a run, and the default settings for the hardware."""

import os
from typing import Any

import torch
from torch import nn

from ..messages import counted
from ..model.errors_vaswani import InvalidValueError
from ..optimization.regularizers import num_passes
from ..optimization.section import AnyTraining
from ..processor import bfloat16_pays, has_bfloat16, processor_name
from .batches import MAX_PART_SIZE

# The default number of data workers on an accelerator. On a CPU, the default is 0, because data workers would
# use the cores that the training needs.
WORKERS_OF_AN_ACCELERATOR = 2
# The largest number of data workers per CPU core. A larger number of data workers is probably a mistake, and
# would fill the memory.
WORKERS_OF_A_CORE = 16


def local_device() -> torch.device:
    """Return the accelerator of this machine, or the CPU if the machine has no accelerator."""
    # Call `is_available` first: if PyTorch is built for GPUs, `current_accelerator` returns a device even on
    # a machine without a GPU.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def resolve_defaults(
    training: AnyTraining, earlier: AnyTraining | None, model: nn.Module, *, streams: bool
) -> AnyTraining:
    """Return the section `training` with `bf16` and `dataloader_num_workers` for this machine."""
    device = local_device()
    bf16 = training.bf16
    if bf16 == "auto" and earlier is not None:
        bf16 = earlier.bf16
    if bf16 == "auto":
        bf16 = not _uses_deepspeed() and bfloat16_pays(device, _flops_at_once(training, model))
    workers = training.dataloader_num_workers
    most = WORKERS_OF_A_CORE * (os.cpu_count() or 1)
    if workers is None:
        workers = 0 if device.type == "cpu" or streams else WORKERS_OF_AN_ACCELERATOR
    elif workers > most:
        raise InvalidValueError(
            f"`training.dataloader_num_workers` must be at most {most} on this machine, but is {workers:,}."
        )
    return training.replace(bf16=bf16, dataloader_num_workers=workers)


def _uses_deepspeed() -> bool:
    # With DeepSpeed, a run does not choose bfloat16, because DeepSpeed would also keep the weights in
    # bfloat16 (see sharding.py).
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def _flops_at_once(training: AnyTraining, model: Any) -> float:
    """Return the FLOPs of the linear layers in one forward and backward pass of a batch. If the trainer
    divides the batch into parts, count only the largest part. Each weight needs 6 FLOPs per position: a
    multiplication and an addition in each of three matrix products. The three matrix products of a linear
    layer give its output, the gradient of its input, and the gradient of its weight.

    scripts/benchmarks/bf16.md counts FLOPs in the same way, so that `bfloat16_pays` can compare the estimate
    with a limit from the measurements in bf16.md. A run does not use the count of step_cost.py, because
    step_cost.py would execute the user's model on tensors without data.
    """
    num_weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    positions = num_passes(training) * max(training.source_tokens_per_batch, training.target_tokens_per_batch)
    return 6 * num_weights * min(positions, MAX_PART_SIZE // model.config.d_model)


def describe_computation(training: AnyTraining, device: torch.device) -> str:
    """Describe the precision, the compilation and the data workers, for the first line that a run prints."""
    if training.bf16:
        parts = ["computing in bfloat16 (to compute in float32: `--bf16 false`)"]
    elif not has_bfloat16(device):
        parts = [f"computing in float32 (no bfloat16 in the hardware of this {device.type})"]
    elif _uses_deepspeed():
        parts = ["computing in float32 (as DeepSpeed needs)"]
    else:
        parts = ["computing in float32 (to compute in bfloat16: `--bf16 true`)"]
    if training.torch_compile:
        parts.append("compiled (to turn compilation off: `--torch_compile false`)")
    if workers := training.dataloader_num_workers:
        parts.append(f"batches prepared by {counted(workers, 'process')}")
    return ", ".join(parts)


def hardware_name(device: torch.device, num_processes: int) -> str:
    """Return the name of the hardware, such as "8 x NVIDIA H100". The name of a CPU includes the numbers of
    cores and threads.
    """
    if device.type == "cuda":
        return f"{num_processes} x {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"{num_processes} x {device.type} of {processor_name()}"
    threads = counted(torch.get_num_threads(), "thread")
    shares = f"{num_processes} processes of {threads}" if num_processes > 1 else threads
    return f"{processor_name()}, {counted(os.cpu_count() or 1, 'logical core')}, {shares}"
