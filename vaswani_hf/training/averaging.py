"""The average of the weights of several checkpoints; which ones a run ends with, is said in checkpoints.py.

Section 6.1: the paper averages the last 5 checkpoints of base models, and 20 of big ones.
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
    MANIFEST_FILE,
    RECIPE_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    new_folder,
    read_state,
    recipe_file,
    scores_by_step,
)
from ..checkpoint.kinds import KINDS
from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.manifest import damage
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..recipe.schema import FREE_FIELDS, MODEL_FIELDS
from .checkpoints import number_of, scheduled_checkpoints


def average_checkpoints(folders: list[Path], file: str = WEIGHTS_FILE) -> dict[str, torch.Tensor]:
    """The mean of the weights of several checkpoints, summed in float32 with one checkpoint in memory at a time.

    Args:
        folders (list): Folders that hold weights of the same model.
        file (str): The name of the file with the weights.

    Returns:
        dict: Tensors by name, in the dtype of the first checkpoint.

    Raises:
        ValueError: If there is nothing to average or the checkpoints are not of one model.
    """
    if not folders:
        raise ValueError("`average_checkpoints` needs at least one checkpoint, but was given none.")
    first = load_file(folders[0] / file)
    shapes = {name: tensor.shape for name, tensor in first.items()}
    total = {name: tensor.float() for name, tensor in first.items()}
    for folder in folders[1:]:
        weights = load_file(folder / file)
        if {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise ValueError(f"'{folder}' and '{folders[0]}' hold different models; average checkpoints of one run.")
        for name, tensor in weights.items():
            total[name] += tensor.float()
    return {name: (tensor / len(folders)).to(first[name].dtype) for name, tensor in total.items()}


def numbered_checkpoints(
    run: Path, last: int | None = None, best: int | None = None, metric: str = "loss", *, raw: bool = False
) -> list[Path]:
    """The last or the best checkpoints of a run, of those that an uninterrupted run has too.

    Args:
        run (Path): The output folder of the run.
        last (int, optional): How many of the last ones.
        best (int, optional): How many of those with the best validation, which the last one's log knows.
        metric (str): "loss" or "bleu", for the best ones.
        raw (bool): Of a run with a moving average, by the validation of the weights themselves.

    Returns:
        list: Folders, the last or the best one last.

    Raises:
        ValueError: If there is no such run, or it has not so many.
    """
    if not run.is_dir():
        raise ValueError(f"'{run}' must be the folder of a run, but there is none.")
    found = checkpoints_in(run)
    if found:
        state = read_state(found[-1])
        scheduled = scheduled_checkpoints(found)
        found = [path for path in found if path in scheduled or number_of(path) == state["max_steps"]]
    if best is not None and found:
        history = state["log_history"]
        scores = (scores_by_step(history, f"raw_{metric}") if raw else {}) or scores_by_step(history, metric)
        found = sorted((path for path in found if number_of(path) in scores), key=lambda path: scores[number_of(path)])
    wanted = (last if best is None else best) or 1
    if wanted > len(found):
        kind = "numbered checkpoints" if best is None else f"validated checkpoints (by {metric})"
        raise ValueError(f"'{run}' must hold {wanted:,} {kind}, but holds {len(found):,}; ask for fewer.")
    return found[-wanted:]


def write_average(names: Sequence[str | Path], output: str | Path, *, raw: bool = False) -> None:
    """Writes the average of checkpoints of one model, with its tokenizers, where every command can use it.

    If they have one recipe, because they are of one run, the average has it too.

    Args:
        names (list): Folders, or repositories of the Hub: user/name or user/name@revision.
        output (str or Path): A folder that is new or empty, and no numbered checkpoint.
        raw (bool): Take the weights themselves where all have a moving average, which is taken else.

    Raises:
        ValueError: If one is no checkpoint, is damaged, or is of another model or vocabulary than the first; or if the output
            cannot be written there.
    """
    folders = [checkpoint_folder(name, option="checkpoints") for name in names]
    place = Path(os.path.abspath(output))
    if re.fullmatch(r"checkpoint-\d+", place.name) or any(folder.resolve() in place.parents for folder in folders):
        raise ValueError(
            f"`--output` must not be in, nor be named as, a checkpoint, but is '{output}'; give another name."
        )
    is_averaged = not raw and all((folder / AVERAGED_WEIGHTS_FILE).is_file() for folder in folders)
    with new_folder(place) as folder:
        model, tokenizers = load_model(folders[0], names[0], tuple(KINDS)), load_tokenizers(folders[0], names[0])
        for one, name in zip(folders, names, strict=True):
            _refuse_another_model(one, name, model, tokenizers, names[0])
        file = AVERAGED_WEIGHTS_FILE if is_averaged else WEIGHTS_FILE
        model.load_state_dict(average_checkpoints(folders, file))
        model.save_pretrained(folder)
        save_tokenizers(*tokenizers, folder)
        # Of one run they have one record: languages, data and licence are those of the average too.
        records = {path.read_bytes() if path else None for path in map(recipe_file, folders)}
        if len(records) == 1 and (record := records.pop()) is not None:
            (folder / RECIPE_FILE).write_bytes(record)


def _refuse_another_model(
    folder: Path, name: str | Path, model: PreTrainedModel, tokenizers: Sequence[Any], first: str | Path
) -> None:
    fault = damage(folder) if (folder / MANIFEST_FILE).is_file() else None
    if fault:
        raise ValueError(f"'{name}' cannot be averaged: {fault}; leave it out.")
    check_config(folder, name, (model.config.model_type,))
    config = type(model.config).from_pretrained(folder)
    for field in MODEL_FIELDS:
        ours, theirs = getattr(model.config, field), getattr(config, field)
        if ours != theirs and field not in FREE_FIELDS:
            raise ValueError(
                f"'{name}' and '{first}' are different models: `{field}` is {theirs!r} and {ours!r}; average checkpoints of one run."
            )
    vocabularies = [[one.get_vocab() for one in both] for both in (tokenizers, load_tokenizers(folder, name))]
    if vocabularies[0] != vocabularies[1]:
        raise ValueError(f"'{name}' and '{first}' have different vocabularies; average checkpoints of one run.")
