"""The numbered checkpoints of a run: made whole under another name, found again, rotated by step."""

import contextlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import TrainerState

from ..checkpoint.files import (
    AVERAGED_WEIGHTS_FILE,
    RECIPE_FILE,
    WEIGHTS_FILE,
    WriteError,
    checkpoints_in,
    open_to_readers,
    read_state,
    scores_by_step,
)
from ..checkpoint.locks import is_replaced
from ..checkpoint.manifest import damage, facts_of, seal
from ..optimization.section import AnyTraining
from .processes import say

# A checkpoint is written into this folder of the run; what is left in it was not written to its end.
STAGING_FOLDER = ".saving"
_REPLACED = ".replaced"


def refuse_vanished(folder: Path) -> None:
    """Refuses to make the folder of a run again where somebody has deleted it: what was in it would be missing.

    Args:
        folder (Path): The output folder of the run.

    Raises:
        WriteError: If the recipe of the run is no more there, or the path leads to another folder, which may be that of another
            run.
    """
    if not (folder / RECIPE_FILE).is_file():
        raise WriteError(f"'{folder}' has vanished while the run wrote into it; start the run again.")
    if is_replaced(folder):
        raise WriteError(
            f"'{folder}' was replaced by another folder while the run wrote into it; start the run again, in another folder."
        )


