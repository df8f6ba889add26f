"""The average of the weights of several checkpoints; which ones a run ends with, is said in checkpoints.py.

Section 6.1: the paper averages the last 5 checkpoints of base models, and 20 of big ones.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from ..checkpoint.files import MANIFEST_FILE, WEIGHTS_FILE, checkpoints_in, new_folder, read_state, scores_by_step
from ..checkpoint.loading import checkpoint_folder, load_model
from ..checkpoint.manifest import damage
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers


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
    run: Path, last: int | None = None, best: int | None = None, metric: str = "loss"
) -> list[Path]:
    """The last or the best checkpoints of a run.

    Args:
        run (Path): The output folder of the run.
        last (int, optional): How many of the last ones.
        best (int, optional): How many of those with the best validation, which the last one's log knows.
        metric (str): "loss" or "bleu", for the best ones.

    Returns:
        list: Folders, the last or the best one last.

    Raises:
        ValueError: If the run has not so many.
    """
    found = checkpoints_in(run)
    if best is not None and found:
        scores = scores_by_step(read_state(found[-1])["log_history"], metric)
        steps = {checkpoint: int(checkpoint.name.removeprefix("checkpoint-")) for checkpoint in found}
        found = sorted((path for path in found if steps[path] in scores), key=lambda path: scores[steps[path]])
    wanted = (last if best is None else best) or len(found)
    if wanted > len(found) or not found:
        kind = "numbered checkpoints" if best is None else f"validated checkpoints (by {metric})"
        raise ValueError(f"'{run}' must hold {max(wanted, 1):,} {kind}, but holds {len(found):,}; ask for fewer.")
    return found[-wanted:]


def write_average(names: list[str | Path], output: str | Path, file: str = WEIGHTS_FILE) -> None:
    """Writes the average of checkpoints of one model, with its tokenizers, where every command can use it.

    Args:
        names (list): Folders, or repositories of the Hub: user/name or user/name@revision.
        output (str or Path): A folder that is new or empty.
        file (str): The name of the file with the weights in each of them.

    Raises:
        ValueError: If one is no checkpoint, is damaged, or is of another model or vocabulary than the first.
    """
    folders = [checkpoint_folder(name, option="checkpoints") for name in names]
    with new_folder(Path(output)) as folder:
        model, tokenizers = load_model(folders[0], names[0]), load_tokenizers(folders[0], names[0])
        vocabularies = [tokenizer.get_vocab() for tokenizer in tokenizers]
        for place, name in zip(folders, names, strict=True):
            fault = damage(place) if (place / MANIFEST_FILE).is_file() else None
            if fault or not (place / file).is_file():
                raise ValueError(f"'{name}' cannot be averaged: {fault or f'it has no {file}'}; leave it out.")
            if [tokenizer.get_vocab() for tokenizer in load_tokenizers(place, name)] != vocabularies:
                raise ValueError(
                    f"'{name}' and '{names[0]}' have different vocabularies; average checkpoints of one run."
                )
        model.load_state_dict(average_checkpoints(folders, file))
        model.save_pretrained(folder)
        save_tokenizers(*tokenizers, folder)
