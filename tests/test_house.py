"""Rules that a machine can check: docstrings, the direction of imports, the travelling files, the map of the README."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vaswani_hf

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vaswani_hf"
FILES = sorted(PACKAGE.rglob("*.py")) + sorted((ROOT / "scripts").rglob("*.py"))
TRAVELLERS = sorted((PACKAGE / "model").glob("*_vaswani.py"))

# A folder imports from lower floors only; what lies beside the folders, from all of them.
FLOORS = {
    **{"version": 0, "processor": 0},
    **{"model": 0, "settings": 1, "optimization": 2, "checkpoint": 3, "data": 4, "translation": 5},
    **{"evaluation": 6, "parsing": 6, "tasks": 7, "recipe": 8, "publish": 9, "convert": 9, "training": 10},
    **{"__init__": 11, "cli": 12},
}


def test_whatever_is_public_says_what_it_gives():
    # An override says it where it comes from, a callback in the documentation of the Trainer.
    silent = []
    for info in pkgutil.walk_packages(vaswani_hf.__path__, "vaswani_hf."):
        module = importlib.import_module(info.name)
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", "") != info.name or name.startswith("_"):
                continue
            if inspect.isfunction(thing) and not thing.__doc__:
                silent.append(f"{info.name}.{name}")
            members = vars(thing) if inspect.isclass(thing) else {}
            silent += [
                f"{info.name}.{name}.{member}"
                for member, value in members.items()
                if inspect.isfunction(value)
                and not member.startswith("_")
                and not inspect.getdoc(getattr(thing, member))
            ]
    assert not silent


def modules_of(root: Path) -> dict[str, str]:
    """The source of each module of a package, by its dotted name inside it: "model.language_models_vaswani", "__init__"."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in root.rglob("*.py")
    }


def imports_of(name: str, source: str, known: set[str]) -> Iterator[str]:
    """The modules of the package that a module imports, at its head, inside functions, or by importlib."""

    def resolved(level: int, target: str) -> str | None:
        base = [] if level == 0 else ["vaswani_hf", *name.split(".")][:-level]
        full = [part for part in (*base, *target.split(".")) if part]
        return ".".join(full[1:]) or "__init__" if full[:1] == ["vaswani_hf"] else None

    for node in ast.walk(ast.parse(source)):
        targets: list[str | None] = []
        if isinstance(node, ast.Import):
            targets = [resolved(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = resolved(node.level, node.module or "")
            prefix = "" if module in (None, "__init__") else f"{module}."
            targets = [module, *(prefix + alias.name for alias in node.names if module is not None)]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            *("import_module", "__import__"),
        ):
            argument = node.args[0]
            assert isinstance(argument, ast.Constant), (
                f"{name}: import_module of something that nobody can read"
            )
            level = len(argument.value) - len(argument.value.lstrip("."))
            targets = [resolved(level, argument.value[level:])]
        for target in targets:
            for module in (target, f"{target}.__init__"):
                if module in known and module != name:
                    yield module


def folder_of(module: str) -> str:
    return module.split(".")[0]


def faults_of(modules: dict[str, str]) -> list[str]:
    """Arrows that point up or to a neighbour, and circles."""
    graph = {name: set(imports_of(name, source, set(modules))) for name, source in modules.items()}
    faults = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if folder_of(name) != folder_of(target) and FLOORS[folder_of(target)] >= FLOORS[folder_of(name)]
    ]
    # A folder's own __init__ runs before its modules and lists some of them; that is no circle.
    left = {name: {t for t in targets if not t.endswith("__init__")} for name, targets in graph.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    # Modules that only lead to a circle are not in it.
    while leading := [name for name in left if not any(name in targets for targets in left.values())]:
        for name in leading:
            del left[name]
    return faults + ([f"circle of {', '.join(sorted(left))}"] if left else [])


def test_imports_point_down_and_in_no_circle():
    assert faults_of(modules_of(PACKAGE)) == []


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        (
            "model.language_models_vaswani",
            "from ..publish.push import push",
            "model.language_models_vaswani imports publish.push",
        ),
        ("settings.base", "from ..checkpoint import files", "settings.base imports checkpoint.files"),
        (
            "data.reading",
            "def read():\n    from vaswani_hf.training import run",
            "data.reading imports training.run",
        ),
        (
            "model.pipeline_vaswani",
            "import importlib\nimportlib.import_module('vaswani_hf.translation.translator')",
            "model.pipeline_vaswani imports translation.translator",
        ),
        (
            "model.attention_vaswani",
            "from .modeling_vaswani import VaswaniModel",
            "circle of model.attention_vaswani",
        ),
    ],
)
def test_one_arrow_up_is_found(module, line, fault):
    modules = modules_of(PACKAGE)
    modules[module] += "\n" + line
    assert any(fault in found for found in faults_of(modules))