@contextlib.contextmanager
def naming_a_vanished_folder(folder: Path) -> Iterator[None]:
    """Says that the folder of a run has vanished where something cannot be written for that.

    Args:
        folder (Path): The output folder of the run.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError | RuntimeError | SafetensorError):
            refuse_vanished(folder)
        raise


def publish_checkpoint(staged: Path, folder: Path, facts: dict[str, Any]) -> None:
    """Makes a checkpoint one of the run: seals it, and moves it to its place.

    Args:
        staged (Path): All its files, in a folder checkpoint-STEP within the staging folder.
        folder (Path): The output folder of the run.
        facts (dict): What its manifest says of it.
    """
    open_to_readers(staged)
    seal(staged, facts)
    final = folder / staged.name
    if final.exists():
        # A damaged one, which the run had to go back behind, or one whose validation was interrupted.
        os.replace(final, staged.with_name(f"{staged.name}{_REPLACED}"))
    os.replace(staged, final)
    shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)


def put_back_replaced(folder: Path) -> None:
    """Puts a checkpoint back into its place that was about to be replaced when the run was killed.

    Args:
        folder (Path): The output folder of the run.
    """
    for replaced in (folder / STAGING_FOLDER).glob(f"*{_REPLACED}"):
        place = folder / replaced.name.removesuffix(_REPLACED)
        if not place.exists():
            os.replace(replaced, place)


def rotate_checkpoints(folder: Path, training: AnyTraining, state: TrainerState) -> None:
    """Deletes the oldest checkpoints by step, whatever the times of their folders say.

    The newest `save_total_limit` stay, and the best one. One that was saved for a signal stays beside them until the next.

    Args:
        folder (Path): The output folder of the run.
        training (AnyTraining): The number to keep.
        state (TrainerState): The state that the newest one was saved with.
    """
    checkpoints = checkpoints_until(folder, state.global_step)
    *earlier, newest = checkpoints
    candidates = scheduled_checkpoints(earlier)
    is_extra = not scheduled_checkpoints([newest]) and number_of(newest) < state.max_steps
    kept = [*candidates, newest][-training.save_total_limit - is_extra :]
    best = best_checkpoint([*candidates, newest], training, state.log_history)
    if best and best not in kept:
        # It takes the place of the oldest.
        kept = [best, *(kept[1:] if len(kept) > 1 else kept)]
    # One whose manifest is damaged is named at the end.
    is_of_use = {
        checkpoint
        for checkpoint in checkpoints
        if damage(checkpoint, []) is not None and number_of(checkpoint) > number_of(kept[0])
    }
    _delete(folder, [checkpoint for checkpoint in checkpoints if checkpoint not in {*kept, *is_of_use}])


def delete_between(folder: Path, first: int, last: int) -> None:
    """Deletes the checkpoints of some steps, which a run should not go on from.

    Args:
        folder (Path): The output folder of the run.
        first (int): The first step.
        last (int): The last step.
    """
    _delete(folder, [checkpoint for checkpoint in checkpoints_until(folder, last) if number_of(checkpoint) >= first])


def _delete(folder: Path, checkpoints: list[Path]) -> None:
    staging = folder / STAGING_FOLDER
    for checkpoint in checkpoints:
        # None is ever half there.
        staging.mkdir(exist_ok=True)
        os.replace(checkpoint, staging / f"{checkpoint.name}.deleted")
    shutil.rmtree(staging, ignore_errors=True)


def best_checkpoint(checkpoints: list[Path], training: AnyTraining, log_history: list[dict[str, Any]]) -> Path | None:
    """The checkpoint with the best evaluation, the first of equally good ones.

    Args:
        checkpoints (list): Folders, oldest first.
        training (AnyTraining): The metric of early stopping.
        log_history (list): The log of the run, a dict for each row.

    Returns:
        Path: None without early stopping, or where none of them was evaluated.
    """
    scores = _scores(training, log_history)
    evaluated = [checkpoint for checkpoint in checkpoints if number_of(checkpoint) in scores]
    return max(evaluated, key=lambda checkpoint: scores[number_of(checkpoint)], default=None)


def has_lost_patience(state: TrainerState, training: AnyTraining) -> bool:
    """True if a run was evaluated as often as its patience allows without having got better.

    Args:
        state (TrainerState): Its state.
        training (AnyTraining): The patience, and the metric.
    """
    scores = list(_scores(training, state.log_history).values())
    return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= (
        training.early_stopping_patience or math.inf
    )


def _scores(training: AnyTraining, log_history: list[dict[str, Any]]) -> dict[int, float]:
    """The evaluations by step, the higher the better; none without early stopping."""
    if training.early_stopping_patience is None:
        return {}
    return scores_by_step(log_history, training.metric_for_best_model)


def scheduled_checkpoints(checkpoints: Iterable[Path]) -> list[Path]:
    """The checkpoints that an uninterrupted run would have too.

    Args:
        checkpoints (Iterable): Folders, oldest first.

    Returns:
        list: Those whose manifest says so.
    """
    found = []
    for checkpoint in checkpoints:
        try:
            if facts_of(checkpoint).get("scheduled"):
                found.append(checkpoint)
        except (OSError, ValueError):
            continue
    return found


def final_checkpoints(folder: Path, training: AnyTraining, step: int) -> list[Path]:
    """The checkpoints that the final weights are made of: the last scheduled ones, the best, or the last.

    Args:
        folder (Path): The output folder of the run.
        training (AnyTraining): Averaging or early stopping.
        step (int): The step that the run has ended at.

    Returns:
        list: Whole ones; a damaged one is left out in a sentence.

    Raises:
        ValueError: If there is none.
    """
    last = folder / f"checkpoint-{step}"
    # Whether one was scheduled is in its manifest.
    until = [checkpoint for checkpoint in checkpoints_until(folder, step - 1) if not _is_damaged(checkpoint, [])]
    weights = [final_weights_file(training)]
    if training.average_checkpoints:
        chosen = [*scheduled_checkpoints(until), last][-training.average_checkpoints :]
    elif training.early_stopping_patience is not None:
        candidates = [
            checkpoint for checkpoint in [*scheduled_checkpoints(until), last] if not _is_damaged(checkpoint, weights)
        ]
        chosen = [best_checkpoint(candidates, training, read_state(last)["log_history"]) or last]
    else:
        chosen = [last]
    whole = [checkpoint for checkpoint in chosen if not _is_damaged(checkpoint, weights)]
    if not whole:
        names = ", ".join(f"'{checkpoint}'" for checkpoint in chosen)
        raise ValueError(
            f"The final weights must come from {names}, but no whole checkpoint of them is left; continue with `--resume true`, "
            "which trains what is missing."
        )
    return whole


def final_weights_file(training: AnyTraining) -> str:
    """The file of a numbered checkpoint with the weights that a run ends with.

    Args:
        training (AnyTraining): Whether there is a moving average.
    """
    return WEIGHTS_FILE if training.ema_decay is None else AVERAGED_WEIGHTS_FILE


def checkpoints_until(folder: str | Path, step: int) -> list[Path]:
    """The checkpoints up to a step: later ones are damaged, and the run has gone back behind them.

    Args:
        folder (str or Path): The output folder of the run.
        step (int): The last step.

    Returns:
        list: Folders, oldest first.
    """
    return [checkpoint for checkpoint in checkpoints_in(folder) if number_of(checkpoint) <= step]


def number_of(checkpoint: Path) -> int:
    """The step that the name of a checkpoint states.

    Args:
        checkpoint (Path): A folder checkpoint-STEP.

    Returns:
        int: The step.
    """
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _is_damaged(checkpoint: Path, names: list[str]) -> bool:
    fault = damage(checkpoint, names)
    if fault:
        say(f"'{checkpoint}' takes no part in the final weights: {fault}")
    return fault is not None
