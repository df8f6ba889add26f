"""Loads a recipe from YAML files and from the command line.

A recipe can extend another recipe. The keys of a recipe override the keys of the recipe that it extends. Keys
on the command line override the keys of all files.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model.errors_vaswani import InvalidValueError
from ..packaged import find_recipe
from ..settings.base import format_value
from ..user_code import run_user_code
from .key_names import FullName, key_types_by_task, key_types_of_all_tasks, unknown_key_error
from .overrides import parse_overrides
from .recipe import SECTIONS, Recipe, make_recipe, task_of
from .yaml_files import read_mapping

# The keys of a recipe with their values, not yet validated. The value of a section is the dict of its keys.
RecipeContent = dict[str, Any]


def load_recipe(
    path: str | Path,
    overrides: list[str] | None = None,
    *,
    needs_data: bool = True,
    is_recorded: bool = False,
) -> Recipe:
    """Load a recipe, and validate its keys and values.

    Example:
        >>> recipe = load_recipe("numbers", ["--max_steps", "500"])
        >>> recipe.task, recipe.training.max_steps
        ('translation', 500)

    Args:
        path (str or Path): A YAML file, or the name of a recipe of the package, such as "numbers". The key
            `extends` in the file can name another recipe: a path relative to the file, or the name of a
            recipe of the package.
        overrides (list, optional): Keys and values that override values of the file, such as `["--key",
            "value"]`. A key is `section.key`, or `key` if only one section has the key.
        needs_data (bool): True if the recipe must name training data. `vaswani plan` passes
            `needs_data=False`, because planning a run reads no data.
        is_recorded (bool): True if the file is a recipe.yaml that a run has written. For a recipe.yaml of a
            run, the function ignores keys of other tasks, and does not execute the Python file of
            `model.code`. The function also accepts a BLEU tokenizer that is not installed.

    Returns:
        Recipe: The recipe. The class of the recipe depends on the task of the recipe.

    Raises:
        ValueError: If the file cannot be read, a key is unknown, or a value is not permitted. The error
            message is one sentence.
    """
    content = _read_with_bases(find_recipe(path))
    for name, value in parse_overrides(overrides or []).items():
        _set_value(content, name, value)
    # A path on the command line is relative to the current folder.
    _make_code_absolute(content, Path())
    task = task_of(content)
    _refuse_unknown_keys(content, task)
    if not is_recorded:
        _refuse_keys_of_other_tasks(content, task)
        _run_code(content)
    recipe = make_recipe(_keys_of_task(content, task))
    if needs_data:
        recipe.data.require_source()
    if not is_recorded:
        recipe.evaluation.check_dependencies()
    return recipe


def _read_with_bases(path: Path) -> RecipeContent:
    """Return the content of a recipe file, merged with the contents of the recipes that it extends."""
    files = [path]
    contents = [_read_file(path)]
    while "extends" in contents[-1]:
        extends = contents[-1].pop("extends")
        files.append(_base_of(extends, files))
        contents.append(_read_file(files[-1], extending=files[-2]))
    merged = contents.pop()
    for content in reversed(contents):
        merged = _merged(merged, content)
    return merged


def _read_file(path: Path, extending: Path | None = None) -> RecipeContent:
    """Return the content of one recipe file. `extending` is the recipe file that extends this file, or
    None.
    """
    content = read_mapping(path, extending)
    for section in SECTIONS:
        # Replace null by an empty dict, because YAML reads a section without keys as null.
        if section in content and content[section] is None:
            content[section] = {}
        if not isinstance(content.get(section, {}), dict):
            raise InvalidValueError(
                f"`{section}` in '{path}' must be a mapping of keys to values, but is {content[section]!r}."
            )
    _make_code_absolute(content, path.parent)
    return content


def _base_of(extends: Any, files: list[Path]) -> Path:
    """Return the recipe that the last file in `files` extends. Each file in `files` extends the next file in
    `files`.
    """
    path = files[-1]
    if not isinstance(extends, str):
        raise InvalidValueError(
            f"`extends` in '{path}' must be text, the path of a recipe relative to '{path.parent}', but is "
            f"{extends!r}."
        )
    base = find_recipe(extends, path.parent)
    if base.resolve() in [file.resolve() for file in files]:
        circle = " extends ".join(f"'{file}'" for file in (*files, base))
        raise InvalidValueError(
            f"`extends: {extends}` in '{path}' creates a circle, {circle}; remove one `extends`."
        )
    return base


def _merged(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return the values of `base`, overridden by `content`. Nested mappings are merged key by key."""
    merged = dict(base)
    for key, value in content.items():
        earlier = base.get(key)
        if isinstance(earlier, dict) and isinstance(value, dict):
            merged[key] = _merged(earlier, value)
        else:
            merged[key] = value
    return merged


