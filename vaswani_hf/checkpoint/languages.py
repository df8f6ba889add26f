"""Reads the source language and the target language of a checkpoint from recipe.yaml or results.json."""

from pathlib import Path
from typing import Any

import yaml

from .files import recipe_file
from .results import read_results


def languages_to(target: str, languages: tuple[str, str]) -> tuple[str, str]:
    """Return the source language and `target`, the language of a tag such as `>>en<<`. `languages` are the
    languages of the model. If `target` is the model's source language, the model translates in reverse.
    """
    source, other = languages
    return (other, source) if target == source else (source, target)


def recorded_languages(folder: Path) -> tuple[str, str] | None:
    """Return the source language and the target language that a checkpoint records, or None.

    `vaswani train` records the languages in recipe.yaml, and `vaswani import` in results.json. recipe.yaml is
    read as plain YAML, because the import of the recipe classes takes seconds.
    """
    recipe = recipe_file(folder)
    records: list[Any] = []
    try:
        if recipe is not None:
            records.append(yaml.safe_load(recipe.read_text(encoding="utf-8")))
        records.append(read_results(folder).as_json())
    except (ValueError, yaml.YAMLError):
        # Ignore a damaged file, because the user can name the languages in an option of the command.
        pass
    for record in records:
        data = record.get("data") if isinstance(record, dict) else None
        if isinstance(data, dict) and data.get("source_language") and data.get("target_language"):
            return str(data["source_language"]), str(data["target_language"])
    return None
