"""Defines the classes that describe an export format: `ExportFormat`; `Expressible`, the configs that the
format supports; `Engine`, which runs an exported folder.

A library that only one format needs is perhaps not installed. Therefore the files that define formats import
such a library inside a function.

In shapes, B is the batch size, S the source length and T the target length.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from huggingface_hub import ModelCardData
from transformers import GenerationConfig

from ..checkpoint.files import CARD_FILE, write_whole
from ..checkpoint.search_settings import unsupported_settings
from ..checkpoint.tokenizers import Tokenizers
from ..model.backend_vaswani import Hypothesis, Segment
from ..model.configuration_vaswani import CONFIG_FIELDS, VaswaniConfig, decoder_start_token_id
from ..model.errors_vaswani import InvalidValueError
from ..model.segment_search_vaswani import batches_by_length
from ..model.translator_vaswani import BaseTranslator
from ..settings.sections import TRAINING_ONLY_FIELDS

# A function that returns the reason why a format does not support the value of a config field. The function
# returns None if the format supports the value.
Limit = Callable[[VaswaniConfig], str | None]

# The config fields that have no effect on the outputs of a trained model.
FIELDS_OF_TRAINING = frozenset([*TRAINING_ONLY_FIELDS, "initializer_range"])
ALL_FIELDS = frozenset(CONFIG_FIELDS)

# The settings of a beam search that divides the score by the length, as the searches of transformers and of
# Marian do.
SCORE_PER_TOKEN: Mapping[str, Any] = {
    "length_penalty": 1.0,
    "length_penalty_type": "power",
    "coverage_penalty": 0.0,
    "early_stopping": False,
}

# The maximum number of tokens in a batch: the source tokens plus the target tokens.
_TOKENS_PER_BATCH = 4096


def one_of(name: str, values: Collection[Any], reason: str) -> Limit:
    """Return a `Limit` (a check of one config field) that accepts only the given values of the field."""
    return lambda config: None if getattr(config, name) in values else reason


def needs_start_token(config: VaswaniConfig) -> str | None:
    """Return None if the config has a start token. If the config has no start token, return the reason why a
    format cannot express the config: the decoder of the format needs a start token.
    """
    return "the decoder of the format needs a start token" if decoder_start_token_id(config) is None else None


def needs_end_token(config: VaswaniConfig) -> str | None:
    """Return None if the config has an end token. If the config has no end token, return the reason why a
    format cannot express the config: the search in the format's library needs an end token.
    """
    return "the search of the format needs an end token" if config.eos_token_id is None else None


class NotExpressibleError(InvalidValueError):
    """Raised if the format that the user has chosen cannot express a checkpoint, for example because of a
    config value or because of the tokenizer.
    """


@dataclass(frozen=True)
class Expressible:
    """Describes which configs a format supports.

    A config field that is neither in `fields` nor in `limits` must have its default value. Therefore a new
    field of the config class is at first supported only with its default value. To support more values of the
    new field, add its name to `fields` (all values) or to `limits` (some values).

    Attributes:
        title (str): The name of the format in error messages.
        fields (frozenset): The fields that may have any value. Fields that have an effect only in training
            are always allowed, even if `fields` does not contain them.
        limits (Mapping): Contains the config fields for which the format supports only some values. The key
            is the name of a config field; the value is the function that checks the field.
    """

    title: str
    fields: frozenset[str]
    limits: Mapping[str, Limit]

    def refuse_others(self, config: VaswaniConfig) -> None:
        """Raise a NotExpressibleError if the format does not support a config."""
        for name in CONFIG_FIELDS:
            value = getattr(config, name)
            default = getattr(VaswaniConfig, name)
            reason = None
            if name in self.limits:
                reason = self.limits[name](config)
            elif name not in self.fields | FIELDS_OF_TRAINING and value != default:
                reason = f"{self.title} supports only {default!r}"
            if reason is not None:
                raise NotExpressibleError(
                    f"`{name}` is {value!r}, which {self.title} cannot express: {reason}."
                )


def refuse_other_settings(config: GenerationConfig, supported: Collection[str], title: str) -> None:
    """Raise a NotExpressibleError if the generation config has a search setting that is not in `supported`.
    `title` is the name of the format in the error message.
    """
    for name, value in unsupported_settings(config, supported).items():
        raise NotExpressibleError(
            f"`{name}` of the generation config is {value!r}, which {title} cannot express: the search of the "
            "format has no such setting; remove the setting from generation_config.json."
        )


class Export(Protocol):
    """A function that writes a model into `folder`, and returns one line about the difference between the
    written model and the checkpoint.

    `model` is a VaswaniForSeq2SeqLM in eval mode. `tokenizers` is None if the checkpoint has no tokenizers
    and the format needs no tokenizers.
    """

    def __call__(
        self, model: Any, tokenizers: Tokenizers | None, folder: Path, quantization: str | None
    ) -> str: ...


class Describe(Protocol):
    """A function that writes descriptions of a model, such as a model card, into `folder`.

    `name` is the name of the checkpoint without the path. `data` is the metadata of the checkpoint's model
    card. If the languages are known, `data.language` has the source language and the target language.
    """

    def __call__(self, folder: Path, name: str, data: ModelCardData) -> None: ...


class Engine(ABC):
    """Runs an exported folder in the runtime of its format.

    The command `vaswani certify` compares the outputs of an engine with the outputs of the checkpoint. The
    constructor of an engine receives the folder and loads the exported model.

    Attributes:
        libraries (tuple): The names of the modules that the runtime needs.
        beam_search (bool): True if the runtime supports beam search, False if the runtime supports only
            greedy search.
        search (dict): Settings that replace the beam search settings of the checkpoint, because the runtime
            does not support the checkpoint's settings. The keys of `search` are fields of `SearchSettings`.
        installation (str, optional): The command that installs the runtime. `installation` is None if the
            extra in pyproject.toml with the format's name installs the runtime.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    beam_search: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Any]] = {}
    installation: ClassVar[str | None] = None

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @classmethod
    def is_available(cls) -> bool:
        """Return True if the programs that the runtime needs, such as Node.js, are installed."""
        return True

    @abstractmethod
    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities [B][T] (nats) of all tokens of given translations.

        `source_ids` are lists [B][S] of token ids that end with the end token. `target_ids` are lists [B][T]
        of token ids that end with the end token and do not contain the start token.
        """

    @abstractmethod
    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """Translate texts with the search settings of the checkpoint. The settings in the attribute `search`
        of the engine replace settings of the checkpoint.
        """


class TranslatorEngine(Engine):
    """An `Engine` that runs an exported model in the translator of this package. The translator splits and
    tokenizes the texts, and decodes the translations. A derived class defines only `load`.
    """

    def __init__(self, folder: Path):
        self.translator = self.load(folder)

    @abstractmethod
    def load(self, folder: Path) -> BaseTranslator:
        """Return a translator for the exported model in `folder`."""

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        """See `Engine.log_probs`."""
        lengths = [[*source, *target] for source, target in zip(source_ids, target_ids, strict=True)]
        rows: list[list[float]] = [[] for _ in lengths]
        for batch in batches_by_length(lengths, _TOKENS_PER_BATCH):
            segments = [Segment("", source_ids[i]) for i in batch]
            hypotheses = [Hypothesis(target_ids[i]) for i in batch]
            scored = self.translator.backend.score(segments, hypotheses, 0)
            for i, (log_probs, _) in zip(batch, scored, strict=True):
                rows[i] = log_probs
        return rows

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """See `Engine.translate`."""
        return list(self.translator.translate(texts, num_beams=num_beams, **self.search))


@dataclass(frozen=True)
class ExportFormat:
    """Describes an export format. The table `EXPORT_FORMATS` in export.py lists all formats.

    Attributes:
        name (str): The name of the format, as in the option `--format`. The extra in pyproject.toml with the
            format's name installs the modules in `libraries`.
        main_file (str): The name (or the pattern of the name) of a file by which an exported folder is
            recognised. Only exports in this format contain `main_file`.
        model_type (str, optional): The `model_type` in the config.json of the format; None if the format has
            no `model_type`.
        library_name (str): The library that reads the format, for the model card.
        expressible (Expressible): Describes which configs the format supports.
        export (Export): The function that writes a model.
        engine (type): The class that runs an exported folder.
        libraries (tuple): The names of the modules that the format needs in addition to the dependencies of
            the package.
        quantizations (tuple): The values of the option `--quantization` that the format supports, such as
            "int8".
        needs_tokenizers (bool): True if the format stores the vocabularies. If True, a checkpoint
            without tokenizers cannot be exported.
        keeps_recipe (bool): True if the export copies the recipe into the folder, without private paths.
            `vaswani distill` reads the languages from the copied recipe.
        describe (function, optional): A function that writes the name of the model, its languages and its
            licence into files such as a model card.
        needs_languages (bool): True if the format stores the source language and the target language.
        certified (tuple): The values of `quantization` that `vaswani certify` measures.
    """

    name: str
    main_file: str
    library_name: str
    expressible: Expressible
    export: Export
    engine: type[Engine]
    libraries: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    needs_tokenizers: bool = False
    keeps_recipe: bool = False
    describe: Describe | None = None
    needs_languages: bool = False
    certified: tuple[str | None, ...] = (None,)
    model_type: str | None = None


def write_card(
    folder: Path, data: ModelCardData, text: str, *, library_name: str | None = None, tags: Sequence[str] = ()
) -> None:
    """Write the model card of an exported model. `data` is the metadata of the checkpoint's model card."""
    card = ModelCardData(
        language=data.language,
        license=data.license,
        license_name=data.get("license_name"),
        base_model=data.base_model,
        pipeline_tag="translation",
        library_name=library_name,
        tags=[*tags, "translation", "vaswani"],
    )
    write_whole(folder / CARD_FILE, f"---\n{card}\n---\n\n{text}")
