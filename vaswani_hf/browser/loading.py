"""Loads the models whose translations `vaswani look` and `vaswani demo` explain."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from ..checkpoint.files import CHECKPOINT_FILES, CONFIG_FILE, CTRANSLATE2_KEY, read_json_object
from ..checkpoint.loading import KINDS, checkpoint_folder
from ..model.errors_vaswani import InvalidValueError
from ..model.translator_vaswani import BaseTranslator
from ..translation.translator import Translator, checked_device

# Patterns of the files that encoder-decoder models of transformers need, in addition to `CHECKPOINT_FILES`.
_OTHER_FILES = ("*.json", "*.safetensors", "pytorch_model.bin", "*.spm", "*.model", "*.txt")


def load_translator(name: str, device: str | None = None) -> BaseTranslator:
    """Load a checkpoint of this package, or any encoder-decoder model of transformers."""
    folder = checkpoint_folder(name, files=(*CHECKPOINT_FILES, *_OTHER_FILES))
    has_config = (folder / CONFIG_FILE).is_file()
    config = read_json_object(folder, CONFIG_FILE, name) if has_config else {}
    if CTRANSLATE2_KEY in config:
        raise InvalidValueError(
            f"`model` must return attention weights, but '{name}' was exported for CTranslate2, and CTranslate2 returns "
            "no attention weights of single heads; name the checkpoint from which the export was made."
        )
    model_type = config.get("model_type")
    if model_type is None or model_type in KINDS:
        return Translator.from_pretrained(name, device)
    return _load_other_model(folder, name, device)


def _load_other_model(folder: Path, name: str, device: str | None) -> BaseTranslator:
    """Load an encoder-decoder model of transformers whose class is not in this package."""
    config = AutoConfig.from_pretrained(folder)
    if not config.is_encoder_decoder:
        raise InvalidValueError(
            f"`model` must be an encoder-decoder model, but '{name}' has the model type {config.model_type!r}; name a "
            "translation model."
        )
    place = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # Only eager attention returns attention weights.
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval().to(place)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return BaseTranslator(model, tokenizer, tokenizer, prefix=getattr(config, "prefix", None) or "")
