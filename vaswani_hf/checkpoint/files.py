"""Defines the names of the files in a checkpoint and in the output folder of a run. Finds the files of
checkpoints, and writes files atomically.
"""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.errors_vaswani import InvalidValueError
from .locks import LOCK_FILE, InUseError, locked_output, locked_run

CONFIG_FILE = "config.json"
# CTranslate2 writes this key into each config.json, and no other config.json has the key.
CTRANSLATE2_KEY = "add_source_eos"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# PEFT and transformers treat a folder with adapter_config.json as a PEFT adapter. If a folder contains both a
# model and adapter_config.json, transformers adds the adapter to the model.
ADAPTER_FILE = "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
FILES_OF_BOTH_TOKENIZERS = (*TOKENIZER_FILES, *(f"{TARGET_FOLDER}/{name}" for name in TOKENIZER_FILES))
# The files of a checkpoint that the model and its tokenizers read. `CHECKPOINT_FILES` does not contain the
# Python files, the model card and the recipe of a checkpoint. The patterns must not match a file that a user
# has added to the repository, because a push deletes each file that matches a pattern and is not in the new
# checkpoint. `MODEL_FILES` has `?` instead of `*`, because on the Hub `*` also matches a slash.
MODEL_FILES = (CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE, "model-?????-of-?????.safetensors", INDEX_FILE)
CHECKPOINT_FILES = (*MODEL_FILES, *FILES_OF_BOTH_TOKENIZERS)

# The files that a run writes in addition to the model, such as the model card and the recipe.
CARD_FILE = "README.md"
RECIPE_FILE = "recipe.yaml"
RESULTS_FILE = "results.json"
# The handler that serves a model on Hugging Face Inference Endpoints, and the list of libraries that the
# handler needs.
HANDLER_FILE = "handler.py"
REQUIREMENTS_FILE = "requirements.txt"
# The file with the licences of a model and of its code, in the repository of the model.
LICENSE_FILE = "LICENSE"
CURVE_FILE = "training_curve.png"
# The picture of the attention weights for one sentence.
ATTENTION_FILE = "attention.png"
# The file that `vaswani certify` writes into a checkpoint.
CERTIFICATE_FILE = "certificate.json"
# calibration.json contains the weights of the logistic regression that computes a calibrated confidence from
# the token probabilities of a translation. calibration.json also contains the reliability curve of the
# confidence. calibration.png is a picture of the reliability curve.
CALIBRATION_FILE = "calibration.json"
CALIBRATION_PICTURE = "calibration.png"
# Files about a run or a model. A push to the Hub uploads these files unchanged. A push rewrites the model
# card and the recipe, and reads results.json for the model card without uploading results.json.
UNCHANGED_RECORDS = (CURVE_FILE, ATTENTION_FILE, CERTIFICATE_FILE, CALIBRATION_FILE)
RECORD_FILES = (CARD_FILE, RECIPE_FILE, RESULTS_FILE, *UNCHANGED_RECORDS)
METRICS_FILE = "metrics.jsonl"
TRANSLATIONS_FILE = "test_translations.txt"
TREES_FILE = "test_trees.txt"

# Additional files of a numbered checkpoint (checkpoint-N), in this order: the moving average of the weights,
# the state of the Trainer, the position in a stream of training pairs, and the manifest with the sizes and
# hashes of all files.
AVERAGED_WEIGHTS_FILE = "moving_average.safetensors"
STATE_FILE = "trainer_state.json"
STREAM_FILE = "stream_state.json"
MANIFEST_FILE = "manifest.json"

# The suffix of the names that `new_folder` gives to temporary folders.
_UNFINISHED = ".vaswani-unfinished"


def checkpoints_in(folder: str | Path) -> list[Path]:
    """Return the numbered checkpoints in the folder of a run, oldest first."""
    folders = Path(folder).glob("checkpoint-*")
    return sorted(
        (path for path in folders if path.name.removeprefix("checkpoint-").isdecimal()), key=step_of
    )


def step_of(checkpoint: Path) -> int:
    """Return the number of optimizer steps after which a numbered checkpoint was saved, such as 500 for
    checkpoint-500.
    """
    return int(checkpoint.name.removeprefix("checkpoint-"))


def has_run(folder: Path) -> bool:
    """Return True if a folder contains numbered checkpoints or the final weights of a run."""
    return bool(checkpoints_in(folder)) or (folder / WEIGHTS_FILE).exists()


