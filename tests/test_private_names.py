"""The installed libraries have the names in vaswani_hf/private_names.py, and the package uses no other
private names.

ruff (SLF001, PLC2701) refuses the use of private names that pyproject.toml does not list. ruff sees no method
that overrides a private method, and no name without an underscore.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import vaswani_hf
from vaswani_hf import private_names
from vaswani_hf.private_names import INSIDES, PRIVATE, TESTED, missing_names, warn_of_missing_names

ROOT = Path(__file__).parent.parent
SOURCES = [
    path.read_text(encoding="utf-8")
    for folder in ("vaswani_hf", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "private_names.py"
]

NAMES = [
    (module, name)
    for table in (PRIVATE, INSIDES)
    for module, names in table.items()
    for name in names.split()
]
LISTED = {name for _, name in NAMES}


@pytest.mark.parametrize(("module", "names"), [*PRIVATE.items(), *INSIDES.items()])
def test_the_installed_version_has_the_names_and_the_package_uses_them(module, names):
    if module.startswith("ctranslate2"):
        pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install '.[ctranslate2]'")
    source = inspect.getsource(importlib.import_module(module))
    for name in names.split():
        assert re.search(rf"\b{name}\b", source), f"{module} has no {name} any more; find its successor."
        assert any(re.search(rf"\b{name}\b", text) for text in SOURCES), f"No file uses {name} of {module}."


def modules() -> Iterator[ModuleType]:
    """The modules of the package, except modules whose optional library, such as gradio, is not installed."""
    for info in pkgutil.walk_packages(vaswani_hf.__path__, "vaswani_hf."):
        try:
            yield importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("vaswani_hf")


def test_private_methods_of_other_libraries_are_overridden_only_if_they_are_listed():
    # Python and the libraries add these names to every class.
    automatic = {"_abc_impl", "_auto_class", "_backward_cls", "_is_protocol"}
    overridden = set()
    for module in modules():
        for thing in vars(module).values():
            if not inspect.isclass(thing) or thing.__module__ != module.__name__:
                continue
            own = ("vaswani_hf", "enum")
            others = [base for base in thing.__mro__[1:-1] if not base.__module__.startswith(own)]
            names = [name for name in vars(thing) if re.match("_[^_]", name)]
            overridden |= {name for name in names if any(name in vars(base) for base in others)}
    assert "_sanitize_parameters" in overridden
    assert overridden - automatic - LISTED == set()


def test_names_from_the_inside_of_a_library_are_listed():
    # The package does without `ExportedModel` if transformers has no such name.
    missing = [
        (node.module, alias.name)
        for text in SOURCES
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(tuple(INSIDES))
        for alias in node.names
        if (node.module, alias.name) not in {*NAMES, ("transformers.exporters.base", "ExportedModel")}
    ]
    constants = {name for text in SOURCES for name in re.findall(r"\bconstants\.([A-Z_]+)", text)}
    assert missing == [] and constants <= LISTED


def test_the_linter_allows_listed_names_and_names_of_this_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        allowed = tomllib.load(file)["tool"]["ruff"]["lint"]["flake8-self"]["ignore-names"]
    # The documentation of Python describes `os._exit`. The other names are names of this package.
    assert {*allowed} - LISTED == {"_exit", "_handlers", "_padding_is_end"}


def test_transformers_has_no_upper_limit_and_the_tested_versions_are_pinned():
    with (ROOT / "pyproject.toml").open("rb") as file:
        required = [Requirement(line) for line in tomllib.load(file)["project"]["dependencies"]]
    limits = {r.name: {s.operator for s in r.specifier} for r in required}
    assert limits["transformers"] == limits["huggingface_hub"] == {">="}
    pinned = dict(re.findall(r"^(\w+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {name: pinned[name] for name in TESTED} == TESTED


def test_a_name_that_a_new_version_lacks_is_reported_once_with_the_remedy(monkeypatch):
    assert [missing_names(library) for library in TESTED] == [[]] * len(TESTED)
    more = {"transformers.generation.utils": "_prefill _gone", "transformers.moved": "_name"}
    monkeypatch.setattr(private_names, "PRIVATE", PRIVATE | more)
    warn_of_missing_names()
    monkeypatch.setattr(private_names, "version", lambda library: "99.0")
    with pytest.warns(UserWarning) as caught:
        warn_of_missing_names()
    assert [str(warning.message) for warning in caught] == [
        "transformers 99.0 does not have transformers.generation.utils._gone, transformers.moved._name, so parts of vaswani_hf will "
        f"fail; install the version with which vaswani_hf is tested: pip install 'transformers=={TESTED['transformers']}'."
    ]
