"""Averages the weights of several checkpoints. The function `final_checkpoints` in checkpoints.py selects the
checkpoints that a run averages at its end.

Section 6.1: the paper averages the last 5 checkpoints of base models, and the last 20 of big models.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from ..checkpoint.files import (
    AVERAGED_WEIGHTS_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    new_folder,
    read_state,
    recipe_file,
    scores_by_step,
    step_of,
    weight_files,
    write_whole,
)
from ..checkpoint.loading import KINDS, check_config, checkpoint_folder, load_model
from ..checkpoint.manifest import verify_manifest
from ..checkpoint.results import Results, write_results
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..model.errors_vaswani import InvalidValueError
from ..recipe.loading import try_load_recorded_recipe
from ..settings.data import last_part
from ..settings.sections import MODEL_KEYS, TRAINING_ONLY_FIELDS
from .checkpoints import scheduled_checkpoints


def average_weights(files: list[Path]) -> dict[str, torch.Tensor]:
    """Average the weights in the files of several checkpoints in float32. Add the files one by one, so that
    not all files are in memory at the same time.
    """
    first = _load_weights(files[0])
    shapes = {name: tensor.shape for name, tensor in first.items()}
    total = {name: tensor.float() for name, tensor in first.items()}
    for file in files[1:]:
        weights = _load_weights(file)
        if {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise InvalidValueError(
                f"`checkpoints` must be checkpoints of one run, but '{file.parent}' and '{files[0].parent}' "
                "hold different models."
            )
        for name, tensor in weights.items():
            total[name] += tensor.float()
    return {name: (tensor / len(files)).to(first[name].dtype) for name, tensor in total.items()}


def _load_weights(file: Path) -> dict[str, torch.Tensor]:
    """Load a file of weights. If a checkpoint has shards instead of `WEIGHTS_FILE`, load all shards."""
    if file.name != WEIGHTS_FILE:
        return load_file(file)
    weights: dict[str, torch.Tensor] = {}
    for name in weight_files(file.parent):
        if name != INDEX_FILE:
            weights |= load_file(file.parent / name)
    return weights


def numbered_checkpoints(
    run: Path, last: int | None, best: int | None, metric: str, *, raw: bool
) -> list[Path]:
    """Return the newest checkpoints of a run (`last` is the number), or the checkpoints with the best
    validation scores (`best` is the number). Leave out checkpoints that were saved only because of a signal.
    If `raw` is true, use the scores of the trained weights, not of the moving averages.
    """
    if not run.is_dir():
        raise InvalidValueError(f"`checkpoints` must be the folder of a run, but there is no folder '{run}'.")
    found = checkpoints_in(run)
    if found:
        state = read_state(found[-1])
        scheduled = scheduled_checkpoints(found)
        found = [path for path in found if path in scheduled or step_of(path) == state["max_steps"]]
    if best is not None and found:
        history = state["log_history"]
        scores = (scores_by_step(history, f"raw_{metric}") if raw else {}) or scores_by_step(history, metric)
        found = sorted(
            (path for path in found if step_of(path) in scores),
            key=lambda path: scores[step_of(path)],
        )
    wanted = (last if best is None else best) or 1
    if wanted > len(found):
        kind = "numbered checkpoints" if best is None else f"validated checkpoints (by {metric})"
        lacking = "give the folder of a run"
        if best is not None:
            lacking = f"use the last checkpoints, or train with a validation that measures {metric}"
        remedy = "ask for fewer" if found else lacking
        raise InvalidValueError(
            f"`checkpoints` must be a run with {wanted:,} {kind}, but '{run}' has {len(found):,}; {remedy}."
        )
    return found[-wanted:]


def write_average(names: Sequence[str | Path], output: str | Path, *, raw: bool = False) -> None:
    """Write a checkpoint with the average of the weights of several checkpoints of one model. If `raw` is
    true, average the trained weights instead of their moving averages.
    """
    folders = [checkpoint_folder(name, option="checkpoints") for name in names]
    place = Path(os.path.abspath(output))
    if re.fullmatch(r"checkpoint-\d+", place.name) or any(
        folder.resolve() in place.resolve().parents for folder in folders
    ):
        raise InvalidValueError(
            "`--output` must not be inside a checkpoint or have the name of a checkpoint (checkpoint-STEP), "
            f"but is '{output}'; give another folder."
        )
    files = [folder / WEIGHTS_FILE for folder in folders] if raw else _averaged_files(folders, names)
    with new_folder(place) as folder:
        model = load_model(folders[0], names[0], tuple(KINDS))
        tokenizers = load_tokenizers(folders[0], names[0])
        for one, name in zip(folders, names, strict=True):
            _refuse_another_model(one, name, model, tokenizers, names[0])
        model.load_state_dict(average_weights(files))
        model.save_pretrained(folder)
        save_tokenizers(*tokenizers, folder)
        _write_record(folders, names, folder)


def _averaged_files(folders: list[Path], names: Sequence[str | Path]) -> list[Path]:
    """Return one file of weights for each checkpoint: `AVERAGED_WEIGHTS_FILE` if the checkpoint has this
    file, otherwise `WEIGHTS_FILE`. The final checkpoint has no `AVERAGED_WEIGHTS_FILE`. If the run computes
    moving averages, `WEIGHTS_FILE` of the final checkpoint contains the moving averages.
    """
    have = [(folder / AVERAGED_WEIGHTS_FILE).is_file() for folder in folders]
    for folder, name, has in zip(folders, names, have, strict=True):
        if any(have) and not has and (folder / STATE_FILE).is_file():
            other = names[have.index(True)]
            raise InvalidValueError(
                f"`checkpoints` must all have {AVERAGED_WEIGHTS_FILE}, but '{other}' has it and '{name}' has "
                f"none; leave '{name}' out, or give `--raw` to average the trained weights."
            )
    return [
        folder / (AVERAGED_WEIGHTS_FILE if has else WEIGHTS_FILE)
        for folder, has in zip(folders, have, strict=True)
    ]


def _write_record(folders: list[Path], names: Sequence[str | Path], output: Path) -> None:
    """If an averaged checkpoint has a recipe, write the first recipe of the checkpoints, and write the names
    of all checkpoints to results.json.
    """
    recorded = next(filter(None, map(try_load_recorded_recipe, map(recipe_file, folders))), None)
    if recorded is None:
        return
    write_whole(output / RECIPE_FILE, recorded.to_yaml())
    write_results(output, Results(average_of=[_shown(name) for name in names]))


def _shown(name: str | Path) -> str:
    """Shorten the path of a checkpoint, because results.json must not contain private paths."""
    if not Path(name).is_dir():
        return str(name)
    place = Path(os.path.abspath(name))
    return "/".join(place.parts[-2:]) if place.name.startswith("checkpoint-") else last_part(str(name))


def _refuse_another_model(
    folder: Path, name: str | Path, model: PreTrainedModel, tokenizers: Sequence[Any], first: str | Path
) -> None:
    # Do not verify the folder of a finished run, because a user may have changed its files on purpose.
    is_numbered = (folder / MANIFEST_FILE).is_file() and not (folder / RESULTS_FILE).is_file()
    fault = verify_manifest(folder) if is_numbered else None
    if fault:
        raise ValueError(f"'{name}' cannot be averaged: {fault}; leave this checkpoint out.")
    check_config(folder, name, (model.config.model_type,))
    config = type(model.config).from_pretrained(folder)
    for field in MODEL_KEYS:
        ours, theirs = getattr(model.config, field), getattr(config, field)
        if ours != theirs and field not in TRAINING_ONLY_FIELDS:
            raise InvalidValueError(
                f"`checkpoints` must be checkpoints of one run, but '{name}' and '{first}' are different "
                f"models: `{field}` is {theirs!r} and {ours!r}."
            )
    vocabularies = [[one.get_vocab() for one in both] for both in (tokenizers, load_tokenizers(folder, name))]
    if vocabularies[0] != vocabularies[1]:
        raise InvalidValueError(
            f"`checkpoints` must be checkpoints of one run, but '{name}' and '{first}' have different "
            "vocabularies."
        )
