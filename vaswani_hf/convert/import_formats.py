"""Defines the class `ImportFormat`, the parts of an imported model, and the errors of an import.

A file that defines a format imports the library of the format inside a function, because the library is
perhaps not installed.

In shapes, B is the batch size, T the target length and V the size of the target vocabulary.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import torch
import yaml
from transformers import GenerationConfig
from transformers.activations import ACT2FN

from ..checkpoint.files import CONFIG_FILE, read_json_object
from ..checkpoint.tokenizers import Tokenizers
from ..model.configuration_vaswani import VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..settings.base import Settings, first_line_of
from .unpickling import header_of

T = TypeVar("T", bound=Settings)
# Computes the logits [B, T, V] (float32) of a `sample_batch` with the library of the imported checkpoint.
Logits = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class ReadOptions:
    """The options of an import. Each import format uses only some of the options.

    Attributes:
        timescales (str, optional): The value of the config field `position_timescales`, such as
            "tensor2tensor". If None, each import format has its own default.
        vocabularies (tuple): The paths of vocabulary files, for a checkpoint that neither contains nor names
            vocabulary files.
        config (Path, optional): A JSON or YAML file with settings that the checkpoint does not contain, such
            as the number of heads.
    """

    timescales: str | None = None
    vocabularies: tuple[Path, ...] = ()
    config: Path | None = None


@dataclass
class Imported:
    """A model that was read from a checkpoint of another library.

    Attributes:
        config (VaswaniConfig): The config of the imported model.
        state_dict (dict): The weights under the names of `VaswaniForSeq2SeqLM`. A tied weight needs to occur
            under only one of its names, because `from_pretrained` ties the weights according to `config`.
        tokenizers (tuple, optional): The source and the target tokenizer; the same object twice for a joint
            vocabulary. None if the checkpoint has no vocabularies.
        facts (dict): The languages and the licence for the model card, under the keys "source_language",
            "target_language" and "license". The object "data" of results.json uses the same three keys as
            `facts`.
        notes (list): Sentences about differences between the checkpoint and the imported model, for the user
            and for the model card.
        logits (Callable, optional): Computes logits with the library from which the checkpoint comes (see
            `Logits`). None if the import cannot run the original model, for example because the library is
            not installed.
        generation_config (GenerationConfig, optional): The generation config with the search options of the
            checkpoint. By default, the generation config has only the special tokens of `config`.
        compare (Callable, optional): Returns the largest difference (nats) between log-probabilities of the
            checkpoint's library and of the imported model. An import needs `compare` instead of `logits` if
            the library does not return the logits of the whole vocabulary.
    """

    config: VaswaniConfig
    state_dict: dict[str, torch.Tensor]
    tokenizers: Tokenizers | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    generation_config: GenerationConfig | None = None
    logits: Logits | None = None
    compare: Callable[[Any], float] | None = None


class Recognise(Protocol):
    """A function that returns True if a folder or a file is a checkpoint of a format."""

    def __call__(self, path: Path) -> bool: ...


def has_model_type(model_type: str) -> Recognise:
    """Return a function that recognises a folder by the `model_type` in its config.json."""

    def recognise(path: Path) -> bool:
        has_config = (path / CONFIG_FILE).is_file()
        return has_config and read_json_object(path, CONFIG_FILE, path).get("model_type") == model_type

    return recognise


def has_texts(*texts: str) -> Recognise:
    """Return a function that recognises a weight file by texts in its header, such as the names of weights.
    The header of the weight file must contain each string in `texts`.
    """

    def recognise(path: Path) -> bool:
        header = header_of(path)
        return all(text.encode() in header for text in texts)

    return recognise


class Read(Protocol):
    """A function that reads a checkpoint. Raises a ValueError if this package cannot express the model."""

    def __call__(self, path: Path, options: ReadOptions) -> Imported: ...


@dataclass(frozen=True)
class ImportFormat:
    """Describes a checkpoint format of another library. Checkpoints in this format can be imported.

    Attributes:
        name (str): The value of `--from`. The extra `name` in pyproject.toml installs `libraries`.
        title (str): The name of the format in messages, such as "MarianMT of transformers".
        recognise (Recognise): Recognises the format, and reads only as much of a checkpoint as necessary.
        read (Read): The function that reads a checkpoint.
        files (tuple): Patterns of the files to download from a repository on the Hub.
        keeps (str): A text for the manual about the parts of a checkpoint that an import keeps.
        loses (str): A text for the manual: what an import loses, and which checkpoints the import refuses.
        libraries (tuple): The names of the modules that `read` needs in addition to the dependencies of the
            package.
        options (tuple): The fields of `ReadOptions` that the format uses.
    """

    name: str
    title: str
    recognise: Recognise
    read: Read
    files: tuple[str, ...]
    keeps: str
    loses: str
    libraries: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def load_facts(path: Path | None, settings_class: type[T], title: str) -> T:
    """Read the file of the option `--config`. Raise an error if the file or a key is missing or invalid."""
    if path is None:
        required = [name for name, field in settings_class.model_fields.items() if field.is_required()]
        keys = ", ".join(f"`{name}`" for name in required)
        raise InvalidValueError(
            f"`config` must be a JSON or YAML file with the keys {keys}, but no file is given; write a file "
            f"with these keys, because a checkpoint of {title} does not contain their values."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = first_line_of(error)
        raise InvalidValueError(
            f"`config` must be a JSON or YAML file, but '{path}' cannot be read ({reason})."
        ) from None
    if not isinstance(values, dict):
        raise InvalidValueError(
            f"`config` must be a JSON or YAML file with keys and values, but '{path}' has no keys."
        )
    return settings_class.load(values)


class UnsupportedError(ValueError):
    """Raised if a checkpoint has a value that a model of this package cannot express."""


def refuse(field: str, value: Any, reason: str) -> NoReturn:
    """Raise an `UnsupportedError` about a setting of a checkpoint. `reason` ends the error message, after the
    word "because".
    """
    raise UnsupportedError(f"The original has `{field}` {value!r}, and cannot be imported, because {reason}.")


def require(field: str, value: Any, allowed: Any, reason: str) -> None:
    """Raise an `UnsupportedError` if a setting of a checkpoint does not have the value `allowed`. A tuple
    `allowed` contains several allowed values.
    """
    if value not in (allowed if isinstance(allowed, tuple) else (allowed,)):
        refuse(field, value, reason)


def require_known(field: str, value: Any, known: Collection[Any]) -> None:
    """Raise an `UnsupportedError` if a setting of a checkpoint has an unknown value."""
    if value not in known:
        refuse(field, value, f"only {', '.join(known)} can be imported")


def require_activation(path: Path) -> None:
    """Raise an `UnsupportedError` if transformers lacks the activation function that config.json names."""
    name = read_json_object(path, CONFIG_FILE, path).get("activation_function", "relu")
    if not isinstance(name, str) or name not in ACT2FN:
        refuse("activation_function", name, "transformers has no activation function with this name")


# Maps a setting to two values: the value (or the tuple of values) that can be imported, and the reason why
# other values cannot be imported.
Requirements = Mapping[str, tuple[Any, str]]


def require_all(settings: Mapping[str, Any], requirements: Requirements) -> None:
    """Raise an `UnsupportedError` for a value that `requirements` does not allow. A missing setting raises no
    error.
    """
    for name, (allowed, reason) in requirements.items():
        if name in settings:
            require(name, settings[name], allowed, reason)


def read_norm_position(settings: Mapping[str, Any], before: str, after: str, residual: str = "a") -> str:
    """Return the config field `norm_position`, computed from two settings. The arguments `before` and `after`
    are the names of the two settings. The two settings list the operations before and after a sub-layer, with
    one letter for each operation. The letter "n" stands for LayerNorm, and the letter "d" stands for dropout.
    The argument `residual` is the letter that stands for the residual connection. Raise an `UnsupportedError`
    if the order of the operations is neither pre-norm nor post-norm.
    """
    sequences = [(settings.get(name) or "").replace("none", "") for name in (before, after)]
    operations = [sequence.replace("d", "") for sequence in sequences]
    if operations == ["n", residual]:
        return "pre"
    if operations == ["", f"{residual}n"]:
        return "post"
    refuse(
        after,
        sequences[1],
        f'`{before}` is {sequences[0]!r}, and only pre-norm ("n" and "d{residual}") and post-norm ("" and '
        f'"d{residual}n") models can be imported',
    )


def languages_of_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the languages for `Imported.facts` from the settings `source_lang` and `target_lang`."""
    keys = {"source_language": "source_lang", "target_language": "target_lang"}
    return {key: settings[name] for key, name in keys.items() if settings.get(name)}


def generation_config(config: VaswaniConfig, **search: Any) -> GenerationConfig:
    """Return a generation config with the special tokens of `config` and the given search options."""
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        **search,
    )
