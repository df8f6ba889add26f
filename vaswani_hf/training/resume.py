"""Continuing an earlier run: its newest whole checkpoint, and the refusal to mix it with another recipe or other data."""

from pathlib import Path
from typing import Any

from transformers import TrainerState

from ..checkpoint.files import (
    MANIFEST_FILE,
    RECIPE_FILE,
    RESULTS_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    step_of,
)
from ..checkpoint.manifest import damage, facts_of
from ..recipe import Recipe, load_recipe
from ..recipe.published import published_recipe
from ..recipe.schema import TrainingSection
from .checkpoints import has_lost_patience
from .processes import say
from .results import asked_of, read_results

# A resumed run may change the places of things and how often something is done, but nothing that is computed. The
# product of the accumulation and the number of processes stays, which is checked below.
FREE_TO_CHANGE = """
    output_dir data.train_source data.train_target data.train_pairs data.train_text data.train_trees
    data.validation_source data.validation_target data.validation_pairs data.validation_text data.validation_trees
    data.test_source data.test_target data.test_pairs data.test_text data.test_trees data.test_split
    data.num_proc data.license data.attribution
    training.max_steps training.num_train_epochs training.logging_steps training.eval_steps training.save_steps
    training.save_total_limit training.average_checkpoints training.early_stopping_patience training.report_to
    training.dataloader_num_workers training.resume training.gradient_accumulation_steps
""".split()
FREE_SECTIONS = ("decoding", "evaluation", "publishing")


def earlier_recipe(folder: Path) -> Recipe | None:
    """The recipe that an earlier run has recorded.

    Args:
        folder (Path): The output folder.

    Returns:
        Recipe: None where there is none.
    """
    path = folder / RECIPE_FILE
    return load_recipe(path, is_record=True) if path.is_file() else None


def is_finished(recipe: Recipe, earlier: Recipe | None) -> bool:
    """True if the output folder holds the results of a run of which the same is asked.

    Args:
        recipe (Recipe): The run as it is asked for now.
        earlier (Recipe, optional): The recipe that the run to be resumed has recorded.

    Returns:
        bool: True if so.
    """
    folder = Path(recipe.output_dir)
    has_end = (folder / WEIGHTS_FILE).exists() or (folder / MANIFEST_FILE).exists()
    if not (folder / RESULTS_FILE).exists() or not has_end:
        return False
    try:
        results = read_results(folder)
        # An average of several runs is none that has ended, and scoring may have been interrupted.
        if "average_of" in results or results.get("asked", {}) is None:
            return False
        # Results of earlier versions do not say all of it.
        before = asked_of(earlier or recipe) | results.get("asked", {})
        return all(
            before.get(key) == value
            for key, value in asked_of(recipe).items()
            # A test split that is not named asks for nothing.
            if not (key.startswith("data.test_") and value is None)
        )
    except (ValueError, AttributeError, TypeError):
        # Damaged results are made again from the checkpoints.
        return False


def check_earlier_run(recipe: Recipe, earlier: Recipe | None) -> None:
    """Refuses an output folder that holds a run which the recipe does not continue.

    Args:
        recipe (Recipe): The run.
        earlier (Recipe, optional): The recipe that the run to be resumed has recorded.

    Raises:
        ValueError: If there is an earlier run and the recipe does not say to resume it, or is another recipe.
    """
    folder = Path(recipe.output_dir)
    if not checkpoints_in(folder) and not (folder / WEIGHTS_FILE).exists():
        return
    if not recipe.training.resume:
        raise ValueError(
            f"`output_dir` '{folder}' holds an earlier run; continue it with `--resume true` or choose another "
            "`--output_dir`."
        )
    if earlier is None:
        raise ValueError(
            f"`output_dir` '{folder}' holds an earlier run without its {RECIPE_FILE}; copy the whole folder of the run, or choose "
            "another `--output_dir`."
        )
    _refuse_another_recipe(recipe, earlier)


def find_checkpoint(recipe: Recipe, num_processes: int) -> Path | None:
    """The newest whole checkpoint of the run in the recipe's output folder; a newer one that is damaged is named.

    Args:
        recipe (Recipe): The run.
        num_processes (int): The number of processes that continue it.

    Returns:
        Path: The folder of the checkpoint; None where nothing was trained yet.

    Raises:
        ValueError: If there are checkpoints but no whole one, a finished model but no checkpoint, or if the processes
            would take other batches.
    """
    folder = Path(recipe.output_dir)
    faults: list[str] = []
    for checkpoint in reversed(checkpoints_in(folder)):
        fault = damage(checkpoint)
        if fault is None:
            for sentence in faults:
                say(f"{sentence}; going on from '{checkpoint.name}'")
            _refuse_other_batches(recipe, checkpoint, num_processes)
            return checkpoint
        faults.append(f"'{checkpoint}' is damaged: {fault}")
    if faults:
        raise ValueError(
            f"`output_dir` '{folder}' holds no whole checkpoint to continue from ({'; '.join(faults)}); choose another "
            "`--output_dir`."
        )
    if (folder / WEIGHTS_FILE).exists():
        raise ValueError(
            f"`output_dir` '{folder}' holds a finished model, but no checkpoint to continue from; choose another "
            "`--output_dir`."
        )
    return None


