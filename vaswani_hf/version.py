"""The version of the package, and the command that installs an optional dependency group."""

__version__ = "0.2.0"


def install_command(extra: str) -> str:
    """The command that installs the libraries of an optional dependency group of pyproject.toml.

    The command names the libraries instead of `vaswani_hf[extra]`, because the package is not on PyPI: a
    stranger could register the name `vaswani_hf` on PyPI and run code on the machines of users.
    """
    # Import here, because `vaswani --help` imports this file and must be fast.
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    libraries = []
    for text in requires("vaswani_hf") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            libraries.append(f"'{requirement}'")
    return f"pip install {' '.join(libraries)}"
