"""Lets users add attention functions, position encodings and config fields without a change of the package.

`register_attention` and `register_position_encoding` add classes to the registries of this file. Config
fields such as `attention_score` accept the registered names as values. A user can also derive a config class
with additional fields. `save_user_code` copies the Python files of the user's classes into a checkpoint, so
that transformers can load the checkpoint with `trust_remote_code=True` and without the package.

This file is saved with every checkpoint because `VaswaniConfig` looks up class names in the registries of
this file.
"""

import ast
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Any, ClassVar, get_origin

from huggingface_hub.dataclasses import type_validator
from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

from .checks_vaswani import is_int
from .errors_vaswani import InvalidValueError

# The name under which users import this package.
PACKAGE = "vaswani_hf"
# In a checkpoint that needs classes of users, the name of the module that registers these classes.
# transformers loads the config class from the module `registered_vaswani`, so that the classes are registered
# before transformers reads the config.
ENTRY = "registered_vaswani"
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


# Classes with names


class Registry:
    """Contains the names that a config field accepts: built-in names, and the names of registered classes."""

    def __init__(self, function: str, home: str, *built_in: str):
        # `function` is the name of the function that registers a class, such as "register_attention". `home`
        # is the name of the module that defines the function, such as "attention_vaswani".
        self.function = function
        self.home = home
        self.built_in = built_in
        self.classes: dict[str, Any] = {}

    def accepts(self, name: Any) -> bool:
        """Return True if `name` is a built-in name or the name of a registered class."""
        return isinstance(name, str) and (name in self.built_in or name in self.classes)

    def add(self, name: str, kind: type, base: type) -> None:
        """Register the class `kind`, a subclass of `base`, with the name `name`. A reloaded class can be
        registered again.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidValueError(
                f"`name` must be made of letters, digits, `_`, `-` and `.`, but is {name!r}; choose another "
                "name."
            )
        if name in self.built_in:
            raise InvalidValueError(f"`name` must be new, but {name!r} is built in; choose another name.")
        if not isinstance(kind, type) or not issubclass(kind, base) or kind is base:
            raise ValueError(
                f"The class of {name!r} must be a subclass of {base.__name__}, but is {kind!r}; pass the "
                "class itself, not an instance."
            )
        other = self.classes.get(name, kind)
        if not _is_same_class(other, kind):
            raise InvalidValueError(
                f"`name` must be new, but {name!r} is registered for {other.__qualname__} of the module "
                f"{other.__module__}; choose another name."
            )
        self.classes[name] = kind


ATTENTIONS = Registry(
    "register_attention",
    "attention_vaswani",
    "scaled_dot",
    "dot",
    "dot_mean",
    "general",
    "additive_linear",
    "additive",
)
POSITION_ENCODINGS = Registry(
    "register_position_encoding", "modeling_vaswani", "sinusoidal", "learned", "none"
)
# The config fields whose values can be the names of classes that users have registered.
REGISTRIES = {
    "attention_score": ATTENTIONS,
    "cross_attention_score": ATTENTIONS,
    "position_embedding": POSITION_ENCODINGS,
}


def _is_same_class(first: type, second: type) -> bool:
    """Return True if two classes have the same name, and the same module or the same source code.

    Python creates a second class from the same definition if a notebook cell runs again. The copy of a user's
    file in a checkpoint is another module with the same source code.
    """
    if first.__qualname__ != second.__qualname__:
        return False
    if first.__module__ == second.__module__:
        return True
    try:
        return inspect.getsource(first) == inspect.getsource(second)
    except (OSError, TypeError):
        return False


def registered_names(config: PreTrainedConfig) -> list[tuple[Registry, str]]:
    """Return the name and the registry of each registered class that a config uses, such as a user's position
    encoding.
    """
    found = set()
    for field_name, registry in REGISTRIES.items():
        name = getattr(config, field_name)
        if name in registry.classes:
            found.add((registry, name))
    return sorted(found, key=lambda pair: (pair[0].function, pair[1]))


# Fields of a user's config class


def fields_of_subclass(cls: type, base: type, known: set[str]) -> dict[str, Any]:
    """Return the types of the fields that the user's config class `cls` adds to the config class `base`.
    `known` contains the field names of `base`.

    The added fields are annotated fields, class attributes without annotation, and arguments of `__init__`. A
    field without annotation has the type Any.
    """
    added: dict[str, Any] = {}
    for kind in [kind for kind in cls.__mro__ if not issubclass(base, kind)]:
        try:
            annotations = inspect.get_annotations(kind, eval_str=True)
        except NameError:
            # Leave the annotations as strings, because a type is perhaps imported only for type checkers.
            annotations = inspect.get_annotations(kind)
        names = []
        for name, value in vars(kind).items():
            if not callable(value) and not hasattr(value, "__get__"):
                names.append(name)
        if inspect.isfunction(vars(kind).get("__init__")):
            names += list(inspect.signature(vars(kind)["__init__"]).parameters)[1:]
        for name in [*annotations, *names]:
            annotation = annotations.get(name)
            is_field = ClassVar not in (annotation, get_origin(annotation)) and not name.startswith("_")
            if is_field and name not in known and not hasattr(base, name):
                added.setdefault(name, annotations.get(name, Any))
    return added


def checked_value(config: Any, name: str, value: Any) -> Any:
    """Check the type of a value for a field that a user's config class adds, and return the value."""
    expected = config.added_fields[name]
    if get_origin(expected) is tuple and isinstance(value, list):
        # Convert a list to a tuple if the field is a tuple, because JSON stores a tuple as a list.
        value = tuple(value)
    if value is getattr(type(config), name, MISSING):
        return value
    errors = []
    # Accept an integer for a field of the type float.
    for candidate in (value, _with_floats(value)):
        try:
            type_validator(name, candidate, expected)
            return value
        except TypeError as error:
            errors.append(str(error))
    if "Unsupported type" in errors[0]:
        return value
    words = expected.__name__ if isinstance(expected, type) else str(expected)
    raise InvalidValueError(f"`{name}` must be of the type {words}, but is {value!r}.")


