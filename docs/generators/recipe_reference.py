"""Writes three files: docs/recipe_keys.md (the page of all keys of a recipe),
configuration/recipe.schema.json (the JSON schema with which editors complete recipes) and
vaswani_hf/cli/recipe_keys.json (the texts of `vaswani train --help-keys`).

python docs/generators/recipe_reference.py
"""

import ast
import dataclasses
import json
import re
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from vaswani_hf.cli.recipe_keys import RecipeKey
from vaswani_hf.model.inputs_vaswani import ADDED_SETTINGS
from vaswani_hf.optimization.optimizers import OPTIMIZERS
from vaswani_hf.optimization.regularizers import REGULARIZERS
from vaswani_hf.optimization.schedules import SCHEDULES
from vaswani_hf.recipe.recipe import SECTIONS, recipe_classes
from vaswani_hf.settings.base import format_value, properties_of
from vaswani_hf.settings.keys import KeyProperties, on_resume
from vaswani_hf.settings.sections import MODEL_KEYS

RECIPES = recipe_classes()

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "vaswani_hf"
PAGE = ROOT / "docs" / "recipe_keys.md"
SCHEMA = ROOT / "configuration" / "recipe.schema.json"
KEYS = PACKAGE / "cli" / "recipe_keys.json"
# For each section: the names of the variables that contain the settings of the section, and the files and
# folders in which the script searches for uses of a key. For each key, the page lists the files in the order
# of `OWNERS`, and the files in `FIELDS_AND_METHODS` last.
OWNERS: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "": ({"recipe"}, ("training/run.py",)),
    "data": (
        {"data"},
        (
            "tasks/",
            "data/loading.py",
            "data/splits.py",
            "data/corpus.py",
            "training/run.py",
            "recipe/data_record.py",
            "settings/data.py",
        ),
    ),
    "tokenizer": ({"tokenizer", "section"}, ("tasks/", "data/", "training/")),
    "model": ({"config", "model"}, ("model/", "optimization/", "training/", "cli/train.py")),
    "training": ({"training", "settings"}, ("optimization/", "training/trainer.py", "training/")),
    "decoding": ({"generation_config", "config", "options"}, ("model/",)),
    "evaluation": ({"evaluation"}, ("tasks/", "training/")),
    "publishing": (
        {"publishing"},
        (
            "publish/",
            "training/run.py",
            "training/loop.py",
            "training/run_results.py",
            "settings/sections.py",
        ),
    ),
}
# Files whose classes have both fields and methods. In a file of `FIELDS_AND_METHODS`, a read of `self.KEY`
# counts as a use of the key, because sometimes only a method of the same class uses the key.
FIELDS_AND_METHODS = (
    "model/configuration_vaswani.py",
    "optimization/section.py",
    "settings/data.py",
    "settings/sections.py",
)
# The kinds of files that `load_recipe_split` in data/loading.py reads.
FILE_KINDS = ("source", "target", "pairs", "text")
HEAD = """# The keys of a recipe

`python docs/generators/recipe_reference.py` writes this page from the classes of the sections. An editor that reads
[recipe.schema.json](../configuration/recipe.schema.json) completes the keys and shows the help texts of this
page. `vaswani train --help-keys` prints the keys, and `vaswani train --help-key warmup_steps` prints one key.

A key on the command line replaces the key in the recipe file: `vaswani train RECIPE --max_steps 100`, or
`--training.max_steps 100`. A recipe can extend another recipe with the key `extends`: `extends: base.yaml`.

The column "resume" is "yes" if the value of a key can change when a run continues an earlier run
(`training.resume: true`).
"""


def sections_of(task: str) -> dict[str, dict[str, FieldInfo]]:
    """Return the keys of each section of the recipes of a task. The top-level keys of a recipe are in the
    section "".
    """
    sections: dict[str, dict[str, FieldInfo]] = {"": {}}
    for name, field in RECIPES[task].model_fields.items():
        if name in SECTIONS:
            kind: Any = field.annotation
            sections[name] = dict(kind.model_fields)
        else:
            sections[""][name] = field
    return sections


@cache
def all_keys() -> dict[str, dict[str, list[tuple[str, FieldInfo]]]]:
    """Return each key of each section, with the tasks that have the key and the field of the key in each
    task.
    """
    found: dict[str, dict[str, list[tuple[str, FieldInfo]]]] = {}
    for task in RECIPES:
        for section, keys in sections_of(task).items():
            for key, field in keys.items():
                found.setdefault(section, {}).setdefault(key, []).append((task, field))
    return found


