"""Writes and verifies the manifest of a checkpoint. A manifest contains the size and the hash of each file,
and a hash of all other content of the manifest.

The manifest is written last, so a checkpoint with a manifest is complete.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .files import MANIFEST_FILE, write_whole


def write_manifest(
    folder: Path, metadata: Mapping[str, Any], files: Mapping[str, Path | bytes] | None = None
) -> None:
    """Write the manifest of `files`, by default of all files in the folder. `metadata` are additional
    entries.
    """
    if files is None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path for path in paths}
    for path in files.values():
        # Flush the files to the disk, because after a power failure the disk could otherwise contain the
        # manifest without the files.
        if isinstance(path, Path):
            with path.open("rb") as file:
                os.fsync(file.fileno())
    write_whole(folder / MANIFEST_FILE, manifest(files, metadata))


def manifest(files: Mapping[str, Path | bytes], metadata: Mapping[str, Any]) -> bytes:
    """Return a manifest of `files` as JSON. `metadata` are additional entries of the manifest."""
    described = {name: describe(file) for name, file in sorted(files.items()) if name != MANIFEST_FILE}
    return _with_hash({**metadata, "files": described})


def _with_hash(content: dict[str, Any]) -> bytes:
    sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return (json.dumps({**content, "sha256": sha256}, indent=2) + "\n").encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's manifest, without the key "sha256", which holds the hash of the
    manifest. Raise a ValueError if the hash is wrong.
    """
    text = (folder / MANIFEST_FILE).read_bytes()
    content = json.loads(text)
    if isinstance(content, dict):
        content.pop("sha256", None)
        if text == _with_hash(content):
            return content
    raise ValueError(f"{MANIFEST_FILE} is damaged")


def describe(file: Path | bytes) -> dict[str, Any]:
    """Return the `size` in bytes and the `sha256` of a file. `file` is the path of the file, or its content
    as bytes.
    """
    if isinstance(file, bytes):
        return {"size": len(file), "sha256": hashlib.sha256(file).hexdigest()}
    with file.open("rb") as opened:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


def metadata_of(folder: Path) -> dict[str, Any]:
    """Return the entries of a manifest except `files`: the argument `metadata` of `write_manifest`."""
    return {name: value for name, value in read_manifest(folder).items() if name != "files"}


def verify_manifest(folder: Path, names: Iterable[str] | None = None) -> str | None:
    """Return the first fault that `faults_of` finds in a checkpoint, or None if there is no fault."""
    return next(iter(faults_of(folder, names).values()), None)


def faults_of(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the fault of each missing or damaged file. `names` are the files to check, by default all files.

    The dict lists missing files and files with a wrong size before files with a wrong hash.
    """
    try:
        expected = read_manifest(folder)["files"]
        chosen = expected if names is None else names
        wanted = {name: (int(expected[name]["size"]), str(expected[name]["sha256"])) for name in chosen}
    except FileNotFoundError:
        return {MANIFEST_FILE: f"{MANIFEST_FILE} is missing, so the checkpoint is incomplete"}
    except (OSError, ValueError, TypeError, KeyError):
        return {MANIFEST_FILE: f"{MANIFEST_FILE} is damaged"}
    faults = {}
    for name, (size, _) in wanted.items():
        path = folder / name
        if not path.is_file():
            faults[name] = f"{name} is missing"
        elif path.stat().st_size != size:
            faults[name] = f"{name} has {path.stat().st_size:,} bytes, but was saved with {size:,} bytes"
    for name, (_, sha256) in wanted.items():
        if name in faults:
            continue
        try:
            if describe(folder / name)["sha256"] != sha256:
                faults[name] = f"{name} has changed since it was saved"
        except OSError as error:
            faults[name] = f"{name} cannot be read ({error.strerror})"
    return faults
