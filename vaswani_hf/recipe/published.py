"""The published form of a recipe: the keys that others may see, with no folder of this machine in them.

It is what a card and a repository show (see publish/record.py), and what two machines can compare of one run.
"""

import dataclasses
import os
import re
from typing import Any, NamedTuple

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from .licenses import data_license, strictest
from .schema import PublishingSection, Recipe


def is_on_hub(dataset: str) -> bool:
    """True if `data.dataset` can only mean a repository of the Hub, because there is no folder of that name.

    Args:
        dataset (str): The value of the recipe.

    Returns:
        bool: True if so.
    """
    try:
        validate_repo_id(dataset)
    except HFValidationError:
        return False
    return not os.path.isdir(dataset)


class CardWords(NamedTuple):
    """What the metadata of a card says of a task: the Hub's name for it, its own, its tags, and its scores with their titles."""

    pipeline_tag: str | None
    task_type: str
    task_name: str
    tags: list[str]
    scores: dict[str, str]


_KINDS = ["vaswani", "transformer", "seq2seq"]
_TRANSLATION = CardWords(
    "translation", "translation", "Translation", ["translation", *_KINDS], {"bleu": "BLEU", "chrf": "chrF"}
)
_CARD_WORDS = {
    "parsing": CardWords(
        # The Hub has no such task.
        None,
        "constituency-parsing",
        "Constituency parsing",
        ["constituency-parsing", *_KINDS],
        {"f1": "labelled bracketing F1"},
    ),
    **{
        task: CardWords(
            tag, tag, name, [tag, *_KINDS[:2]], {"perplexity": "perplexity per token", "accuracy": "accuracy"}
        )
        for task, tag, name in (
            ("causal_lm", "text-generation", "Text generation"),
            ("masked_lm", "fill-mask", "Filling in hidden tokens"),
        )
    },
}


def card_words(recipe: Recipe | None) -> CardWords:
    """What the metadata of a card says of the task of a run.

    Args:
        recipe (Recipe, optional): The run, if it is recorded; else it was a translation.

    Returns:
        CardWords: Words.
    """
    return _CARD_WORDS.get(recipe.task if recipe else "", _TRANSLATION)


def model_license(recipe: Recipe) -> str | None:
    """The licence that the model of a run is published under; None where it is not known.

    Args:
        recipe (Recipe): The run.
    """
    of_model, of_data = recipe.publishing.license, data_license(recipe.data)
    # A model may be published under "other" where its data restricts what may be done with it.
    return strictest([of_model, of_data]) or of_model or of_data


def bases(recipe: Recipe) -> list[str]:
    """The models that a run begins with, as the recipe names them; one that both parts begin with is there once.

    Args:
        recipe (Recipe): The run.

    Returns:
        list: Folders and repositories of the Hub.
    """
    given = recipe.model.get("init_from") or {}
    return list(dict.fromkeys(given.values())) if isinstance(given, dict) else [given]


def base_repositories(recipe: Recipe) -> list[str]:
    """The repositories of the Hub whose models a run begins with.

    Args:
        recipe (Recipe): The run.

    Returns:
        list: user/name, without those that are folders.
    """
    return [name.partition("@")[0] for name in bases(recipe) if not is_folder_of_base(name)]


def is_folder_of_base(recorded: str) -> bool:
    """True if the model that a run has recorded as its beginning was a folder: by its whole path, or, published, by its name.

    Args:
        recorded (str): What `model.init_from` says in a record.
    """
    return os.path.isabs(recorded) or not re.search("[/@]", recorded)


def last_part(path: str) -> str:
    """The name of a file or folder, without the folders before it.

    Args:
        path (str): Any path.

    Returns:
        str: Its last part.
    """
    return os.path.basename(os.path.abspath(path)) or "root"


def _last_parts(paths: str | list[str]) -> str | list[str]:
    return last_part(paths) if isinstance(paths, str) else [last_part(path) for path in paths]


def _shown_base(name: str) -> str:
    return last_part(name) if os.path.isabs(name) else name


def published_recipe(recipe: Recipe) -> Recipe:
    """The recipe that others may see: without folders, and without the repository that its owner pushes to.

    Args:
        recipe (Recipe): The run.

    Returns:
        Recipe: Files by their names, `output_dir` by its last part.
    """
    data = recipe.data
    paths = [
        f"{split}_{kind}"
        for split in ("train", "validation", "test")
        for kind in ("source", "target", "pairs", "text", "trees")
    ]
    names: dict[str, Any] = {name: _last_parts(getattr(data, name)) for name in paths if getattr(data, name)}
    if data.dataset and not is_on_hub(data.dataset):
        names["dataset"] = last_part(data.dataset)
    model = dict(recipe.model)
    begun = model.get("init_from")
    if isinstance(begun, dict):
        model["init_from"] = {part: _shown_base(name) for part, name in begun.items()}
    elif begun:
        model["init_from"] = _shown_base(begun)
    return dataclasses.replace(
        recipe,
        output_dir=last_part(recipe.output_dir),
        model=model,
        data=dataclasses.replace(data, **names),
        publishing=PublishingSection(license=recipe.publishing.license),
    )
