"""Saves, loads and checks the tokenizers of a checkpoint. A checkpoint has one tokenizer for source and
target, or one tokenizer for each side.

Tokenizers are trained in data/tokenizer_training.py.
"""

import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from ..model.configuration_vaswani import TARGET_FOLDER
from ..model.tokenizing_vaswani import SEPARATE_MARK, has_target_tokenizer
from .files import TOKENIZER_FILES, DamagedFileError, read_json_object

# The key of tokenizer_config.json that marks the target tokenizer of a parser.
TREE_MARK = "makes_trees"
# The key of tokenizer_config.json that marks a tokenizer of another library.
IMPORTED_MARK = "is_imported"
# A key in the target tokenizer's tokenizer_config.json. The value is true if the source tokenizer and the
# target tokenizer give each token the same id.
SHARED_IDS_MARK = "shared_vocabulary"

# The source tokenizer and the target tokenizer. If the model has a joint vocabulary, the source tokenizer and
# the target tokenizer are the same object.
Tokenizers = tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]


def save_tokenizers(
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast,
    folder: str | os.PathLike,
) -> None:
    """Save the source tokenizer and the target tokenizer in a folder for `load_tokenizers`."""
    # Record in the source tokenizer whether the checkpoint has two tokenizers. Do not look for the subfolder
    # of the target tokenizer instead, because the subfolder can remain from an earlier save, and the download
    # of the subfolder from the Hub can fail.
    source_tokenizer.init_kwargs[SEPARATE_MARK] = target_tokenizer is not source_tokenizer
    source_tokenizer.save_pretrained(folder)
    if target_tokenizer is not source_tokenizer:
        target_tokenizer.save_pretrained(Path(folder) / TARGET_FOLDER)


def load_tokenizers(
    name_or_path: str | os.PathLike, name: str | os.PathLike | None = None, **hub_kwargs: Any
) -> Tokenizers:
    """Load the source and the target tokenizer: the same object twice if the checkpoint has only one."""
    name = name or name_or_path
    # Do not use AutoTokenizer, because AutoTokenizer needs a config.json, and the subfolder of the target
    # tokenizer has no config.json.
    source_tokenizer = _load_tokenizer(name_or_path, name, **hub_kwargs)
    if SEPARATE_MARK not in source_tokenizer.init_kwargs:
        folder = Path(name_or_path)
        lacks_target = folder.is_dir() and not (folder / TARGET_FOLDER).is_dir()
        is_shared = lacks_target or _shares_embeddings(name_or_path, **hub_kwargs)
        source_tokenizer.init_kwargs[SEPARATE_MARK] = has_target_tokenizer(source_tokenizer, is_shared)
    if not source_tokenizer.init_kwargs[SEPARATE_MARK]:
        return source_tokenizer, source_tokenizer
    return source_tokenizer, _load_tokenizer(name_or_path, name, subfolder=TARGET_FOLDER, **hub_kwargs)


def _shares_embeddings(name_or_path: str | os.PathLike, **hub_kwargs: Any) -> bool:
    try:
        config, _ = PreTrainedConfig.get_config_dict(name_or_path, **hub_kwargs)
    except OSError:
        # A folder that contains only tokenizers has no config.json.
        return True
    return config.get("share_encoder_decoder_embeddings", True)


def direction_tag(language: str) -> str:
    """Return the tag, such as `>>de<<`, that selects the target language. As in OPUS-MT, the tag is the first
    word of a source text.
    """
    return f">>{language}<<"


def adds_end_token(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return True if the tokenizer appends the end token to texts. Some imported source tokenizers do not."""
    return tokenizer("")["input_ids"][-1:] == [tokenizer.eos_token_id]


def is_tree_tokenizer(tokenizer: Any) -> bool:
    """Return True if the tokenizer is the target tokenizer of a constituency parsing model."""
    return bool(getattr(tokenizer, "init_kwargs", {}).get(TREE_MARK, False))


def _load_tokenizer(
    name_or_path: str | os.PathLike, name: str | os.PathLike, subfolder: str = "", **hub_kwargs: Any
) -> PreTrainedTokenizerFast:
    folder, place = Path(name_or_path) / subfolder, f"{subfolder}/" if subfolder else ""
    if Path(name_or_path).is_dir():
        # Check the files here. For a missing file, transformers would suggest installing other libraries, or
        # would continue without a padding token.
        for file in TOKENIZER_FILES[:2]:
            if not (folder / file).exists():
                raise DamagedFileError(
                    f"'{name}' must hold the tokenizer of the checkpoint, but has no {place}{file}"
                )
        for file in TOKENIZER_FILES:
            if (folder / file).exists():
                read_json_object(Path(name_or_path), place + file, name)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(name_or_path, subfolder=subfolder, **hub_kwargs)
    except Exception as error:
        # Catch all exceptions, because a damaged tokenizer file can raise any kind of exception.
        if not Path(name_or_path).is_dir():
            raise
        file = place + _file_to_blame(folder)
        raise DamagedFileError(f"{file} of '{name}' describes no tokenizer") from error
    for token in ("pad_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise DamagedFileError(
                f"{place}tokenizer_config.json of '{name}' must name the `{token}` of the tokenizer, but "
                "does not"
            )
    return tokenizer


def _file_to_blame(folder: Path) -> str:
    try:
        Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    except Exception:
        # Catch Exception, because the library `tokenizers` raises no more specific class for a damaged
        # tokenizer.json.
        return TOKENIZER_FILES[0]
    return TOKENIZER_FILES[1]