def recipe_file(folder: Path) -> Path | None:
    """Return the path of the recipe.yaml of a checkpoint, or None if the checkpoint has no recipe."""
    # The recipe of a numbered checkpoint is in the folder of the run. Search in the parent of the absolute
    # path, because the parent of `Path(".")` is again `Path(".")`. Also search in the parent of the resolved
    # path, because `folder` can be a symbolic link to a numbered checkpoint.
    names = (folder.absolute(), folder.resolve())
    places = [folder, *(name.parent for name in names if name.name.startswith("checkpoint-"))]
    return next((place / RECIPE_FILE for place in places if (place / RECIPE_FILE).is_file()), None)


def scores_by_step(log_history: list[dict[str, Any]], metric: str) -> dict[int, float]:
    """Return the validation score `metric`, such as "bleu", of each optimizer step in the Trainer's log.

    The loss and the perplexity are multiplied by -1, so that a higher value is better for every metric. If
    the run computes a moving average of the weights, "raw_bleu" is the BLEU of the weights without averaging.
    """
    name = f"eval_{metric}"
    return {row["step"]: higher_is_better(metric, row[name]) for row in log_history if name in row}


def higher_is_better(metric: str, score: float) -> float:
    """Multiply a loss or a perplexity by -1, so that a higher value is better. Return other scores
    unchanged.
    """
    return -score if metric.removeprefix("raw_") in ("loss", "perplexity") else score


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the state of the Trainer that a numbered checkpoint (`checkpoint-N`) contains."""
    try:
        return json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(
            f"{STATE_FILE} of '{checkpoint}' is damaged; copy the checkpoint again, or remove the checkpoint."
        ) from None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl. Leave out damaged lines and rows without a step. Return an empty list
    if the file is missing.
    """
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows


class DamagedFileError(ValueError):
    """Raised if a file of a checkpoint is damaged or missing. `__str__` adds a remedy to the error
    message.
    """

    def __str__(self) -> str:
        return f"{super().__str__()}; copy or download the file again."


