"""The manifest of a checkpoint: the size and hash of each file, and of itself. It is written last, so that it is there only
if all is."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .files import MANIFEST_FILE, write_whole

# A manifest without a hash of itself says no more than this.
_EARLIER = frozenset("step scheduled processes gradient_accumulation_steps target_tokens training_pairs files".split())


def seal(folder: Path, facts: Mapping[str, Any], files: Mapping[str, Path | bytes] | None = None) -> None:
    """Writes the manifest of a folder.

    Args:
        folder (Path): The checkpoint.
        facts (Mapping): What else the manifest says of the checkpoint, as JSON.
        files (Mapping, optional): Names, and the file or the content that it will have; by default all files of the folder.
    """
    if files is None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path for path in paths}
    for path in files.values():
        # Not even a loss of power leaves a manifest without its files.
        if isinstance(path, Path):
            with path.open("rb") as file:
                os.fsync(file.fileno())
    write_whole(folder / MANIFEST_FILE, manifest(files, facts).decode())


def manifest(files: Mapping[str, Path | bytes], facts: Mapping[str, Any]) -> bytes:
    """The manifest of these files.

    Args:
        files (Mapping): Names, and the file or its content.
        facts (Mapping): What else it says.

    Returns:
        bytes: JSON.
    """
    described = {name: describe(file) for name, file in sorted(files.items()) if name != MANIFEST_FILE}
    return _with_hash({**facts, "files": described})


def _with_hash(content: dict[str, Any]) -> bytes:
    sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return (json.dumps({**content, "sha256": sha256}, indent=2) + "\n").encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a manifest says, without the hash of itself.

    Args:
        folder (Path): The checkpoint.

    Returns:
        dict: The facts that were given to `seal`, and `files`.

    Raises:
        ValueError: If it is not as it was written.
    """
    text = (folder / MANIFEST_FILE).read_bytes()
    content = json.loads(text)
    if isinstance(content, dict):
        is_earlier = "sha256" not in content and content.keys() <= _EARLIER
        content.pop("sha256", None)
        if is_earlier or text == _with_hash(content):
            return content
    raise ValueError(f"{MANIFEST_FILE} is damaged")


def describe(file: Path | bytes) -> dict[str, Any]:
    """What a manifest says of a file.

    Args:
        file (Path or bytes): The file or its content.

    Returns:
        dict: `size` in bytes, and `sha256`.
    """
    if isinstance(file, bytes):
        return {"size": len(file), "sha256": hashlib.sha256(file).hexdigest()}
    with file.open("rb") as opened:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


def facts_of(folder: Path) -> dict[str, Any]:
    """The facts that the manifest of a whole checkpoint states.

    Args:
        folder (Path): The checkpoint.

    Returns:
        dict: As they were given to `seal`.

    Raises:
        ValueError: If the manifest is damaged.
    """
    return {name: value for name, value in read_manifest(folder).items() if name != "files"}


def damage(folder: Path, names: Iterable[str] | None = None) -> str | None:
    """The first fault of a checkpoint, compared with its manifest.

    Args:
        folder (Path): The checkpoint.
        names (Iterable, optional): The files to compare, all by default; the manifest always.

    Returns:
        str: The file and what is wrong with it; None for a whole checkpoint.
    """
    return next(iter(faults_of(folder, names).values()), None)


def faults_of(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """All faults of a checkpoint, compared with its manifest.

    Args:
        folder (Path): The checkpoint.
        names (Iterable, optional): The files to compare, all by default; the manifest always.

    Returns:
        dict: What is wrong with a file, by the name of the file; sizes come before hashes.
    """
    try:
        expected = read_manifest(folder)["files"]
        chosen = expected if names is None else names
        wanted = {name: (int(expected[name]["size"]), str(expected[name]["sha256"])) for name in chosen}
    except FileNotFoundError:
        fault = f"{MANIFEST_FILE}, which is written last, is missing: an earlier version or an unfinished copy left it"
        return {MANIFEST_FILE: fault}
    except (OSError, ValueError, TypeError, KeyError):
        return {MANIFEST_FILE: f"{MANIFEST_FILE} is damaged"}
    faults = {}
    for name, (size, _) in wanted.items():
        path = folder / name
        if not path.is_file():
            faults[name] = f"{name} is missing"
        elif path.stat().st_size != size:
            faults[name] = f"{name} has {path.stat().st_size:,} bytes of {size:,}"
    for name, (_, sha256) in wanted.items():
        if name in faults:
            continue
        try:
            if describe(folder / name)["sha256"] != sha256:
                faults[name] = f"{name} is not as it was saved"
        except OSError as error:
            faults[name] = f"{name} cannot be read ({error.strerror})"
    return faults
