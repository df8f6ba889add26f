"""Defines the class `ImportFormat`, the parts of an imported model, and the errors of an import.

This file and the files that define formats do not import libraries that only one format needs.

In shapes, B is the batch size, T the target length and V the size of the target vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import torch
import yaml
from transformers import GenerationConfig

from ..model.configuration_vaswani import VaswaniConfig
from ..settings.base import Settings
from .formats import Tokenizers

T = TypeVar("T", bound=Settings)


@dataclass(frozen=True)
class ReadOptions:
    """The options of an import that only some formats use.

    Attributes:
        timescales (str, optional): The value of the config field `position_timescales`. None: use the
            timescales that the format states.
        vocabularies (tuple): Files of the vocabularies, if the checkpoint does not contain or name the files.
        config (Path, optional): A JSON or YAML file with facts that the checkpoint does not contain, such as
            the number of heads.
    """

    timescales: str | None = None
    vocabularies: tuple[Path, ...] = ()
    config: Path | None = None


@dataclass
class Imported:
    """A model that a format has read.

    Attributes:
        config (VaswaniConfig): The config of the model.
        state_dict (dict): The weights under the names of `VaswaniForSeq2SeqLM`. If a weight has several names
            because it is tied, one of the names is enough.
        generation_config (GenerationConfig): The defaults of the search.
        tokenizers (tuple, optional): The source and the target tokenizer. With a joint vocabulary, both
            tokenizers are the same object. None if the checkpoint has no vocabularies.
        facts (dict): Facts for the model card. The keys are the keys of "data" in results.json:
            "source_language", "target_language", "license".
        notes (list): Sentences for the user and for the model card about the differences between the original
            and the imported model.
        log_probs (Callable, optional): A function that computes the log-probabilities [B, T, V] float32 of a
            batch of `sample_batch` with the original's library. None if the library is not installed.
    """

    config: VaswaniConfig
    state_dict: dict[str, torch.Tensor]
    generation_config: GenerationConfig
    tokenizers: Tokenizers | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    log_probs: Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None = None


class Recognise(Protocol):
    """A function that returns True if a folder or a file is a checkpoint of a format."""

    def __call__(self, path: Path) -> bool: ...


class Read(Protocol):
    """A function that reads a checkpoint. The function raises a ValueError if a model of this package cannot
    express the checkpoint.
    """

    def __call__(self, path: Path, options: ReadOptions) -> Imported: ...


@dataclass(frozen=True)
class ImportFormat:
    """An entry of the table `IMPORT_FORMATS`.

    Attributes:
        name (str): The value of `--from`. The package extra of the same name installs `libraries`.
        title (str): The name of the format in messages, such as "MarianMT of transformers".
        recognise (Recognise): The function that recognises the format. The function reads as little of the
            files as possible.
        read (Read): The function that reads a checkpoint.
        files (tuple): Patterns of the files that are downloaded from a repository on the Hub.
        peer (str): The name of the original's library in messages. The library computes the log-probabilities
            of the original.
        keeps (str): One sentence for the manual: what the imported checkpoint keeps.
        loses (str): One sentence for the manual: what the imported checkpoint loses, or what is refused.
        libraries (tuple): The names of the modules that `read` needs in addition to the dependencies of the
            package.
        options (tuple): The fields of `ReadOptions` that the format uses.
    """

    name: str
    title: str
    recognise: Recognise
    read: Read
    files: tuple[str, ...]
    peer: str
    keeps: str
    loses: str
    libraries: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def load_facts(path: Path | None, settings_class: type[T], title: str) -> T:
    """Read the file of `--config`. Raise a ValueError if the file or a key is missing or invalid."""
    if path is None:
        required = [name for name, field in settings_class.model_fields.items() if field.is_required()]
        keys = ", ".join(f"`{name}`" for name in required)
        raise ValueError(
            f"`config` must be a JSON or YAML file with the keys {keys}, but no file is given; give a file, "
            f"because a checkpoint of {title} does not contain the values of these keys."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"`config` must be a JSON or YAML file, but '{path}' cannot be read ({reason})."
        ) from None
    if not isinstance(values, dict):
        raise ValueError(f"`config` must be a file with keys and values, but '{path}' has no keys.")
    return settings_class.load(values)


class UnsupportedError(ValueError):
    """Raised if a checkpoint has a value that a model of this package cannot express."""


def refuse(field: str, value: Any, reason: str) -> NoReturn:
    """Raise an error about a field of the original's config. `reason` completes the sentence after
    "because".
    """
    # Do not begin the message with the field, because the command line treats a message that begins with a
    # name in backticks as an error about an option.
    raise UnsupportedError(f"The original has `{field}` {value!r}, and cannot be imported, because {reason}.")


def require(field: str, value: Any, allowed: Any, reason: str) -> None:
    """Refuse a field of the original's config unless it has the allowed value."""
    if value != allowed:
        refuse(field, value, reason)


def generation_config(config: VaswaniConfig) -> GenerationConfig:
    """Return a generation config that has only the special token ids, for a format that stores no defaults of
    the search.
    """
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