def _with_floats(value: Any) -> Any:
    """Convert an integer to a float, also inside lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_with_floats(item) for item in value)
    return float(value) if is_int(value, least=-sys.maxsize) else value


# The files that define a user's classes


def save_package_code(kind: type, folder: Path) -> None:
    """Copy the Python file of the class `kind` into the checkpoint `folder`. Also copy all files of the
    package that the file of `kind` imports, directly or through other files.
    """
    for path in _files_to_save(sys.modules[kind.__module__].__file__ or ""):
        shutil.copyfile(path, folder / Path(path).name)


@cache
def _files_to_save(module_file: str) -> set[str]:
    # Cache the result, because `get_relative_import_files` reads all files. Return a set, because
    # `get_relative_import_files` can list a file several times.
    return {module_file, *get_relative_import_files(module_file)}


def _travelling_modules() -> set[str]:
    """Return the names of the Python files, without ".py", that the package can save with a checkpoint."""
    return {path.stem for path in Path(__file__).parent.glob("*_vaswani.py")} | {ENTRY}


def module_of(kind: type) -> str:
    """Return the name that the Python module of a class has in a saved checkpoint."""
    home, _, name = kind.__module__.rpartition(".")
    if home == __name__.rpartition(".")[0] and name in _travelling_modules():
        return name
    name = Path(_file_of(kind)).stem
    is_safe = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and not iskeyword(name)
    if is_safe and name not in _travelling_modules():
        return name
    return "user_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def _file_of(kind: type) -> str:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if kind.__module__ == "__main__" or file is None or kind.__qualname__ != kind.__name__:
        raise ValueError(
            f"{kind.__qualname__} cannot be saved with a checkpoint, because it is defined in a script, a "
            "notebook or a function; define it at the top level of a Python file that is imported."
        )
    return file


def source_for_checkpoint(kind: type) -> str:
    """Return the source code of the file of a class, with imports that also work in a checkpoint.

    In the returned code, a `try` statement replaces each statement such as `from vaswani_hf import NAME`. The
    `try` statement executes `from .attention_vaswani import NAME` if `attention_vaswani` defines NAME. If the
    relative import fails, because the files of the checkpoint are missing, the `except` clause executes the
    original statement.

    Raise a ValueError if the file imports another file of the user.
    """
    path = Path(_file_of(kind))
    others = [f".{name}" for name in get_relative_imports(path) if name not in _travelling_modules()]
    # A file can begin with a byte order mark.
    source = path.read_text(encoding="utf-8-sig")
    imports = [*_imports_of(ast.parse(source))]
    for _, names in imports:
        others += [name for name in names if (path.parent / f"{name}.py").is_file()]
    if others:
        raise ValueError(
            f"'{path}' cannot be saved with a checkpoint, because it imports {min(others)}; put all code "
            f"that {kind.__name__} needs into one file."
        )
    lines = source.split("\n")
    # Replace the last statement first, because a replacement changes the numbers of the later lines.
    for node, names in reversed(imports):
        if PACKAGE not in names:
            continue
        place = slice(node.lineno - 1, node.end_lineno)
        statement = ast.get_source_segment(source, node) or ""
        other_code = "\n".join(lines[place]).replace(statement, "", 1).strip()
        if isinstance(node, ast.Import) or (other_code and not other_code.startswith("#")):
            raise ValueError(
                f"'{path}' cannot be saved with a checkpoint, because of line {node.lineno}, "
                f"{lines[node.lineno - 1].strip()!r}; write `from {PACKAGE} import …` on a line of its own."
            )
        indentation = lines[node.lineno - 1][: node.col_offset]
        lines[place] = [textwrap.indent(ast.unparse(_with_relative_imports(node, path)), indentation)]
    return "\n".join(lines)


def _imports_of(node: ast.AST) -> Iterator[tuple[Any, set[str]]]:
    """Yield each absolute import statement in the order of the file, with the names of the imported packages.
    Skip `try` statements, because in a `try` statement the user's code handles a failed import.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Try, ast.TryStar)):
            continue
        names = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            names = [child.module or ""]
        if names:
            yield child, {name.partition(".")[0] for name in names}
        yield from _imports_of(child)