def test_only_the_run_receives_the_whole_recipe():
    """Functions receive the section that they need. Command files load a recipe and pass it on."""
    modules = modules_of(PACKAGE)
    naming = {
        name
        for name, source in modules.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and "Recipe" in {alias.name for alias in node.names}
    }
    assert {name for name in naming if folder_of(name) not in ("recipe", "cli")} == {"training.run"}


def hidden_calls_of(name: str, source: str) -> list[str]:
    """Places where a module looks up another module by its name, or fills a table of another module.

    Both call code upwards without an import that a reader or the test of the import directions could see. The public
    `__init__` may look up its own lazy names.
    """
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    faults = []
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        names += [getattr(node, "attr", getattr(node, "id", ""))] if isinstance(node, ast.expr) else []
        if {"import_module", "__import__"} & {*names} and name != "__init__":
            faults.append(f"{name}:{node.lineno} looks up a module by name")
        for target in targets:
            if isinstance(target, ast.Subscript) and getattr(target.value, "id", "") in imported:
                faults.append(f"{name}:{node.lineno} fills `{target.value.id}` of another module")
    return faults


def test_no_module_is_looked_up_by_name_and_no_table_of_another_module_is_filled():
    modules = modules_of(PACKAGE)
    assert [fault for name, source in modules.items() for fault in hidden_calls_of(name, source)] == []


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("from importlib import import_module", "looks up a module by name"),
        (
            "import importlib\ndef f(name):\n    return importlib.import_module(name)",
            "looks up a module by name",
        ),
        ("PARTS = {'search': lambda: __import__('vaswani_hf.translation')}", "looks up a module by name"),
        ("from .model.tables import PARTS\nPARTS['search'] = lambda: 1", "fills `PARTS` of another module"),
    ],
)
def test_a_hidden_call_is_found(code, fault):
    assert any(fault in found for found in hidden_calls_of("translation.translator", code))


@pytest.mark.parametrize("path", TRAVELLERS, ids=lambda path: path.name)
def test_what_travels_imports_only_what_is_there_when_it_arrives(path):
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.level == 0):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            tops = {name.split(".")[0] for name in names}
            assert tops <= {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names, names
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 and (path.parent / f"{node.module}.py") in TRAVELLERS, ast.unparse(node)
    head = ast.get_docstring(ast.parse(source))
    assert "travels with every checkpoint" in " ".join(head.split()), "Say in the head why this file travels."


def test_recipes_of_tests_name_their_precision():
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for section in re.findall(r"^training:\s*\{[^}]*_per_batch[^}]*", text, re.MULTILINE):
            assert "bf16:" in section, f"A recipe of {path} must say `bf16: false`, or the processor decides."


def test_the_model_does_not_import_the_rest_of_the_package(fresh_python):
    code = "import vaswani_hf, sys; print(sorted(name for name in sys.modules if name.startswith('vaswani_hf.')))"
    loaded = subprocess.run([fresh_python, "-c", code], capture_output=True, text=True, check=True).stdout
    names = set(ast.literal_eval(loaded))
    rest = {"vaswani_hf.model", "vaswani_hf.version"}
    assert names == {f"vaswani_hf.model.{path.stem}" for path in TRAVELLERS} | rest


def paths_of_map(text: str) -> set[str]:
    """The files that the tree of the README names, by its indentation."""
    block = re.search(r"^## Files\n.*?```text\n(.*?)```", text, re.DOTALL | re.MULTILINE).group(1)
    paths, folders = set(), []
    for line in block.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders = folders[:depth]
        if name.endswith("/"):
            folders.append(name.rstrip("/"))
            paths.add("/".join(folders))
        else:
            paths.add("/".join([*folders, name]))
    return paths


def test_every_file_is_on_the_map_and_every_file_there_exists():
    mapped = paths_of_map((ROOT / "README.md").read_text(encoding="utf-8"))
    assert all((ROOT / name).exists() for name in mapped)
    own = {path.relative_to(ROOT).as_posix() for path in FILES if path.name != "__init__.py"}
    assert own - mapped == set()
