"""Loads a recipe from YAML files and from the command line.

A recipe can extend another recipe. The keys of a recipe override the keys of the recipe that it extends. Keys
on the command line override the keys of all files.
"""

import os
import re
import types
import typing
from pathlib import Path
from typing import Any

import yaml

from ..model.errors_vaswani import InvalidValueError
from ..packaged import find_recipe, similar_recipes
from ..settings.base import format_value
from ..settings.names import SYNONYMS, suggestion
from ..user_code import run_user_code
from .recipe import SECTIONS, Recipe, make_recipe, recipe_classes, task_of


class _Loader(yaml.SafeLoader):
    """A YAML 1.1 loader with two changes: 7e-4 is a number instead of text, and a repeated key raises an
    error.
    """

    # The words of an error message that name the YAML file, such as " of 'base.yaml'". `of_file` is empty for
    # the recipe file that the user has given. An error message names the file only if another recipe extends
    # the file.
    of_file = ""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise InvalidValueError(
                    f"`{key}` occurs twice in the mapping that begins in line "
                    f"{node.start_mark.line + 1}{self.of_file}; give the key only once."
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_recipe(
    path: str | Path, overrides: list[str] | None = None, *, needs_data: bool = True, is_record: bool = False
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
        is_record (bool): True if the file is a recipe.yaml that a run has written. For a recipe.yaml of a
            run, the function ignores keys of other tasks, and does not execute the Python file of
            `model.code`. The function also accepts a BLEU tokenizer that is not installed.

    Returns:
        Recipe: The recipe. The class of the recipe depends on the task of the recipe.

    Raises:
        ValueError: If the file cannot be read, a key is unknown, or a value is not permitted. The error message
            is one sentence.
    """
    content = _extended(find_recipe(path), ())
    for key, text in _pairs(overrides or []):
        _override(content, key, text)
    task = task_of(content)
    _refuse_unknown_keys(content, task)
    if not is_record:
        _refuse_keys_of_other_tasks(content, task)
        _run_code(content)
    recipe = make_recipe(_without_keys_of_other_tasks(content, task))
    if needs_data:
        recipe.data.require_source()
    if not is_record:
        recipe.evaluation.check_dependencies()
    return recipe


def _run_code(content: dict[str, Any]) -> None:
    """Execute the Python file of the key `model.code`. The file can register new values for other recipe
    keys, such as a new attention function for `model.attention_score`.
    """
    model = content.get("model", {})
    if isinstance(model.get("code"), str):
        # Make the path absolute, because a path from the command line is relative to the current folder.
        model["code"] = os.path.abspath(model["code"])
        run_user_code(model["code"], "model.code")


def load_record(path: Path) -> Recipe:
    """Load the recipe.yaml that a run has written."""
    try:
        return load_recipe(path, is_record=True)
    except ValueError as error:
        raise ValueError(f"The record '{path}' cannot be used: {error}") from error


def readable_record(path: Path | None) -> Recipe | None:
    """Read the recipe.yaml that a run has written.

    Return None if `path` is None, or if this version of the package cannot read the recipe.
    """
    try:
        return load_recipe(path, needs_data=False, is_record=True) if path else None
    except ValueError:
        return None


def _extended(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """Return the keys of a recipe file, merged with the keys of the file that it extends.

    `extending` lists the recipe files that extend `path`, directly or through other files. Each file in
    `extending` extends the next file, and the last file in `extending` extends the file `path`.
    """
    content = _read_recipe(path, extending[-1] if extending else None)
    if "extends" not in content:
        return content
    name = content.pop("extends")
    if not isinstance(name, str):
        raise InvalidValueError(
            f"`extends` in '{path}' must be text, the path of a recipe relative to '{path.parent}', but is "
            f"{name!r}."
        )
    base = find_recipe(name, path.parent)
    files = (*extending, path)
    if base.resolve() in [file.resolve() for file in files]:
        circle = " extends ".join(f"'{file}'" for file in (*files, base))
        raise InvalidValueError(
            f"`extends: {name}` in '{path}' creates a circle, {circle}; remove one `extends`."
        )
    return _merged(_extended(base, files), content)


def _read_recipe(path: Path, extending: Path | None) -> dict[str, Any]:
    """Return the content of one recipe file. Each section in the file is a dict.

    The path of the Python file in `model.code` becomes absolute. `extending` is the recipe file that extends
    `path`, or None.
    """
    content = read_mapping(path, extending)
    for section in SECTIONS:
        if section not in content:
            continue
        if content[section] is None:
            # YAML reads a section without keys as null.
            content[section] = {}
        if not isinstance(content[section], dict):
            raise InvalidValueError(
                f"`{section}` in '{path}' must be a mapping of keys to values, but is {content[section]!r}."
            )
    model = content.get("model", {})
    if isinstance(model.get("code"), str):
        model["code"] = os.path.abspath(path.parent / model["code"])
    return content


def _merged(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Merge the keys of a recipe with the keys of the recipe that it extends.

    Values of `content` override values of `base`. Nested mappings are merged key by key.
    """
    merged = dict(base)
    for key, value in content.items():
        earlier = base.get(key)
        if isinstance(earlier, dict) and isinstance(value, dict):
            merged[key] = _merged(earlier, value)
        else:
            merged[key] = value
    return merged


def read_mapping(path: Path, extending: Path | None = None) -> dict[str, Any]:
    """Return the content of a YAML file. `extending` is the recipe whose key `extends` names the file, or
    None. If the file cannot be opened, the error message suggests a correction of `extends` in the file
    `extending`. If `extending` is None, the error message suggests packaged recipes with similar names.
    """
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.of_file = f" of '{path}'" if extending else ""
        content = loader.get_single_data()
    except InvalidValueError:
        raise
    except OSError as error:
        similar = similar_recipes(path)
        remedy = f"; the package has recipes with the names {', '.join(similar)}" if similar else ""
        if extending is not None:
            remedy = f"; correct `extends` in '{extending}', a path relative to this file"
        raise InvalidValueError(f"The recipe '{path}' cannot be read: {error.strerror}{remedy}.") from error
    except (yaml.YAMLError, ValueError) as error:
        # PyYAML raises a ValueError for an impossible date.
        raise InvalidValueError(f"The recipe '{path}' is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InvalidValueError(
            f"The recipe '{path}' must be a mapping of keys to values, but is {type(content).__name__}."
        )
    return content


def _key_types() -> dict[str, dict[str, Any]]:
    """Return a dict that maps each task to a dict of its recipe keys. Each inner dict maps the recipe keys of
    one task to the types of their values. A key in a section has the form `section.key`.
    """
    types_of_tasks = {}
    for task, recipe in recipe_classes().items():
        kinds: dict[str, Any] = {}
        for name, field in recipe.model_fields.items():
            if name in SECTIONS:
                section: Any = field.annotation
                kinds |= {f"{name}.{key}": entry.annotation for key, entry in section.model_fields.items()}
            else:
                kinds[name] = field.annotation
        types_of_tasks[task] = kinds
    return types_of_tasks


def _key_types_of_all_tasks() -> dict[str, Any]:
    """Return a dict that maps each key (`section.key`) of any task to the type of its value."""
    kinds: dict[str, Any] = {}
    for of_task in _key_types().values():
        kinds |= of_task
    return kinds


def _values_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return a dict that maps each key in the content of a recipe to its value. A key in a section has the
    form `section.key`.
    """
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name in SECTIONS:
            values |= {f"{name}.{key}": of_key for key, of_key in value.items()}
        else:
            values[str(name)] = value
    return values


def _refuse_unknown_keys(content: dict[str, Any], task: str) -> None:
    """Raise an `InvalidValueError` if a key of a recipe is unknown for every task."""
    known = _key_types_of_all_tasks()
    for place, value in _values_of(content).items():
        if place not in known:
            raise InvalidValueError(_unknown_key(place, value, _key_types()[task]))


def _refuse_keys_of_other_tasks(content: dict[str, Any], task: str) -> None:
    """Raise an `InvalidValueError` if a recipe has a key of another task, except if the value of the key is
    null or empty.
    """
    of_tasks = _key_types()
    for place, value in _values_of(content).items():
        if place in of_tasks[task] or value in (None, "", []):
            continue
        owners = " and ".join(f"`task: {name}`" for name, of_task in of_tasks.items() if place in of_task)
        raise InvalidValueError(
            f"`{place}` belongs to {owners}, but is {format_value(value)} in a recipe of `task: {task}`; "
            "leave the key out."
        )


def _without_keys_of_other_tasks(content: dict[str, Any], task: str) -> dict[str, Any]:
    """Return the content of a recipe without the keys `section.key` that belong only to other tasks."""
    known = _key_types()[task]
    kept: dict[str, Any] = {}
    for name, value in content.items():
        if name in SECTIONS:
            kept[name] = {key: of_key for key, of_key in value.items() if f"{name}.{key}" in known}
        else:
            kept[name] = value
    return kept


def _unknown_key(place: str, value: Any, places: typing.Iterable[str]) -> str:
    """Return the error message for an unknown key. `places` are the keys that the recipe may have.

    The message names the sections that have a key with the same name, or else a similar key.
    """
    key = place.split(".")[-1]
    hint = " or ".join(f"`{found}`" for found in _named(key, places))
    if hint:
        hint = f"; write {hint}"
    else:
        # If `SYNONYMS` contains the unknown key, such as `lr` from another toolkit, do not suggest a similar
        # key of the same section. The spelling of the right key, such as `learning_rate`, can be very
        # different from the unknown key.
        section = place.rpartition(".")[0]
        candidates = [*places, *SECTIONS, "extends"]
        in_section = [candidate for candidate in candidates if candidate.rpartition(".")[0] == section]
        similar = None if key in SYNONYMS else _similar_key(key, in_section)
        similar = similar or _similar_key(key, places)
        hint = "" if similar is None else f"; the nearest key is `{similar}`"
    return f"`{place}` is not a key of a recipe, but has the value {format_value(value)}{hint}."


def _similar_key(key: str, places: typing.Iterable[str]) -> str | None:
    """Return the full name of the key that a user may mean by an unknown key."""
    by_key = {place.split(".")[-1]: place for place in places}
    similar = suggestion(key, by_key)
    return None if similar is None else by_key[similar]


def _named(key: str, places: typing.Iterable[str]) -> list[str]:
    """Return all full names in `places`, such as `training.max_steps`, whose last part is the argument `key`."""
    return [place for place in places if place.split(".")[-1] == key]


def _pairs(overrides: list[str]) -> list[tuple[str, str]]:
    """Convert words of the command line, such as `["--key", "value"]` or `["--key=value"]`, to pairs of a key
    and a value.
    """
    words = [part for word in overrides for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name in words[::2]:
        if not name.startswith("--"):
            raise InvalidValueError(f"Expected `--key value`, but found '{name}' where a key should be.")
    for name in words[::2]:
        if words[::2].count(name) > 1:
            raise InvalidValueError(f"`{name}` is given twice; give it only once.")
    if len(words) % 2:
        raise InvalidValueError(f"`{words[-1]}` needs a value.")
    return [(name.removeprefix("--"), value) for name, value in zip(words[::2], words[1::2], strict=True)]


def _full_name(key: str) -> str:
    """Return the full name `section.key` of a key from the command line, where the section may be left
    out.
    """
    places = _key_types_of_all_tasks()
    found = [key] if key in places else _named(key, places)
    if not found:
        names = [place.split(".")[-1] for place in places]
        similar = suggestion(key.split(".")[-1], names)
        hint = "" if similar is None else f"; the nearest key is `--{similar}`"
        raise InvalidValueError(f"`--{key}` is not a key of a recipe{hint}.")
    if len(found) > 1:
        choices = " or ".join(f"`--{place}`" for place in found)
        raise InvalidValueError(f"`--{key}` may mean several keys; write {choices}.")
    return found[0]


def _override(content: dict[str, Any], key: str, text: str) -> None:
    """Set a key in the content of a recipe to a value from the command line."""
    place = _full_name(key)
    section, _, name = place.rpartition(".")
    target = content.setdefault(section, {}) if section else content
    target[name] = _value_of(key, text, _key_types_of_all_tasks()[place])


def _value_of(key: str, text: str, kind: Any) -> Any:
    """Convert a word of the command line to a value of the type `kind`."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    options = typing.get_args(kind) if is_union else (kind,)
    is_nullable = type(None) in options
    if text == "None" or (text == "null" and is_nullable):
        return None if is_nullable else text
    lists = [option for option in options if typing.get_origin(option) is list]
    is_list = bool(lists) and ("," in text or (text.startswith("[") and text.endswith("]")))
    if str in options and not text.startswith("{") and (not is_list or os.path.exists(text)):
        # Do not split the name of an existing file at its commas.
        return text
    if lists and not text.startswith("[") and (is_list or len(options) == 1):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return parts if str in typing.get_args(lists[0]) else [_yaml_value(key, part) for part in parts]
    return _yaml_value(key, text)


def _yaml_value(key: str, text: str) -> Any:
    """Parse a word of the command line as YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except InvalidValueError:
        raise
    except (yaml.YAMLError, ValueError):
        # PyYAML raises a ValueError for an impossible date.
        raise InvalidValueError(
            f"`--{key}` must be a value of YAML, but is {text!r}; close its brackets and quotes."
        ) from None
