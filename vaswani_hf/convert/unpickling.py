"""Reads weight files of other libraries without executing code from these files.

`torch.load(weights_only=True)` accepts only tensors and plain values. Some libraries store their settings as
objects of their own classes. Therefore each import format lists the names of the classes that it allows.
`load_weights` reads an object of an allowed class as an instance of `Stub` with the same attributes. For an
object of a class that the format does not allow, `load_weights` raises an error.
"""

import errno
import pickle
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ..checkpoint.files import DamagedFileError


class Stub:
    """Replaces an object of another library during unpickling. A `Stub` has the attributes of the object, but
    not the methods.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self.arguments = args

    def __setstate__(self, state: Any) -> None:
        # For classes with `__slots__`, `state` is a pair of dicts.
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.__dict__.update(part)


# The number of bytes to read from a file that is not a zip file. Older versions of `torch.save` do not write
# zip files, and write the names of the weights near the beginning of the file.
_LONGEST_HEADER = 2**20


def weight_file(path: Path) -> Path:
    """If the folder `path` contains exactly one `.pt` or `.pth` file, return the file. Otherwise return
    `path`.
    """
    if not path.is_dir():
        return path
    files = [file for file in path.iterdir() if file.suffix in (".pt", ".pth")]
    return files[0] if len(files) == 1 else path


def header_of(path: Path) -> bytes:
    """Return the bytes of a weight file that contain the names of the weights as plain text."""
    path = weight_file(path)
    if not path.is_file():
        return b""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return file.read(_LONGEST_HEADER)
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            return archive.read(pickles[0]) if pickles else b""
    except (zipfile.BadZipFile, OSError) as error:
        if _is_unreadable(error):
            raise
        raise DamagedFileError(f"'{path.name}' is incomplete") from error


def _is_unreadable(error: Exception) -> bool:
    """Return True if the operating system cannot read the file, and False if the file is damaged. A damaged
    zip file can cause the error "Invalid argument" (EINVAL), because a library then seeks to a negative
    position.
    """
    return isinstance(error, OSError) and error.errno != errno.EINVAL


def load_state_dict(path: Path, has_name: re.Pattern[str]) -> dict[str, torch.Tensor]:
    """Load a state dict from a file of `torch.save` or safetensors, and convert the weights to float32.

    The state dict is the loaded object, or a dict inside the object. The function returns the first dict with
    a key that matches the pattern `has_name`. The returned names do not have the prefix "module." of
    DataParallel.
    """
    path = weight_file(path)
    loaded = load_file(path) if path.suffix == ".safetensors" else load_weights(path)
    values = list(loaded.values()) if isinstance(loaded, dict) else []
    for state in [loaded, *values]:
        if isinstance(state, dict) and any(has_name.search(str(name)) for name in state):
            return {
                name.removeprefix("module."): tensor.float()
                for name, tensor in state.items()
                if isinstance(tensor, torch.Tensor)
            }
    raise ValueError(
        f"'{path.name}' must contain a weight whose name matches {has_name.pattern}, but does not; name the "
        "file with the weights."
    )


def load_weights(path: Path, classes: Collection[str] = ()) -> Any:
    """Load a file of `torch.save` onto the CPU. `classes` are the full names of further allowed classes, such
    as "argparse.Namespace". Objects of the classes in `classes` become instances of `Stub`.
    """
    stubs = [(type(name.rpartition(".")[2], (Stub,), {}), name) for name in classes]
    try:
        with torch.serialization.safe_globals(stubs):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        unknown = re.search(r"Unsupported operand (\d+)", str(error))
        if unknown is not None:
            # This error occurs, for example, if the file is an HTML page or a git-lfs pointer instead of a
            # weight file.
            raise DamagedFileError(
                f"'{path.name}' contains the pickle instruction {unknown[1]}, which `torch.load` does not "
                "know, so the file is damaged, or was not written by `torch.save` with the default pickle "
                "protocol"
            ) from None
        raise ValueError(
            f"'{path.name}' contains objects that are neither tensors nor plain values, and is not read, "
            f"because such objects can execute code ({_refused(str(error))})."
        ) from None
    except Exception as error:
        # Catch every exception, because a damaged file can cause any kind of exception. The option `-v` of
        # the command `vaswani` shows the cause.
        if _is_unreadable(error):
            raise
        raise DamagedFileError(f"'{path.name}' was not written by `torch.save`, or is incomplete") from error


def _refused(message: str) -> str:
    """Return the line of torch's error message that names the class that torch refuses to load."""
    lines = [line.strip() for line in message.splitlines() if "GLOBAL" in line or "Unsupported" in line]
    return (lines or ["an unknown object"])[0].rstrip(".")[:200]
