"""The full names of all recipe keys, the types of their values, and the error about an unknown name."""

from collections.abc import Iterable
from typing import Any, NewType

from ..model.errors_vaswani import InvalidValueError
from ..settings.base import format_value
from ..settings.names import SYNONYMS, suggestion
from .recipe import SECTIONS, recipe_classes

# The name of a recipe key with its section, such as "training.max_steps". The full name of a key outside of
# all sections, such as "seed", is the key itself.
FullName = NewType("FullName", str)
# Maps the full names of keys to the types of their values.
KeyTypes = dict[FullName, Any]


def key_types_by_task() -> dict[str, KeyTypes]:
    """Return a dict that maps each task to the keys of its recipes, with the types of their values."""
    by_task = {}
    for task, recipe in recipe_classes().items():
        types: KeyTypes = {}
        for name, field in recipe.model_fields.items():
            if name not in SECTIONS:
                types[FullName(name)] = field.annotation
                continue
            section: Any = field.annotation
            for key, key_field in section.model_fields.items():
                types[FullName(f"{name}.{key}")] = key_field.annotation
        by_task[task] = types
    return by_task


def key_types_of_all_tasks() -> KeyTypes:
    """Return the keys of the recipes of all tasks, with the types of their values."""
    types: KeyTypes = {}
    for of_task in key_types_by_task().values():
        types |= of_task
    return types


def full_name_of_option(key: str) -> FullName:
    """Return the full name of a key from the command line. The section of the key can be left out."""
    known = key_types_of_all_tasks()
    found = [name for name in known if name == key] or _with_last_part(key, known)
    if not found:
        similar = suggestion(_last_part(key), [_last_part(name) for name in known])
        hint = "" if similar is None else f"; the nearest key is `--{similar}`"
        raise InvalidValueError(f"`--{key}` is not a key of a recipe{hint}.")
    if len(found) > 1:
        choices = " or ".join(f"`--{name}`" for name in found)
        raise InvalidValueError(f"`--{key}` may mean several keys; write {choices}.")
    return found[0]


def unknown_key_error(name: FullName, value: Any, known: Iterable[FullName]) -> InvalidValueError:
    """Return the error about a key that is not in `known`. The message suggests a similar key of `known`, if
    there is one.
    """
    key = _last_part(name)
    same = _with_last_part(key, known)
    hint = ""
    if same:
        hint = "; write " + " or ".join(f"`{found}`" for found in same)
    elif similar := _similar_in_section(name, known) or _similar(key, known):
        hint = f"; the nearest key is `{similar}`"
    return InvalidValueError(f"`{name}` is not a key of a recipe, but is set to {format_value(value)}{hint}.")


def _similar_in_section(name: FullName, known: Iterable[FullName]) -> str | None:
    """Return a key of the same section with a similar name, or None."""
    key = _last_part(name)
    if key in SYNONYMS:
        # For a synonym, such as `lr` for `learning_rate`, a key with a similar spelling would be a wrong
        # suggestion.
        return None
    section = _section(name)
    return _similar(key, [other for other in [*known, *SECTIONS, "extends"] if _section(other) == section])


def _similar(key: str, names: Iterable[str]) -> str | None:
    """Return the full name in `names` whose last part (the key without its section) is similar to `key`."""
    by_key = {_last_part(name): name for name in names}
    similar = suggestion(key, by_key)
    return None if similar is None else by_key[similar]


def _with_last_part(key: str, names: Iterable[FullName]) -> list[FullName]:
    """Return the full names, such as `training.max_steps`, whose last part is `key`."""
    return [name for name in names if _last_part(name) == key]


def _last_part(name: str) -> str:
    return name.split(".")[-1]


def _section(name: str) -> str:
    return name.rpartition(".")[0]
