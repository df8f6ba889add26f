"""Training with FSDP2, by which every process holds a share of each weight: what a run asks of it, and the whole model.

`accelerate launch --use_fsdp --fsdp_version 2` asks for it; the model itself is ready for it.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils.constants import FSDP_MODEL_NAME

from ..model.modeling_vaswani import VaswaniForSeq2SeqLM


def prepare_sharding(accelerator: Accelerator, checkpoint: Path | None, *, compiled: bool) -> None:
    """Lets checkpoints hold whole weights, and refuses what does not work with FSDP; does nothing without it.

    Args:
        accelerator (Accelerator): That of the run.
        checkpoint (Path, optional): The checkpoint that the run continues from.
        compiled (bool): The model is to be compiled.

    Raises:
        ValueError: If FSDP1 or a compiled model is asked for, or the checkpoint was saved in the other way.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if checkpoint is not None and (checkpoint / f"{FSDP_MODEL_NAME}.bin").exists() != (plugin is not None):
        way, remedy = ("without", "with") if plugin is not None else ("with", "without")
        raise ValueError(f"'{checkpoint}' was saved {way} FSDP; resume it {way} FSDP, not {remedy} it.")
    if plugin is None:
        if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
            accelerator.print("FSDP needs several accelerators: here every process keeps the whole model", flush=True)
        return
    if plugin.fsdp_version != 2:
        raise ValueError(f"`--fsdp_version` must be 2, but is {plugin.fsdp_version}.")
    if compiled:
        raise ValueError("`training.torch_compile` must be false with FSDP, but is True.")
    # Averaging, the Hub and everybody else read whole weights. The settings of the former type would stay.
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type("FULL_STATE_DICT")
    # `training.bf16` is autocast over weights and sums in float32, as in one process; accelerate would round the weights of
    # layer norms, and the sums of gradients, to bf16 as well.
    plugin.mixed_precision_policy = None


def sharded_autocast(accelerator: Accelerator) -> AbstractContextManager:
    """The autocast of a sharded model in bf16; nothing for others, whose `forward` accelerate has wrapped in it.

    Args:
        accelerator (Accelerator): That of the run.

    Returns:
        AbstractContextManager: Around the forward pass and the loss.
    """
    return accelerator.autocast() if accelerator.is_fsdp2 else nullcontext()


def whole_model(model: Any) -> Any:
    """The model, or where FSDP2 has sharded it a copy in one piece, on every process, that each may use in its own time.

    Args:
        model (Any): The model of the run, which all processes give at the same time.

    Returns:
        Any: The model itself where it is in one piece.
    """
    if not hasattr(model, "unshard"):
        return model
    state = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    # Weights that were drawn would change the numbers that are drawn later.
    with torch.device("meta"):
        whole = VaswaniForSeq2SeqLM(model.config)
    whole.load_state_dict(state, assign=True)
    whole.tie_weights()
    whole.generation_config = model.generation_config
    return whole.eval()
