"""Loading a checkpoint from a folder or the Hub, with the checks that keep a damaged one from translating nonsense."""

import difflib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open

from .files import ADAPTER_FILE, CHECKPOINT_FILES, CONFIG_FILE, GENERATION_FILE, INDEX_FILE, RECIPE_FILE, weight_files
from .hub import HubError, explained, with_retries
from .kinds import KINDS, TRANSLATION, check_kind
from .tokenizers import read_json_object

_REPOSITORY = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)(?:@(.+))?", re.ASCII)


def checkpoint_folder(
    name: str | os.PathLike, *, option: str = "model", revision: str | None = None, **hub_kwargs: Any
) -> Path:
    """The folder of a checkpoint: the one that is named, or the downloaded files of a repository.

    Args:
        name (str or PathLike): A local folder, user/name or user/name@revision.
        option (str): The option that the name was given as, for errors.
        revision (str, optional): A branch, tag, commit or refs/pr/N, where the name has none; not for folders.
        **hub_kwargs: `token`, `cache_dir`, `local_files_only` and `force_download`, as `snapshot_download` takes them.

    Raises:
        ValueError: If the name is neither, or a folder is named with a revision.
        HubError: If the repository cannot be downloaded, or the files differ from those of the Hub.
    """
    if os.path.isdir(name):
        return Path(name)
    path = str(name).rpartition("@")[0]
    if path and os.path.isdir(path):
        raise ValueError(f"`revision` is for a repository on the Hub, but '{path}' is a folder; leave it out.")
    found = _REPOSITORY.fullmatch(str(name))
    if found is None:
        raise ValueError(f"`{option}` must be a checkpoint folder or user/name on the Hub, but is '{name}'.")
    repo_id, revision = found.group(1), found.group(2) or revision
    files = [*CHECKPOINT_FILES, ADAPTER_FILE, RECIPE_FILE]
    try:
        with explained():
            folder = with_retries(snapshot_download, repo_id, revision=revision, allow_patterns=files, **hub_kwargs)
    except HubError as error:
        if re.search("cannot be reached|Cannot reach", str(error)) is None:
            raise
        # It may have been meant for a folder.
        named = "" if option == "model" else f", which `{option}` names,"
        raise HubError(f"There is no folder '{name}'{named} here{_nearest_folder(Path(name))}, and {error}") from error
    refuse_changed_files(Path(folder), repo_id, files)
    return Path(folder)


def _nearest_folder(path: Path) -> str:
    others = [folder.name for folder in path.parent.glob("*/")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, others, 1)
    return f" (the nearest one is '{path.parent / near[0]}')" if near else ""


def refuse_changed_files(folder: Path, repo_id: str, patterns: Iterable[str]) -> None:
    """Compare each cached file with the hash that is its name; the client compares only sizes.

    Args:
        folder (Path): The folder of a commit in the cache.
        repo_id (str): The repository, for the message.
        patterns (Iterable): The files to compare.

    Raises:
        HubError: If a file has another hash.
    """
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        # A link to a file that has its hash as its name, which in turn may be a link to a file of several repositories.
        expected = Path(os.readlink(path)).name if path.is_symlink() else ""
        if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", expected) and expected != _hash(path, len(expected)):
            raise HubError(
                f"{path.relative_to(folder)} of '{repo_id}' is not the file that the Hub has: it was damaged or changed on "
                f"its way or on disk; delete '{path.resolve()}' and run it again, which downloads it anew."
            )


def _hash(path: Path, length: int) -> str:
    """The sha256 of a large file, git's sha1 of a small one."""
    with path.open("rb") as file:
        if length == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        content = file.read()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def load_model(
    folder: Path, name: str | os.PathLike | None = None, kinds: tuple[str, ...] = (TRANSLATION,), **kwargs: Any
) -> Any:
    """The model of a checkpoint, if it is whole and one of this package; in eval mode, on the CPU.

    Args:
        folder (Path): The folder.
        name (str or PathLike, optional): The folder or repository as the user named it.
        kinds (tuple): The model types that will do (see kinds.py).
        **kwargs: For `from_pretrained`, such as `dtype`.

    Raises:
        ValueError: If the folder holds no checkpoint, one of another kind, a damaged one, or not all of its weights.
    """
    name = name or folder
    model_class = KINDS[check_config(folder, name, kinds)].model_class
    if (folder / GENERATION_FILE).exists():
        # transformers would go on with other settings.
        read_json_object(folder, GENERATION_FILE, name)
    _check_weight_files(folder, name)
    logger = logging.getLogger("transformers.modeling_utils")
    # Weights that do not fit are refused in a sentence, without the table that transformers prints.
    logger.addFilter(_is_no_report)
    try:
        loading = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, report = model_class.from_pretrained(folder, **loading, **kwargs)
    finally:
        logger.removeFilter(_is_no_report)
    wrong = {
        "missing": sorted(report["missing_keys"]),
        "unexpected": sorted(report["unexpected_keys"]),
        "of another shape": sorted(key for key, *_ in report["mismatched_keys"]),
    }
    many = {what: f" and {len(keys) - 1:,} more are" if len(keys) > 1 else " is" for what, keys in wrong.items()}
    if found := [f"{keys[0]}{many[what]} {what}" for what, keys in wrong.items() if keys]:
        raise ValueError(
            f"'{name}' does not hold the weights that its config.json describes: {', '.join(found)}; take both files from "
            "one checkpoint."
        )
    return model.eval()


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def check_config(
    folder: Path, name: str | os.PathLike, kinds: tuple[str, ...] = (TRANSLATION,), needed: str = ""
) -> str:
    """The model type of a checkpoint of this package.

    Args:
        folder (Path): The folder; that of a repository without files need not be there.
        name (str or PathLike): The folder or repository as the user named it.
        kinds (tuple): The model types that will do (see kinds.py).
        needed (str): What is needed, in other words than those of the kinds.

    Raises:
        ValueError: If there is no such folder, it holds an adapter, or its config.json is missing, damaged or of another kind.
    """
    path = folder / CONFIG_FILE
    if str(folder) == str(name) and not folder.is_dir():
        raise ValueError(f"There is no folder '{name}'; check the name of the checkpoint.")
    if (folder / ADAPTER_FILE).exists():
        # transformers would put it into the model, if PEFT is installed, and say nothing.
        raise ValueError(
            f"'{name}' holds an adapter of PEFT ({ADAPTER_FILE}); load it in Python with `PeftModel.from_pretrained`, merge it "
            "with `merge_and_unload`, and save the merged model in a folder of its own."
        )
    if not path.is_file():
        raise ValueError(f"'{name}' holds no checkpoint: it has no config.json.")
    try:
        model_type = json.loads(path.read_text(encoding="utf-8"))["model_type"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"The config.json of '{name}' must name its `model_type`, but is damaged.") from None
    check_kind(model_type, name, kinds, needed)
    return model_type


def _check_weight_files(folder: Path, name: str | os.PathLike) -> None:
    files = [file for file in weight_files(folder, name) if file != INDEX_FILE]
    for file in files:
        if not (folder / file).is_file():
            raise ValueError(f"'{name}' holds no whole checkpoint: it has no {file}.")
        try:
            # Opening compares the header with the length of the file.
            with safe_open(folder / file, "pt"):
                pass
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(
                f"{file} of '{name}' is damaged or not all there ({error}); copy or download it again."
            ) from None
