"""Finds the newest undamaged checkpoint of an earlier run. Refuses a recipe or data with which the run must
not continue.
"""

import os
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.files import (
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    step_of,
)
from ..checkpoint.manifest import metadata_of, verify_manifest
from ..checkpoint.results import read_results
from ..model.errors_vaswani import InvalidValueError
from ..optimization.schedules import SCHEDULES
from ..optimization.section import AnyTraining
from .messages import counted, say


class RunState(Enum):
    """The state of the run in an output folder, compared with a recipe."""

    UNFINISHED = "unfinished"
    """The folder lacks the final weights, or scores that the recipe needs. Either the run is new or was
    interrupted, or the recipe needs more training steps or other scores than an earlier recipe of the run.
    A finished run with damaged files also has this state if its manifest does not describe the run.
    """
    DAMAGED = "damaged"
    """The run is finished and the manifest describes the run, but final files are damaged or missing."""
    FINISHED = "finished"
    """The folder has the final weights and all scores that the recipe needs."""


def has_results(folder: Path, new_values: dict[str, Any], saved_values: dict[str, Any]) -> bool:
    """Return True if a folder has the final weights and scores of a run, and if the new recipe needs neither
    more training nor new scores.

    `new_values` maps each recipe key with the `OnResume` value "continue" to the value of the key in the new
    recipe. `saved_values` maps the keys of `new_values` to the values in the saved recipe. If a key is in
    `saved_values` and in results.json, the function uses the value in results.json.
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
    # the key `finished_with` is null, the run has not finished the scoring.
    if results.average_of is not None or results.finished_with is None:
        return False
    values_of_run = saved_values | results.finished_with
    for key, value in new_values.items():
        if key.startswith("data.test_") and value is None:
            # If the new recipe has no test split, the run needs no new test scores.
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


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint of a run. Return None if the run has no checkpoints. Print a
    line for each damaged checkpoint that is newer than the returned checkpoint. Raise an error if all
    checkpoints are damaged.
    """
    faults: list[str] = []
    for checkpoint in reversed(checkpoints_in(folder)):
        fault = verify_manifest(checkpoint)
        if fault is None:
            for sentence in faults:
                say(f"{sentence}; continuing from '{checkpoint.name}'")
            return checkpoint
        faults.append(f"'{checkpoint}' is damaged: {fault}")
    if faults:
        raise ValueError(
            f"The folder '{folder}' holds no whole checkpoint to continue from ({'; '.join(faults)}); "
            "choose another `--output_dir`."
        )
    return None


def refuse_model_without_checkpoint(folder: Path) -> None:
    """Raise an error if the folder of a run contains a finished model, but no checkpoint."""
    if (folder / WEIGHTS_FILE).exists():
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds a finished model, but no checkpoint to continue from; choose "
            "another `--output_dir`."
        )


def refuse_other_batches(folder: Path, training: AnyTraining, checkpoint: Path, num_processes: int) -> None:
    """Raise an error if a training step has another number of batches than in the earlier run."""
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


def keep_number_of_threads(checkpoint: Path) -> None:
    """Use the number of threads of the earlier run, because another number changes the last bits of sums. If
    the environment variable OMP_NUM_THREADS is set, do not change the number of threads.
    """
    threads = metadata_of(checkpoint).get("threads")
    if threads is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))


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
