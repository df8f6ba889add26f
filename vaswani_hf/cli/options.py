"""Options that several commands share, such as the model, the device, the search and the worker processes.

Each command has a class derived from `Options`. Each field is an option, and the string below the field is
the help text. A validator of the class checks options that depend on each other, and the files that the
options name. The function `run` of the command makes only the checks that need a model, a recipe or a
repository.

The options class of a command derives from the classes below that have the options of the command. `A <- B`
means that B derives from A:

    CodeOptions <- ModelOptions <- EnsembleOptions               which model the command loads
    DeviceOptions <- PrecisionOptions <- ComputingOptions        how the model computes
    ComputingOptions <- InferenceOptions, WorkerOptions, EngineOptions
    TranslationFields <- BeamSearchOptions <- SearchOptions      how the model translates
    TranslationFields <- LanguageOptions
    RecipeKeyOptions                                             the recipe keys

To add an option to several commands, add a field to a class from which exactly these commands derive. If
there is no such class, add the field to the class of each command.

The translation options have the defaults, the allowed values and the help texts of the dataclasses
`SearchSettings` and `TranslationOptions`, because `Translator` and the pipeline have the same options. The
dataclasses are in model/, which cannot declare pydantic classes: the files of model/ are saved with
checkpoints and run without pydantic.
"""

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack

from pydantic import ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from ..model.checks_vaswani import rule_of
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import SearchSettings, TranslationOptions, check_sampling
from ..settings.base import Settings, check_with_rule, field_with_properties


class Options(Settings):
    """The options of a command."""

    # If False, the command starts without an import of torch and transformers.
    needs_libraries: ClassVar[bool] = True

    # Build a validator only at its first use, because the building takes time, and only the options class of
    # the current command needs a validator. Accept the names of files that are not UTF-8.
    model_config = ConfigDict(defer_build=True, str_min_length=None)  # type: ignore[typeddict-item]

    @classmethod
    def command_line(cls) -> dict[str, FieldInfo]:
        """Return the fields that are options on the command line."""
        return dict(cls.model_fields)

    @property
    def imports_quickly(self) -> bool:
        """True if the command can use `patches.quick_imports`, which disables `torch.distributed`."""
        return False


class CommandLine(TypedDict, total=False):
    """Describes how a field of an options class appears on the command line."""

    group: str
    """The group in which the help lists the option, such as "computing"; by default "input and output"."""
    positional: bool
    """True if the field is a positional argument."""
    option: str
    """The name of the option, if this name differs from the name of the field. For example, the field of
    `--json` is `as_json`, because a field `json` would hide a method of pydantic."""
    metavar: str
    """The placeholder for the value in the help."""
    action: str | type[argparse.Action]
    """The action that argparse executes when the option occurs on the command line."""


def on_command_line(
    default: Any = ...,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    description: str | None = None,
    **settings: Unpack[CommandLine],
) -> Any:
    """Declare a field of an options class, and the command-line option that sets the field. `gt` and `lt` are
    exclusive limits. By default, the help text is the docstring below the field. If `description` is given,
    `description` is the help text.
    """
    return field_with_properties(default, settings, gt=gt, ge=ge, lt=lt, le=le, description=description)


