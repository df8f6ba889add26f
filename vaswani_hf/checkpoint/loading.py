"""Loads a checkpoint from a folder or the Hub, and detects damaged files."""

import difflib
import hashlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open

from ..model.errors_vaswani import InvalidValueError
from ..model.language_models_vaswani import VaswaniForCausalLM, VaswaniForMaskedLM
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..patches import without_initial_values
from .files import (
    ADAPTER_FILE,
    CALIBRATION_FILE,
    CHECKPOINT_FILES,
    CONFIG_FILE,
    CTRANSLATE2_KEY,
    GENERATION_FILE,
    INDEX_FILE,
    LICENSE_FILE,
    RECIPE_FILE,
    DamagedFileError,
    checkpoints_in,
    read_json,
    read_json_object,
    weight_files,
)
from .hub import HubError, InvalidHubValueError, UnreachableHubError, explained, with_retries

# Matches the name of a repository: user/name or user/name@revision.
_REPOSITORY = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)(?:@(.+))?", re.ASCII)
# Matches a file name in the cache of huggingface_hub: git's SHA-1 hash of a small file, or the SHA-256 hash
# of a large file.
_FILE_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


# An error message lists at most this number of checkpoints.
_MOST_LISTED = 10


class Kind(NamedTuple):
    """A model type: its class, its name in error messages, and the pipeline that uses its models."""

    model_class: Any
    words: str
    use: str


TRANSLATION = "vaswani"
KINDS = {
    TRANSLATION: Kind(VaswaniForSeq2SeqLM, "a translation model", '`pipeline("translation")`'),
    "vaswani_decoder": Kind(VaswaniForCausalLM, "a causal language model", '`pipeline("text-generation")`'),
    "vaswani_encoder": Kind(VaswaniForMaskedLM, "a masked language model", '`pipeline("fill-mask")`'),
}


def checkpoint_folder(
    name: str | os.PathLike,
    *,
    option: str = "model",
    revision: str | None = None,
    files: Iterable[str] = (*CHECKPOINT_FILES, ADAPTER_FILE, RECIPE_FILE, CALIBRATION_FILE, LICENSE_FILE),
    **hub_kwargs: Any,
) -> Path:
    """Return the folder of a checkpoint. Download a checkpoint of the Hub (user/name or user/name@revision).

    `option` is the name of the option or argument that contains `name`, for error messages. `files` are
    patterns of the files to download. `hub_kwargs` are arguments of `snapshot_download`.
    """
    path = str(name)
    if not os.path.isdir(path):
        path = path.rpartition("@")[0]
    elif revision is None:
        return Path(path)
    if path and os.path.isdir(path):
        raise InvalidValueError(
            f"`revision` is for a repository on the Hub, but '{path}' is a folder; leave `revision` out."
        )
    found = _REPOSITORY.fullmatch(str(name))
    if found is None:
        raise InvalidValueError(
            f"`{option}` must be a checkpoint folder or user/name on the Hub, but there is no folder '{name}'"
            f"{_nearest_folder(Path(name))}; check the name."
        )
    repo_id = found.group(1)
    hub_kwargs |= {"revision": found.group(2) or revision, "allow_patterns": list(files)}
    try:
        with explained():
            folder = Path(with_retries(snapshot_download, repo_id, **hub_kwargs))
    except UnreachableHubError as error:
        # The error message also mentions local folders, because `name` is perhaps the misspelled name of a
        # local folder.
        raise InvalidHubValueError(
            f"`{option}` must be a checkpoint folder or user/name on the Hub, but there is no folder "
            f"'{name}' here{_nearest_folder(Path(name))}, and {error}"
        ) from error
    verify_download(folder, repo_id, files)
    return folder


def _nearest_folder(path: Path) -> str:
    others = [folder.name for folder in path.parent.glob("*/")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, others, 1)
    return f" (the nearest one is '{path.parent / near[0]}')" if near else ""


def verify_download(folder: Path, repo_id: str, patterns: Iterable[str]) -> None:
    """Compare each downloaded file with its hash on the Hub, because huggingface_hub compares only sizes."""
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        # A downloaded file is a link to a cached file. The name of the cached file is the hash of the file's
        # content.
        expected = Path(os.readlink(path)).name if path.is_symlink() else ""
        if _FILE_HASH.fullmatch(expected) and expected != _hash(path, len(expected)):
            raise HubError(
                f"{path.relative_to(folder)} of '{repo_id}' is not the file that the Hub has: it was damaged "
                f"or changed during the download or on disk; delete '{path.resolve()}', and run the command "
                "again to download the file."
            )


def _hash(path: Path, length: int) -> str:
    with path.open("rb") as file:
        if length == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        content = file.read()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def load_model(
    folder: Path,
    name: str | os.PathLike | None = None,
    kinds: tuple[str, ...] = (TRANSLATION,),
    **kwargs: Any,
) -> Any:
    """Load a model on the CPU, in eval mode. Raise a ValueError if a file is damaged or missing.

    `name` is the folder or repository that the user has named, for error messages. `kinds` are the accepted
    model types (keys of `KINDS`).
    """
    name = name or folder
    model_class = KINDS[check_config(folder, name, kinds)].model_class
    if (folder / GENERATION_FILE).exists():
        # Read generation_config.json here, so that a damaged file causes an error. transformers would
        # silently use default settings.
        read_json_object(folder, GENERATION_FILE, name)
    _check_weight_files(folder, name)
    model, report = load_with_report(model_class, folder, **kwargs)
    refuse_load_faults(report, name)
    return model.eval()


