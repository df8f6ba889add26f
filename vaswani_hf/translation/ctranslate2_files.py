"""Validates the files of a CTranslate2 folder. If a file is damaged, CTranslate2 can crash the process or
write wrong translations.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from transformers import GenerationConfig

from ..checkpoint.files import CONFIG_FILE, GENERATION_FILE, read_json, read_json_object
from ..checkpoint.tokenizers import load_tokenizers
from ..model.checks_vaswani import is_int
from ..model.configuration_vaswani import eos_token_ids
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import validate_search_fields

MODEL_FILE = "model.bin"
VOCABULARY_FILES = ("shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json")
_SHARED, _SOURCE, _TARGET = VOCABULARY_FILES
# The version of CTranslate2's binary format that `_shapes` can read. If a file has another version of the
# format, the shapes of its weights are not checked.
_FORMAT = 6


@dataclass(frozen=True)
class CTranslate2Files:
    """The content of a CTranslate2 folder without the weights. The lists of tokens are sorted by token id."""

    tokenizers: tuple
    generation_config: GenerationConfig
    source_tokens: list[str]
    target_tokens: list[str]
    num_positions: int

    @classmethod
    def read(cls, folder: Path) -> "CTranslate2Files":
        """Read a folder that `vaswani export` wrote. Raise an error if a file is missing or damaged."""
        if not folder.is_dir() or not all((folder / name).exists() for name in (MODEL_FILE, GENERATION_FILE)):
            raise InvalidValueError(
                f"`model` must be a folder that `vaswani export --format ctranslate2` wrote, but '{folder}' holds "
                "no CTranslate2 model."
            )
        shapes = _shapes(folder)
        tokenizers = load_tokenizers(folder)
        is_shared = (folder / _SHARED).exists() or not any(
            (folder / name).exists() for name in (_SOURCE, _TARGET)
        )
        names = (_SHARED, _SHARED) if is_shared else (_SOURCE, _TARGET)
        weights = ("encoder/embeddings_0/weight", "decoder/embeddings/weight")
        source, target = (
            _vocabulary(folder, name, tokenizer, shapes.get(weight))
            for name, tokenizer, weight in zip(names, tokenizers, weights, strict=True)
        )
        num_positions = _num_positions(folder, target, shapes.get("decoder/position_encodings/encodings"))
        return cls(tokenizers, _generation_config(folder, len(target)), source, target, num_positions)


def _refuse(folder: Path, file: str, fault: str) -> NoReturn:
    raise ValueError(f"{file} of '{folder}' {fault}; copy or export it again.")


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Map each weight to its shape. Return an empty dict for an unknown version of the binary format."""
    path = folder / MODEL_FILE
    if not path.is_file():
        _refuse(folder, MODEL_FILE, "must be a file, but is a folder")
    with path.open("rb") as file:
        try:
            (version,) = _unpack(file, "I")
            if version != _FORMAT:
                return {}
            _text(file)
            _unpack(file, "I")
            (count,) = _unpack(file, "I")
            shapes = dict(_variable(file) for _ in range(count))
            (count,) = _unpack(file, "I")
            aliases = {_text(file): _text(file) for _ in range(count)}
        except (struct.error, UnicodeDecodeError):
            _refuse(folder, MODEL_FILE, "is damaged or incomplete")
        if file.read(1) or not set(aliases.values()) <= shapes.keys():
            _refuse(folder, MODEL_FILE, "is damaged")
    return shapes | {alias: shapes[name] for alias, name in aliases.items()}


def _unpack(file: BinaryIO, kinds: str) -> tuple[int, ...]:
    return struct.unpack(f"<{kinds}", file.read(struct.calcsize(f"<{kinds}")))


def _text(file: BinaryIO) -> str:
    """Read a name, and remove the zero byte at the end of the name."""
    (length,) = _unpack(file, "H")
    return struct.unpack(f"{length}s", file.read(length))[0].removesuffix(b"\0").decode()


def _variable(file: BinaryIO) -> tuple[str, tuple[int, ...]]:
    """Read the name and the shape of a weight, and skip its values."""
    name = _text(file)
    (rank,) = _unpack(file, "B")
    shape = _unpack(file, f"{rank}I")
    _, num_bytes = _unpack(file, "BI")
    file.seek(num_bytes - 1, 1)
    # Read the last byte, because `seek` raises no error for a position after the end of the file.
    _unpack(file, "B")
    return name, shape


def _vocabulary(folder: Path, file: str, tokenizer: Any, shape: tuple[int, ...] | None) -> list[str]:
    """Return the list of tokens, sorted by token id. Raise an error if the tokens in the vocabulary file do
    not match the model or the tokenizer.
    """
    if not (folder / file).exists():
        _refuse(folder, file, "is missing")
    tokens = read_json(folder, file, folder)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        _refuse(folder, file, "must hold a list of tokens, but does not: it is damaged")
    if shape is not None and len(tokens) != shape[0]:
        _refuse(
            folder,
            file,
            f"must have {shape[0]:,} tokens, one for each row of the model's embedding, but has "
            f"{len(tokens):,}",
        )
    if any(i >= len(tokens) or tokens[i] != token for token, i in tokenizer.get_vocab().items()):
        _refuse(folder, file, "must have the same tokens as the tokenizer, but has other tokens")
    if len(set(tokens)) < len(tokens):
        _refuse(folder, file, "must name each token once, but does not: it is damaged")
    return tokens


def _num_positions(folder: Path, tokens: list[str], shape: tuple[int, ...] | None) -> int:
    """Validate config.json, and return the number of positions of the model."""
    config = read_json_object(folder, CONFIG_FILE, folder)
    for name in ("decoder_start_token", "eos_token"):
        if config.get(name) not in tokens:
            _refuse(folder, CONFIG_FILE, f"must name a token as its `{name}`, but has {config.get(name)!r}")
    positions: Any = config.get("max_position_embeddings")
    if not is_int(positions, 1) or (shape is not None and positions != shape[0]):
        rows = (
            "a positive integer"
            if shape is None
            else f"{shape[0]}, the number of rows of the model's position encodings"
        )
        _refuse(folder, CONFIG_FILE, f"must have `max_position_embeddings` of {rows}, but has {positions!r}")
    return positions


def _generation_config(folder: Path, num_classes: int) -> GenerationConfig:
    read_json_object(folder, GENERATION_FILE, folder)
    try:
        config = GenerationConfig.from_pretrained(folder)
        validate_search_fields(config)
    except (TypeError, ValueError) as error:
        _refuse(folder, GENERATION_FILE, f"has an impossible setting ({str(error).rstrip('.')})")
    ends = eos_token_ids(config)
    if not ends or not all(is_int(end) and end < num_classes for end in ends):
        _refuse(
            folder,
            GENERATION_FILE,
            f"must name tokens as its `eos_token_id`, but has {config.eos_token_id!r}",
        )
    return config
