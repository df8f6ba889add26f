"""What makes a saved model a whole repository: the maps to its code, and what lies beside its weights.

By `auto_map` and `custom_pipelines` in config.json a model loads where this package is not installed, with
`trust_remote_code=True`. The code that they name is saved with every config.
"""

import filecmp
import importlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

if TYPE_CHECKING:
    # transformers reads import statements to find out which files to save and to download with one of them; these
    # are the files that nothing else leads to from the config.
    from .modeling_vaswani import VaswaniForSeq2SeqLM  # noqa: F401
    from .pipeline_vaswani import TranslationPipeline  # noqa: F401

TARGET_FOLDER = "target_tokenizer"
AUTO_MAP = {
    "AutoConfig": "configuration_vaswani.VaswaniConfig",
    "AutoModel": "modeling_vaswani.VaswaniModel",
    "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForSeq2SeqLM",
}
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "pipeline_vaswani.TranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
}
# What a run leaves beside its model; results.json stays at home.
RECORD = ("README.md", "recipe.yaml", "results.json", "training_curve.png")
_TARGET_FILES = ("tokenizer.json", "tokenizer_config.json")


class FromRepository:
    """A model that remembers the folder that it was loaded from.

    Attributes:
        origin (Path, optional): The local folder, in the cache that of the commit; None for a model that was built.
    """

    origin: Path | None = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """The model of a folder or repository, with the target tokenizer of two vocabularies in the cache beside it.

        Args:
            pretrained_model_name_or_path (str or Path): The folder or the repository.
            *args: As transformers takes them.
            **kwargs: As transformers takes them.

        Returns:
            PreTrainedModel: What transformers gives; with `output_loading_info` in a tuple.
        """
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if pretrained_model_name_or_path is not None:
            model.origin = _origin(str(pretrained_model_name_or_path), kwargs)
            if not model.config.share_encoder_decoder_embeddings and not os.path.isdir(pretrained_model_name_or_path):
                _fetch_target_tokenizer(model.origin, pretrained_model_name_or_path, kwargs)
        return loaded


def _origin(name: str, kwargs: dict[str, Any]) -> Path | None:
    if os.path.isdir(name):
        return Path(name, kwargs.get("subfolder") or "").absolute()
    file = "/".join(part for part in (kwargs.get("subfolder"), "config.json") if part)
    cached = try_to_load_from_cache(name, file, cache_dir=kwargs.get("cache_dir"), revision=kwargs.get("revision"))
    return Path(cached).parent if isinstance(cached, str) else None


def _fetch_target_tokenizer(origin: Path | None, repo_id: str, kwargs: dict[str, Any]) -> None:
    """Now, because later nobody knows the user's token."""
    snapshot = _snapshot_of(origin) if origin is not None else None
    if snapshot is None:
        return
    for file in _TARGET_FILES:
        try:
            hf_hub_download(
                repo_id,
                f"{TARGET_FOLDER}/{file}",
                subfolder=kwargs.get("subfolder") or None,
                # The commit of the weights, whatever the branch has become.
                revision=snapshot.name,
                **{
                    name: kwargs[name]
                    for name in ("cache_dir", "token", "local_files_only")
                    if kwargs.get(name) is not None
                },
            )
        except EntryNotFoundError:
            # Two embeddings over one vocabulary; the tokenizer says whether that is so.
            return


def _snapshot_of(origin: Path) -> Path | None:
    """The folder of the commit; that of a subfolder's model lies above its own."""
    for folder in (origin, *origin.parents):
        if folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", folder.name):
            return folder
    return None


def copy_record(model: Any, folder: Path, repo_id: str, token: str | bool | None = None) -> None:
    """Puts beside a saved model what lay beside it where it was loaded from: card, recipe, results, training curve.

    Nothing where its weights are others by now: what was measured is not theirs.

    Args:
        model (FromRepository): The model.
        folder (Path): Where it was saved.
        repo_id (str): What it is about to be pushed to; the card's snippets load that.
        token (str or bool, optional): For a repository that is private.
    """
    weights = sorted(folder.glob("model*.safetensors"))
    if model.origin is None or not all(_is_same(path, model.origin / path.name) for path in weights):
        return
    for name in RECORD:
        path = _beside(model, name, token)
        if path is not None:
            shutil.copy(path, folder)
    card = folder / "README.md"
    if card.exists() and _snapshot_of(model.origin):
        card.write_text(card.read_text(encoding="utf-8").replace(model.name_or_path, repo_id), encoding="utf-8")


def _is_same(path: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(path, other, shallow=False)


def _beside(model: Any, name: str, token: str | bool | None) -> Path | None:
    """A file that lies beside the model, downloaded if need be."""
    path, snapshot = model.origin / name, _snapshot_of(model.origin)
    if snapshot is not None and not os.path.isdir(model.name_or_path):
        # A Hub that lets nobody see it, or no more, has no card for others either.
        with suppress(EntryNotFoundError, RepositoryNotFoundError):
            file = path.relative_to(snapshot).as_posix()
            place: dict[str, Any] = {"revision": snapshot.name, "cache_dir": snapshot.parents[2], "token": token}
            hf_hub_download(model.name_or_path, file, **place)
    return path if path.is_file() else None


def push_folder(folder: Path, repo_id: str, **kwargs: Any) -> str:
    """Pushes a saved pipeline: as `vaswani push` does where this package is installed, else as it is.

    Args:
        folder (Path): The folder.
        repo_id (str): user/name.
        **kwargs: `private`, `token`, `revision`, `create_pr` and `commit_message`, as transformers takes them.

    Returns:
        str: The address of the commit.

    Raises:
        ModuleNotFoundError: If what `vaswani push` needs is not installed.
    """
    try:
        # No import statement: transformers would look for the file beside this one.
        push_checkpoint = importlib.import_module("vaswani_hf.publish.push").push_checkpoint
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vaswani_hf"):
            raise
    else:
        return push_checkpoint(folder, repo_id, **kwargs)
    if (folder / "results.json").exists():
        # A run's own folder: its recipe names local files, which only the package can take out.
        for name in RECORD:
            (folder / name).unlink(missing_ok=True)
    api = HfApi(token=kwargs.pop("token", None))
    repo_id = api.create_repo(repo_id, private=kwargs.pop("private", None), exist_ok=True).repo_id
    return api.upload_folder(repo_id=repo_id, folder_path=folder, **kwargs).commit_url