def _set_value(content: RecipeContent, name: FullName, value: Any) -> None:
    section, _, key = name.rpartition(".")
    keys = content.setdefault(section, {}) if section else content
    keys[key] = value


def _named_values(content: RecipeContent) -> Iterator[tuple[FullName, Any]]:
    """Yield the full name and the value of each key: first the keys outside sections, then the keys in
    sections.
    """
    for key, value in content.items():
        if key not in SECTIONS:
            yield FullName(str(key)), value
    for section in SECTIONS:
        for key, value in content.get(section, {}).items():
            yield FullName(f"{section}.{key}"), value


def _keys_of_task(content: RecipeContent, task: str) -> RecipeContent:
    """Return the content without the keys that exist only in the recipes of other tasks."""
    known = key_types_by_task()[task]
    of_task = dict(content)
    for section in SECTIONS:
        if section in content:
            keys = content[section].items()
            of_task[section] = {key: value for key, value in keys if f"{section}.{key}" in known}
    return of_task


def _make_code_absolute(content: RecipeContent, folder: Path) -> None:
    """Make the path in `model.code` absolute. A relative path is relative to `folder`."""
    model = content.get("model", {})
    if isinstance(model.get("code"), str):
        model["code"] = os.path.abspath(folder / model["code"])


def _run_code(content: RecipeContent) -> None:
    """Execute the Python file in `model.code`, because the file can register attention functions and position
    encodings that the recipe names.
    """
    code = content.get("model", {}).get("code")
    if isinstance(code, str):
        run_user_code(code, "model.code")


def _refuse_unknown_keys(content: RecipeContent, task: str) -> None:
    """Raise an `InvalidValueError` if a recipe has a key that no task has."""
    known = key_types_of_all_tasks()
    for name, value in _named_values(content):
        if name not in known:
            raise unknown_key_error(name, value, key_types_by_task()[task])


def _refuse_keys_of_other_tasks(content: RecipeContent, task: str) -> None:
    """Raise an `InvalidValueError` for a key of another task, unless its value is null or empty."""
    by_task = key_types_by_task()
    for name, value in _named_values(content):
        if name in by_task[task] or value in (None, "", []):
            continue
        owners = " and ".join(f"`task: {other}`" for other, types in by_task.items() if name in types)
        raise InvalidValueError(
            f"`{name}` belongs to {owners}, but is {format_value(value)} in a recipe of `task: {task}`; "
            "leave the key out."
        )


def load_recorded_recipe(path: Path) -> Recipe:
    """Load the recipe.yaml that a run has written."""
    try:
        return load_recipe(path, is_recorded=True)
    except ValueError as error:
        raise ValueError(f"The record '{path}' cannot be used: {error}") from error


def try_load_recorded_recipe(path: Path | None) -> Recipe | None:
    """Read the recipe.yaml of a run. Return None if `path` is None or this version cannot read the file."""
    try:
        return load_recipe(path, needs_data=False, is_recorded=True) if path else None
    except ValueError:
        return None