def _read(node: ast.AST) -> tuple[str, Any]:
    """Return the owner and the name of the attribute that a syntax node reads. For `self.training.bf16`, the
    owner is "training" and the name is "bf16".
    """
    owner: Any = None
    name = None
    if isinstance(node, ast.Attribute):
        owner, name = node.value, node.attr
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
        owner, name = node.args[0], getattr(node.args[1], "value", None)
    return getattr(owner, "attr", getattr(owner, "id", "")), name


@cache
def _reads() -> dict[str, tuple[set[tuple[str, Any]], set[Any]]]:
    """Return for each file of the package the attributes that the file reads, as pairs (owner, name). Also
    return the text at the end of each f-string of the file, because the code reads some keys with an f-string
    such as `f"{split}_source"`.
    """
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        last = [node.values[-1] for node in nodes if isinstance(node, ast.JoinedStr) and node.values]
        ends = {value.value for value in last if isinstance(value, ast.Constant)}
        found[path.relative_to(PACKAGE).as_posix()] = ({_read(node) for node in nodes}, ends)
    return found


def uses_of(section: str, key: str) -> list[str]:
    """Return the files of the package that read a key. If only transformers reads a search setting, return
    the name of the method of transformers.
    """
    owners, places = OWNERS[section]
    _, _, kind = key.partition("_")
    found = []
    for name, (reads, ends) in _reads().items():
        names = {"self"} if name in FIELDS_AND_METHODS else owners
        is_attribute = any((owner, key) in reads for owner in names)
        # An f-string such as `f"{split}_source"` counts as a use of the key of each split.
        # `load_recipe_split` in data/loading.py reads the files of all kinds.
        is_file = name == "data/loading.py" and kind in FILE_KINDS
        if is_attribute or (section == "data" and (f"_{kind}" in ends or is_file)):
            found.append(name)
    found = [name for name in found if name.startswith(places)]
    if not found and section == "decoding" and key not in ADDED_SETTINGS:
        return ["`generate` of transformers"]

    def rank(name: str) -> list[bool]:
        return [name in FIELDS_AND_METHODS, *(not name.startswith(place) for place in places)]

    return sorted(found, key=rank)


def file_of_field(section: str, key: str) -> str:
    """Return the file of the package that declares a key."""
    if section == "model" and key in MODEL_KEYS:
        return "model/configuration_vaswani.py"
    if section == "decoding":
        return "model/inputs_vaswani.py"
    entries: list[Any] = [*OPTIMIZERS.values(), *SCHEDULES.values(), *REGULARIZERS.values()]
    kinds: list[type] = [entry.settings for entry in entries] if section == "training" else []
    for recipe in RECIPES.values():
        kinds.append(recipe.model_fields[section].annotation if section else recipe)  # type: ignore[arg-type]
    modules = [
        base.__module__
        for kind in kinds
        for base in kind.__mro__[::-1]
        if key in vars(base).get("__annotations__", {})
    ]
    return modules[0].removeprefix("vaswani_hf.").replace(".", "/") + ".py"


def resume_words(section: str, key: str) -> str:
    """Return "yes" if a resumed run may have another value of the key, else "no"."""
    task, _ = all_keys()[section][key][0]
    recipe: Any = RECIPES[task]
    kind = recipe.model_fields[section].annotation if section else recipe
    return "no" if on_resume(kind, key) == "fixed" else "yes"


