"""Loading a recipe: YAML over the YAML that it extends, keys of the command line over both, and the type of each value.

The keys stand in schema.py; checks.py judges their values together.
"""

import dataclasses
import os
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal

import yaml

from ..model.configuration_vaswani import VaswaniConfig, nearest_name
from .checks import check_recipe
from .schema import MODEL_FIELDS, STACKS, Recipe, flat
from .tasks import refuse_keys_of_other_tasks, settle_task


class _Loader(yaml.SafeLoader):
    """A loader that reads 7e-4 as a number, which YAML 1.1 takes for text, and refuses keys that are given twice."""

    # The words that name a file which another one extends.
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
    """A recipe from a file, over the one that it extends, with keys of the command line over both.

    Args:
        path (str or Path): A YAML file; its key `extends`, if it has one, names another one, relative to this one.
        overrides (list, optional): `["--key", "value", …]`; a key is `section.key`, or the key alone.
        needs_data (bool): It must say what it is trained on.
        is_record (bool): A run has recorded it; some versions recorded the keys of all tasks, at their defaults.

    Returns:
        Recipe: Checked: every key known, every value of its type, the keys together possible.

    Raises:
        ValueError: If the file or a key is not as it must be.
    """
    content = _extended(Path(path), ())
    for key, text in _pairs(overrides or []):
        _override(content, key, text)
    recipe = settle_task(_build(Recipe, content, ""))
    if not is_record:
        refuse_keys_of_other_tasks(recipe.task, flat(content))
    check_recipe(recipe, needs_data=needs_data, is_record=is_record)
    return recipe


def readable_record(path: Path | None) -> Recipe | None:
    """What the run of a model has recorded, for those who can do without it: another version of the package may have written it.

    Args:
        path (Path, optional): The recorded recipe, if there is one.

    Returns:
        Recipe: None where there is none, or none that can be read.
    """
    try:
        return load_recipe(path, needs_data=False, is_record=True) if path else None
    except ValueError:
        return None


