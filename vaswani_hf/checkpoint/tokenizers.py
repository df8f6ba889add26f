"""The tokenizers of a checkpoint, one or two: saving, loading and checking their files, and the tags that they know.

They are trained elsewhere (see data/tokenizer_training.py).
"""

import json
import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from ..model.configuration_vaswani import TARGET_FOLDER
from .files import TOKENIZER_FILES

# The key of tokenizer_config.json by which the tokenizer of a parser is known.
TREE_MARK = "makes_trees"


def save_tokenizers(
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast,
    folder: str | os.PathLike,
) -> None:
    """Writes both tokenizers where `load_tokenizers` finds them."""
    # tokenizer_config.json says whether there are two. The presence of the subfolder does not: a request to the Hub that
    # fails for a moment must not pass for a joint vocabulary, nor the subfolder of an earlier save for a second one.
    source_tokenizer.init_kwargs["separate_vocabs"] = target_tokenizer is not source_tokenizer
    source_tokenizer.save_pretrained(folder)
    if target_tokenizer is not source_tokenizer:
        target_tokenizer.save_pretrained(Path(folder) / TARGET_FOLDER)


def load_tokenizers(
    name_or_path: str | os.PathLike, name: str | os.PathLike | None = None, **hub_kwargs: Any
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The source and the target tokenizer of a checkpoint, the same object twice for a joint vocabulary."""
    name = name or name_or_path
    # AutoTokenizer would ask for a config.json beside the tokenizer, which the subfolder does not have.
    source_tokenizer = _load_tokenizer(name_or_path, name, **hub_kwargs)
    if not source_tokenizer.init_kwargs.get("separate_vocabs", False):
        return source_tokenizer, source_tokenizer
    return source_tokenizer, _load_tokenizer(name_or_path, name, subfolder=TARGET_FOLDER, **hub_kwargs)


def direction_tag(language: str) -> str:
    """The tag in front of a text that is to be translated into a language, as OPUS-MT writes it."""
    return f">>{language}<<"


def is_tree_tokenizer(tokenizer: Any) -> bool:
    """True for the target tokenizer of a parser."""
    return bool(getattr(tokenizer, "init_kwargs", {}).get(TREE_MARK, False))


def _load_tokenizer(
    name_or_path: str | os.PathLike, name: str | os.PathLike, subfolder: str = "", **hub_kwargs: Any
) -> PreTrainedTokenizerFast:
    folder, place = Path(name_or_path) / subfolder, f"{subfolder}/" if subfolder else ""
    if Path(name_or_path).is_dir():
        # transformers would advise to install libraries of other tokenizers, or go on without a pad token.
        for file in TOKENIZER_FILES[:2]:
            if not (folder / file).exists():
                raise ValueError(
                    f"'{name}' must hold the tokenizer of the checkpoint, but has no {place}{file}; copy or download it again."
                )
        for file in TOKENIZER_FILES:
            if (folder / file).exists():
                read_json_object(Path(name_or_path), place + file, name)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(name_or_path, subfolder=subfolder, **hub_kwargs)
    except Exception as error:
        # A tokenizer that cannot be made of its files raises all kinds of exceptions, a bare Exception too.
        if not Path(name_or_path).is_dir():
            raise
        file = place + _file_to_blame(folder)
        raise ValueError(f"{file} of '{name}' describes no tokenizer; copy or download it again.") from error
    for token in ("pad_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise ValueError(
                f"{place}tokenizer_config.json of '{name}' must name the `{token}` of the tokenizer, but does not; copy or "
                "download it again."
            )
    return tokenizer


def _file_to_blame(folder: Path) -> str:
    try:
        Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    except Exception:
        # The library raises no narrower class.
        return TOKENIZER_FILES[0]
    return TOKENIZER_FILES[1]


def read_json_object(folder: Path, file: str, name: str | os.PathLike) -> dict[str, Any]:
    """The content of a file of a checkpoint."""
    content = read_json(folder, file, name)
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} of '{name}' must hold a JSON object, but does not: it is damaged; copy or download it again."
        )
    return content


def read_json(folder: Path, file: str, name: str | os.PathLike) -> Any:
    """The content of a file of a checkpoint, as `read_json_object` takes it; None where it is no JSON."""
    path = folder / file
    if not path.exists():
        raise ValueError(f"'{name}' holds no whole checkpoint: it has no {file}; copy or download it again.")
    if path.is_dir():
        raise ValueError(
            f"{file} of '{name}' must be a file, but is a folder; copy or download the checkpoint again."
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
