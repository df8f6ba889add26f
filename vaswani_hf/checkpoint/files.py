"""The names of all files of a checkpoint and of a run, finding them in a folder, and writing them whole."""

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
from .locks import LOCK_FILE, InUseError, locked_output, locked_run

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# The file by which PEFT finds an adapter, and transformers puts it into a model that lies beside it.
ADAPTER_FILE = "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# The files that translating needs; code, card and recipe are not among them.
MODEL_FILES = (CONFIG_FILE, GENERATION_FILE, WEIGHTS_FILE, "model-*.safetensors", INDEX_FILE)
CHECKPOINT_FILES = (*MODEL_FILES, *TOKENIZER_FILES, f"{TARGET_FOLDER}/*.json")

# The files that a run leaves beside its model.
CARD_FILE = "README.md"
RECIPE_FILE = "recipe.yaml"
RESULTS_FILE = "results.json"
CURVE_FILE = "training_curve.png"
RECORD_FILES = (CARD_FILE, RECIPE_FILE, RESULTS_FILE, CURVE_FILE)
METRICS_FILE = "metrics.jsonl"
TRANSLATIONS_FILE = "test_translations.txt"
TREES_FILE = "test_trees.txt"

# The files that a numbered checkpoint has beside the model: the moving average of its weights, the Trainer's state, the place
# in a stream of pairs, and the sizes and hashes of all files.
AVERAGED_WEIGHTS_FILE = "moving_average.safetensors"
STATE_FILE = "trainer_state.json"
STREAM_FILE = "stream_state.json"
MANIFEST_FILE = "manifest.json"

# How the name of a folder ends that `new_folder` has not put in place yet.
_UNFINISHED = ".vaswani-unfinished"


def checkpoints_in(folder: str | Path) -> list[Path]:
    """The checkpoints that a training run left, oldest first."""
    numbered = [(path.name.removeprefix("checkpoint-"), path) for path in Path(folder).glob("checkpoint-*")]
    return [path for step, path in sorted((int(step), path) for step, path in numbered if step.isdecimal())]


def recipe_file(folder: Path) -> Path | None:
    """The recipe that the run of a checkpoint has recorded."""
    # A numbered checkpoint may be named by a link, or as the current folder.
    names = (folder.absolute(), folder.resolve())
    places = [folder, *(name.parent for name in names if name.name.startswith("checkpoint-"))]
    return next((place / RECIPE_FILE for place in places if (place / RECIPE_FILE).is_file()), None)


def step_of(checkpoint: Path) -> int:
    """The optimizer step that a checkpoint was saved after."""
    return read_state(checkpoint)["global_step"]


