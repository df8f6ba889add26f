"""Writing a checkpoint for other libraries: MarianMT, CTranslate2 and ONNX."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..checkpoint.files import RECIPE_FILE, TOKENIZER_FILES, new_folder, recipe_file, write_whole
from ..checkpoint.loading import checkpoint_folder, load_model
from ..checkpoint.tokenizers import load_tokenizers
from ..model.translator_vaswani import check_tokenizers
from ..recipe.loading import readable_record
from ..recipe.published import published_recipe

FORMATS = ("marian", "ctranslate2", "onnx")
QUANTIZATIONS = ("int8", "int16", "float16", "bfloat16")
# Libraries that a format needs beside the package; its extra, which has its name, brings them.
LIBRARIES = {"ctranslate2": ("ctranslate2",), "onnx": ("onnx", "onnxscript")}


def export(
    model_name_or_path: str | os.PathLike, output: str | os.PathLike, format: str, quantization: str | None = None
) -> str:
    """Write a checkpoint in another format, and compare what was written with the checkpoint.

    Args:
        model_name_or_path (str or PathLike): A local folder, or a repository on the Hub: user/name or user/name@revision.
        output (str or PathLike): A folder that is new or empty; it is there when all is written and compared, or not.
        format (str): "marian", "ctranslate2" or "onnx".
        quantization (str, optional): "int8", "int16", "float16" or "bfloat16", for CTranslate2; the checkpoint's
            dtype by default.

    Returns:
        str: One line: the largest difference between what was written and the checkpoint on sample inputs.

    Raises:
        ValueError: If an argument is not possible, a library is missing, the model is no Vaswani model or has a field
            that the format cannot express, or what was written computes something else.
    """
    _check_arguments(format, quantization)
    with new_folder(Path(output)) as folder:
        model, tokenizers = _load(model_name_or_path, needs_tokenizers=format == "ctranslate2")
        if format == "marian":
            from .marian import export_marian

            return export_marian(model, tokenizers, folder)
        if format == "ctranslate2":
            from .ctranslate2 import export_ctranslate2

            compared = export_ctranslate2(model, tokenizers, folder, quantization)
            _write_recipe(checkpoint_folder(model_name_or_path), folder)
            return compared
        from .onnx import export_onnx

        return export_onnx(model, tokenizers, folder)


def _check_arguments(format: str, quantization: str | None) -> None:
    if format not in FORMATS:
        raise ValueError(f'`format` must be "marian", "ctranslate2" or "onnx", but is {format!r}.')
    if quantization is not None and format != "ctranslate2":
        raise ValueError(f'`quantization` is for the format "ctranslate2", but is {quantization!r} with "{format}".')
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ValueError(
            f'`quantization` must be "int8", "int16", "float16" or "bfloat16", but is {quantization!r}; leave it out '
            "for the checkpoint's dtype."
        )
    require(format)


def require(format: str) -> None:
    """Make sure that the libraries of a format are there.

    Args:
        format (str): One of `FORMATS`.

    Raises:
        ValueError: If they are not, with the command that installs them.
    """
    if any(find_spec(name) is None for name in LIBRARIES.get(format, ())):
        raise ValueError(
            f"The format {format!r} needs more libraries; `pip install vaswani_hf[{format}]` brings them."
        )


def _write_recipe(checkpoint: Path, folder: Path) -> None:
    """Writes the recipe of a checkpoint as others may see it, by which `vaswani distill` knows the languages of a teacher."""
    recipe = readable_record(recipe_file(checkpoint))
    if recipe is not None:
        write_whole(folder / RECIPE_FILE, published_recipe(recipe).to_yaml())


def _load(model_name_or_path: str | os.PathLike, needs_tokenizers: bool) -> tuple[Any, Any]:
    """The model in eval mode, and the tokenizers; None where a folder has none and none is needed.

    Raises:
        ValueError: If there is no such model, it is damaged or no Vaswani model, or its tokenizer is missing or another's.
    """
    folder = checkpoint_folder(model_name_or_path)
    model = load_model(folder, model_name_or_path)
    is_bare = not (folder / TOKENIZER_FILES[0]).exists()
    if is_bare and not needs_tokenizers:
        return model, None
    tokenizers = load_tokenizers(folder, model_name_or_path)
    check_tokenizers(model, *tokenizers, str(model_name_or_path))
    return model, tokenizers
