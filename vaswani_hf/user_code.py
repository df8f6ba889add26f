"""Executes a Python file of a user that registers attention functions or position encodings."""

import hashlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from .model.errors_vaswani import InvalidValueError

# The files that `run_user_code` has executed in this process. Each worker process also executes the files in
# `_executed`.
_executed: dict[Path, None] = {}


def run_user_code(file: str | Path, option: str) -> None:
    """Execute the Python file that the recipe key or option `option` names, never a file of a checkpoint."""
    path = Path(file).absolute()
    if path.suffix != ".py" or not path.is_file():
        raise InvalidValueError(f"`{option}` must be an existing Python file, but is '{file}'.")
    # Add a hash of the path to the module name, because two files in different folders can have the same
    # name.
    name = f"user_code_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec: Any = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InvalidValueError(
            f"`{option}` is '{file}', but the file fails with {type(error).__name__}: {error}"
        ) from error
    _executed[path] = None


def executed_files() -> list[Path]:
    """Return the Python files that `run_user_code` has executed in this process."""
    return list(_executed)
