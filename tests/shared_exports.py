"""Exported folders that all test processes of pytest-xdist share, because tracing an ONNX graph takes
seconds: one process runs `vaswani export`, and the others read its files.
"""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import shared_weights
from filelock import FileLock

from vaswani_hf.cli import main

_PRINTED = "printed.json"


class SharedExport(NamedTuple):
    """A checkpoint, its exported folder, and the standard output and standard error of the command."""

    checkpoint: Path
    exported: Path
    output: str
    errors: str


def export_once(format: str, save: Callable[[Path], object], *options: str) -> SharedExport:
    """Write a checkpoint with `save`, and export the checkpoint with the command. If a test process has
    already exported a checkpoint to this format, return its folders. Tests must not change the files.
    """
    folder = shared_weights.folder / f"export_{format}"
    checkpoint, exported = folder / "checkpoint", folder / "exported"
    with FileLock(f"{folder}.lock"):
        if not (folder / _PRINTED).exists():
            save(checkpoint)
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                assert main(["export", str(checkpoint), str(exported), "--format", format, *options]) == 0
            (folder / _PRINTED).write_text(json.dumps([out.getvalue(), err.getvalue()]))
    return SharedExport(checkpoint, exported, *json.loads((folder / _PRINTED).read_text()))
