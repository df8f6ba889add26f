"""The options of the commands: the classes that several commands share, and the argparse options of such a class.

Each command has a class derived from `Options`. A field has a type, a default, a range, and the help beneath it. A rule
that joins several options is a validator of the class. The options of a translation are derived from the dataclasses
of `model.generation_vaswani` and `model.translator_vaswani`, which `Translator` and the pipeline use too.
"""

import argparse
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import NoneType
from typing import Any, Literal, NoReturn, Self, get_args, get_origin

from pydantic import ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from ..model.configuration_vaswani import nearest_name
from ..model.generation_vaswani import SearchSettings
from ..model.inputs_vaswani import type_of
from ..model.translator_vaswani import TranslationOptions
from ..settings.base import Settings

# The options of a translation and of its search that the command line has.
_DECLARED = {
    field.name: field
    for kind in (SearchSettings, TranslationOptions)
    for field in dataclasses.fields(kind)
    if field.metadata["command_line"]
}
_SEARCH_NAMES = {field.name for field in dataclasses.fields(SearchSettings)}
# The settings that scores depend on too, and the size of a batch.
SCORING = ("tokens_per_batch", "length_penalty", "length_penalty_type", "coverage_penalty")
# The options of a search for one translation of each sentence.
SEARCH = (*SCORING, "num_beams", "max_new_tokens", "max_length_a", "max_length_b", "no_repeat_ngram_size")


class Options(Settings):
    """The options of a command."""

    # A class that is not used needs no validator, which takes time to build.
    model_config = ConfigDict(defer_build=True)

    @classmethod
    def command_line(cls) -> dict[str, FieldInfo]:
        """The fields that the command line has."""
        return {name: field for name, field in cls.model_fields.items() if not _extra(field).get("hidden")}

    @classmethod
    def of_command_line(cls, values: dict[str, Any]) -> "Options":
        """The options with these values, which the command line has given."""
        return cls.load(values, "--")

    def given(self) -> dict[str, Any]:
        """The options that the user has given."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def on_command_line(default: Any = ..., **extra: Any) -> Any:
    """A field with a place and no name (`positional`), with a word for its value (`metavar`), or with another name.

    The name is that of `option` if the name of the field would hide an attribute of pydantic's models.
    """
    return Field(default, json_schema_extra=extra)


class _TranslationBase(Options):
    # pydantic would look for the source code of the derived classes in all modules.
    model_config = ConfigDict(use_attribute_docstrings=False)

    @model_validator(mode="after")
    def _check_number_of_translations(self) -> Self:
        settings = self.translation_settings()
        beams, wanted = settings.get("num_beams"), settings.get("num_return_sequences")
        if beams and wanted and wanted > beams and not settings.get("do_sample"):
            raise ValueError(
                f"`--num_return_sequences` must be at most `--num_beams`, {beams}, but is {wanted}."
            )
        return self

    def translation_settings(self) -> dict[str, Any]:
        """The options of a translation that have a value, as arguments of `Translator.translate`."""
        values = {name: getattr(self, name, None) for name in _DECLARED}
        return {name: value for name, value in values.items() if value is not None}


def translation_options(*names: str) -> Any:
    """A class with the options of a translation: with those of these names, or with all that the command line has."""
    derived: dict[str, Any] = {}
    for name in names or _DECLARED:
        field = _DECLARED[name]
        declared = field.metadata
        value_type: Any = Literal[declared["choices"]] if declared["choices"] else type_of(field)
        # Settings of the search that are not given are the checkpoint's.
        default = None if name in _SEARCH_NAMES else field.default
        limits = {"ge": declared["least"], "gt": declared["above"], "le": declared["most"]}
        derived[name] = (value_type | None, Field(default, description=declared["help"], **limits))
    return create_model("DerivedOptions", __base__=_TranslationBase, **derived)


class ModelOptions(Options):
    """The model of a command."""

    model: str = on_command_line(positional=True)
    """a checkpoint folder or a repository on the Hub"""
    revision: str | None = None
    """a branch, tag or commit of the repository, or refs/pr/N; main by default"""

    @property
    def model_name(self) -> str:
        """The model with its revision, as user/name@revision."""
        return self.model if self.revision is None else f"{self.model}@{self.revision}"


class DeviceOptions(Options):
    """The device and the precision of a model."""

    device: str | None = None
    """cpu, cuda, cuda:1 …; a GPU where there is one by default"""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] | None = None
    """what to compute in; auto: bfloat16 where the processor or GPU has it in hardware and the first texts have the
    same translations, else float32; the checkpoint's by default"""


class ComputingOptions(DeviceOptions):
    """Like `DeviceOptions`, for models that translate or parse."""

    quantization: Literal["int8"] | None = None
    """multiply by weights in int8, on the CPU; needs vaswani_hf[int8]"""

    @property
    def precision(self) -> dict[str, Any]:
        """The arguments of `Translator.from_pretrained` for the precision."""
        return {"dtype": self.dtype, "quantization": self.quantization}


