"""Configures training with FSDP2 or DeepSpeed ZeRO-2, which a file in configuration/accelerate turns on. With
FSDP2, each process stores a part of each weight. With ZeRO-2, each process stores all weights, but only a
part of the gradients and a part of the optimizer state.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils.constants import FSDP_MODEL_NAME

from ..checkpoint.loading import KINDS
from ..model.errors_vaswani import InvalidValueError
from ..optimization.optimizers import OPTIMIZERS
from ..optimization.regularizers import regularizer_of
from ..optimization.section import AnyTraining

# The file that contains the name of the subfolder in which DeepSpeed stores its state.
ZERO_STEP_FILE = "latest"


def prepare_sharding(accelerator: Accelerator, checkpoint: Path | None, training: AnyTraining) -> None:
    """Make FSDP2 or DeepSpeed keep float32 weights and save unsharded checkpoints. Refuse unsupported
    settings.
    """
    plugin, zero = (getattr(accelerator.state, f"{name}_plugin", None) for name in ("fsdp", "deepspeed"))
    if checkpoint is not None:
        _refuse_other_sharding(checkpoint, f"{FSDP_MODEL_NAME}.bin", "FSDP", is_on=plugin is not None)
        _refuse_other_sharding(checkpoint, ZERO_STEP_FILE, "DeepSpeed", is_on=zero is not None)
    for name, is_on in (("FSDP", plugin is not None), ("DeepSpeed", zero is not None)):
        if not is_on and os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false").lower() == "true":
            accelerator.print(
                f"{name} needs several accelerators: here every process keeps the whole model", flush=True
            )
        if is_on:
            _refuse_features_with_whole_weights(name, training)
    if zero is not None:
        _prepare_zero(accelerator, zero, checkpoint)
    if plugin is None:
        return
    if plugin.fsdp_version != 2:
        raise InvalidValueError(f"`--fsdp_version` must be 2, but is {plugin.fsdp_version}.")
    # Save the weights unsharded, because the averaging of checkpoints and a push to the Hub need unsharded
    # weights. First set `state_dict_config` and `optim_state_dict_config` to None, because
    # `set_state_dict_type` does not replace an existing config.
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type("FULL_STATE_DICT")
    # The mixed-precision policy would also round LayerNorm weights and sums of gradients to bfloat16. Set the
    # mixed-precision policy to None, so that a run with `training.bf16` uses autocast, like a run with one
    # process.
    plugin.mixed_precision_policy = None


def _refuse_features_with_whole_weights(name: str, training: AnyTraining) -> None:
    if training.torch_compile:
        raise InvalidValueError(
            f"`training.torch_compile` must be false with {name}, but is {training.torch_compile}."
        )
    if OPTIMIZERS[training.optimizer].needs_whole_weights:
        others = " or ".join(entry.name for entry in OPTIMIZERS.values() if not entry.needs_whole_weights)
        raise InvalidValueError(
            f"`training.optimizer` must be {others} with {name}, but is {training.optimizer}."
        )
    regularizer = regularizer_of(training)
    if regularizer is not None and regularizer.needs_whole_weights:
        strength = getattr(training, regularizer.strength)
        raise InvalidValueError(
            f"`training.{regularizer.strength}` must be 0.0 with {name}, but is {strength}."
        )
    if training.ema_decay is not None:
        raise InvalidValueError(
            f"`training.ema_decay` must be null with {name}, but is {training.ema_decay}."
        )


def _refuse_other_sharding(checkpoint: Path, file: str, name: str, *, is_on: bool) -> None:
    if (checkpoint / file).exists() != is_on:
        way, remedy = ("without", "with") if is_on else ("with", "without")
        raise ValueError(f"'{checkpoint}' was saved {way} {name}; resume it {way} {name}, not {remedy} it.")


def _prepare_zero(accelerator: Accelerator, zero: Any, checkpoint: Path | None) -> None:
    if zero.zero_stage > 2:
        raise InvalidValueError(
            f"`zero_stage` must be at most 2, but is {zero.zero_stage}; to shard the weights too, use FSDP2."
        )
    if accelerator.mixed_precision != "no":
        raise ValueError(
            f"The precision must be float32 with DeepSpeed, but is {accelerator.mixed_precision}; set "
            "`training.bf16` to false, or use FSDP2, because DeepSpeed would also keep the weights in "
            f"{accelerator.mixed_precision}."
        )
    before = len(list(checkpoint.glob("*/*_optim_states.pt"))) if checkpoint else accelerator.num_processes
    if before != accelerator.num_processes:
        raise ValueError(
            f"'{checkpoint}' was saved by {before:,} processes with DeepSpeed, but "
            f"{accelerator.num_processes:,} are to resume it; start as many processes as before."
        )


def sharded_autocast(accelerator: Accelerator) -> AbstractContextManager:
    """Return an autocast context for a model of FSDP2. accelerate handles the autocast of other models."""
    return accelerator.autocast() if accelerator.is_fsdp2 else nullcontext()


def unsharded_model(model: Any) -> Any:
    """Return the model, or an unsharded copy in each process if FSDP2 has sharded the model."""
    if not hasattr(model, "unshard"):
        return model
    state = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    # Create `whole` on the meta device, because drawing random initial weights would change all later random
    # numbers of the run.
    with torch.device("meta"):
        whole = KINDS[model.config.model_type].model_class(model.config)
    whole.load_state_dict(state, assign=True)
    whole.tie_weights()
    whole.generation_config = model.generation_config
    return whole.eval()
