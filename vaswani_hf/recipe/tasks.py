"""The tasks of a recipe, and the keys that belong to some of them only."""

import dataclasses
from typing import Any

from .schema import (
    TEXT_TASKS,
    DataSection,
    DecodingSection,
    EvaluationSection,
    Recipe,
    TokenizerSection,
    TrainingSection,
)

_PAIRS = ("translation",)
_STACKS = ("translation", "parsing")


def _places(section: str, keys: str, tasks: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {f"{section}.{key}": tasks for key in keys.split()}


# The tasks that a key belongs to; all others belong to all tasks.
_TASKS_OF_KEYS: dict[str, tuple[str, ...]] = {
    **_places("data", "source_language target_language train_source train_target train_pairs", _PAIRS),
    **_places("data", "validation_source validation_target validation_pairs", _PAIRS),
    **_places("data", "test_source test_target test_pairs both_directions max_length_ratio", _PAIRS),
    **_places("data", "train_text validation_text test_text text_column", TEXT_TASKS),
    **_places("data", "train_trees validation_trees test_trees trees_train_size", ("parsing",)),
    **_places("data", "language", (*TEXT_TASKS, "parsing")),
    **_places("data", "dataset dataset_config dataset_revision streaming train_weights", (*_PAIRS, *TEXT_TASKS)),
    **_places("tokenizer", "target_vocab_size shared_vocabulary bpe_dropout", _PAIRS),
    **_places("training", "text_tokens_per_batch", TEXT_TASKS),
    **_places("training", "r_drop_alpha simcut_alpha", _STACKS),
    **_places("evaluation", "tokenize lowercase validation_bleu", _PAIRS),
    **_places("decoding", " ".join(field.name for field in dataclasses.fields(DecodingSection)), _STACKS),
    **_places("model", "encoder_layers encoder_attention_heads encoder_ffn_dim", (*_STACKS, "masked_lm")),
    **_places("model", "decoder_layers decoder_attention_heads decoder_ffn_dim", (*_STACKS, "causal_lm")),
    **_places("model", "cross_attention_score", _STACKS),
}
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


def check_task(recipe: Recipe) -> None:
    """Refuses a recipe that has keys of another task, or lacks those of its own.

    Args:
        recipe (Recipe): Keys and types are right already.

    Raises:
        ValueError: If it has or lacks one.
    """
    values = recipe.values()
    for place, tasks in _TASKS_OF_KEYS.items():
        section, _, key = place.partition(".")
        default = getattr(_SECTIONS[section](), key) if section in _SECTIONS else None
        if place == "tokenizer.shared_vocabulary" and recipe.task == "parsing":
            continue
        if recipe.task not in tasks and values.get(place, default) != default:
            raise ValueError(
                f"`{place}` belongs to {' and '.join(f'`task: {task}`' for task in tasks)}, but is {values[place]!r} in a recipe "
                f"of `task: {recipe.task}`; leave it out."
            )
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
