"""Writes the files of a repository into a staging folder: the model and its code, the tokenizers, the recipe,
the model card, the licence and the handler. Checks a handwritten model card.
"""

import json
import shutil
from pathlib import Path

import yaml
from huggingface_hub import ModelCard
from transformers import GenerationConfig

from ..checkpoint.files import (
    CARD_FILE,
    GENERATION_FILE,
    HANDLER_FILE,
    LICENSE_FILE,
    RECIPE_FILE,
    REQUIREMENTS_FILE,
    TOKENIZER_FILES,
    UNCHANGED_RECORDS,
    weight_files,
)
from ..checkpoint.hub import has_token
from ..checkpoint.loading import KINDS, check_config
from ..checkpoint.manifest import describe
from ..checkpoint.results import read_results
from ..checkpoint.tokenizers import load_tokenizers
from ..messages import say
from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.errors_vaswani import InvalidValueError
from ..model.extension_vaswani import source_for_checkpoint
from ..recipe.licenses import RESEARCH_ONLY, check_license
from ..recipe.published import published_yaml
from ..version import minimum_versions
from .license_text import license_text
from .model_card import model_card, pipeline_of, recorded_run

# The keys of tokenizer_config.json that are not pushed, because the keys describe from where transformers
# loaded the tokenizer, such as a local path.
_ORIGIN_OF_TOKENIZER = ("name_or_path", "is_local", "local_files_only")


def stage_repository(
    folder: Path, staged: Path, repo_id: str, *, license: str | None = None, base_model: str | None = None
) -> None:
    """Write all files of the future commit into the folder `staged`. For each weight file, create a link if
    links are possible, otherwise a copy.
    """
    # Load and save the config to write the code files, because an older checkpoint can lack the code files.
    model_class = KINDS[check_config(folder, folder, tuple(KINDS))].model_class
    config = model_class.config_class.from_pretrained(folder)
    for kind in config.user_classes():
        # Raise an error for a class that cannot be published, because `save_pretrained` would only log a
        # warning.
        source_for_checkpoint(kind)
    config.save_pretrained(staged)
    if not (folder / GENERATION_FILE).is_file():
        GenerationConfig.from_model_config(config).save_pretrained(staged)
    for name in (GENERATION_FILE, *UNCHANGED_RECORDS, *weight_files(folder)):
        if (folder / name).is_file():
            link_file(folder / name, staged / name)
    source_tokenizer, target_tokenizer = load_tokenizers(folder)
    _stage_tokenizer(folder, staged)
    if target_tokenizer is not source_tokenizer:
        (staged / TARGET_FOLDER).mkdir()
        _stage_tokenizer(folder / TARGET_FOLDER, staged / TARGET_FOLDER)
    recipe = published_yaml(folder, license)
    if recipe is not None:
        (staged / RECIPE_FILE).write_text(recipe, encoding="utf-8")
    _stage_card(folder, staged, repo_id, license, base_model)
    _stage_license(folder, staged)
    _stage_handler(folder, staged)
    refuse_tokens(staged)


def _stage_tokenizer(folder: Path, staged: Path) -> None:
    for name in TOKENIZER_FILES:
        if not (folder / name).is_file():
            continue
        if name != "tokenizer_config.json":
            link_file(folder / name, staged / name)
            continue
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        settings = {key: value for key, value in settings.items() if key not in _ORIGIN_OF_TOKENIZER}
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (staged / name).write_text(text, encoding="utf-8")


def _stage_card(
    folder: Path, staged: Path, repo_id: str, license: str | None, base_model: str | None
) -> None:
    path = folder / CARD_FILE
    if not path.is_file() or _is_card_of_import(folder):
        card = model_card(folder, repo_id, license=license, base_model=base_model)
        (staged / CARD_FILE).write_text(str(card), encoding="utf-8")
        return
    for name, value in {"license": license, "base_model": base_model}.items():
        if value is not None:
            raise InvalidValueError(
                f"`{name}` is {value!r}, but the existing model card '{path}' is used unchanged; write "
                f"the value into '{path}', or move the file away."
            )
    check_card(path)
    link_file(path, staged / CARD_FILE)
    say("the model card is the README.md of the checkpoint, without changes")


def check_card(path: Path) -> None:
    """Raise an error if a card is unreadable, or if the training data does not permit the licence in the
    card.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to get "
            "a new card."
        ) from None
    if content.startswith("\ufeff"):
        raise ValueError(
            f"The card '{path}' must begin with its metadata, but begins with a byte order mark; save it as "
            "UTF-8 without byte order mark."
        )
    try:
        metadata = ModelCard(content).data
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(
            f"The card '{path}' must begin with YAML between two lines of ---, but the YAML cannot be read: "
            f"{error}"
        ) from error
    _, _, data = recorded_run(path.parent)
    stated = metadata.get("license")
    if stated == "other" and metadata.get("license_name") == RESEARCH_ONLY:
        stated = RESEARCH_ONLY
    licenses = stated if isinstance(stated, list) else [stated]
    for license in (*licenses, metadata.get("license_name")):
        if not isinstance(license, str | None):
            raise ValueError(
                f"The licence in the card '{path}' must be a text, but is {license!r}; write an identifier of the "
                'Hub, such as "mit", in quotation marks.'
            )
    for license in licenses:
        check_license(license, data.license, "license")


def _stage_license(folder: Path, staged: Path) -> None:
    """Create a link to the LICENSE file of the checkpoint folder. If the folder has no LICENSE file, write a
    new one.
    """
    if (folder / LICENSE_FILE).is_file():
        link_file(folder / LICENSE_FILE, staged / LICENSE_FILE)
        return
    text = license_text(ModelCard.load(staged / CARD_FILE).data.to_dict())
    (staged / LICENSE_FILE).write_text(text, encoding="utf-8")


def _stage_handler(folder: Path, staged: Path) -> None:
    """Link the handler.py of `folder` into the folder `staged`. If `folder` has no handler.py, and a pipeline
    can load the model, write a new handler.py.
    """
    if (folder / HANDLER_FILE).is_file():
        names = [name for name in (HANDLER_FILE, REQUIREMENTS_FILE) if (folder / name).is_file()]
        for name in names:
            link_file(folder / name, staged / name)
    elif pipeline_of(folder) is not None:
        shutil.copyfile(Path(__file__).with_name(HANDLER_FILE), staged / HANDLER_FILE)
        (staged / REQUIREMENTS_FILE).write_text(minimum_versions("torch", "transformers"), encoding="utf-8")


def _is_card_of_import(folder: Path) -> bool:
    """Return True if README.md is the unchanged model card that `vaswani import` wrote.

    A push replaces an unchanged card that `vaswani import` wrote, because the code examples of the card load
    the local folder.
    """
    origin = read_results(folder).origin
    return origin is not None and origin.card_sha256 == describe(folder / CARD_FILE)["sha256"]


def link_file(path: Path, link: Path) -> None:
    """Create a link to a file, or copy the file if links cannot be created."""
    try:
        link.symlink_to(path.absolute())
    except OSError:
        # Copy the file, because on Windows the user needs a special permission to create symbolic links.
        shutil.copyfile(path, link)


def refuse_tokens(folder: Path) -> None:
    """Raise an error if a text file in the folder contains an access token of the Hub."""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".md", ".yaml", ".json", ".jsonl", ".py"):
            continue
        if has_token(path.read_text(encoding="utf-8", errors="replace")):
            name = path.relative_to(folder).as_posix()
            raise ValueError(
                f"{name} must not contain an access token of the Hub, but contains one; remove the access "
                "token, make a new access token and push again."
            )