def type_words(kind: Any) -> str:
    """Return the name of a type in words, such as "list of integers or null"."""
    if typing.get_origin(kind) is typing.Annotated:
        return type_words(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        words = [
            type_words(option) for option in options if not (option is int and float in typing.get_args(kind))
        ]
        is_nullable = type(None) in typing.get_args(kind) and not words[-1].endswith("null")
        return " or ".join([*words, "null"] if is_nullable else words)
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        items = (
            type_words(typing.get_args(kind)[0]).replace("integer", "integers").replace("number", "numbers")
        )
        return f"list of {items}"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
    return names.get(kind, "mapping")


def accepts_bool(kind: Any) -> bool:
    """Return True if the type `kind` is bool or a union that contains bool."""
    return kind is bool or bool in typing.get_args(kind)


def range_words(field: FieldInfo) -> str:
    """Return the possible values of a key in words, such as "from 0 to 1"."""
    if words := properties_of(field).get("range"):
        return words
    found = []
    for annotated in [field, *typing.get_args(field.annotation)]:
        for limit in getattr(annotated, "metadata", getattr(annotated, "__metadata__", [])):
            for name, words in (("gt", "above"), ("ge", "from"), ("lt", "below"), ("le", "to")):
                if hasattr(limit, name):
                    found.append(f"{words} {getattr(limit, name):,}")
    return " ".join(found)


def default_words(field: FieldInfo) -> str:
    """Return the default of a key in YAML syntax."""
    if field.is_required():
        return "required"
    return "" if field.default == "" else f"`{format_value(field.default)}`".replace("'", "")


def description(found: list[tuple[str, FieldInfo]]) -> str:
    """Return the help text of a key. If only some tasks have the key, add the names of these tasks."""
    tasks = [task for task, _ in found]
    limit = "" if len(tasks) == len(RECIPES) else f" (`task: {'`, `'.join(tasks)}`)"
    helps = dict.fromkeys(" ".join((field.description or "").split()) for _, field in found)
    return " ".join(helps) + limit


def rows() -> list[RecipeKey]:
    """Describe each key."""
    found_rows = []
    for section, keys in all_keys().items():
        for key, found in keys.items():
            field = found[0][1]
            kinds = list(dict.fromkeys(type_words(of_task.annotation) for _, of_task in found))
            if len(kinds) > 1:
                kinds = [*(kind.removesuffix(" or null") for kind in kinds), "null"]
            if (section, key) == ("", "task"):
                kinds = [" or ".join(f"`{task}`" for task in RECIPES)]
            row = RecipeKey(
                section=section,
                key=key,
                type=" or ".join(kinds),
                default=default_words(field),
                unit=properties_of(field).get("unit", ""),
                range=range_words(field),
                meaning=description(found),
                is_boolean=accepts_bool(field.annotation),
            )
            found_rows.append(row)
    return found_rows


def page() -> str:
    """Return the content of docs/recipe_keys.md."""
    lines = [HEAD]
    for section in all_keys():
        lines += [f"## {section or 'Keys outside of sections'}", ""]
        lines += ["| key | type | default | unit | range | resume | meaning | field | use |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for row in rows():
            if row.section != section:
                continue
            cells = [f"`{row.key}`", row.type, row.default, row.unit, row.range]
            cells += [resume_words(section, row.key), row.meaning]
            cells += [file_of_field(section, row.key), ", ".join(uses_of(section, row.key))]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def keys_text() -> str:
    """Return the content of vaswani_hf/cli/recipe_keys.json. The texts in the file have no backticks, because
    a terminal shows no Markdown.
    """
    content = [dataclasses.asdict(row) for row in rows()]
    return json.dumps(content, indent=1, ensure_ascii=False).replace("`", "") + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of the recipes of all tasks. No key is required, because a recipe may extend
    another recipe.
    """
    properties: dict[str, Any] = {
        "extends": {"type": "string", "description": "The recipe that this recipe extends."}
    }
    definitions: dict[str, Any] = {}
    generated = {task: recipe.model_json_schema() for task, recipe in RECIPES.items()}
    for section, keys in all_keys().items():
        of_section = {}
        for key, found in keys.items():
            forms = []
            for task, _ in found:
                whole = generated[task]
                name = RECIPES[task].model_fields[section].annotation.__name__ if section else ""  # type: ignore[union-attr]
                owner = whole["$defs"][name] if section else whole
                form = {
                    word: value
                    for word, value in owner["properties"][key].items()
                    if word not in ("title", "description", *KeyProperties.__annotations__)
                }
                definitions |= {
                    name: whole["$defs"][name] for name in re.findall(r"#/\$defs/(\w+)", json.dumps(form))
                }
                if form not in forms:
                    forms.append(form)
            form = forms[0] if len(forms) == 1 else {"anyOf": forms}
            help = description(found).replace("`", "")
            if unit := properties_of(found[0][1]).get("unit"):
                help += f" Unit: {unit}."
            of_section[key] = {"description": help, **form}
        if section:
            properties[section] = {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": of_section,
            }
        else:
            properties |= of_section
    properties["task"] = {
        "description": properties["task"]["description"],
        "enum": [*RECIPES],
        "default": "translation",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of vaswani_hf",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the content of configuration/recipe.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the three files."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    KEYS.write_text(keys_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
