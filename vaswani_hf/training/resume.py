"""Continuing an earlier run: its newest complete checkpoint, and the refusal to mix it with another recipe."""

from pathlib import Path

from ..checkpoint.files import RECIPE_FILE, RESULTS_FILE, STREAM_FILE, WEIGHTS_FILE, checkpoints_in, step_of
from ..recipe import Recipe, load_recipe
from ..recipe.published import published_recipe
from ..recipe.schema import TrainingSection
from .results import read_results

# A resumed run may change the places of things and how often something is done, but nothing that is computed.
FREE_TO_CHANGE = """
    output_dir data.train_source data.train_target data.train_pairs data.validation_source data.validation_target
    data.validation_pairs data.test_source data.test_target data.test_pairs data.num_proc data.license data.attribution
    training.max_steps training.num_train_epochs training.logging_steps training.eval_steps training.save_steps
    training.save_total_limit training.average_checkpoints training.early_stopping_patience training.report_to
    training.dataloader_num_workers training.resume
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
    return load_recipe(path) if path.is_file() else None


def is_finished(folder: Path, training: TrainingSection) -> bool:
    """True if a folder holds the results of a run of as many steps as are asked for.

    Args:
        folder (Path): The output folder.
        training (TrainingSection): The steps or epochs that are asked for.

    Returns:
        bool: True if so.
    """
    if not (folder / RESULTS_FILE).exists() or not (folder / WEIGHTS_FILE).exists():
        return False
    asked = [training.max_steps, training.num_train_epochs]
    return read_results(folder)["training"].get("asked_steps_and_epochs") == asked


def find_checkpoint(recipe: Recipe, earlier: Recipe | None) -> Path | None:
    """The newest complete checkpoint of the run in the recipe's output folder.

    Args:
        recipe (Recipe): The run.
        earlier (Recipe, optional): The recipe that the run to be resumed has recorded.

    Returns:
        Path: The folder of the checkpoint; None where nothing was trained yet.

    Raises:
        ValueError: If there is an earlier run and the recipe does not say to resume it, or is another recipe.
    """
    folder = Path(recipe.output_dir)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output_dir` must be a folder, but '{folder}' is a file.")
    complete = [path for path in checkpoints_in(folder) if _is_complete(path, recipe.data.streaming)]
    if not complete and not (folder / WEIGHTS_FILE).exists():
        return None
    if not recipe.training.resume:
        raise ValueError(
            f"`output_dir` '{folder}' holds an earlier run; continue it with `--resume true` or choose another "
            "`--output_dir`."
        )
    if earlier is not None:
        _refuse_another_recipe(recipe, earlier)
    if not complete and not is_finished(folder, recipe.training):
        raise ValueError(
            f"`output_dir` '{folder}' holds a finished model, but no checkpoint to continue from; choose another "
            "`--output_dir`."
        )
    return complete[-1] if complete else None


def _is_complete(checkpoint: Path, streaming: bool) -> bool:
    """True if a checkpoint was saved to its end: the Trainer's state comes last, and after it the place in a stream."""
    try:
        step_of(checkpoint)
    except (OSError, ValueError, KeyError):
        return False
    return not streaming or (checkpoint / STREAM_FILE).exists()


def _refuse_another_recipe(recipe: Recipe, earlier: Recipe) -> None:
    # On another machine the data may lie in another folder.
    now, before = (published_recipe(one).values() for one in (recipe, earlier))
    for key in sorted(now.keys() | before.keys()):
        fixed = key not in FREE_TO_CHANGE and key.split(".")[0] not in FREE_SECTIONS
        if fixed and now.get(key) != before.get(key):
            raise ValueError(
                f"`{key}` is {now.get(key)!r}, but the run in '{recipe.output_dir}' that is to be resumed has "
                f"{before.get(key)!r}; give it the same value or choose another `--output_dir`."
            )
