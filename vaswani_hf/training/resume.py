"""Continues an earlier run from its newest undamaged checkpoint, with the same recipe and the same data."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerState

from ..checkpoint.files import (
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    explain_write_errors,
    step_of,
)
from ..checkpoint.manifest import metadata_of, verify_manifest
from ..checkpoint.results import read_results
from ..model.errors_vaswani import InvalidValueError
from ..optimization.schedules import SCHEDULES
from ..optimization.section import AnyTraining
from .checkpoints import put_back_replaced, reason_to_stop
from .messages import counted, say


def is_finished(folder: Path, new_values: dict[str, Any], saved_values: dict[str, Any]) -> bool:
    """Return True if a folder contains a finished run, and if the new recipe needs neither more training nor
    new scores.

    `new_values` maps keys to their values in the new recipe, for all keys whose `OnResume` value is
    "continue". `saved_values` maps the keys of `new_values` to the values in the saved recipe. If
    results.json also contains a value for a key, the value in results.json is used.
    """
    has_end = (folder / WEIGHTS_FILE).exists() or (folder / MANIFEST_FILE).exists()
    if not (folder / RESULTS_FILE).exists() or not has_end:
        return False
    try:
        results = read_results(folder)
    except ValueError:
        # The run computes damaged results again from the checkpoints.
        return False
    # If results.json has `average_of`, `vaswani average` has written the file, and the folder contains no
    # finished run. A run writes its settings to the key `finished_with` of results.json after the scoring. If
    # the key `finished_with` is null, the run was interrupted before the end of the scoring, and is not
    # finished.
    if results.average_of is not None or results.finished_with is None:
        return False
    values_of_run = saved_values | results.finished_with
    for key, value in new_values.items():
        if key.startswith("data.test_") and value is None:
            # A recipe without a test split needs no new scores.
            continue
        if values_of_run.get(key) != value:
            return False
    return True


def check_earlier_run(
    folder: Path,
    training: AnyTraining,
    new_values: dict[str, Any],
    saved_values: dict[str, Any] | None,
    fixed_keys: set[str],
) -> None:
    """Raise an error if the output folder contains an earlier run that the new recipe does not continue.

    `new_values` maps the keys of the new recipe to their values, and `saved_values` maps the keys of the
    saved recipe to their values. `saved_values` is None if the folder has no saved recipe. `fixed_keys`
    contains the keys that a resumed run must not change.
    """
    if not checkpoints_in(folder) and not (folder / WEIGHTS_FILE).exists():
        return
    if not training.resume:
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds an earlier run; continue it with `--resume true` or choose "
            "another `--output_dir`."
        )
    if saved_values is None:
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds an earlier run without its {RECIPE_FILE}; copy the whole folder "
            "of the run, or choose another `--output_dir`."
        )
    lengths = {"training.max_steps", "training.num_train_epochs"}
    if SCHEDULES[training.lr_scheduler_type].depends_on_length:
        fixed_keys = fixed_keys | lengths
    # Check `task` and `model.init_from` first, so that the error message names the key that the user changed.
    # A change of `task` or `init_from` also changes many other keys.
    order = sorted(
        new_values.keys() | saved_values.keys(),
        key=lambda key: (not key.startswith("model.init_from"), key),
    )
    for key in ["task", *order]:
        if key in fixed_keys and new_values.get(key) != saved_values.get(key):
            reason = ""
            if key in lengths:
                reason = f", and the schedule {training.lr_scheduler_type!r} depends on the number of steps"
            raise InvalidValueError(
                f"`{key}` is {new_values.get(key)!r}, but the run in '{folder}' that is to be resumed has "
                f"{saved_values.get(key)!r}{reason}; give `{key}` the value of that run, or choose another "
                "`--output_dir`."
            )


def find_checkpoint(folder: Path, training: AnyTraining, num_processes: int) -> Path | None:
    """Return the newest undamaged checkpoint of a run, or None for a new run. Print a line for each damaged
    checkpoint that is newer than the returned checkpoint. Raise an error if all checkpoints are damaged, or
    if a finished model has no checkpoints. If the run was killed while it replaced a checkpoint, first move
    the earlier checkpoint back to its place.
    """
    with explain_write_errors(folder):
        put_back_replaced(folder)
    faults: list[str] = []
    for checkpoint in reversed(checkpoints_in(folder)):
        fault = verify_manifest(checkpoint)
        if fault is None:
            for sentence in faults:
                say(f"{sentence}; continuing from '{checkpoint.name}'")
            _refuse_other_batches(folder, training, checkpoint, num_processes)
            return checkpoint
        faults.append(f"'{checkpoint}' is damaged: {fault}")
    if faults:
        raise ValueError(
            f"The folder '{folder}' holds no whole checkpoint to continue from ({'; '.join(faults)}); "
            "choose another `--output_dir`."
        )
    if (folder / WEIGHTS_FILE).exists():
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds a finished model, but no checkpoint to continue from; choose "
            "another `--output_dir`."
        )
    return None


def keep_number_of_threads(checkpoint: Path) -> None:
    """Use the number of threads of the earlier run, because another number changes the last bits of sums. If
    the environment variable OMP_NUM_THREADS is set, do not change the number of threads.
    """
    threads = metadata_of(checkpoint).get("threads")
    if threads is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))


def stopped_early(checkpoint: Path, training: AnyTraining) -> bool:
    """Return True if early stopping ended the run at `checkpoint`, the newest checkpoint of the run."""
    is_scheduled = metadata_of(checkpoint).get("scheduled", False)
    state = TrainerState.load_from_json(str(checkpoint / STATE_FILE))
    return is_scheduled and bool(reason_to_stop(state, training))


def refuse_other_data(folder: Path, checkpoint: Path, pairs: dict[str, Any]) -> None:
    """Raise an error if `pairs`, the digest of the training pairs, differs from that of the earlier run."""
    before = metadata_of(checkpoint).get("training_pairs", pairs)
    if before != pairs:
        raise ValueError(
            f"The training pairs differ from the pairs that the run in '{folder}' was begun with "
            f"({_pairs_in_words(pairs)} now, {_pairs_in_words(before)} then); restore the data, or choose "
            "another `--output_dir`."
        )


def refuse_fewer_steps(folder: Path, training: AnyTraining, checkpoint: Path, max_steps: int) -> None:
    """Raise an error if the checkpoint that the run continues from is already after the step `max_steps`."""
    key = "num_train_epochs" if training.max_steps is None else "max_steps"
    if max_steps < step_of(checkpoint):
        raise InvalidValueError(
            f"`training.{key}` is {getattr(training, key)}, so the last step is {max_steps:,}, but the run "
            f"in '{folder}' is already at step {step_of(checkpoint):,}; give a larger number, or choose "
            "another `--output_dir`."
        )


def _pairs_in_words(pairs: dict[str, Any]) -> str:
    count = "a stream" if pairs["count"] is None else f"{pairs['count']:,} pairs"
    return f"{count}, sha256 {pairs['sha256'][:8]}…"


def _refuse_other_batches(folder: Path, training: AnyTraining, checkpoint: Path, num_processes: int) -> None:
    metadata = metadata_of(checkpoint)
    accumulation = training.gradient_accumulation_steps
    before = metadata["processes"] * metadata["gradient_accumulation_steps"]
    if num_processes * accumulation == before:
        return
    remedy = f"start {before // accumulation:,} processes" if before % accumulation == 0 else ""
    if before % num_processes == 0:
        remedy = f"set the key to {before // num_processes}"
    raise InvalidValueError(
        f"`training.gradient_accumulation_steps` is {accumulation} with {counted(num_processes, 'process')}, so a "
        f"step has {num_processes * accumulation:,} batches, but the run in '{folder}' that is "
        f"to be resumed has {before:,} batches in a step; {remedy or 'start as many processes as before'}."
    )
