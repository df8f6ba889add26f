"""Measures the speed of real training steps on this machine, with random token ids in place of a corpus."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from tqdm.auto import tqdm

from ..optimization.optimizers import OPTIMIZERS
from .batches import largest_part
from .hardware import hardware_name, local_device, resolve_defaults
from .planned_step import PlannedRun, batch_shape, full_batch, loss_function
from .recipe_model import planned_model, prepare_for_training


def measure_speed(run: PlannedRun, length: int, seconds: float = 10.0) -> tuple[float, str]:
    """Measure the speed of training steps for `seconds` seconds. Return the speed in target tokens per
    second, and the name of the hardware.

    All sentences have `length` random tokens, so batches have no padding. A training step takes the mean time
    of a forward and backward pass, multiplied by the number of passes, plus the time of the optimizer. The
    time of the optimizer is measured once.
    """
    device = local_device()
    planned = planned_model(run.config, run.model_class)
    training = resolve_defaults(run.training, None, planned, streams=False)
    torch.manual_seed(0)
    model = run.model_class(run.config).to(device)
    prepare_for_training(model, training)
    if training.torch_compile:
        model.compile()
    optimizer = OPTIMIZERS[training.optimizer].build(model, training, bf16=training.bf16 is True)
    loss = loss_function(model, training, device.type)

    batch = _random_batch(replace(run, training=training), length, device)

    def compute_part() -> None:
        loss(batch).backward()
        _synchronize(device)

    # Do not measure the first step, because the first step also creates the state of the optimizer.
    compute_part()
    optimizer.step()
    optimizer.zero_grad()
    _synchronize(device)
    hardware = hardware_name(device, 1)
    print(f"measuring training steps for {seconds:g} seconds on {hardware}", file=sys.stderr, flush=True)
    part_seconds = _mean_seconds(compute_part, seconds)
    start = time.perf_counter()
    optimizer.step()
    _synchronize(device)
    optimizer_seconds = time.perf_counter() - start
    step_tokens = training.gradient_accumulation_steps * training.target_tokens_per_batch
    num_parts = step_tokens / batch["labels"].numel()
    return step_tokens / (num_parts * part_seconds + optimizer_seconds), hardware


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _mean_seconds(compute: Callable[[], None], seconds: float) -> float:
    """Call `compute` repeatedly until `seconds` seconds have passed, and show a progress bar. Return the mean
    time of a call (seconds).
    """
    start = time.perf_counter()
    elapsed = 0.0
    num_calls = 0
    with tqdm(total=math.ceil(seconds), unit=" s", desc="measuring", disable=None, leave=False) as bar:
        while elapsed < seconds:
            compute()
            num_calls += 1
            elapsed = time.perf_counter() - start
            bar.update(min(int(elapsed), bar.total) - bar.n)
    return elapsed / num_calls


def _random_batch(run: PlannedRun, length: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return a batch of random token ids without padding. On a CPU, the trainer divides large batches into
    parts, so return a batch with the size of one part.
    """
    config = run.config
    part = largest_part(run.training, config.d_model) if device.type == "cpu" else None
    shape = batch_shape(run.training, length, part)
    # Use no ids below 4, because these ids are special tokens.
    source = torch.randint(4, config.vocab_size, (shape.rows, shape.source_length), device=device)
    labels = torch.randint(4, config.decoder_vocab_size, (shape.rows, shape.target_length), device=device)
    return full_batch(source, labels)
