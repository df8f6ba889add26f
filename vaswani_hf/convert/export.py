"""Exports a checkpoint to a format of another library. To add a format, add one file to this folder and one
entry to the table `EXPORT_FORMATS`.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from ..checkpoint.files import (
    CALIBRATION_FILE,
    CONFIG_FILE,
    LICENSE_FILE,
    RECIPE_FILE,
    TOKENIZER_FILES,
    new_folder,
    recipe_file,
    write_whole,
)
from ..checkpoint.loading import checkpoint_folder, load_model
from ..checkpoint.results import read_record
from ..checkpoint.tokenizers import Tokenizers, load_tokenizers
from ..model.errors_vaswani import InvalidValueError
from ..model.tokenizing_vaswani import check_tokenizers
from ..publish.model_card import model_card
from ..recipe.loading import try_load_recorded_recipe
from ..recipe.published import published_recipe
from ..settings.data import last_part
from ..settings.names import alternatives
from ..version import are_installed, install_command
from .argos import ARGOS
from .ctranslate2_format import CTRANSLATE2
from .export_formats import ExportFormat, NotExpressibleError
from .html_page import HTML
from .marian import MARIAN
from .marian_npz_export import MARIAN_NPZ
from .onnx import ONNX
from .transformers_js import TRANSFORMERS_JS

EXPORT_FORMATS: dict[str, ExportFormat] = {
    entry.name: entry for entry in (MARIAN, MARIAN_NPZ, CTRANSLATE2, ONNX, TRANSFORMERS_JS, ARGOS, HTML)
}


def format_of_export(folder: Path) -> ExportFormat | None:
    """Return the export format that matches the files in a folder, or None if no export format matches."""
    model_type = read_record(folder / CONFIG_FILE).get("model_type")
    for entry in EXPORT_FORMATS.values():
        if any(folder.glob(entry.main_file)) and entry.model_type == model_type:
            return entry
    return None


def export(
    model_name_or_path: str | os.PathLike,
    output: str | os.PathLike,
    format: str,
    quantization: str | None = None,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> str:
    """Write a checkpoint in another format, and compare the written model with the checkpoint.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM, export
        >>> config = VaswaniConfig(vocab_size=100, d_model=16, encoder_layers=1, decoder_layers=1)
        >>> with TemporaryDirectory() as folder:
        ...     VaswaniForSeq2SeqLM(config).save_pretrained(f"{folder}/model")
        ...     print(export(f"{folder}/model", f"{folder}/marian", "marian"))
        Largest difference between ...

    Args:
        model_name_or_path (str or PathLike): The checkpoint: a local folder, or a repository on the Hub
            (user/name or user/name@revision).
        output (str or PathLike): The path of the folder to write. If the folder already exists, it must be
            empty. The export does not create the folder if the outputs of the written model and of the
            checkpoint differ too much.
        format (str): The name of a format, such as "marian".
        quantization (str, optional): The dtype of the stored weights, such as "int8". The default is "int8"
            for the format "html", and the dtype of the checkpoint for "ctranslate2" and "argos". The other
            formats do not support quantization.
        source_language (str, optional): The code of the source language, such as "en". The argument is
            allowed only for formats that store the languages. By default, the language is read from the
            recipe of the checkpoint, or from the file results.json that `vaswani import` has written.
        target_language (str, optional): The code of the target language, such as "de".

    Returns:
        str: One line with the largest difference between the written model and the checkpoint on sample
            inputs.

    Raises:
        ValueError: If an argument is invalid, if a library is missing, or if the model is not a checkpoint of
            this package. A ValueError is also raised if the format cannot express the model, or if the
            outputs of the written model and of the checkpoint differ too much.
    """
    entry = _entry(format, quantization)
    _check_languages(entry, source_language, target_language)
    with new_folder(Path(output)) as folder:
        data = card_data(entry, model_name_or_path, source_language, target_language)
        checkpoint = load_checkpoint(model_name_or_path, needs_tokenizers=entry.needs_tokenizers)
        entry.check(checkpoint.model)
        compared = write_model(entry, checkpoint, folder, quantization)
        _copy_file(LICENSE_FILE, checkpoint.folder, folder)
        if entry.describe is not None and data is not None:
            entry.describe(folder, Path(os.path.abspath(output)).name, data)
        return compared


@dataclass
class LoadedCheckpoint:
    """The folder of a checkpoint, the VaswaniForSeq2SeqLM in eval mode, and the tokenizers. `tokenizers` is
    None for a checkpoint without tokenizers.
    """

    folder: Path
    model: Any
    tokenizers: Tokenizers | None


def write_model(
    entry: ExportFormat, checkpoint: LoadedCheckpoint, folder: Path, quantization: str | None
) -> str:
    """Write a checkpoint in another format. Return a line about the largest difference between outputs."""
    compared = entry.export(checkpoint.model, checkpoint.tokenizers, folder, quantization)
    if entry.keeps_records:
        recipe = try_load_recorded_recipe(recipe_file(checkpoint.folder))
        if recipe is not None:
            # `vaswani distill` reads the languages from the recipe. Shorten the paths in the recipe, because
            # full paths can be private.
            write_whole(folder / RECIPE_FILE, published_recipe(recipe).to_yaml())
        # `min_confidence` of the translator needs the calibration.
        _copy_file(CALIBRATION_FILE, checkpoint.folder, folder)
    return compared


def _copy_file(name: str, source: Path, folder: Path) -> None:
    if (source / name).is_file():
        shutil.copyfile(source / name, folder / name)


def _entry(name: str, quantization: str | None) -> ExportFormat:
    """Return the format. Raise an error if the format name or the quantization is invalid, or if a library is
    not installed.
    """
    if name not in EXPORT_FORMATS:
        raise InvalidValueError(f"`format` must be {alternatives(EXPORT_FORMATS)}, but is {name!r}.")
    entry = EXPORT_FORMATS[name]
    if quantization is not None and not entry.quantizations:
        quantized = [other.name for other in EXPORT_FORMATS.values() if other.quantizations]
        raise InvalidValueError(
            f"`quantization` can only be used with the format {alternatives(quantized)}, but is "
            f'{quantization!r} with the format "{name}".'
        )
    if quantization is not None and quantization not in entry.quantizations:
        raise InvalidValueError(
            f"`quantization` must be {alternatives(entry.quantizations)}, but is {quantization!r}; leave "
            "`quantization` out for the default of the format."
        )
    if not are_installed(entry.libraries):
        raise InvalidValueError(
            f"`format` {name} needs more libraries; install them with `{install_command(name)}`."
        )
    return entry


def _check_languages(entry: ExportFormat, *languages: str | None) -> None:
    """Raise an error if a language code is invalid, if only one language is given, or if the format cannot
    store a given language.
    """
    for name, language in zip(("source_language", "target_language"), languages, strict=True):
        if language is not None and entry.describe is None:
            raise InvalidValueError(f"`{name}` has no effect on the format {entry.name}; leave `{name}` out.")
        if language is not None and not re.fullmatch("[a-z]{2,3}", language):
            raise InvalidValueError(
                f"`{name}` must be a code of two or three letters, such as en, but is {language!r}."
            )
    if languages.count(None) == 1:
        raise InvalidValueError(
            "`source_language` and `target_language` must be given together; give both or neither."
        )


def card_data(
    entry: ExportFormat,
    model_name_or_path: str | os.PathLike,
    source_language: str | None = None,
    target_language: str | None = None,
) -> ModelCardData | None:
    """Return the model card's metadata. Without the arguments for the languages, the metadata contains the
    checkpoint's languages. Return None if exports in this format contain no metadata.
    """
    if entry.describe is None:
        return None
    data = model_card(checkpoint_folder(model_name_or_path), last_part(str(model_name_or_path))).data
    assert isinstance(data, ModelCardData)
    if source_language is not None and target_language is not None:
        data.language = [source_language, target_language]
    elif len(data.language or ()) != 2:
        data.language = None
    if entry.needs_languages and data.language is None:
        raise NotExpressibleError(
            f"'{model_name_or_path}' must record its source language and its target language for the format "
            f"{entry.name}, but does not; name the languages with the options `--source_language` and "
            "`--target_language` of `vaswani export`."
        )
    if not os.path.exists(model_name_or_path):
        data.base_model = str(model_name_or_path).partition("@")[0]
    return data


def load_checkpoint(model_name_or_path: str | os.PathLike, needs_tokenizers: bool) -> LoadedCheckpoint:
    """Load the model and the tokenizers. If `needs_tokenizers` is False, a checkpoint without tokenizers
    raises no error.
    """
    folder = checkpoint_folder(model_name_or_path)
    model = load_model(folder, model_name_or_path)
    is_bare = not (folder / TOKENIZER_FILES[0]).exists()
    if is_bare and not needs_tokenizers:
        return LoadedCheckpoint(folder, model, None)
    tokenizers = load_tokenizers(folder, model_name_or_path)
    check_tokenizers(model, *tokenizers, str(model_name_or_path))
    return LoadedCheckpoint(folder, model, tokenizers)
