"""The rules of the house that a machine can check: sizes, names of rooms, what travels, which way imports point."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "vaswani_hf").rglob("*.py")) + sorted((ROOT / "scripts").glob("*.py"))
TRAVELLERS = sorted((ROOT / "vaswani_hf" / "model").glob("*_vaswani.py"))
# transformers' own signatures, and the dataclass-like constructors of loaders.
MAX_PARAMETERS = 7
TRANSFORMERS_SIGNATURES = {"forward", "eager_attention_forward", "_sanitize_parameters", "__init__"}


def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def body_lines(function):
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return body[-1].end_lineno - body[0].lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_and_functions_stay_small(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= (60 if path.parent.name == "scripts" and path.stem in {"train", "quickstart"} else 600)
    for function in functions(path):
        limit = 60 if function.name == "forward" else 40
        assert body_lines(function) <= limit, f"{function.name} has {body_lines(function)} lines"
        parameters = [
            a.arg for a in function.args.args + function.args.kwonlyargs if a.arg not in ("self", "cls", "ctx")
        ]
        if function.name not in TRANSFORMERS_SIGNATURES:
            assert len(parameters) <= MAX_PARAMETERS, f"{function.name} has {len(parameters)} parameters"


@pytest.mark.parametrize("path", TRAVELLERS, ids=lambda path: path.name)
def test_what_travels_imports_only_what_is_there_when_it_arrives(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        found = re.match(r"\s*(?:from|import) ([\w.]+)", line)
        if found and line.lstrip().startswith(("from ", "import ")):
            top = found.group(1).split(".")[0]
            assert top in {"torch", "transformers", "huggingface_hub", ""} | sys.stdlib_module_names, line
        if line.startswith("from ."):
            sibling = re.match(r"from \.(\w+_vaswani) import", line)
            assert sibling and (path.parent / f"{sibling.group(1)}.py").exists(), line


def test_the_model_does_not_import_the_rest_of_the_package():
    code = "import vaswani_hf, sys; print(sorted(name for name in sys.modules if name.startswith('vaswani_hf.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = set(ast.literal_eval(loaded))
    assert names == {f"vaswani_hf.model.{path.stem}" for path in TRAVELLERS} | {
        "vaswani_hf.model",
        "vaswani_hf.version",
    }


def test_every_file_is_in_the_readme_and_every_file_there_exists():
    table = re.findall(r"^\| `([^`]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert all((ROOT / name).exists() for name in table)
    missing = (
        {path.relative_to(ROOT).as_posix() for path in FILES}
        - set(table)
        - {"vaswani_hf/version.py"}
        - {path.relative_to(ROOT).as_posix() for path in FILES if path.name == "__init__.py"}
    )
    assert not missing
