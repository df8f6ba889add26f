"""Writes, selects and deletes the numbered checkpoints of a run.

A run writes a checkpoint into the staging folder `.saving`, and moves the complete checkpoint into the output
folder.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from transformers import TrainerState

from ..checkpoint.files import (
    AVERAGED_WEIGHTS_FILE,
    RECIPE_FILE,
    WEIGHTS_FILE,
    WriteError,
    checkpoints_in,
    explain_write_errors,
    higher_is_better,
    open_to_readers,
    read_state,
    scores_by_step,
    step_of,
)
from ..checkpoint.locks import is_replaced
from ..checkpoint.manifest import metadata_of, verify_manifest, write_manifest
from ..checkpoint.results import Record
from ..data.corpus_cache import CorpusDigest
from ..messages import counted, say
from ..optimization.section import AnyTraining

STAGING_FOLDER = ".saving"
_REPLACED = ".replaced"


class CheckpointRecord(Record):
    """The facts about the run in the manifest of a numbered checkpoint. The manifest also lists the files."""

    step: int
    # True if `save_steps` schedules a checkpoint at this step, and if no signal interrupted the validation of
    # the step.
    scheduled: bool
    # False if a signal interrupted the validation of the step.
    validated: bool
    processes: int
    gradient_accumulation_steps: int
    # The released version 0.2.0 does not write `threads`.
    threads: int | None = None
    # The number of target tokens in the training steps up to `step`.
    target_tokens: int
    training_pairs: CorpusDigest
    # See `Validation.comparison_key`. None without a validation split, and in checkpoints of earlier
    # versions.
    validation: dict[str, Any] | None = None

    @classmethod
    def of(cls, checkpoint: Path) -> Self:
        """Read the record of a numbered checkpoint. Raise a ValueError if the manifest is damaged."""
        return cls.model_validate(metadata_of(checkpoint))


def refuse_vanished_folder(folder: Path) -> None:
    """Raise a WriteError if the output folder of a run has been deleted or replaced. Without the error, a run
    would write into a new empty folder or into the folder of another run.
    """
    if not (folder / RECIPE_FILE).is_file():
        raise WriteError(f"'{folder}' has vanished while the run wrote into it; start the run again.")
    if is_replaced(folder):
        raise WriteError(
            f"'{folder}' was replaced by another folder while the run wrote into it; start the run again, in "
            "another folder."
        )


@contextlib.contextmanager
def explain_output_errors(folder: Path) -> Iterator[None]:
    """Context manager for code that writes into the output folder of a run. Convert errors as
    `explain_write_errors` does, and also raise a WriteError if writing fails because the output folder has
    been deleted or replaced.
    """
    try:
        with explain_write_errors(folder):
            yield
    except (OSError, RuntimeError, SafetensorError):
        refuse_vanished_folder(folder)
        raise


def empty_staging_folder(folder: Path) -> None:
    """Delete what a killed run has left in the staging folder of the output folder `folder`."""
    refuse_vanished_folder(folder)
    shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)


@contextlib.contextmanager
def discarding_failed_save(folder: Path) -> Iterator[None]:
    """Context manager for code that saves a checkpoint. If the code raises an exception, delete the
    incomplete checkpoint. If the failed save was replacing an earlier checkpoint of the same step, put back
    the earlier checkpoint.
    """
    try:
        yield
    except Exception:
        # Ignore an OSError, because the output folder has perhaps been deleted.
        with contextlib.suppress(OSError):
            # Change no files if the output folder was deleted or replaced by another folder.
            refuse_vanished_folder(folder)
            put_back_replaced(folder)
            shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)
        raise


def publish_checkpoint(staged: Path, folder: Path, record: CheckpointRecord) -> None:
    """Write the manifest of the checkpoint in the temporary folder `staged`, and move `staged` into the
    output folder `folder`.
    """
    open_to_readers(staged)
    write_manifest(staged, record.as_json())
    final = folder / staged.name
    if final.exists():
        # A resumed run replaces a damaged checkpoint. A resumed run also replaces its last checkpoint if a
        # signal prevented the validation of this checkpoint.
        os.replace(final, staged.with_name(f"{staged.name}{_REPLACED}"))
    os.replace(staged, final)
    shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)


def put_back_replaced(folder: Path) -> None:
    """If a run was killed while it replaced a checkpoint, move the earlier checkpoint back to its place."""
    for replaced in (folder / STAGING_FOLDER).glob(f"*{_REPLACED}"):
        place = folder / replaced.name.removesuffix(_REPLACED)
        if not place.exists():
            os.replace(replaced, place)


def rotate_checkpoints(folder: Path, training: AnyTraining, state: TrainerState) -> None:
    """Delete old checkpoints. Keep the newest `save_total_limit` checkpoints. With early stopping, always
    keep the best checkpoint, too. Also keep a checkpoint that was saved because of a signal, until the next
    save. `state` is the state of the Trainer at the step of the newest checkpoint.
    """
    checkpoints = checkpoints_until(folder, state.global_step)
    *earlier, newest = checkpoints
    candidates = scheduled_checkpoints(earlier)
    is_extra = not scheduled_checkpoints([newest]) and step_of(newest) < state.max_steps
    kept = [*candidates, newest][-training.save_total_limit - is_extra :]
    best = best_checkpoint([*candidates, newest], training, state.log_history)
    if best and best not in kept:
        # Put the best checkpoint into `kept`. Remove the oldest checkpoint from `kept`, unless the oldest
        # checkpoint is also the newest.
        kept = [best, *(kept[1:] if len(kept) > 1 else kept)]
    deleted = []
    for checkpoint in checkpoints:
        if checkpoint in kept:
            continue
        fault = verify_manifest(checkpoint, [])
        if fault and step_of(checkpoint) > step_of(kept[0]):
            # Do not delete the damaged checkpoint, because a message at the end of the run names the damaged
            # checkpoint.
            continue
        if fault:
            say(f"deleting '{checkpoint}', which is older than the kept checkpoints and damaged: {fault}")
        deleted.append(checkpoint)
    _delete(folder, deleted)


def delete_between(folder: Path, first: int, last: int) -> None:
    """Delete the checkpoints of the steps `first` to `last`, in which the training diverged."""
    _delete(
        folder,
        [checkpoint for checkpoint in checkpoints_until(folder, last) if step_of(checkpoint) >= first],
    )


def _delete(folder: Path, checkpoints: list[Path]) -> None:
    staging = folder / STAGING_FOLDER
    for checkpoint in checkpoints:
        # Move the checkpoint into the staging folder before the deletion, because a killed run must never
        # leave an incomplete checkpoint in the output folder.
        staging.mkdir(exist_ok=True)
        os.replace(checkpoint, staging / f"{checkpoint.name}.deleted")
    shutil.rmtree(staging, ignore_errors=True)


def best_checkpoint(
    checkpoints: list[Path], training: AnyTraining, log_history: list[dict[str, Any]]
) -> Path | None:
    """Return the earliest checkpoint with the best validation score. Return None if the recipe does not use
    early stopping, or if no checkpoint has a score.
    """
    scores = scores_for_early_stopping(training, log_history)
    evaluated = [checkpoint for checkpoint in checkpoints if step_of(checkpoint) in scores]
    return max(evaluated, key=lambda checkpoint: scores[step_of(checkpoint)], default=None)


def reason_to_stop(state: TrainerState, training: AnyTraining) -> str:
    """Return why early stopping ends the run, or an empty string if the run continues.

    The run ends if none of the last `early_stopping_patience` validations has improved the best score, or if
    a validation has reached `early_stopping_score`.
    """
    scores = list(scores_for_early_stopping(training, state.log_history).values())
    if not scores:
        return ""
    metric = training.metric_for_best_model
    wanted = training.early_stopping_score
    if wanted is not None and max(scores) >= higher_is_better(metric, wanted):
        return f"validation {metric} has reached {wanted:g}"
    num_since_best = len(scores) - 1 - scores.index(max(scores))
    count = training.early_stopping_patience
    if count is not None and num_since_best >= count:
        return f"validation {metric} has not improved in the last {counted(count, 'validation')}"
    return ""


def scores_for_early_stopping(training: AnyTraining, log_history: list[dict[str, Any]]) -> dict[int, float]:
    """Map each step to its validation score. A loss is multiplied by -1, so that a higher score is better.
    Return an empty dict if the recipe does not use early stopping.
    """
    if not training.stops_early:
        return {}
    return scores_by_step(log_history, training.metric_for_best_model)


def scheduled_checkpoints(checkpoints: Iterable[Path]) -> list[Path]:
    """Return the checkpoints that were saved because of the setting `save_steps`. Leave out checkpoints that
    `save_steps` did not schedule, such as a checkpoint that was saved after a signal.
    """
    found = []
    for checkpoint in checkpoints:
        try:
            if CheckpointRecord.of(checkpoint).scheduled:
                found.append(checkpoint)
        except (OSError, ValueError):
            continue
    return found


def final_checkpoints(folder: Path, training: AnyTraining, step: int) -> list[Path]:
    """Return the undamaged checkpoints from which the run computes the final weights.

    If the run averages N checkpoints (`average_checkpoints`), return the last N checkpoints. Without
    `average_checkpoints`, return the best checkpoint if the run has early stopping, otherwise the last
    checkpoint. `step` is the last step of the run. A line is printed for each damaged checkpoint.
    """
    last = folder / f"checkpoint-{step}"
    # To list the earlier checkpoints, check only the manifests and not the other files, because
    # `scheduled_checkpoints` reads only the manifests.
    until = [
        checkpoint for checkpoint in checkpoints_until(folder, step - 1) if not _is_damaged(checkpoint, [])
    ]
    weights = [final_weights_file(training)]
    if training.average_checkpoints:
        chosen = [*scheduled_checkpoints(until), last][-training.average_checkpoints :]
    elif training.stops_early:
        candidates = [
            checkpoint
            for checkpoint in [*scheduled_checkpoints(until), last]
            if not _is_damaged(checkpoint, weights)
        ]
        chosen = [best_checkpoint(candidates, training, read_state(last)["log_history"]) or last]
    else:
        chosen = [last]
    whole = [checkpoint for checkpoint in chosen if not _is_damaged(checkpoint, weights)]
    if not whole:
        names = ", ".join(f"'{checkpoint}'" for checkpoint in chosen)
        raise ValueError(
            f"The final weights must come from {names}, but all of these checkpoints are damaged or missing; "
            "continue with `--resume true` to train the missing steps again."
        )
    return whole


def final_weights_file(training: AnyTraining) -> str:
    """Return the name of the file from which a run reads the final weights: the file with the averaged
    weights if the run averages weights.
    """
    has_averages = training.ema_decay is not None or training.optimizer_averages_weights
    return AVERAGED_WEIGHTS_FILE if has_averages else WEIGHTS_FILE


def checkpoints_until(folder: str | Path, step: int) -> list[Path]:
    """Return the checkpoints of the steps up to `step`, sorted by step."""
    return [checkpoint for checkpoint in checkpoints_in(folder) if step_of(checkpoint) <= step]


def _is_damaged(checkpoint: Path, names: list[str]) -> bool:
    fault = verify_manifest(checkpoint, names)
    if fault:
        say(f"'{checkpoint}' is not used for the final weights: {fault}")
    return fault is not None
