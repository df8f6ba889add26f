"""Converts the recipe keys on the command line, such as `--max_steps 500`, to values."""

import os
import types
import typing
from typing import Any, Literal

from ..model.errors_vaswani import InvalidValueError
from ..settings.keys import FreeText
from .key_names import FullName, full_name_of_option, key_types_of_all_tasks
from .yaml_files import parse_yaml


def parse_overrides(words: list[str]) -> dict[FullName, Any]:
    """Convert words such as `["--key", "value"]` or `["--key=value"]` to the values of recipe keys."""
    kinds = key_types_of_all_tasks()
    values: dict[FullName, Any] = {}
    for key, text in _keys_and_texts(words):
        name = full_name_of_option(key)
        if name in values:
            raise InvalidValueError(f"`--{key}` is given twice; give it only once.")
        values[name] = _value_of(key, text, kinds[name])
    return values


def _keys_and_texts(words: list[str]) -> list[tuple[str, str]]:
    """Return the keys on the command line (`key` for `--key`), each with the text of its value."""
    parts: list[str] = []
    for word in words:
        parts += word.split("=", 1) if word.startswith("--") else [word]
    options = parts[::2]
    for option in options:
        if not option.startswith("--"):
            raise InvalidValueError(f"Expected `--key value`, but found '{option}' where a key should be.")
    if len(parts) % 2:
        raise InvalidValueError(f"`{parts[-1]}` needs a value.")
    return [(option.removeprefix("--"), text) for option, text in zip(options, parts[1::2], strict=True)]


def _value_of(key: str, text: str, kind: Any) -> Any:
    """Convert the text of a value to the type `kind` of the key."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    choices = typing.get_args(kind) if is_union else (kind,)
    is_nullable = type(None) in choices
    if text == "None" or (text == "null" and is_nullable):
        return None if is_nullable else text
    if text == "false" and Literal[False] in choices:
        return False
    list_kind = next((choice for choice in choices if typing.get_origin(choice) is list), None)
    has_brackets = text.startswith("[") and text.endswith("]")
    if text and not has_brackets and FreeText in typing.get_args(list_kind):
        return [text]
    is_list = list_kind is not None and ("," in text or has_brackets)
    if str in choices and not text.startswith("{") and (not is_list or os.path.exists(text)):
        # Do not split the name of an existing file at its commas.
        return text
    if list_kind is not None and not text.startswith("[") and (is_list or len(choices) == 1):
        entries = [entry.strip() for entry in text.split(",") if entry.strip()]
        if str in typing.get_args(list_kind):
            return entries
        return [parse_yaml(f"--{key}", entry) for entry in entries]
    return parse_yaml(f"--{key}", text)