class WorkerOptions(ComputingOptions):
    """Computing in several processes."""

    workers: int = Field(1, ge=1)
    """processes on the CPU"""

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > 1 and self.device not in (None, "cpu"):
            raise ValueError(
                "`--workers` is for the CPU; with more than one leave out `--device` or set it to cpu."
            )
        return self

    def loader(self, load: Callable[..., Any], model: str, ensemble: Sequence[str] = ()) -> functools.partial:
        """The function that loads the translator, in this process or in others."""
        device = "cpu" if self.workers > 1 else self.device
        return functools.partial(load, model, device, ensemble=tuple(ensemble), **self.precision)


class EngineOptions(WorkerOptions):
    """Computing with PyTorch or with CTranslate2."""

    engine: Literal["torch", "ctranslate2"] = "torch"
    """ctranslate2: the model is what `vaswani export --format ctranslate2` wrote"""

    def translator_loader(self, model: str, ensemble: Sequence[str]) -> functools.partial:
        """The function that loads the translator of the engine."""
        if self.engine == "ctranslate2":
            from ..translation.ctranslate2 import load_ctranslate2_translator

            return self.loader(load_ctranslate2_translator, model, ensemble)
        from ..translation.translator import Translator

        return self.loader(Translator.from_pretrained, model, ensemble)


class EnsembleOptions(ModelOptions):
    """A model, or several whose probabilities are averaged."""

    ensemble: list[str] = on_command_line([], metavar="MODEL")
    """more checkpoints of the same vocabulary (folders, user/name or user/name@revision), whose probabilities are
    averaged with the first one's"""


class RecipeOptions(Options):
    """A recipe, and keys that replace its own."""

    recipe: str = on_command_line(positional=True)
    """a YAML file, such as configuration/numbers.yaml"""
    overrides: list[str] = on_command_line([], hidden=True)
    """`--key value` for any other key of the recipe"""


def _extra(field: FieldInfo) -> dict[str, Any]:
    """The command-line settings of a field, see `on_command_line`."""
    extra: Any = field.json_schema_extra
    return extra or {}


class CommandParser(argparse.ArgumentParser):
    """argparse with errors of one sentence."""

    def error(self, message: str) -> NoReturn:
        """End with one sentence; argparse would print all options before it."""
        self.exit(2, f"{self.prog}: {message.removesuffix('.')}; see {self.prog} --help\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """End because the command does not know these words; name the nearest option."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"there is no argument {words[0]!r} to take")
        known = re.findall(r"--[\w-]+", self.format_help())
        self.error(f"there is no option {option}; the nearest one is {nearest_name(option, known)}")


def types_of(annotation: Any) -> list[Any]:
    """The types that a field permits besides None; a `Literal` is one type."""
    if isinstance(annotation, type) or get_origin(annotation) in (Literal, list):
        return [annotation]
    return [kind for kind in get_args(annotation) if kind is not NoneType]


def add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add the options of a class to a parser. Options that are not given are missing in its result."""
    for name, field in options.command_line().items():
        extra = _extra(field)
        kind = type_of_field(field)
        argument: dict[str, Any] = {"default": argparse.SUPPRESS, "help": help_of(field).replace("%", "%%")}
        argument |= {"type": _reader_of(kind), "metavar": values_of(field)}
        if get_origin(kind) is list:
            argument["nargs"] = "+"
        elif kind is bool:
            argument |= {"nargs": "?", "const": True}
        elif extra.get("positional") and not field.is_required():
            argument["nargs"] = "?"
        if extra.get("positional"):
            parser.add_argument(name, **argument)
        else:
            parser.add_argument(option_of(name, field), dest=name, required=field.is_required(), **argument)


def option_of(name: str, field: FieldInfo) -> str:
    """The words of a field on the command line."""
    extra = _extra(field)
    return name if extra.get("positional") else f"--{extra.get('option', name)}"


def type_of_field(field: FieldInfo) -> Any:
    """The type of the values of a field that is not None."""
    if isinstance(field.annotation, type) or get_origin(field.annotation) in (Literal, list):
        return field.annotation
    (kind,) = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    return kind


def values_of(field: FieldInfo) -> str | None:
    """The placeholder for the value of a field in the help."""
    kind = type_of_field(field)
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return "true|false" if kind is bool else _extra(field).get("metavar")


def help_of(field: FieldInfo) -> str:
    """The help of a field on one line, with its default."""
    words = " ".join((field.description or "").split())
    if field.is_required() or field.default in (None, False, []) or f"({field.default}" in words:
        return words
    return f"{words} ({field.default})"


def _reader_of(kind: Any) -> Callable[[str], Any]:
    """A function from a word to a value. A word that is no number stays text, and `Settings` refuses it."""

    def read(text: str) -> Any:
        if kind is bool:
            if text.lower() not in ("true", "false"):
                raise argparse.ArgumentTypeError(f"must be true or false, but is {text!r}")
            return text.lower() == "true"
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                return text
        return text

    return read


def normalised(words: Sequence[str], options: type[Options]) -> list[str]:
    """The words of a command line; `--some-name` is `--some_name`, and a switch without a value is `--name=true`."""
    fields = options.command_line().items()
    switches = {option_of(name, field) for name, field in fields if type_of_field(field) is bool}
    found = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + sign + value
            if word in switches and following.lower() not in ("true", "false"):
                word += "=true"
        found.append(word)
    return found
