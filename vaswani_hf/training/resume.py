"""Decides what `vaswani train` does in the folder of an earlier run.

- no earlier run (`UNFINISHED`): train from the initial weights, and score the final weights.
- an interrupted run (`UNFINISHED`): continue from the newest undamaged checkpoint. If no training step is
  left, only compute and score the final weights.
- a finished run, but the new recipe needs more training steps or other scores, or the test texts have changed
  (`UNFINISHED`): continue like an interrupted run.
- a finished run, and the new recipe needs nothing else (`FINISHED`): compare the training data, and publish
  the checkpoint if the recipe has `publishing.push_to_hub`.
- a finished run with damaged or missing files (`DAMAGED`): write these files again.
- a run with other training data, a run that the new recipe cannot continue, or any earlier run if
  `training.resume` is false: raise an error.

`find_state` compares the recipe with the folder, and `checkpoint_to_continue` returns the checkpoint from
which the run continues. The functions with `refuse` in their names raise an error for a recipe or data with
which the run must not continue. `_train` and other functions of run.py call these functions.
"""

import os
from enum import Enum
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
    has_run,
    step_of,
)
from ..checkpoint.manifest import faults_of, verify_manifest
from ..checkpoint.results import read_results
from ..data.corpus_cache import CorpusDigest
from ..messages import counted, say
from ..model.errors_vaswani import InvalidValueError
from ..optimization.schedules import SCHEDULES
from ..optimization.section import AnyTraining
from ..publish.during_training import fetch_checkpoints
from ..recipe import Recipe
from ..recipe.loading import load_recorded_recipe
from ..recipe.published import published_recipe
from .checkpoints import (
    CheckpointRecord,
    put_back_replaced,
    reason_to_stop,
    scores_for_early_stopping,
)
from .finished import read_finished_run, restore_final_files


class RunState(Enum):
    """The state of the run in an output folder, compared with a recipe."""

    UNFINISHED = "unfinished"
    """The folder lacks the final weights, or scores that the recipe needs. Either the run is new or was
    interrupted, or the recipe needs more training steps or other scores than an earlier recipe of the run,
    or the test texts have changed. A finished run with damaged files also has the state UNFINISHED if
    its manifest does not describe the run.
    """
    DAMAGED = "damaged"
    """The run is finished and the manifest describes the run, but final files are damaged or missing."""
    FINISHED = "finished"
    """The folder has the final weights and all scores that the recipe needs."""


def restore_files(recipe: Recipe) -> None:
    """Put back a checkpoint that a killed run was replacing. If the run is resumed, download the checkpoints
    that the run has pushed to the Hub from another machine. Also restore damaged records of a finished run.
    """
    folder = recipe.folder
    with explain_write_errors(folder):
        put_back_replaced(folder)
    if not recipe.training.resume:
        return
    if recipe.publishing.hub_model_id:
        fetch_checkpoints(folder, recipe.publishing.hub_model_id, recipe.training)
    with explain_write_errors(folder):
        restore_final_files(folder)


def saved_recipe(folder: Path) -> Recipe | None:
    """Return the recipe that an earlier run has written to its output folder, or None."""
    path = folder / RECIPE_FILE
    return load_recorded_recipe(path) if path.is_file() else None


def refuse_another_run(recipe: Recipe, saved: Recipe | None) -> None:
    """Raise an error if the output folder contains an earlier run, unless `training.resume` is true and the
    recipe can continue the earlier run. `saved` is the recipe of the earlier run. Also raise an error if the
    run would overwrite a recipe.yaml of the user.
    """
    folder = recipe.folder
    training = recipe.training
    if not has_run(folder):
        _refuse_recipe_of_user(folder / RECIPE_FILE)
        return
    if not training.resume:
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds an earlier run; continue it with `--resume true` or choose "
            "another `--output_dir`."
        )
    if saved is None:
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds an earlier run without its {RECIPE_FILE}; copy the whole folder "
            "of the run, or choose another `--output_dir`."
        )
    new_values = published_recipe(recipe).values(with_model_defaults=True)
    saved_values = published_recipe(saved).values(with_model_defaults=True)
    lengths: set[str] = set()
    if SCHEDULES[training.lr_scheduler_type].depends_on_length:
        lengths = {"training.max_steps", "training.num_train_epochs"}
    # Check `task` and `model.init_from` first, so that the error message names the key that the user changed.
    # A change of `task` or `init_from` also changes many other keys.
    order = sorted(
        new_values.keys() | saved_values.keys(),
        key=lambda key: (not key.startswith("model.init_from"), key),
    )
    for key in ["task", *order]:
        is_fixed = key in lengths or recipe.on_resume(key) == "fixed"
        if is_fixed and new_values.get(key) != saved_values.get(key):
            reason = ""
            if key in lengths:
                reason = f", and the schedule {training.lr_scheduler_type!r} depends on the number of steps"
            raise InvalidValueError(
                f"`{key}` is {new_values.get(key)!r}, but the run in '{folder}' that is to be resumed has "
                f"{saved_values.get(key)!r}{reason}; give `{key}` the value of that run, or choose another "
                "`--output_dir`."
            )


