"""The class of the entries of the table of formats, the configs that a format can express, and the comparison
after an export.

This file and the files of the entries import no library that only one format needs.
Letters of shapes: B batch, S source length, T target length.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from ..model.configuration_vaswani import VaswaniConfig, decoder_start_token_id
from ..settings.sections import FREE_FIELDS

# Source and target tokenizer: the same object twice for a joint vocabulary.
Tokenizers = tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]
# A function of a config that gives the reason why a format cannot express a field, or None if the format can.
Limit = Callable[[VaswaniConfig], str | None]

# The fields of a config that do not change what a trained model computes.
FIELDS_OF_TRAINING = frozenset([*FREE_FIELDS, "initializer_range"])
ALL_FIELDS = frozenset(inspect.get_annotations(VaswaniConfig))

# Another order of float32 sums changes logits by about 1e-6. Wrong weights change them by more than 1e-2.
TOLERANCE = 1e-4
_SOURCE_LENGTHS = (13, 8, 1)
_TARGET_LENGTHS = (11, 6, 2)


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
    """The function that reads a folder in a format and returns the model and its tokenizers, if there are
    any.
    """

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


def sample_batch(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Three random sentences of different lengths, equal at every call.

    The keys are `input_ids` and `attention_mask` [B, S], `decoder_input_ids` and `decoder_attention_mask` [B,
    T], all int64.
    """
    generator = torch.Generator().manual_seed(0)
    is_learned = config.position_embedding == "learned"
    longest = config.max_position_embeddings if is_learned else max(_SOURCE_LENGTHS)
    source = _rows(config.vocab_size, [min(n, longest) for n in _SOURCE_LENGTHS], config, generator)
    target = _rows(config.decoder_vocab_size, [min(n, longest) for n in _TARGET_LENGTHS], config, generator)
    target["input_ids"][:, 0] = decoder_start_token_id(config) or 0
    return {**source, **{f"decoder_{name}": tensor for name, tensor in target.items()}}


def _rows(
    vocab_size: int, lengths: list[int], config: Any, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Random token ids [B, L] without `<pad>`, padded on the right, and their mask."""
    pad = config.pad_token_id
    ordinary = torch.tensor([i for i in range(vocab_size) if i != pad] or [0])
    drawn = torch.randint(len(ordinary), (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    input_ids = ordinary[drawn].masked_fill(~mask, 0 if pad is None else pad)
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def report(what: str, difference: float, tolerance: float | None = TOLERANCE) -> str:
    """One line with the difference between the written model and the checkpoint; a ValueError if it is too
    large.
    """
    if math.isnan(difference):
        raise ValueError(
            f"The {what} and the checkpoint's must be numbers, but some are not; nothing was written."
        )
    if tolerance is not None and difference > tolerance:
        raise ValueError(
            f"The largest difference between the {what} and the checkpoint's must be at most {tolerance:g}, but is "
            f"{difference:.2g}; nothing was written."
        )
    return f"Largest difference between the {what} and the checkpoint's on sample inputs: {difference:.2g}."