class OnlyOnce(argparse.Action):
    """The `argparse.Action` of an option with one value: reports an error if the option is given twice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            parser.error(f"{option_string} is given twice; give it once")
        setattr(namespace, self.dest, values)


def check_file(option: str, path: str) -> None:
    """Raise an error if the value of an option is not the path of an existing file."""
    if not Path(path).is_file():
        raise InvalidValueError(f"`{option}` must be an existing file, but is {path}.")


def check_different(option: str, names: Sequence[str]) -> None:
    """Raise an error if a model is given twice, also by two different paths to the same folder."""
    places = set()
    for name in names:
        place = os.path.realpath(name) if os.path.exists(name) else name
        if place in places:
            raise InvalidValueError(f"`{option}` names {name} twice; name it once.")
        places.add(place)


# The fields of `SearchSettings` and `TranslationOptions` that are options on the command line.
_DECLARED_OPTIONS = {
    field.name: field
    for kind in (SearchSettings, TranslationOptions)
    for field in dataclasses.fields(kind)
    if field.metadata["command_line"]
}
_SEARCH_NAMES = {field.name for field in dataclasses.fields(SearchSettings)}
# Maps an option to the help text about its default. The default of every other search option is the value in
# the checkpoint.
_OTHER_DEFAULTS = {
    "num_beams": "the number in generation_config.json of the checkpoint, or 4 if the file has no number"
}


def translation_option(name: str) -> Any:
    """Declare the option `name` of a command with the default and the help text of the field `name` of
    `SearchSettings` or `TranslationOptions`. The class of the options must derive from `TranslationFields`.

    If a search setting is not given, its value is None, and the command uses the value in the generation
    config of the checkpoint.
    """
    field = _DECLARED_OPTIONS[name]
    default = field.default
    description = field.metadata["help"]
    if name in _SEARCH_NAMES:
        default = None
        description += f"; by default {_OTHER_DEFAULTS.get(name, 'the value in the checkpoint')}"
    return on_command_line(
        default,
        **rule_of(field).limits,
        description=description,
        group=field.metadata["group"],
    )


class TranslationFields(Options):
    """Base class of the classes with translation options. Checks the values of these options."""

    @field_validator(*_DECLARED_OPTIONS, mode="before", check_fields=False)
    @classmethod
    def _check_with_rule(cls, value: Any, info: ValidationInfo) -> Any:
        return check_with_rule(rule_of(_DECLARED_OPTIONS[str(info.field_name)]), value)

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        settings = self.translation_settings()
        check_sampling(settings, "--")
        num_beams = settings.get("num_beams")
        num_translations = settings.get("num_return_sequences")
        if num_beams and num_translations and num_translations > num_beams and not settings.get("do_sample"):
            raise InvalidValueError(
                f"`--num_return_sequences` must be at most `--num_beams`, {num_beams}, but is "
                f"{num_translations}."
            )
        return self

    def translation_settings(self) -> dict[str, Any]:
        """Return the translation options that have a value, as arguments of `Translator.translate`."""
        values = {name: getattr(self, name, None) for name in _DECLARED_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


class BeamSearchOptions(TranslationFields):
    """The options of a beam search."""

    length_penalty: float | None = translation_option("length_penalty")
    length_penalty_type: Literal["gnmt", "power"] | None = translation_option("length_penalty_type")
    coverage_penalty: float | None = translation_option("coverage_penalty")
    num_beams: int | None = translation_option("num_beams")
    max_new_tokens: int | None = translation_option("max_new_tokens")


class SearchOptions(BeamSearchOptions):
    """The search options of a command that translates many texts, such as `vaswani translate`."""

    tokens_per_batch: int = translation_option("tokens_per_batch")
    max_length_a: float | None = translation_option("max_length_a")
    max_length_b: int | None = translation_option("max_length_b")
    no_repeat_ngram_size: int | None = translation_option("no_repeat_ngram_size")


class LanguageOptions(TranslationFields):
    """The source language and the target language of the texts, for a model of several languages."""

    src_lang: str | None = translation_option("src_lang")
    tgt_lang: str | None = translation_option("tgt_lang")


class RecipeKeyOptions(Options):
    """The options of a command that accepts recipe keys as `--key value`."""

    overrides: list[str] = []
    """all recipe keys on the command line with their values, such as `["--max_steps", "500"]`"""

    @classmethod
    def command_line(cls) -> dict[str, FieldInfo]:
        """Return the fields that are options on the command line, without `overrides`."""
        fields = super().command_line()
        return {name: field for name, field in fields.items() if name != "overrides"}


class CodeOptions(Options):
    """The option `--code`: a Python file that a command executes before the command loads a model."""

    code: str | None = on_command_line(None, metavar="FILE")
    """a Python file that registers the attention function or the position encoding of the model; the file is
    executed before the model is loaded"""


class ModelOptions(CodeOptions):
    """The options that name the model of a command."""

    model: str = on_command_line(positional=True)
    """a checkpoint folder or a repository on the Hub"""
    revision: str | None = None
    """a branch, tag or commit of the repository, or refs/pr/N; main by default"""

    @property
    def model_name(self) -> str:
        """The name of the model: `model`, or `model@revision` with `--revision`."""
        return self.model if self.revision is None else f"{self.model}@{self.revision}"


class DeviceOptions(Options):
    """The option for the device of a model."""

    device: str | None = on_command_line(None, group="computing")
    """the device, such as cpu, cuda or cuda:1; by default the GPU if the machine has a GPU, else the CPU"""


class PrecisionOptions(DeviceOptions):
    """The options for the device and the dtype of a model."""

    dtype: Literal["float32", "bfloat16", "float16", "auto"] | None = on_command_line(None, group="computing")
    """the dtype of the computation; by default the dtype of the checkpoint; auto chooses bfloat16 if the
    processor or GPU has bfloat16 instructions and the first texts have the same translations as in float32;
    otherwise auto chooses float32
    """


class ComputingOptions(PrecisionOptions):
    """The options for the device, the dtype and the quantization of a model that translates or parses."""

    quantization: Literal["int8"] | None = on_command_line(None, group="computing")
    """int8 uses int8 weights in matrix multiplications, only on the CPU; needs the library torchao"""

    @property
    def precision(self) -> dict[str, Any]:
        """The arguments `dtype` and `quantization` of `Translator.from_pretrained`."""
        return {"dtype": self.dtype, "quantization": self.quantization}

    @property
    def model_device(self) -> str | None:
        """The device on which a process loads the model."""
        return self.device

    def loader(self, load: Callable[..., Any], model: str, ensemble: Sequence[str] = ()) -> functools.partial:
        """Return a function without arguments that loads the translator, for example in a worker process."""
        return functools.partial(load, model, self.model_device, ensemble=tuple(ensemble), **self.precision)


class InferenceOptions(ComputingOptions):
    """The options of a command that neither trains nor compiles a model, such as `vaswani translate`."""

    @property
    def imports_quickly(self) -> bool:
        """True if `--quantization` is not given. With `--quantization`, torchao imports the parts of PyTorch
        whose import takes long.
        """
        return self.quantization is None


class WorkerOptions(ComputingOptions):
    """The options of a command that can translate in several processes."""

    workers: int = on_command_line(1, ge=1, group="computing")
    """the number of processes that translate; several processes are possible only on the CPU"""

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > 1 and self.device not in (None, "cpu"):
            raise InvalidValueError(
                "`--workers` above 1 is for the CPU; leave out `--device` or set `--device` to cpu."
            )
        return self

    @property
    def model_device(self) -> str | None:
        """ "cpu" if several processes translate, else the value of `--device`."""
        return "cpu" if self.workers > 1 else self.device


class EngineOptions(ComputingOptions):
    """The options of a command that can translate with PyTorch or with CTranslate2."""

    engine: Literal["torch", "ctranslate2"] = on_command_line("torch", group="computing")
    """the library that translates; with ctranslate2, MODEL is a folder that `vaswani export --format
    ctranslate2` wrote"""

    def translator_loader(self, model: str, ensemble: Sequence[str]) -> functools.partial:
        """Create a function without arguments that loads the translator for the chosen engine."""
        if self.engine == "ctranslate2":
            from ..translation.ctranslate2 import load_ctranslate2_translator

            return self.loader(load_ctranslate2_translator, model, ensemble)
        from ..translation.translator import Translator

        return self.loader(Translator.from_pretrained, model, ensemble)


class EnsembleOptions(ModelOptions):
    """The options that name one model, or several models whose probabilities are averaged."""

    ensemble: list[str] = on_command_line([], group="search", metavar="MODEL")
    """more checkpoints (folders, user/name or user/name@revision) with the same vocabulary as MODEL; the
    probabilities of all models are averaged"""