def _with_relative_imports(node: ast.ImportFrom, path: Path) -> ast.Try:
    """Return the `try` statement that replaces the statement `node` of the file `path`."""
    module = node.module or ""
    relative: list[ast.stmt] = []
    for alias in node.names:
        home = module.rpartition(".")[2]
        if home not in _travelling_modules():
            # If the statement imports from a package, such as `vaswani_hf`, find the module that defines the
            # imported class or function.
            imported = getattr(sys.modules.get(module), alias.name, None)
            home = str(getattr(imported, "__module__", "")).rpartition(".")[2]
        if home not in _travelling_modules():
            raise ValueError(
                f"'{path}' cannot be saved with a checkpoint, because it imports `{alias.name}` from {module}; "
                f"import only classes and functions of the model from {PACKAGE}, such as VaswaniAttention."
            )
        relative.append(ast.ImportFrom(home, [alias], level=1))
    handler = ast.ExceptHandler(ast.Name("ImportError"), body=[node])
    return ast.Try(relative, [handler], orelse=[], finalbody=[])


def save_user_code(config: Any, base: type, folder: Path) -> None:
    """Copy the Python files with the user's classes into the checkpoint `folder`. Write the entry module, a
    Python file that registers the user's classes. After the call, `auto_map` of the config names the entry
    module. `base` is the config class of this package.
    """
    registered = registered_names(config)
    classes = [registry.classes[name] for registry, name in registered]
    auto_map = config.auto_map
    if type(config) is not base:
        of_user = _auto_classes_of_user(config)
        classes += of_user.values()
        auto_map = {auto: _reference(kind) for auto, kind in of_user.items()}
    _copy_files_of(classes, folder)
    pipelines = getattr(config, "custom_pipelines", {})
    references = {*auto_map.values(), *map(_reference, classes)}
    references |= {pipeline["impl"] for pipeline in pipelines.values()}
    _write_entry_module(folder, references, registered)
    config.auto_map = {auto: _in_entry_module(reference) for auto, reference in auto_map.items()}
    for pipeline in pipelines.values():
        pipeline["impl"] = _in_entry_module(pipeline["impl"])


def _auto_classes_of_user(config: Any) -> dict[str, type]:
    """Map the names of Auto classes to the user's config class and to the user's model class.

    Look for the model class in the file of the user's config class. transformers accepts only a model class
    whose `config_class` is the user's config class, so a model class of the package does not fit.
    """
    kind = type(config)
    found = {"AutoConfig": kind}
    architecture = (config.architectures or [""])[0]
    model_class = vars(sys.modules[kind.__module__]).get(architecture)
    if model_class is not None:
        bases = {parent.__name__ for parent in model_class.__mro__}
        found |= {
            auto: model_class for auto, name in config.auto_map.items() if name.partition(".")[2] in bases
        }
    return found


def _reference(kind: type) -> str:
    """Return the name of a class in a checkpoint, such as "modeling_vaswani.VaswaniModel"."""
    return f"{module_of(kind)}.{kind.__name__}"


def _in_entry_module(reference: str) -> str:
    return f"{ENTRY}.{reference.partition('.')[2]}"


def _copy_files_of(classes: Iterable[type], folder: Path) -> None:
    """Copy the Python files of the user's classes into a checkpoint."""
    sources: dict[str, str] = {}
    for kind in classes:
        module = module_of(kind)
        if module in _travelling_modules():
            continue
        source = source_for_checkpoint(kind)
        if sources.setdefault(module, source) != source:
            raise ValueError(
                f"Two different files that define classes of this model have the name {module}.py; rename "
                "one of the files."
            )
    for module, source in sources.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")


def _write_entry_module(
    folder: Path, references: Iterable[str], registered: list[tuple[Registry, str]]
) -> None:
    """Write the module that registers the user's classes. `references` lists the classes that the written
    module must import, such as "modeling_vaswani.VaswaniModel".
    """
    imported = {tuple(reference.split(".")) for reference in references}
    imported |= {(registry.home, registry.function) for registry, _ in registered}
    imports = [f"from .{module} import {name}\n" for module, name in sorted(imported)]
    calls = [
        f'{registry.function}("{name}", {registry.classes[name].__name__})\n' for registry, name in registered
    ]
    title = '"""Registers the classes of users that this checkpoint needs. Written by `save_pretrained`."""\n'
    (folder / f"{ENTRY}.py").write_text(
        "".join([title, "\n", *imports, "\n" if calls else "", *calls]), encoding="utf-8"
    )
