"""Reads the YAML of recipes, from files and from the command line, and writes YAML."""

import re
from pathlib import Path
from typing import Any

import yaml

from ..model.errors_vaswani import InvalidValueError
from ..packaged import similar_recipes

# Numbers are decimal, as in YAML 1.2. YAML 1.1 would read 0100 as 64, 1:30 as 90, and 7e-4 as text.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"^[-+]?[0-9]+(_[0-9]+)*$"),
    "tag:yaml.org,2002:float": re.compile(
        r"^([-+]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
}
# Dates are text, as in YAML 1.2.
_REPLACED = {*_NUMBERS, "tag:yaml.org,2002:timestamp"}


class _Loader(yaml.SafeLoader):
    """A YAML 1.1 loader with the numbers of YAML 1.2 and without dates. A repeated key raises an error."""

    # The part of an error message that names the YAML file, such as " of 'base.yaml'". `of_file` names the
    # file only if the key `extends` of another recipe refers to the file.
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


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in patterns if tag not in _REPLACED]
    for first, patterns in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes each text that `_Loader` or another YAML 1.1 loader would read as a number or a date."""


for _tag, _pattern in _NUMBERS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def as_yaml(value: Any, **options: Any) -> str:
    """Return a value as YAML that `read_mapping` and `parse_yaml` can read. `options` are options of
    `yaml.dump`.
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)


def read_mapping(path: Path, extending: Path | None = None) -> dict[str, Any]:
    """Return the content of a YAML file. `extending` is the recipe whose key `extends` names the file, or
    None.
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
        # PyYAML raises a ValueError for an integer with too many digits.
        raise InvalidValueError(f"The recipe '{path}' is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InvalidValueError(
            f"The recipe '{path}' must be a mapping of keys to values, but is {type(content).__name__}."
        )
    return content


def parse_yaml(option: str, text: str) -> Any:
    """Parse the value of an option as YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except InvalidValueError:
        raise
    except (yaml.YAMLError, ValueError):
        # PyYAML raises a ValueError for an integer with too many digits.
        raise InvalidValueError(
            f"`{option}` must be a value of YAML, but is {text!r}; close its brackets and quotes."
        ) from None
