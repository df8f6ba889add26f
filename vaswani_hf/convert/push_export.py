"""Pushes the output folder of `vaswani export` to a separate repository on the Hub."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import validate_repo_id

from ..checkpoint.files import CALIBRATION_FILE, CARD_FILE, INDEX_FILE, RECIPE_FILE, WEIGHTS_FILE
from ..checkpoint.hub import explained, with_retries
from ..model.errors_vaswani import InvalidValueError
from ..publish.destination import Destination, check_destination
from ..publish.push import commit_and_check, only_hub_errors
from ..publish.staging import link_file, refuse_tokens
from .export_formats import ExportFormat

# The metadata keys that the model card of an export copies from the card of the original model.
_SHARED = ("language", "license", "license_name", "datasets", "pipeline_tag")
_TEXT = """# {name}

These files are the model [{base_model}](https://huggingface.co/{base_model}) in another format. `vaswani export --format
{format}` of vaswani_hf wrote the files. The card of `{base_model}` describes the training data, the scores and the licence.
"""


def push_export(
    folder: Path,
    entry: ExportFormat,
    repository: str,
    *,
    base_model: str | None = None,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    tag: str | None = None,
    commit_message: str = "Push an export of vaswani_hf",
    token: str | bool | None = None,
) -> str:
    """Push the output folder of `vaswani export` in one commit, and compare the pushed files with the folder.
    `entry` is the export format that wrote the folder. Return the URL of the commit or pull request. Raise a
    HubError if the push is refused or fails.

    The model card contains the text of the folder's README.md. The languages and the licence in the model
    card come from `base_model`, the repository of the original model. By default, `base_model` is the
    repository that the README.md names in its metadata. The other options are the options of `push` in
    publish/push.py.
    """
    with only_hub_errors(), TemporaryDirectory() as name:
        validate_repo_id(repository)
        to = Destination(repository, private, revision=revision, create_pr=create_pr, tag=tag, token=token)
        to = check_destination(to)
        if not to.is_pull_request:
            # An open pull request overwrites nothing.
            _refuse_checkpoint(to)
        staged = Path(name)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != CARD_FILE:
                link = staged / path.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                link_file(path, link)
        card = _card_of_export(folder, entry, to.repo_id, base_model, token)
        (staged / CARD_FILE).write_text(str(card), encoding="utf-8")
        refuse_tokens(staged)
        # Delete the recipe and the calibration of an earlier push from the repository, because the two files
        # describe another model.
        replaced = (RECIPE_FILE, CALIBRATION_FILE, *entry.optional_files)
        return commit_and_check(to, staged, commit_message, replaced=replaced)


def _refuse_checkpoint(to: Destination) -> None:
    """Raise an error if the branch `to.revision` of the repository contains a checkpoint of this package,
    because the push would overwrite its files.
    """
    exists = partial(with_retries, HfApi(token=to.token).file_exists, to.repo_id, revision=to.revision)
    # Only a checkpoint has both: an export to ONNX contains the code but no such weight file, and an export
    # to MarianMT contains a weight file but no code.
    if exists("configuration_vaswani.py") and any(map(exists, (WEIGHTS_FILE, INDEX_FILE))):
        raise InvalidValueError(
            f"`repository` must not be the repository of a checkpoint, but '{to.repo_id}' contains a checkpoint, and "
            f"the push would overwrite the checkpoint; push to another repository, such as '{to.repo_id}-export'."
        )


def _card_of_export(
    folder: Path, entry: ExportFormat, repo_id: str, base_model: str | None, token: str | bool | None
) -> ModelCard:
    written = ModelCard.load(folder / CARD_FILE) if (folder / CARD_FILE).is_file() else None
    metadata: dict[str, Any] = written.data.to_dict() if written else {}
    base_model = base_model or metadata.get("base_model")
    if not isinstance(base_model, str):
        raise ValueError(
            "An export needs the repository of the model that was exported; push the checkpoint first, and "
            "name its repository with `--base_model user/name`."
        )
    base = _metadata_of_base(base_model, token)
    metadata = {key: base[key] for key in _SHARED if key in base} | metadata
    metadata |= {"base_model": base_model, "base_model_relation": "quantized"}
    metadata.setdefault("library_name", entry.library_name)
    tags = [*metadata.get("tags", []), "translation", "vaswani", entry.name]
    metadata["tags"] = list(dict.fromkeys(tags))
    name = repo_id.split("/")[-1]
    text = (
        written.text.strip() if written else _TEXT.format(name=name, base_model=base_model, format=entry.name)
    )
    return ModelCard(f"---\n{ModelCardData(**metadata)}\n---\n\n{text.rstrip()}\n")


def _metadata_of_base(base_model: str, token: str | bool | None) -> dict[str, Any]:
    """Return the metadata of the model card of `base_model`, or an empty dict if there is no card."""
    validate_repo_id(base_model)
    with explained():
        try:
            return with_retries(ModelCard.load, base_model, token=token).data.to_dict()
        except EntryNotFoundError:
            return {}