def stopped_early(checkpoint: Path, training: TrainingSection) -> bool:
    """True if the run has ended at a checkpoint because it did not get better.

    Args:
        checkpoint (Path): The newest checkpoint.
        training (TrainingSection): The patience.
    """
    is_scheduled = facts_of(checkpoint).get("scheduled", False)
    return is_scheduled and has_lost_patience(TrainerState.load_from_json(str(checkpoint / STATE_FILE)), training)


def refuse_other_data(recipe: Recipe, checkpoint: Path, pairs: dict[str, Any]) -> None:
    """Refuses training pairs that are not those that a run was begun with.

    Args:
        recipe (Recipe): The run.
        checkpoint (Path): The checkpoint to continue from, or the folder of the finished run.
        pairs (dict): The digest of the training pairs.

    Raises:
        ValueError: If it is not the one that the checkpoint states.
    """
    before = facts_of(checkpoint).get("training_pairs", pairs)
    if before != pairs:
        raise ValueError(
            f"The training pairs are not those that the run in '{recipe.output_dir}' was begun with ({_counted(pairs)} now, "
            f"{_counted(before)} then); restore the data, or choose another `--output_dir`."
        )


def refuse_fewer_steps(recipe: Recipe, checkpoint: Path, max_steps: int) -> None:
    """Refuses to end a run before the step that it has come to.

    Args:
        recipe (Recipe): The run.
        checkpoint (Path): The checkpoint to continue from.
        max_steps (int): The last step that is asked for.

    Raises:
        ValueError: If the checkpoint is of a later step.
    """
    key = "num_train_epochs" if recipe.training.max_steps is None else "max_steps"
    if max_steps < step_of(checkpoint):
        raise ValueError(
            f"`training.{key}` is {getattr(recipe.training, key)}, {max_steps:,} steps, but the run in '{recipe.output_dir}' has "
            f"come to step {step_of(checkpoint):,}; ask for at least as many, or choose another `--output_dir`."
        )


def _counted(pairs: dict[str, Any]) -> str:
    count = "a stream" if pairs["count"] is None else f"{pairs['count']:,} pairs"
    return f"{count}, sha256 {pairs['sha256'][:8]}…"


def _refuse_other_batches(recipe: Recipe, checkpoint: Path, num_processes: int) -> None:
    facts, accumulation = facts_of(checkpoint), recipe.training.gradient_accumulation_steps
    before = facts["processes"] * facts["gradient_accumulation_steps"]
    if num_processes * accumulation == before:
        return
    remedy = f"start {before // accumulation:,} processes" if before % accumulation == 0 else ""
    if before % num_processes == 0:
        remedy = f"set it to {before // num_processes}"
    raise ValueError(
        f"`training.gradient_accumulation_steps` is {accumulation} in {_processes(num_processes)}, which makes "
        f"{num_processes * accumulation:,} batches per step, but the run in '{recipe.output_dir}' that is to be resumed has "
        f"{before:,}; {remedy or 'start as many processes as before'}."
    )


def _processes(number: int) -> str:
    return f"{number:,} process{'' if number == 1 else 'es'}"


def _refuse_another_recipe(recipe: Recipe, earlier: Recipe) -> None:
    # On another machine the data may lie in another folder.
    now, before = (published_recipe(one).values() for one in (recipe, earlier))
    # A cosine ends where the run ends.
    ends = (
        {"training.max_steps", "training.num_train_epochs"} if recipe.training.lr_scheduler_type == "cosine" else set()
    )
    free = {*FREE_TO_CHANGE} - ends
    # Another task has other keys everywhere, and another beginning another shape.
    order = sorted(now.keys() | before.keys(), key=lambda key: (not key.startswith("model.init_from"), key))
    for key in ["task", *order]:
        fixed = key not in free and key.split(".")[0] not in FREE_SECTIONS
        if fixed and now.get(key) != before.get(key):
            raise ValueError(
                f"`{key}` is {now.get(key)!r}, but the run in '{recipe.output_dir}' that is to be resumed has "
                f"{before.get(key)!r}; give it the same value or choose another `--output_dir`."
            )
