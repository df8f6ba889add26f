"""The record that a run keeps of itself: its data and its recipe, without local paths. Not its corpus."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml

from ..checkpoint.files import recipe_file
from ..recipe import Recipe, load_recipe
from ..recipe.licenses import data_license
from ..recipe.published import is_on_hub, last_part, published_recipe
from ..recipe.schema import DataSection


def read_record(path: Path) -> dict[str, Any]:
    """The content of a JSON file of a run; empty if there is none.

    Args:
        path (Path): The file.

    Raises:
        ValueError: If it is no JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"The record '{path}' must hold a JSON object, but does not; restore it or remove it.")
    return content


def recorded_recipe(folder: Path) -> Recipe | None:
    """The recipe that the run of a checkpoint has recorded; None if there is none.

    Args:
        folder (Path): The checkpoint.

    Raises:
        ValueError: If it is no recipe.
    """
    path = recipe_file(folder)
    try:
        return load_recipe(path, is_record=True) if path else None
    except ValueError as error:
        raise ValueError(f"The record '{path}' cannot be used: {error}") from error


def published_yaml(folder: Path, license: str | None = None) -> str | None:
    """The recorded recipe as others may see it: YAML that `load_recipe` reads, with its keys and no others; None without one.

    Args:
        folder (Path): The checkpoint; an older version of the package recorded fewer keys.
        license (str, optional): The licence that the model is published under, in place of the recipe's.
    """
    path, recorded = recipe_file(folder), recorded_recipe(folder)
    if path is None or recorded is None:
        return None
    recipe = published_recipe(recorded)
    recipe.publishing.license = license or recipe.publishing.license
    recorded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return yaml.safe_dump(_restricted(dataclasses.asdict(recipe), recorded), sort_keys=False, allow_unicode=True)


def _restricted(content: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _restricted(value, keys[key] or {}) if isinstance(value, dict) else value
        for key, value in content.items()
        if key in keys
    }


def data_facts(data: DataSection) -> dict[str, Any]:
    """The data of a run, without the folders that it lies in.

    Args:
        data (DataSection): The `data` section of the recipe.

    Returns:
        dict: `source_language`, `target_language`, `language`, `license`, `attribution`, and for each of `train`, `validation` and
        `test` None or a dict of `name`, `files`, `dataset` (where it is one of the Hub), `config`, `revision` and
        `split`, as far as they apply.
    """
    facts: dict[str, Any] = {"source_language": data.source_language, "target_language": data.target_language}
    facts |= {"language": data.language, "license": data_license(data), "attribution": data.attribution}
    return facts | {split: _split_facts(data, split) for split in ("train", "validation", "test")}


def _split_facts(data: DataSection, split: str) -> dict[str, Any] | None:
    if data.corpus:
        return {"name": data.corpus, "split": split}
    files = [last_part(path) for path in data.files(split)]
    if files:
        weights = {"weights": data.train_weights} if split == "train" and data.train_weights else {}
        return {"name": files[0], "files": files, **weights}
    name = getattr(data, f"{split}_split")
    if not (data.dataset and name):
        return None
    facts: dict[str, str | None] = {"name": last_part(data.dataset)}
    if is_on_hub(data.dataset):
        facts = {"name": data.dataset, "dataset": data.dataset, "revision": data.dataset_revision}
    facts |= {"config": data.dataset_config, "split": name}
    return {key: value for key, value in facts.items() if value}
