"""The class of the entries of the table of formats, and what a format expresses of a config.

This file and the files of the entries import no library that only one format needs.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id
from ..settings.sections import FREE_FIELDS
from .comparison import Tokenizers

# A function of a config that gives the reason why a format cannot express a field, or None if the format can.
Limit = Callable[[VaswaniConfig], str | None]

# The fields of a config that do not change what a trained model computes.
FIELDS_OF_TRAINING = frozenset([*FREE_FIELDS, "initializer_range"])
ALL_FIELDS = frozenset(inspect.get_annotations(VaswaniConfig))


def only(name: str, value: Any, reason: str) -> Limit:
    """A limit that lets a field have one value."""
    return lambda config: None if getattr(config, name) == value else reason


def needs_start_token(config: VaswaniConfig) -> str | None:
    """The limit of formats whose search starts from a token."""
    return "it starts from a token" if decoder_start_token_id(config) is None else None


@dataclass(frozen=True)
class Expressible:
    """The configs that a format can express.

    A field that is in neither attribute must have its default, so that a new field is refused by its name in
    every format until the format expresses it.

    Attributes:
        title (str): The name of the format in messages.
        fields (frozenset): The fields that may have any value, in addition to those that matter in training
            only.
        limits (Mapping): The fields that may have some values.
    """

    title: str
    fields: frozenset[str]
    limits: Mapping[str, Limit]

    def refuse_others(self, config: VaswaniConfig) -> None:
        """Refuses a config that the format cannot express."""
        for name in inspect.get_annotations(VaswaniConfig):
            value = getattr(config, name)
            default = getattr(VaswaniConfig, name)
            reason = None
            if name in self.limits:
                reason = self.limits[name](config)
            elif name not in self.fields | FIELDS_OF_TRAINING and value != default:
                reason = f"it has only {default!r}"
            if reason is not None:
                raise ValueError(f"`{name}` is {value!r}, which {self.title} cannot express: {reason}.")


class Export(Protocol):
    """The function that writes a model into `folder` and returns a line that compares both.

    `model` is a VaswaniForSeq2SeqLM in eval mode. `tokenizers` is None if the checkpoint has none and the
    format needs none.
    """

    def __call__(
        self, model: Any, tokenizers: Tokenizers | None, folder: Path, quantization: str | None
    ) -> str: ...


class Load(Protocol):
    """The function that reads a folder in a format and returns the model and its tokenizers, if there are any."""

    def __call__(self, folder: Path) -> tuple[Any, Tokenizers | None]: ...


@dataclass(frozen=True)
class Format:
    """An entry of `FORMATS`. Every format writes a folder.

    Attributes:
        name (str): The value of `--format`, and the name of the extra of the package that installs
            `libraries`.
        expressible (Expressible): The configs that the format can express.
        export (Export, optional): Writes a model; None if the package only reads the format.
        load (Load, optional): Reads a model; None if the package only writes the format.
        libraries (tuple): The modules that the format needs in addition to those of the package.
        quantizations (tuple): The dtypes in which the format can store the weights.
        needs_tokenizers (bool): The format stores the vocabularies, so that a checkpoint without tokenizers
            is refused.
        keeps_recipe (bool): The folder has the recipe as others may see it; `vaswani distill` reads the
            languages from it.
    """

    name: str
    expressible: Expressible
    export: Export | None = None
    load: Load | None = None
    libraries: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    needs_tokenizers: bool = False
    keeps_recipe: bool = False
