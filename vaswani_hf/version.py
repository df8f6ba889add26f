"""Defines the version of the package, and how to install the package and its optional libraries."""

from collections.abc import Iterable
from importlib.util import find_spec

__version__ = "0.2.0"

# The README, the manual and the model cards contain `INSTALL_INSTRUCTION`, so that users learn how to install
# the package. Texts must not advise users to install the package by its name, because the name is not
# registered on PyPI. A stranger could register the package name on PyPI, and run code on the machines of
# users.
INSTALL_INSTRUCTION = (
    "The package is not on PyPI. Run `pip install .` in a clone of the repository of the package."
)


def are_installed(libraries: Iterable[str]) -> bool:
    """Return True if all libraries are installed."""
    return all(find_spec(library) is not None for library in libraries)


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an optional dependency group of pyproject.toml.

    The command lists the libraries one by one. pip cannot install `vaswani_hf[extra]`, because the package is
    not on PyPI. Each library is in quotes, because zsh would treat `>` and `[` as special characters.
    """
    # Import the modules inside the function, because `vaswani --help` imports this file and must not become
    # slow.
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    libraries = []
    for text in requires("vaswani_hf") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            libraries.append(f"'{requirement}'")
    return f"pip install {' '.join(libraries)}"


def minimum_versions(*libraries: str) -> str:
    """Return one line of a requirements.txt for each library in `libraries`, with the lowest supported
    version of the library.
    """
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    found = {Requirement(text).name: text for text in requires("vaswani_hf") or [] if "extra ==" not in text}
    return "".join(f"{found[name]}\n" for name in libraries)