def read_json_object(folder: Path, file: str, name: str | os.PathLike) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint. Raise an error if the file is missing or damaged."""
    content = read_json(folder, file, name)
    if not isinstance(content, dict):
        raise DamagedFileError(f"{file} of '{name}' must hold a JSON object, but does not: it is damaged")
    return content


def read_json(folder: Path, file: str, name: str | os.PathLike) -> Any:
    """Read a JSON value from a file of a checkpoint. Return None if the content is not JSON."""
    path = folder / file
    if not path.exists():
        raise DamagedFileError(f"'{name}' holds no whole checkpoint: it has no {file}")
    if path.is_dir():
        raise DamagedFileError(f"{file} of '{name}' must be a file, but is a folder")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def weight_files(folder: Path, name: str | os.PathLike | None = None) -> list[str]:
    """Return the names of the weight files. If there are several weight files, the list ends with the name of
    the index file.
    """
    if (folder / WEIGHTS_FILE).is_file() or not (folder / INDEX_FILE).is_file():
        return [WEIGHTS_FILE]
    place = f"{INDEX_FILE} of '{name or folder}'"
    index = read_json(folder, INDEX_FILE, name or folder)
    try:
        names = sorted({str(shard) for shard in index["weight_map"].values()})
    except (TypeError, KeyError, AttributeError):
        raise DamagedFileError(f"{place} is damaged") from None
    for shard in names:
        # Refuse a path such as "../x.safetensors", so that the package neither reads nor publishes a file
        # outside the checkpoint.
        if not re.fullmatch(r"\w[\w.-]*\.safetensors", shard):
            raise ValueError(
                f"{place} must name .safetensors files in the same folder, but names {shard!r}; take the "
                "files of one checkpoint."
            )
    return [*names, INDEX_FILE]


def finite(value: Any) -> Any:
    """Replace infinite and NaN numbers by None, also in dicts and lists, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a power failure, the file has either its old or its new content."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def open_to_readers(folder: Path) -> None:
    """Give weight files the permissions of config.json, because safetensors lets only the owner read."""
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / CONFIG_FILE, path)


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Context manager that creates the folder `output` completely or not at all.

    The `with` block writes into a temporary folder in the parent of `output`. At the end of the block, the
    temporary folder is renamed to `output`. After an error, the temporary folder is deleted. On a file system
    with locks, only one process at a time can create `output`. An error of a full disk becomes a `WriteError`
    that names `output`.
    """
    # Make the path absolute, so that `output.name` is a folder name. The temporary folder is named after
    # `output.name`. For the relative paths "." and "x/..", `output.name` is "" and "..".
    named, output = output, Path(os.path.abspath(output))
    if output == Path.cwd():
        raise InvalidValueError(
            f"`output` must not be the current folder, but is '{named}'; give the name of a new or empty folder."
        )
    if above := [place for place in output.parents if place.exists() and not place.is_dir()]:
        raise InvalidValueError(
            f"`output` must be in a folder, but '{above[0]}' is a file; give another name."
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    _delete_leftovers(output.parent)
    with locked_output(output, f"`output` '{named}'"):
        if os.path.lexists(output) and (output.is_symlink() or not output.is_dir() or not _is_empty(output)):
            raise InvalidValueError(
                f"`output` must be a new or empty folder, but '{named}' exists and is not an empty folder; "
                "give another name."
            )
        # Use a random name for the temporary folder, because two processes can create `output` at the same
        # time on a file system without locks.
        folder = output.parent / f".{output.name}.{secrets.token_hex(4)}{_UNFINISHED}"
        try:
            with explain_write_errors(output):
                yield folder
                open_to_readers(folder)
                _put_in_place(folder, output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    """Return True if a folder is empty except for the lock file of a killed run, and delete the lock file."""
    if any(path.name != LOCK_FILE for path in folder.iterdir()):
        return False
    if (folder / LOCK_FILE).exists():
        with locked_run(folder):
            # A killed run has left the lock file. `locked_run` deletes the lock file at the end of the `with`
            # block.
            pass
    return True


def _put_in_place(folder: Path, output: Path) -> None:
    try:
        if output.exists():
            output.rmdir()
        folder.rename(output)
    except OSError:
        # Move the files of the temporary folder into `output` if `output` is an empty mount point, because a
        # folder cannot replace a mount point.
        if not output.is_dir() or any(output.iterdir()):
            raise
        for path in sorted(folder.iterdir()):
            shutil.move(path, output)


def _delete_leftovers(parent: Path) -> None:
    """Delete the temporary folders that killed processes have left in the folder `parent`."""
    for left in parent.glob(f".*.*{_UNFINISHED}"):
        output = parent / left.name.removeprefix(".").removesuffix(_UNFINISHED).rpartition(".")[0]
        with contextlib.suppress(InUseError), locked_output(output, "") as is_locked:
            if is_locked:
                shutil.rmtree(left, ignore_errors=True)


class WriteError(OSError):
    """Raised if writing into a folder fails. The error message names the folder and a remedy."""


@contextlib.contextmanager
def explain_write_errors(folder: Path, remedy: str = "free disk space and try again") -> Iterator[None]:
    """Context manager that converts an error of a full or broken disk to a `WriteError`. The `WriteError`
    names the folder, because error messages of other libraries can omit the folder.
    """
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        # Also search the cause of the exception, because `datasets` wraps an error of the disk in another
        # exception.
        reason = _why_not_written(error) or _why_not_written(error.__cause__)
        if reason is None:
            raise
        if reason in (os.strerror(errno.EROFS), os.strerror(errno.EIO)):
            # Freeing space does not help if the disk is read-only or broken.
            raise WriteError(
                f"'{folder}' could not be written: {reason}; repair the disk, or give another folder."
            ) from error
        free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.is_dir())).free
        raise WriteError(
            f"'{folder}' could not be written: {reason} ({free / 2**20:,.0f} MiB are free there); {remedy}."
        ) from error


def _why_not_written(error: BaseException | None) -> str | None:
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
    if isinstance(error, OSError) and error.errno in numbers:
        return os.strerror(error.errno)
    # Search the error message for the text or the number of the error, because exceptions of libraries in
    # Rust and C++ have no attribute `errno`. PyTorch's error message about an incomplete file contains
    # neither the text nor the number, but the name of a source file of PyTorch, "inline_container".
    for number in numbers:
        if os.strerror(number) in str(error) or f"(os error {number})" in str(error):
            return os.strerror(number)
    return "a file was not written completely" if "inline_container" in str(error) else None
