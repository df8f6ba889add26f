"""Computes COMET scores with the command `comet-score`, which must be installed in a separate environment,
because unbabel-comet needs transformers below 5 and numpy below 2.

A COMET model is a pickle file, and `comet-score` executes the code in the pickle file with all permissions of
the user. Use only COMET models from publishers that you trust.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model.errors_vaswani import InvalidValueError

COMMAND = "comet-score"


class CometError(ValueError):
    """Raised if COMET scores cannot be computed. The error message includes a remedy."""


def check_comet(model: str) -> None:
    """Raise an error if the command `comet-score` or the given .ckpt file is missing."""
    if shutil.which(COMMAND) is None:
        raise InvalidValueError(
            f"`--comet` needs the command {COMMAND}, which is not on PATH; install it in an environment of "
            "its own, with `pipx install unbabel-comet` or `uv tool install --python 3.11 unbabel-comet`."
        )
    if model.endswith(".ckpt") and not Path(model).is_file():
        raise InvalidValueError(
            f"`--comet` must be user/name on the Hub or an existing .ckpt file, but is {model}."
        )


def comet_scores(
    model: str,
    systems: Mapping[str, Sequence[str]],
    sources: Sequence[str],
    references: Sequence[str],
    device: str | None = None,
) -> dict[str, list[float]]:
    """Return one COMET score per sentence for each system. `model` is a .ckpt file, or a name on the Hub such
    as "Unbabel/wmt22-comet-da". Call `check_comet(model)` before this function. COMET computes on a GPU,
    except if `device` is "cpu" or the machine has no GPU.
    """
    with tempfile.TemporaryDirectory(prefix="vaswani_comet_") as name:
        folder = Path(name)
        _write(folder / "source", sources)
        _write(folder / "reference", references)
        files = [str(folder / f"system{number}") for number in range(len(systems))]
        for file, translations in zip(files, systems.values(), strict=True):
            _write(Path(file), translations)
        import torch

        num_gpus = 1 if torch.cuda.is_available() and not (device or "").startswith("cpu") else 0
        texts = ["-s", str(folder / "source"), "-r", str(folder / "reference"), "-t", *files]
        options = [
            "--model",
            model,
            "--gpus",
            str(num_gpus),
            "--only_system",
            "--to_json",
            str(folder / "scores.json"),
        ]
        _run([COMMAND, *texts, *options], model, folder)
        scores = _read(folder / "scores.json", files, len(sources))
    return dict(zip(systems, scores, strict=True))


def comet_scores_or_error(
    model: str | None,
    systems: Mapping[str, Sequence[str]],
    sources: Sequence[str],
    references: Sequence[str],
    device: str | None,
) -> tuple[dict[str, list[float]] | None, CometError | None]:
    """Return the COMET scores or the error of COMET. The function does not raise the error, so that the other
    scores are still computed.
    """
    if model is None:
        return None, None
    try:
        return comet_scores(model, systems, sources, references, device), None
    except CometError as error:
        return None, error


def _write(path: Path, texts: Sequence[str]) -> None:
    # Replace all white space by single spaces, because comet-score would read a carriage return inside a
    # sentence as the end of a line.
    path.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf-8")


def _run(command: list[str], model: str, folder: Path) -> None:
    # If stderr is a terminal, comet-score writes progress bars and errors to the terminal. If stderr is not a
    # terminal, the stderr of comet-score goes to the log file. An error message quotes the last line of the
    # log file.
    shows = sys.stderr is not None and sys.stderr.isatty()
    environment = os.environ | {"PYTHONUTF8": "1"}
    with open(folder / "log", "wb") as log:
        errors = None if shows else log
        finished = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=errors, env=environment
        )
    if finished.returncode:
        lines = (folder / "log").read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()] or [
            "see the output above" if shows else "no output"
        ]
        raise CometError(
            f"{COMMAND} failed with '{model}' (exit code {finished.returncode}: {said[-1][:300]}); check that"
            " the model can be downloaded from the Hub or is a valid .ckpt file, or leave out `--comet`."
        )


def _read(path: Path, files: list[str], num_sentences: int) -> list[list[float]]:
    """Read the output of comet-score. Return one list for each file, with one score for each sentence."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        scores = [[float(segment["COMET"]) for segment in found[file]] for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        raise CometError(
            f"{COMMAND} has written no scores; update {COMMAND}, or leave out `--comet`."
        ) from None
    if any(len(system) != num_sentences for system in scores):
        raise CometError(
            f"{COMMAND} has not scored each of the {num_sentences:,} sentences; update {COMMAND}."
        )
    return scores