def _extended(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The keys of a file over those of the file that it extends; the files before it extend each other, and the last one it.

    Raises:
        ValueError: If a file extends itself, by others or at once, or something that is no name of a file.
    """
    content = read_mapping(path, extending[-1] if extending else None)
    for section in (*_sections(), "model") if extending else ():
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
    """The keys of one YAML file, none of which may stand twice in a mapping.

    Args:
        path (Path): The file.
        extending (Path, optional): The recipe that extends it.

    Raises:
        ValueError: If it cannot be read, or is no mapping.
    """
    of_file = f", of '{path}'" if extending else ""
    remedy = f"; write into '{extending}' what `extends` means, relative to its folder" if extending else ""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        loader.of_file = of_file
        content = loader.get_single_data()
    except OSError as error:
        raise ValueError(f"The recipe '{path}' cannot be read: {error.strerror}{remedy}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"The recipe '{path}' is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"The recipe '{path}' must be a mapping of keys to values, but is {type(content).__name__}.")
    return content


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


def _sections() -> dict[str, type]:
    hints = typing.get_type_hints(Recipe)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}


def _places() -> dict[str, list[str]]:
    """The places, `section.key`, of each key that a recipe can have."""
    found = {name: [name] for name in ("output_dir", "task", "seed")} | {
        name: [f"model.{name}"] for name in ("init_from", *MODEL_FIELDS)
    }
    for section, section_type in _sections().items():
        for key in dataclasses.fields(section_type):
            found.setdefault(key.name, []).append(f"{section}.{key.name}")
    return found


def _place_of(key: str) -> str:
    """The place that a key of the command line means.

    Raises:
        ValueError: If there is no such key, or several.
    """
    places = _places()
    whole = [place for of_key in places.values() for place in of_key]
    found = [key] if key in whole else places.get(key, [])
    if not found:
        nearest = nearest_name(key, [*places, *whole])
        raise ValueError(f"`--{key}` is no key of a recipe; the nearest key is `--{nearest}`.")
    if len(found) > 1:
        choices = " or ".join(f"`--{place}`" for place in found)
        raise ValueError(f"`--{key}` may mean several keys; write {choices}.")
    return found[0]


def _override(content: dict[str, Any], key: str, text: str) -> None:
    section, _, name = _place_of(key).rpartition(".")
    target = content
    if section:
        target = content[section] = content.get(section) or {}
        if not isinstance(target, dict):
            raise ValueError(f"`{section}` must be a mapping of keys to values, but is {target!r}.")
    hint = typing.get_type_hints(_sections().get(section, Recipe)).get(name, Any)
    is_list = text.startswith("[") and text.endswith("]") or "," in text
    if list[str] in _options(hint) and is_list and not os.path.exists(text):
        # One name, of files, is text.
        hint = list[str]
    if key.endswith("init_from") and not text.startswith("{"):
        hint = str | None
    if str in _options(hint) and not (type(None) in _options(hint) and text in ("null", "None")):
        target[name] = text
    elif typing.get_origin(hint) is list and not text.startswith("["):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        target[name] = parts if hint == list[str] else [_value(key, part) for part in parts]
    else:
        target[name] = _value(key, text) if text != "None" else None


def _value(key: str, text: str) -> Any:
    """What a word of the command line means as YAML.

    Raises:
        ValueError: If it is none.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except ValueError as error:
        # The loader says which key stands twice; of a date that there is not, YAML says too little.
        if str(error).startswith("`"):
            raise
    except yaml.YAMLError:
        pass
    raise ValueError(f"`--{key}` must be a value of YAML, but is {text!r}; close its brackets and quotes.")


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type `A | B`."""
    # `Literal[…] | None` is of another class than `int | None`.
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _build(section_type: type, content: Any, prefix: str) -> Any:
    """An instance of a section's dataclass from a mapping, with each value checked against its annotation.

    Raises:
        ValueError: If a key is unknown or missing, or a value of another type.
    """
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ValueError(f"`{prefix.rstrip('.')}` must be a mapping of keys to values, but is {content!r}.")
    hints = typing.get_type_hints(section_type)
    values = {}
    for key, value in content.items():
        if key not in hints:
            nearest = nearest_name(key, hints if prefix else [*hints, "extends"])
            elsewhere = " or ".join(f"`{place}`" for place in _places().get(str(key), []))
            hint = f"write {elsewhere}" if elsewhere else f"the nearest key is `{prefix}{nearest}`"
            raise ValueError(f"`{prefix}{key}` is no key of a recipe, given with the value {value!r}; {hint}.")
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(typing.cast(type, hints[key]), value, f"{prefix}{key}.")
        elif key == "model":
            values[key] = _model_fields(value)
        else:
            values[key] = _typed(value, hints[key], f"{prefix}{key}")
    for missing in dataclasses.fields(section_type):
        required = missing.default is dataclasses.MISSING and missing.default_factory is dataclasses.MISSING
        if required and missing.name not in values:
            raise ValueError(f"`{prefix}{missing.name}` must be given in the recipe, but is missing.")
    return section_type(**values)


def _model_fields(content: Any) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"`model` must be a mapping of keys to values, but is {content!r}.")
    for key, value in content.items():
        if key == "init_from":
            _check_init_from(value)
        elif key not in MODEL_FIELDS:
            nearest = nearest_name(key, MODEL_FIELDS)
            place = _places().get(str(key), [f"model.{nearest}"])[0]
            raise ValueError(
                f"`model.{key}` is no key of a recipe, given with the value {value!r}; the nearest key is `{place}`."
            )
    # The config checks the values and says what is wrong with them.
    VaswaniConfig(**{key: value for key, value in content.items() if key != "init_from"})
    return dict(content)


def _check_init_from(value: Any) -> None:
    if not isinstance(value, dict):
        _typed(value, str | None, "model.init_from")
        return
    if not value or value.keys() - set(STACKS):
        raise ValueError(
            f"`model.init_from` must name a model, or one for `encoder`, for `decoder` or for each of them, but is {value!r}."
        )
    for stack, name in value.items():
        _typed(name, str, f"model.init_from.{stack}")


def _typed(value: Any, hint: Any, name: str) -> Any:
    options = _options(hint)
    for option in options:
        if _is_of_type(value, option):
            return float(value) if option is float else value
    words = " or ".join(_type_words(option) for option in options)
    # YAML 1.1 takes the language code "no" for False.
    quotes = "; put it in quotes" if isinstance(value, bool) and str in options else ""
    raise ValueError(f"`{name}` must be {words}, but is {value!r}{quotes}.")


def _is_of_type(value: Any, option: Any) -> bool:
    if option is type(None):
        return value is None
    if typing.get_origin(option) is Literal:
        return value in typing.get_args(option)
    if typing.get_origin(option) is list:
        return isinstance(value, list) and all(_is_of_type(item, typing.get_args(option)[0]) for item in value)
    if option in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if option is float else option)


def _type_words(option: Any) -> str:
    if option is type(None):
        return "null"
    if typing.get_origin(option) is Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(option))
    if typing.get_origin(option) is list:
        return "a list of numbers" if option == list[float] else "a list"
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}[option]