def _refuse_recipe_of_user(path: Path) -> None:
    """Raise an error if a recipe.yaml differs from the text that a run writes, for example in comments."""
    if path.is_file() and path.read_text(encoding="utf-8") != load_recorded_recipe(path).to_yaml():
        raise InvalidValueError(
            f"`output_dir` must not hold a recipe that you have written, but '{path}' is one, and the run would "
            "overwrite it; move the file, or choose another `--output_dir`."
        )


def find_state(recipe: Recipe, saved: Recipe | None) -> RunState:
    """Return the state of the run in the output folder. For a finished run, load the corpus, and raise an
    error if the training data has changed. Print which files of a finished run are damaged or
    missing. Raise an error if the recipe cannot continue the run, or if the damaged files cannot be made
    again.
    """
    refuse_another_run(recipe, saved)
    folder = recipe.folder
    if not is_finished(recipe, saved):
        return RunState.UNFINISHED
    damage = "; ".join(faults_of(folder).values())
    if not damage:
        return RunState.UNFINISHED if _has_other_test(recipe) else RunState.FINISHED
    is_described = read_finished_run(folder) is not None
    if any(verify_manifest(checkpoint) is None for checkpoint in checkpoints_in(folder)):
        say(
            f"the run in '{folder}' is finished, but {damage}; these files are made again from the checkpoints"
        )
        # If the manifest does not describe the run, the hashes of the undamaged files are unknown. Therefore
        # the run makes all final files again.
        return RunState.DAMAGED if is_described else RunState.UNFINISHED
    if is_described or not (folder / WEIGHTS_FILE).exists():
        raise ValueError(
            f"The run in '{folder}' is finished, but {damage}; no whole checkpoint is left to make these "
            "files again, so restore them from a copy, or choose another `--output_dir`."
        )
    say(f"the files in '{folder}' cannot be checked: {damage}")
    return RunState.FINISHED


def is_finished(recipe: Recipe, saved: Recipe | None) -> bool:
    """Return True if the output folder has the final weights and all scores that the recipe needs. The
    function does not check whether the files are damaged. `saved` is the recipe of the earlier run.
    """
    folder = recipe.folder
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
    # Prefer the values in results.json to the values in the saved recipe, because a run writes recipe.yaml
    # before the training, and the key `finished_with` of results.json after the scoring.
    values_of_run = values_that_continue(saved or recipe) | results.finished_with
    for key, value in values_that_continue(recipe).items():
        if key.startswith("data.test_") and value is None:
            # If the new recipe has no test split, the run needs no new test scores.
            continue
        if values_of_run.get(key) != value:
            return False
    return True


def values_that_continue(recipe: Recipe) -> dict[str, Any]:
    """Return the values of the recipe keys whose change makes a finished run continue (`on_resume` returns
    "continue").
    """
    values = published_recipe(recipe).values()
    return {key: value for key, value in values.items() if recipe.on_resume(key) == "continue"}


def _has_other_test(recipe: Recipe) -> bool:
    """Return True if the recipe has other test texts than the finished run, and the run has a checkpoint that
    can be scored on the new texts. Raise an error if the training data differs from the training data of the
    finished run.
    """
    finished_run = read_finished_run(recipe.folder)
    if finished_run is None:
        return False
    corpus = recipe.make_task().load_corpus(recipe.folder, new_tokenizers=False)
    refuse_other_data(recipe.folder, finished_run.training_pairs, corpus.digest)
    new, old = corpus.hash_of_test, read_results(recipe.folder).test_sha256
    # Without a test split, the run needs no new scores. results.json of an earlier version has no hash.
    if new is None or old is None or new == old:
        return False
    if not checkpoints_in(recipe.folder):
        say("the test texts have changed, but the run has no checkpoint left to score")
        return False
    say("the test texts have changed, so the run scores them")
    return True


