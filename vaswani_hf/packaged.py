"""Finds the recipes and the template of model cards, which are part of the package.

This module imports no other module of the package, so that `vaswani recipes` answers without importing torch.
"""

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

_PACKAGE = Path(__file__).parent
# The folders of `configuration` with YAML files that are not recipes.
_OTHER_FOLDERS = ("ablations", "accelerate")


def packaged_folder(name: str) -> Path:
    """Return the folder `name`, which is `configuration` or `model_cards`. The folder is in the installed
    package or in a clone of the repository.
    """
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def packaged_recipes() -> dict[str, Path]:
    """Return the path of each recipe of the package, by a name such as "numbers" or "wmt14/base_en_de"."""
    folder = packaged_folder("configuration")
    names = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml")]
    names = [name for name in names if name.parts[0] not in _OTHER_FOLDERS]
    names.sort(key=lambda name: (len(name.parts), name))
    return {name.as_posix(): folder / f"{name}.yaml" for name in names}


def find_recipe(name: str | Path, folder: Path = Path()) -> Path:
    """Return the path of the file `name` in `folder`. If the file does not exist, but the package has a
    recipe called `name`, return the path of that recipe.
    """
    path = folder / name
    if path.is_file():
        return path
    return packaged_recipes().get(str(name), path)


def similar_recipes(name: str | Path) -> list[str]:
    """Return the names of recipes of the package that are similar to `name`, the most similar name first."""
    stem = str(name).removeprefix("configuration/").removesuffix(".yaml")
    return difflib.get_close_matches(stem, packaged_recipes(), n=3)


def describe_recipes() -> list[dict[str, str]]:
    """Return the name, purpose, data, task and path of each recipe of the package."""
    return [
        {"name": name, **_description(path.read_text(encoding="utf-8"), path), "path": str(path)}
        for name, path in packaged_recipes().items()
    ]


def _description(text: str, path: Path) -> dict[str, str]:
    content = _content(path)
    # The first line of a recipe names the JSON schema. The comment after the first line describes the recipe.
    comment = re.findall(r"^# (?!yaml-language-server)(.*)", text.split("\n\n")[1], re.MULTILINE)
    first_sentence = re.split(r"(?<=\.)\s(?!\d)", " ".join(comment), maxsplit=1)[0]
    return {
        "purpose": first_sentence,
        "data": _data_words(content),
        "task": content.get("task", "translation"),
    }


def _content(path: Path) -> dict[str, Any]:
    """Return a recipe of the package. If the recipe extends another recipe, the section `data` also contains
    the `data` keys of the other recipe.
    """
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "extends" in content:
        base = _content(path.parent / content["extends"])
        content = {**base, **content, "data": {**base["data"], **(content.get("data") or {})}}
    return content


def _data_words(content: dict[str, Any]) -> str:
    """Return a description of the data that a recipe needs."""
    data = content["data"]
    if data.get("corpus"):
        return "none, because the package generates the corpus"
    if data.get("dataset"):
        return f"the dataset {data['dataset']} of the Hub"
    files = data.get("train_trees")
    if files:
        return f"the files {', '.join(files)}"
    return "sentence pairs: --train_source and --train_target, or --train_pairs, or --dataset"
