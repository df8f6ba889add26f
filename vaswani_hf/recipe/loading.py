"""Loading a recipe: YAML over the YAML that it extends, and keys of the command line over both."""

import os
import re
import types
import typing
from pathlib import Path
from typing import Any

import yaml

from ..model.configuration_vaswani import nearest_name
from ..settings.base import Settings, shown
from .recipe import Recipe, make_recipe, recipe_classes, task_of


class _Loader(yaml.SafeLoader):
    """A loader that reads 7e-4 as a number, which YAML 1.1 reads as text, and refuses keys that are given twice."""

    # The words that name a file which another file extends.
    of_file = ""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(
                    f"`{key}` stands twice in line {node.start_mark.line + 1} and after{self.of_file}; keep one of them."
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_recipe(
    path: str | Path, overrides: list[str] | None = None, *, needs_data: bool = True, is_record: bool = False
) -> Recipe:
    """A recipe from a file, over the recipe that it extends, with keys of the command line over both.

    Args:
        path (str or Path): A YAML file; its key `extends`, if it has one, names another file, relative to this one.
        overrides (list, optional): `["--key", "value", …]`; a key is `section.key`, or the key alone.
        needs_data (bool): The recipe must say what it is trained on.
        is_record (bool): A run has recorded the recipe. Keys of other tasks are ignored, and the tokenizer of BLEU may
            be missing on this machine.

    Returns:
        Recipe: Of the class of its task; checked.

    Raises:
        ValueError: If the file cannot be read, or a key or its value is not possible. The message is one sentence.
    """
    content = _extended(Path(path), ())
    for key, text in _pairs(overrides or []):
        _override(content, key, text)
    # A section without keys is null in YAML.
    content = {key: {} if value is None and key in SECTIONS else value for key, value in content.items()}
    _refuse_unknown_keys(content, task_of(content), is_record=is_record)
    recipe = make_recipe(content)
    if needs_data:
        recipe.data.require_source()
    if not is_record:
        recipe.evaluation.check_dependencies()
    return recipe


def readable_record(path: Path | None) -> Recipe | None:
    """The recipe that the run of a model has recorded; None if there is none, or none that can be read.

    Another version of the package may have written the record.
    """
    try:
        return load_recipe(path, needs_data=False, is_record=True) if path else None
    except ValueError:
        return None


def _extended(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The keys of a file over those of the file that it extends. Each file of `extending` extends the next one."""
    content = read_mapping(path, extending[-1] if extending else None)
    for section in SECTIONS if extending else ():
        if not isinstance(content.get(section, {}), dict | None):
            raise ValueError(
                f"`{section}` in '{path}' must be a mapping of keys to values, but is {content[section]!r}."
            )
    if "extends" not in content:
        return content
    name = content.pop("extends")
    if not isinstance(name, str):
        raise ValueError(
            f"`extends` must be text, the name of a recipe relative to '{path}', where it stands, but is {name!r}."
        )
    base, files = path.parent / name, (*extending, path)
    if base.resolve() in [file.resolve() for file in files]:
        circle = " extends ".join(f"'{file}'" for file in (*files, base))
        raise ValueError(f"`extends: {name}` in '{path}' closes a circle, {circle}; leave one of them out.")
    return _merged(_extended(base, files), content)


def _merged(base: dict[str, Any], content: dict[str, Any], *, has_sections: bool = True) -> dict[str, Any]:
    """Two mappings as one: mappings are merged key by key, and all else is that of `content`."""
    merged = dict(base)
    for key, value in content.items():
        earlier = base.get(key)
        # A section without keys, which YAML reads as null, changes nothing.
        own = {} if has_sections and value is None and isinstance(earlier, dict) else value
        if isinstance(earlier, dict) and isinstance(own, dict):
            own = _merged(earlier, own, has_sections=False)
        merged[key] = own
    return merged


def read_mapping(path: Path, extending: Path | None = None) -> dict[str, Any]:
    """The keys of one YAML file, none of which may stand twice in a mapping."""
    remedy = f"; write into '{extending}' what `extends` means, relative to its folder" if extending else ""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.of_file = f", of '{path}'" if extending else ""
        content = loader.get_single_data()
    except OSError as error:
        raise ValueError(f"The recipe '{path}' cannot be read: {error.strerror}{remedy}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"The recipe '{path}' is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"The recipe '{path}' must be a mapping of keys to values, but is {type(content).__name__}."
        )
    return content


def _sections_of(recipe: type[Recipe]) -> dict[str, type[Settings]]:
    annotations = {name: field.annotation for name, field in recipe.model_fields.items()}
    return {
        name: kind
        for name, kind in annotations.items()
        if isinstance(kind, type) and issubclass(kind, Settings)
    }


def _places_of(recipe: type[Recipe]) -> dict[str, Any]:
    """The type of each key of the recipes of a task, by its place, `section.key`."""
    sections = _sections_of(recipe)
    places = {name: field.annotation for name, field in recipe.model_fields.items() if name not in sections}
    for section, kind in sections.items():
        places |= {f"{section}.{name}": field.annotation for name, field in kind.model_fields.items()}
    return places


SECTIONS = ("data", "tokenizer", "model", "training", "decoding", "evaluation", "publishing")


def _places_of_tasks() -> dict[str, dict[str, Any]]:
    """The type of each key, by the task and the place of the key."""
    return {task: _places_of(recipe) for task, recipe in recipe_classes().items()}


def _places_of_all_tasks() -> dict[str, Any]:
    """The type of each key of any task, by its place."""
    places: dict[str, Any] = {}
    for of_task in _places_of_tasks().values():
        places |= of_task
    return places


def _refuse_unknown_keys(content: dict[str, Any], task: str, *, is_record: bool) -> None:
    """Refuse unknown keys and keys of other tasks, and drop what is null or empty of other tasks.

    In a record, drop all keys of other tasks.
    """
    of_tasks = _places_of_tasks()
    places = of_tasks[task]
    for section in SECTIONS:
        keys: Any = content.get(section)
        for key in [*keys] if isinstance(keys, dict) else ():
            place = f"{section}.{key}"
            if place in places:
                continue
            owners = " and ".join(f"`task: {name}`" for name, of_task in of_tasks.items() if place in of_task)
            if not owners:
                # A key with the same name in another section, or at the top.
                elsewhere = " or ".join(f"`{found}`" for found in _named(str(key), places))
                hint = (
                    f"write {elsewhere}"
                    if elsewhere
                    else f"the nearest key is `{nearest_name(place, places)}`"
                )
                raise ValueError(
                    f"`{place}` is no key of a recipe, given with the value {shown(keys[key])}; {hint}."
                )
            if not is_record and keys[key] not in (None, "", []):
                raise ValueError(
                    f"`{place}` belongs to {owners}, but is {shown(keys[key])} in a recipe of `task: {task}`; leave it "
                    "out."
                )
            del keys[key]
    for key in content.keys() - places.keys() - {*SECTIONS}:
        elsewhere = " or ".join(f"`{found}`" for found in _named(str(key), places))
        nearest = nearest_name(key, [*SECTIONS, "output_dir", "task", "seed", "extends"])
        hint = f"write {elsewhere}" if elsewhere else f"the nearest key is `{nearest}`"
        raise ValueError(
            f"`{key}` is no key of a recipe, given with the value {shown(content[key])}; {hint}."
        )


def _named(key: str, places: typing.Iterable[str]) -> list[str]:
    """The places of the keys with this name."""
    return [place for place in places if place.split(".")[-1] == key]


def _pairs(overrides: list[str]) -> list[tuple[str, str]]:
    words = [part for word in overrides for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name in words[::2]:
        if not name.startswith("--"):
            raise ValueError(f"Expected `--key value`, but found '{name}' where a key should be.")
    for name in words[::2]:
        if words[::2].count(name) > 1:
            raise ValueError(f"`{name}` is given twice; keep one of them.")
    if len(words) % 2:
        raise ValueError(f"`{words[-1]}` needs a value.")
    return [(name.removeprefix("--"), value) for name, value in zip(words[::2], words[1::2], strict=True)]


def _place_of(key: str) -> str:
    """The place that a key of the command line means."""
    places = _places_of_all_tasks()
    found = [key] if key in places else _named(key, places)
    if not found:
        names = [place.split(".")[-1] for place in places]
        raise ValueError(
            f"`--{key}` is no key of a recipe; the nearest key is `--{nearest_name(key, [*names, *places])}`."
        )
    if len(found) > 1:
        choices = " or ".join(f"`--{place}`" for place in found)
        raise ValueError(f"`--{key}` may mean several keys; write {choices}.")
    return found[0]


def _override(content: dict[str, Any], key: str, text: str) -> None:
    """Put a value of the command line into the content of a recipe."""
    place = _place_of(key)
    section, _, name = place.rpartition(".")
    target = content
    if section:
        target = content[section] = content.get(section) or {}
        if not isinstance(target, dict):
            raise ValueError(f"`{section}` must be a mapping of keys to values, but is {target!r}.")
    target[name] = _value_of(key, text, _places_of_all_tasks()[place])


def _value_of(key: str, text: str, kind: Any) -> Any:
    """The value that a word of the command line means for a key of this type."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    options = typing.get_args(kind) if is_union else (kind,)
    is_nullable = type(None) in options
    if text == "None" or (text == "null" and is_nullable):
        return None if is_nullable else text
    lists = [option for option in options if typing.get_origin(option) is list]
    is_list = bool(lists) and ("," in text or (text.startswith("[") and text.endswith("]")))
    if str in options and not text.startswith("{") and (not is_list or os.path.exists(text)):
        # A text may be the name of a file with a comma.
        return text
    if lists and not text.startswith("[") and (is_list or len(options) == 1):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return parts if str in typing.get_args(lists[0]) else [_yaml_value(key, part) for part in parts]
    return _yaml_value(key, text)


def _yaml_value(key: str, text: str) -> Any:
    """The value of a word of the command line as YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except ValueError as error:
        # The loader says which key stands twice. YAML does not say enough about an impossible date.
        if str(error).startswith("`"):
            raise
    except yaml.YAMLError:
        pass
    raise ValueError(f"`--{key}` must be a value of YAML, but is {text!r}; close its brackets and quotes.")
