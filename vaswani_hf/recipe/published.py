"""Reads the recipe in the folder of a run, and converts a recipe to the form that is published with the
model.

The published form of a recipe contains file names without folders, and does not contain the repository to
which a run pushes. To compare its recipe with the saved recipe, a resumed run converts both recipes to the
published form. Therefore a run can be resumed on a machine on which the data files are in other folders.
"""

import os
import re
from pathlib import Path
from typing import Any

from ..checkpoint.files import recipe_file
from ..settings.data import DataSettings, is_on_hub, last_part
from ..settings.sections import InitFrom, ModelSettings, PublishingSettings
from .licenses import check_license, data_license
from .loading import load_recorded_recipe
from .recipe import Recipe


def is_folder_of_base(recorded: str) -> bool:
    """Return True if `model.init_from` of a saved or published recipe names a folder, and not a repository. A
    saved recipe contains the absolute path of the folder with the model. A published recipe contains only the
    name of the folder, without the parent folders.
    """
    return os.path.isabs(recorded) or not re.search("[/@]", recorded)


def published_recipe(recipe: Recipe) -> Recipe:
    """Return the published form of a recipe. Paths are shortened to their last parts, and the section
    `publishing` keeps only the licence and the examples.
    """
    return recipe.replace(
        output_dir=last_part(recipe.output_dir),
        model=_published_model(recipe.model),
        data=_published_data(recipe.data),
        publishing=PublishingSettings(license=recipe.publishing.license, examples=recipe.publishing.examples),
    )


def _published_model(model: ModelSettings) -> ModelSettings:
    changes: dict[str, Any] = {}
    if isinstance(model.init_from, InitFrom):
        bases = {stack: _published_base(name) for stack, name in model.init_from.by_stack().items()}
        changes["init_from"] = model.init_from.replace(**bases)
    elif model.init_from:
        changes["init_from"] = _published_base(model.init_from)
    if model.code:
        changes["code"] = last_part(model.code)
    return model.replace(**changes)


def _published_base(name: str) -> str:
    return last_part(name) if os.path.isabs(name) else name


def _published_data(data: DataSettings) -> DataSettings:
    changes: dict[str, Any] = {}
    for key in data.file_keys:
        paths = getattr(data, key)
        if paths:
            is_one = isinstance(paths, str)
            changes[key] = last_part(paths) if is_one else [last_part(path) for path in paths]
    dataset = getattr(data, "dataset", None)
    if dataset and not is_on_hub(dataset):
        changes["dataset"] = last_part(dataset)
    return data.replace(**changes)


def recorded_recipe(folder: Path) -> Recipe | None:
    """Return the recipe in the folder of a checkpoint, or None if the checkpoint has no recipe."""
    path = recipe_file(folder)
    return load_recorded_recipe(path) if path else None


def published_yaml(folder: Path, license: str | None = None) -> str | None:
    """Return a checkpoint's published recipe as YAML, or None if the checkpoint has no recipe. `license`
    replaces `publishing.license`.
    """
    recorded = recorded_recipe(folder)
    if recorded is None:
        return None
    recipe = published_recipe(recorded)
    check_license(license, data_license(recipe.data), "license")
    publishing = recipe.publishing.replace(license=license or recipe.publishing.license)
    return recipe.replace(publishing=publishing).to_yaml()