def load_with_report(model_class: Any, folder: Path | None, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model, and the report of transformers about missing, unexpected and mismatched weights."""
    logger = logging.getLogger("transformers.modeling_utils")
    # Hide the log message of transformers about these weights, because the caller raises an error about the
    # same weights.
    logger.addFilter(_is_no_load_report)
    try:
        with without_initial_values():
            return model_class.from_pretrained(
                folder, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
    finally:
        logger.removeFilter(_is_no_load_report)


def refuse_load_faults(report: dict[str, Any], name: str | os.PathLike) -> None:
    """Raise an error if the report of `load_with_report` contains missing weights, unexpected weights or
    weights of another shape. The error names one weight of each kind, and the number of the others.
    """
    faults = [
        *_fault(report["missing_keys"], "missing"),
        *_fault(report["unexpected_keys"], "unexpected"),
        *_fault([key for key, *_ in report["mismatched_keys"]], "of another shape"),
    ]
    if faults:
        raise ValueError(
            f"'{name}' does not hold the weights that its config describes: {', '.join(faults)}; take the "
            "config and the weights from one checkpoint."
        )


def _is_no_load_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def _fault(keys: Iterable[str], what: str) -> list[str]:
    """Return a list with one text, such as "lm_head.weight and 3 more are missing", or an empty list."""
    found = sorted(keys)
    if not found:
        return []
    others = f" and {len(found) - 1:,} more are" if len(found) > 1 else " is"
    return [f"{found[0]}{others} {what}"]


def check_config(
    folder: Path, name: str | os.PathLike, kinds: tuple[str, ...] = (TRANSLATION,), needed: str = ""
) -> str:
    """Return the model type of a checkpoint. Raise a ValueError if the type is not one of `kinds`.

    `name` is the folder or repository that the user has named, for error messages. `needed` describes the
    accepted model types in an error message. By default, the message lists the `words` of each accepted type,
    such as "a translation model".
    """
    # Name the folder only if the user has named the folder. For a Hub repository without files, `folder` is a
    # missing cache folder, which the user does not know.
    if str(folder) == str(name) and not folder.is_dir():
        raise InvalidValueError(
            f"`model` must be a checkpoint folder, but there is no folder '{name}'; check the name."
        )
    if (folder / ADAPTER_FILE).exists():
        # transformers would silently add the adapter to the model if PEFT is installed.
        raise InvalidValueError(
            f"`model` must be a whole model, but '{name}' holds an adapter of PEFT ({ADAPTER_FILE}); load "
            "the adapter in Python with `PeftModel.from_pretrained`, merge it with `merge_and_unload`, and "
            "save the merged model in a folder of its own."
        )
    if not (folder / CONFIG_FILE).is_file():
        _refuse_unfinished_run(folder, name)
        raise InvalidValueError(
            f"`model` must be a checkpoint, but '{name}' has no config.json; check the name, or copy the "
            "whole checkpoint again."
        )
    content = read_json(folder, CONFIG_FILE, name)
    config = content if isinstance(content, dict) else {}
    if CTRANSLATE2_KEY in config:
        raise InvalidValueError(
            f"`model` must be a checkpoint for PyTorch, but '{name}' was exported for CTranslate2; name the "
            "checkpoint from which the export was made, or use `vaswani translate --engine ctranslate2`."
        )
    if "model_type" not in config:
        raise DamagedFileError(f"{CONFIG_FILE} of '{name}' must name its `model_type`, but does not")
    _check_kind(config["model_type"], name, kinds, needed)
    return config["model_type"]


def _refuse_unfinished_run(folder: Path, name: str | os.PathLike) -> None:
    """If a folder contains numbered checkpoints, raise a ValueError that lists the checkpoints."""
    checkpoints = [checkpoint.name for checkpoint in checkpoints_in(folder)]
    if not checkpoints:
        return
    listed = ", ".join(checkpoints[-_MOST_LISTED:])
    if len(checkpoints) > _MOST_LISTED:
        listed = f"{len(checkpoints) - _MOST_LISTED:,} older ones, {listed}"
    raise InvalidValueError(
        f"`model` must be a finished model, but '{name}' holds only checkpoints of a run ({listed}); name a "
        f"checkpoint, such as '{Path(name) / checkpoints[-1]}', or finish the run with `vaswani train` and "
        "`--resume true`."
    )


def _check_kind(model_type: Any, name: str | os.PathLike, kinds: tuple[str, ...], needed: str) -> None:
    if model_type in kinds:
        return
    if model_type in KINDS:
        found, needed = KINDS[model_type], needed or " or ".join(KINDS[kind].words for kind in kinds)
        raise InvalidValueError(
            f"`model` must be {needed}, but '{name}' is {found.words}; it is used by {found.use}."
        )
    raise InvalidValueError(
        f"`model` must be a checkpoint of this package, but '{name}' has the model type {model_type!r}; "
        "load it with transformers."
    )


def _check_weight_files(folder: Path, name: str | os.PathLike) -> None:
    for file in weight_files(folder, name):
        if file == INDEX_FILE:
            continue
        if not (folder / file).is_file():
            _refuse_unfinished_run(folder, name)
            if any(folder.glob("*.onnx")):
                raise ValueError(
                    f"'{name}' is an ONNX export, and the package does not run ONNX models; use ONNX "
                    "Runtime, or name the checkpoint from which the export was made."
                )
            raise DamagedFileError(f"'{name}' holds no whole checkpoint: it has no {file}")
        try:
            # Open the file, because `safe_open` raises an error if the size of the file differs from the size
            # in its header.
            with safe_open(folder / file, "pt"):
                pass
        except (SafetensorError, OSError, ValueError) as error:
            raise DamagedFileError(f"{file} of '{name}' is damaged or incomplete ({error})") from None
