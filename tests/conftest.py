"""Loads the fixtures of all tests, and starts the interpreter that all test processes share."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from warm_python import TORCH, warm_python


def pytest_configure(config):
    """Load the fixtures. With pytest-xdist the first process only distributes the tests, and therefore starts without
    the imports of the fixtures.
    """
    if hasattr(config, "workerinput") or not config.getoption("tx", None):
        config.pluginmanager.import_plugin("shared_fixtures")
        return
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="vaswani_tests_"))
    config.fresh_python = stack.enter_context(warm_python(Path(folder) / "python", TORCH))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a test process the path of the shared interpreter."""
    node.workerinput["fresh_python"] = node.config.fresh_python