def checkpoint_to_continue(folder: Path, training: AnyTraining, num_processes: int) -> Path | None:
    """Return the checkpoint from which the run in a folder continues, or None if the run is new. Raise an
    error if the folder contains a finished model without checkpoints.
    """
    checkpoint = newest_checkpoint(folder)
    if checkpoint is not None:
        _refuse_other_batches(folder, training, checkpoint, num_processes)
    elif has_run(folder):
        raise InvalidValueError(
            f"`output_dir` '{folder}' holds a finished model, but no checkpoint to continue from; choose "
            "another `--output_dir`."
        )
    return checkpoint


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


def _refuse_other_batches(folder: Path, training: AnyTraining, checkpoint: Path, num_processes: int) -> None:
    """Raise an error if a training step has another number of batches than in the earlier run."""
    record = CheckpointRecord.of(checkpoint)
    accumulation = training.gradient_accumulation_steps
    before = record.processes * record.gradient_accumulation_steps
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
    threads = CheckpointRecord.of(checkpoint).threads
    if threads is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))


def refuse_other_data(folder: Path, before: CorpusDigest, pairs: CorpusDigest) -> None:
    """Raise an error if `pairs`, the digest of the training pairs, differs from `before`, the digest of the
    earlier run.
    """
    if before != pairs:
        raise ValueError(
            f"The training pairs differ from the pairs that the run in '{folder}' was begun with "
            f"({_pairs_in_words(pairs)} now, {_pairs_in_words(before)} then); restore the data, or choose "
            "another `--output_dir`."
        )


def refuse_other_validation(
    folder: Path, training: AnyTraining, checkpoint: Path, comparison_key: dict[str, Any] | None
) -> None:
    """Raise an error if early stopping would compare validation scores of the earlier run with scores of
    other texts or another metric. `comparison_key` is the `Validation.comparison_key` of the resumed run.
    """
    before = CheckpointRecord.of(checkpoint).validation
    history = TrainerState.load_from_json(str(checkpoint / STATE_FILE)).log_history
    if before is None or comparison_key is None or not scores_for_early_stopping(training, history):
        return
    # The loss does not depend on the other values of the key.
    keys = ["texts"] if training.metric_for_best_model == "loss" else [*comparison_key]
    for key in keys:
        if comparison_key[key] == before.get(key):
            continue
        changed = "The validation texts differ from the texts of"
        restored = "the validation texts"
        if key != "texts":
            changed = f"`{key}` is {comparison_key[key]!r}, but {before.get(key)!r} in"
            restored = f"`{key}`"
        raise InvalidValueError(
            f"{changed} the run in '{folder}' that is to be resumed, and early stopping would compare different "
            f"scores; restore {restored}, turn early stopping off, or choose another `--output_dir`."
        )


def _pairs_in_words(pairs: CorpusDigest) -> str:
    count = "a stream" if pairs.count is None else f"{pairs.count:,} pairs"
    return f"{count}, sha256 {pairs.sha256[:8]}…"


def refuse_fewer_steps(folder: Path, training: AnyTraining, checkpoint: Path, max_steps: int) -> None:
    """Raise an error if the checkpoint that the run continues from is already after the step `max_steps`."""
    key = "num_train_epochs" if training.max_steps is None else "max_steps"
    if max_steps < step_of(checkpoint):
        raise InvalidValueError(
            f"`training.{key}` is {getattr(training, key)}, so the last step is {max_steps:,}, but the run "
            f"in '{folder}' is already at step {step_of(checkpoint):,}; give a larger number, or choose "
            "another `--output_dir`."
        )


def is_training_complete(checkpoint: Path | None, training: AnyTraining, max_steps: int) -> bool:
    """Return True if no training step and no validation is left after the checkpoint: the checkpoint has the
    last step, or early stopping ended the training at the checkpoint.
    """
    if checkpoint is None:
        return False
    record = CheckpointRecord.of(checkpoint)
    if not record.validated:
        return False
    state = TrainerState.load_from_json(str(checkpoint / STATE_FILE))
    has_stopped_early = record.scheduled and bool(reason_to_stop(state, training))
    return has_stopped_early or step_of(checkpoint) >= max_steps
