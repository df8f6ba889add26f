"""Rules that ruff, mypy and import-linter cannot check: docstrings, hidden calls, imports, lists."""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from test_packaging import tracked_files
from test_private_names import modules

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vaswani_hf"
TRAVELLERS = sorted((PACKAGE / "model").glob("*_vaswani.py"))


@cache
def trees() -> dict[str, ast.Module]:
    """Map the path of each file of the package to its syntax tree."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }


def test_public_methods_have_docstrings():
    """An override may inherit the docstring. ruff (D101, D103) checks classes and functions."""
    silent = []
    for module in modules():
        for name, thing in vars(module).items():
            if not inspect.isclass(thing) or thing.__module__ != module.__name__ or name.startswith("_"):
                continue
            methods = {key for key, value in vars(thing).items() if inspect.isfunction(value)}
            silent += [
                f"{module.__name__}.{name}.{method}"
                for method in methods
                if not method.startswith("_") and not inspect.getdoc(getattr(thing, method))
            ]
    assert not silent


def test_only_the_run_receives_the_whole_recipe():
    """Functions receive the section that they need. Commands, plans, lists of recipes, model cards and the
    comparison with an earlier run see whole recipes.
    """
    naming = {
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "Recipe" in {alias.name for alias in node.names}
    }
    others = {path for path in naming if not path.startswith(("recipe/", "cli/"))}
    in_training = {"ablation", "ablation_comparison", "plan", "resume", "run"}
    assert others == {*(f"training/{name}.py" for name in in_training), "publish/model_card.py"}


def hidden_calls_of(tree: ast.Module) -> list[str]:
    """Return the names that show a hidden call: `__import__`, and imported tables that the module fills.

    With both, a module can call code of a higher layer without an import that a reader or import-linter could
    see. ruff bans `import_module`.
    """
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    faults = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "__import__"]
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Subscript) and getattr(target.value, "id", "") in imported:
                faults.append(target.value.id)
    return faults


def unnamed_values_of(tree: ast.Module) -> list[str]:
    """Return the ValueErrors whose message begins with the name of an option, an argument or a recipe key."""
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return [
        message
        for call in raised
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "ValueError" and call.args
        if re.match("f?['\"]+`", message := ast.unparse(call.args[0]))
    ]


def test_an_error_about_a_value_of_the_user_has_its_own_class():
    """The exit code of a command depends on the class."""
    assert {path: faults for path, tree in trees().items() if (faults := unnamed_values_of(tree))} == {}
    assert unnamed_values_of(ast.parse('raise ValueError(f"`--{name}` must be 1.")'))
    assert not unnamed_values_of(ast.parse('raise InvalidValueError("`--x` must be 1.")'))


def test_no_module_is_looked_up_by_name_and_no_table_of_another_module_is_filled():
    assert {path: faults for path, tree in trees().items() if (faults := hidden_calls_of(tree))} == {}
    assert hidden_calls_of(ast.parse("PARTS = {'search': lambda: __import__('vaswani_hf.cli')}"))
    assert hidden_calls_of(ast.parse("from .model.tables import PARTS\nPARTS['search'] = lambda: 1"))


@pytest.mark.parametrize("path", TRAVELLERS, ids=lambda path: path.name)
def test_a_travelling_file_imports_only_modules_that_travel_or_that_every_user_has(path):
    tree = trees()[f"model/{path.name}"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.level == 0):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            tops = {name.split(".")[0] for name in names}
            assert tops <= {"torch", "transformers", "huggingface_hub"} | sys.stdlib_module_names, names
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 and (path.parent / f"{node.module}.py") in TRAVELLERS, ast.unparse(node)
    assert "is saved with every checkpoint" in " ".join(ast.get_docstring(tree).split())


def test_the_model_does_not_import_the_rest_of_the_package(fresh_python):
    code = "import vaswani_hf, sys; print(sorted(name for name in sys.modules if name.startswith('vaswani_hf.')))"
    loaded = subprocess.run([fresh_python, "-c", code], capture_output=True, text=True, check=True).stdout
    rest = {f"vaswani_hf.{name}" for name in ("model", "patches", "private_names", "registration", "version")}
    assert {*ast.literal_eval(loaded)} == {f"vaswani_hf.model.{path.stem}" for path in TRAVELLERS} | rest


def test_the_map_of_contributing_names_every_file():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"^## Files\n.*?```text\n(.*?)```", text, re.DOTALL | re.MULTILINE).group(1)
    mapped = set()
    folders = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0].rstrip("/")
        folders = [*folders[:depth], name]
        mapped.add("/".join(folders))
    assert all((ROOT / name).exists() for name in mapped)
    files = {path.as_posix() for path in tracked_files() if path.parts[0] in ("vaswani_hf", "scripts")}
    assert {path for path in files if path.endswith(".py") and not path.endswith("__init__.py")} <= mapped
