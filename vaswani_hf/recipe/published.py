"""The published form of a recipe: without the folders of this machine and the repository of its owner.

The card and the repository show it, and two machines compare it when a run is resumed.
"""

import dataclasses
import os
import re
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from .schema import PublishingSection, Recipe


def is_on_hub(dataset: str) -> bool:
    """True if `data.dataset` can only be a repository of the Hub, because there is no folder of that name."""
    try:
        validate_repo_id(dataset)
    except HFValidationError:
        return False
    return not os.path.isdir(dataset)


def bases(recipe: Recipe) -> list[str]:
    """The folders and repositories of the models that a run begins with, each one once."""
    given = recipe.model.get("init_from") or {}
    return list(dict.fromkeys(given.values())) if isinstance(given, dict) else [given]


def is_folder_of_base(recorded: str) -> bool:
    """True if a recorded `model.init_from` is a folder: an absolute path, or its last part if published."""
    return os.path.isabs(recorded) or not re.search("[/@]", recorded)


def last_part(path: str) -> str:
    """The name of a file or folder without the folders above it."""
    return os.path.basename(os.path.abspath(path)) or "root"


def _last_parts(paths: str | list[str]) -> str | list[str]:
    return last_part(paths) if isinstance(paths, str) else [last_part(path) for path in paths]


def _published_base(name: str) -> str:
    return last_part(name) if os.path.isabs(name) else name


def published_recipe(recipe: Recipe) -> Recipe:
    """The recipe as others may see it: files and folders by their last part, and no repository to push to."""
    data = recipe.data
    places: dict[str, Any] = {}
    for split in ("train", "validation", "test"):
        for kind in ("source", "target", "pairs", "text", "trees"):
            key = f"{split}_{kind}"
            if getattr(data, key):
                places[key] = _last_parts(getattr(data, key))
    if data.dataset and not is_on_hub(data.dataset):
        places["dataset"] = last_part(data.dataset)
    model = dict(recipe.model)
    base = model.get("init_from")
    if isinstance(base, dict):
        model["init_from"] = {part: _published_base(name) for part, name in base.items()}
    elif base:
        model["init_from"] = _published_base(base)
    return dataclasses.replace(
        recipe,
        output_dir=last_part(recipe.output_dir),
        model=model,
        data=dataclasses.replace(data, **places),
        publishing=PublishingSection(license=recipe.publishing.license),
    )