def scores_by_step(log_history: list[dict[str, Any]], metric: str) -> dict[int, float]:
    """The scores of the validations in the log of the Trainer, by step; higher is better.

    `metric` is "loss", whose sign is turned, or a score such as "bleu". With the prefix "raw_" it is that of the weights
    themselves, in a run with a moving average.
    """
    name = f"eval_{metric}"
    sign = -1 if metric.removeprefix("raw_") == "loss" else 1
    return {row["step"]: sign * row[name] for row in log_history if name in row}


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state of the Trainer that a numbered checkpoint was saved with."""
    try:
        return json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(
            f"{STATE_FILE} of '{checkpoint}' is damaged; copy the checkpoint again, or remove it."
        ) from None


def weight_files(folder: Path, name: str | os.PathLike | None = None) -> list[str]:
    """The names of the files that hold the weights of a checkpoint, with their index where there is one."""
    if (folder / WEIGHTS_FILE).is_file() or not (folder / INDEX_FILE).is_file():
        return [WEIGHTS_FILE]
    place = f"{INDEX_FILE} of '{name or folder}'"
    try:
        shards = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].values()
        names = sorted({str(shard) for shard in shards})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(f"{place} is damaged; copy or download it again.") from None
    for shard in names:
        # A path would be read, and published, from wherever it leads to.
        if not re.fullmatch(r"\w[\w.-]*\.safetensors", shard):
            raise ValueError(
                f"{place} must name .safetensors files beside it, but names {shard!r}; take the files of one checkpoint."
            )
    return [*names, INDEX_FILE]


def finite(value: Any) -> Any:
    """A value as JSON has it, which knows no infinite numbers: None in their place."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is never half there, not even after a loss of power."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def open_to_readers(folder: Path) -> None:
    """Gives the weights in a folder the mode of its config.json; safetensors lets nobody but their owner read them."""
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / CONFIG_FILE, path)


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that takes the place of `output` if all goes well, and is deleted if not.

    One process at a time makes `output`. What killed processes have left beside `output` is deleted.
    """
    # A name such as "." or "x/.." has no last part to be renamed to.
    named, output = output, Path(os.path.abspath(output))
    if output == Path.cwd():
        raise ValueError(
            f"`output` must be a new or empty folder, but '{named}' is the current one; give another name."
        )
    if above := [place for place in output.parents if place.exists() and not place.is_dir()]:
        raise ValueError(f"`output` must be in a folder, but '{above[0]}' is a file; give another name.")
    output.parent.mkdir(parents=True, exist_ok=True)
    _delete_leftovers(output.parent)
    with locked_output(output, f"`output` '{named}'"):
        if os.path.lexists(output) and (output.is_symlink() or not output.is_dir() or not _is_empty(output)):
            raise ValueError(
                f"`output` must be a new or empty folder, but '{named}' exists; give another name."
            )
        # A unique name, because not every file system has locks.
        folder = output.parent / f".{output.name}.{secrets.token_hex(4)}{_UNFINISHED}"
        try:
            yield folder
            open_to_readers(folder)
            _put_in_place(folder, output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    """True for a folder that has nothing but the lock file of a killed run."""
    if any(path.name != LOCK_FILE for path in folder.iterdir()):
        return False
    if (folder / LOCK_FILE).exists():
        with locked_run(folder):
            # The end of the lock deletes the file.
            pass
    return True


def _put_in_place(folder: Path, output: Path) -> None:
    try:
        if output.exists():
            output.rmdir()
        folder.rename(output)
    except OSError:
        # A folder where a disk is mounted stays; in one that somebody has filled meanwhile nothing is mixed.
        if not output.is_dir() or any(output.iterdir()):
            raise
        for path in sorted(folder.iterdir()):
            shutil.move(path, output)


def _delete_leftovers(parent: Path) -> None:
    """Deletes what killed processes have left of the outputs that they made in a folder."""
    for left in parent.glob(f".*.*{_UNFINISHED}"):
        output = parent / left.name.removeprefix(".").removesuffix(_UNFINISHED).rpartition(".")[0]
        with contextlib.suppress(InUseError), locked_output(output, "") as is_locked:
            if is_locked:
                shutil.rmtree(left, ignore_errors=True)


class WriteError(OSError):
    """Writing into a folder failed; the message names it."""


@contextlib.contextmanager
def naming_the_folder(folder: Path, remedy: str = "make room and try again") -> Iterator[None]:
    """Names the folder where writing to it fails; a full disk is reported by several libraries, and by none with its place."""
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        # `datasets` puts an error of its own around that of the disk.
        reason = _why_not_written(error) or _why_not_written(error.__cause__)
        if reason is None:
            raise
        if reason in (os.strerror(errno.EROFS), os.strerror(errno.EIO)):
            # Room would not help.
            raise WriteError(
                f"'{folder}' could not be written: {reason}; mend the disk, or take another folder."
            ) from error
        free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.is_dir())).free
        raise WriteError(
            f"'{folder}' could not be written: {reason} ({free / 2**20:,.0f} MiB are free there); {remedy}."
        ) from error


def _why_not_written(error: BaseException | None) -> str | None:
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
    if isinstance(error, OSError) and error.errno in numbers:
        return os.strerror(error.errno)
    # The libraries in Rust and C++ say it in words only; torch says less than that.
    for number in numbers:
        if os.strerror(number) in str(error) or f"(os error {number})" in str(error):
            return os.strerror(number)
    return "a file could not be written to its end" if "inline_container" in str(error) else None
