"""The tasks of a recipe, and the keys that belong to some of them only."""

import dataclasses
from typing import Any

from .schema import (
    TASKS_OF_KEYS,
    TEXT_TASKS,
    DataSection,
    DecodingSection,
    EvaluationSection,
    Recipe,
    TokenizerSection,
    TrainingSection,
)

_SECTIONS: dict[str, Any] = {
    "data": DataSection,
    "tokenizer": TokenizerSection,
    "training": TrainingSection,
    "decoding": DecodingSection,
    "evaluation": EvaluationSection,
}
_NEEDED = {"translation": ("source_language", "target_language"), "parsing": ("language",)}


def settle_task(recipe: Recipe) -> Recipe:
    """A recipe in which the sizes of batches that its task does not have follow from the one that it has.

    A parser has two vocabularies.

    Args:
        recipe (Recipe): As it was written.

    Returns:
        Recipe: As it is recorded.
    """
    if recipe.task == "parsing":
        # Symbols of trees are no words of the language.
        return dataclasses.replace(recipe, tokenizer=dataclasses.replace(recipe.tokenizer, shared_vocabulary=False))
    tokens = recipe.training.text_tokens_per_batch
    if recipe.task not in TEXT_TASKS or tokens is None:
        return recipe
    default, training = TrainingSection(), recipe.training
    names = ("source_tokens_per_batch", "target_tokens_per_batch")
    own: dict[str, Any] = {name: tokens for name in names if getattr(training, name) == getattr(default, name)}
    return dataclasses.replace(recipe, training=dataclasses.replace(training, **own))


def refuse_keys_of_other_tasks(task: str, values: dict[str, Any]) -> None:
    """Refuses keys that a task has not, even where their values are the defaults of other tasks.

    Args:
        task (str): That of the recipe.
        values (dict): The keys that are given by their places, `section.key`; None and what is empty
            count as not given.

    Raises:
        ValueError: If one belongs to other tasks.
    """
    for place, value in values.items():
        tasks = TASKS_OF_KEYS.get(place, (task,))
        if task not in tasks and value not in (None, "", []):
            raise ValueError(
                f"`{place}` belongs to {' and '.join(f'`task: {name}`' for name in tasks)}, but is {value!r} in a recipe of `task: "
                f"{task}`; leave it out."
            )


def check_task(recipe: Recipe) -> None:
    """Refuses a recipe that has keys of another task, or lacks those of its own.

    Args:
        recipe (Recipe): Keys and types are right already.

    Raises:
        ValueError: If it has or lacks one.
    """
    refuse_keys_of_other_tasks(recipe.task, _changed(recipe))
    for key in _NEEDED.get(recipe.task, ("language",)):
        if not getattr(recipe.data, key):
            raise ValueError(f"`data.{key}` must be given in the recipe, but is missing.")
    _check_text_batches(recipe)


def _check_text_batches(recipe: Recipe) -> None:
    training = recipe.training
    wanted = training.text_tokens_per_batch or TrainingSection.source_tokens_per_batch
    for key in ("source_tokens_per_batch", "target_tokens_per_batch"):
        if recipe.task in TEXT_TASKS and getattr(training, key) != wanted:
            raise ValueError(
                f"`training.{key}` belongs to tasks with two sides, but is {getattr(training, key)} in a recipe of `task: "
                f"{recipe.task}`; give `training.text_tokens_per_batch` instead."
            )


def _changed(recipe: Recipe) -> dict[str, Any]:
    """The values that are not the defaults, by their places; what `settle_task` has changed is nobody's wish."""
    values = recipe.values()
    defaults = {
        f"{section}.{key}": value
        for section, kind in _SECTIONS.items()
        for key, value in dataclasses.asdict(kind()).items()
    }
    settled = ("tokenizer.shared_vocabulary",) if recipe.task == "parsing" else ()
    return {place: value for place, value in values.items() if value != defaults.get(place) and place not in settled}
