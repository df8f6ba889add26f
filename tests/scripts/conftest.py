"""The scripts as modules."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="session")
def script():
    """A function from the name of a script to its module."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up by its name.
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load
