"""The scripts as modules."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="session")
def script():
    """A function from the name of a script to its module."""
    # Let scripts import other scripts in the same folder, as when Python runs the scripts.
    sys.path.append(str(SCRIPTS / "benchmarks"))

    def load(name):
        (path,) = SCRIPTS.rglob(f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"script_{name}", path)
        module = importlib.util.module_from_spec(spec)
        # Register the module, because dataclasses look up their module by its name.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load
