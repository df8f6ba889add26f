"""The final weights of a run: the average of the last checkpoints, the best one, or the last one.

Section 6.1: the paper averages the last 5 checkpoints of base models, and 20 of big ones.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from ..checkpoint.files import STATE_FILE, WEIGHTS_FILE, checkpoints_in
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from .trainer import VaswaniTrainer


def average_checkpoints(folders: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of several checkpoints, summed in float32 with one checkpoint in memory at a time.

    Args:
        folders (list): Folders that hold a `model.safetensors` of the same model.

    Returns:
        dict: Tensors by name, in the dtype of the first checkpoint.

    Raises:
        ValueError: If there is nothing to average or the checkpoints are not of one model.
    """
    if not folders:
        raise ValueError("`average_checkpoints` needs at least one checkpoint, but was given none.")
    first = load_file(folders[0] / WEIGHTS_FILE)
    shapes = {name: tensor.shape for name, tensor in first.items()}
    total = {name: tensor.float() for name, tensor in first.items()}
    for folder in folders[1:]:
        weights = load_file(folder / WEIGHTS_FILE)
        if {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise ValueError(f"'{folder}' and '{folders[0]}' hold different models; average checkpoints of one run.")
        for name, tensor in weights.items():
            total[name] += tensor.float()
    return {name: (tensor / len(folders)).to(first[name].dtype) for name, tensor in total.items()}


def load_final_weights(trainer: VaswaniTrainer, model: VaswaniForSeq2SeqLM, checkpoint: Path | None) -> None:
    """Gives the model its final weights: averaged, the best, or the last ones.

    Args:
        trainer (VaswaniTrainer): The trainer after its training.
        model (VaswaniForSeq2SeqLM): Its model, in one piece.
        checkpoint (Path, optional): The checkpoint of a run that had nothing left to train.
    """
    folder, number = Path(trainer.args.output_dir), trainer.training.average_checkpoints
    if number:
        last = checkpoints_in(folder)[-number:]
        print(f"averaging the last {len(last)} checkpoints", flush=True)
        _load_weights(model, average_checkpoints(last))
    elif trainer.state.global_step == 0 and checkpoint is not None:
        # The run was stopped between its last step and its results.
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        best = state.get("best_model_checkpoint")
        early_stopping = trainer.training.early_stopping_patience is not None
        chosen = folder / Path(best).name if best and early_stopping else checkpoint
        _load_weights(model, load_file(chosen / WEIGHTS_FILE))


def _load_weights(model: VaswaniForSeq2SeqLM, weights: dict[str, torch.Tensor]) -> None:
    # A checkpoint has no tied copies; they follow the weight that they are tied to.
    outcome = model.load_state_dict(weights, strict=False)
    missing = set(outcome.missing_keys) - set(model.get_expanded_tied_weights_keys(all_submodels=True))
    if missing or outcome.unexpected_keys:
        raise ValueError(f"The checkpoint does not fit the model: {sorted(missing) + outcome.unexpected_keys}.")
