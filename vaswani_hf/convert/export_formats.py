"""Defines the class `ExportFormat` and its parts. `Expressible` describes the configs that a format supports.
`Engine` runs an exported model.

A file that defines a format imports the library of the format inside a function, because the library is
perhaps not installed.

In shapes, B is the batch size, S the source length and T the target length.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from huggingface_hub import ModelCardData

from ..checkpoint.files import CARD_FILE, write_whole
from ..checkpoint.search_settings import NotExpressibleError, SupportedSettings
from ..checkpoint.tokenizers import Tokenizers
from ..model.backend_vaswani import Hypothesis, Segment
from ..model.configuration_vaswani import CONFIG_FIELDS, VaswaniConfig, decoder_start_token_id
from ..model.inputs_vaswani import BEAM_SEARCH_SETTINGS, NEUTRAL_SETTINGS
from ..model.segment_search_vaswani import map_batches
from ..model.tokenizing_vaswani import languages_of
from ..model.translator_vaswani import BaseTranslator
from ..settings.sections import TRAINING_ONLY_FIELDS

# Returns the reason why a format does not support the value of a config field, or None for a supported value.
Limit = Callable[[VaswaniConfig], str | None]

# The config fields that have no effect on the outputs of a trained model.
FIELDS_OF_TRAINING = frozenset([*TRAINING_ONLY_FIELDS, "initializer_range"])
ALL_FIELDS = frozenset(CONFIG_FIELDS)

# The settings of a beam search that divides the score by the length, as transformers and Marian do.
SCORE_PER_TOKEN: Mapping[str, Any] = {name: NEUTRAL_SETTINGS[name] for name in BEAM_SEARCH_SETTINGS}

# The maximum number of tokens in a batch: the source tokens plus the target tokens.
_TOKENS_PER_BATCH = 4096


def one_of(name: str, values: Collection[Any], reason: str) -> Limit:
    """Return a check that accepts only the given values of the config field `name`."""
    return lambda config: None if getattr(config, name) in values else reason


def needs_start_token(config: VaswaniConfig) -> str | None:
    """Return None if the decoder has a start token, otherwise the reason why the format refuses the model."""
    return "the decoder of the format needs a start token" if decoder_start_token_id(config) is None else None


def needs_end_token(config: VaswaniConfig) -> str | None:
    """Return why the format refuses a config without an end token, or None if the config has an end token."""
    return "the search of the format needs an end token" if config.eos_token_id is None else None


def refuse_language_tokens(tokenizer: Any, runtime: str) -> None:
    """Raise a NotExpressibleError if the model needs language tokens, which the runtime does not add."""
    if languages_of(tokenizer):
        raise NotExpressibleError(
            f"The tokenizer has language tokens, which {runtime} does not add to texts; use another format."
        )


@dataclass(frozen=True)
class Expressible:
    """Describes which configs a format supports.

    A config field outside `fields`, `limits` and `FIELDS_OF_TRAINING` must have its default value. Therefore
    a format accepts only the default value of a newly added config field. To accept other values, add the
    field to `fields` or `limits`.

    Attributes:
        title (str): The name of the format in error messages.
        fields (frozenset): The config fields for which the format supports every value. Every format also
            accepts any value of a field in `FIELDS_OF_TRAINING`.
        limits (Mapping): Maps the name of a field to a check of its value.
    """

    title: str
    fields: frozenset[str]
    limits: Mapping[str, Limit]

    def refuse_others(self, config: VaswaniConfig) -> None:
        """Raise a NotExpressibleError if the format does not support the config."""
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


class Export(Protocol):
    """A function that writes a model into `folder`. The function returns one line about the difference
    between the written model and the checkpoint.

    `model` is a VaswaniForSeq2SeqLM in eval mode. `tokenizers` is None only if the format needs no
    tokenizers.
    """

    def __call__(
        self, model: Any, tokenizers: Tokenizers | None, folder: Path, quantization: str | None
    ) -> str: ...


class Describe(Protocol):
    """A function that writes descriptions of a model, such as a model card, into `folder`.

    `name` is the name of the model in the descriptions. `data` is the metadata of the checkpoint's model
    card; `data.language` has the source and the target language if the languages are known.
    """

    def __call__(self, folder: Path, name: str, data: ModelCardData) -> None: ...


class Engine(ABC):
    """Runs an exported model in the runtime of its format, for the comparison in `vaswani certify`.

    Attributes:
        libraries (tuple): The names of the modules that the runtime needs.
        beam_search (str): "same" if the beam search of the runtime follows the rules of this package, "other"
            if the beam search follows other rules, and "none" if the runtime has no beam search or only a
            beam search with fixed settings.
        search (dict): The fields of `SearchSettings` that the runtime does not support, with the values that
            replace the checkpoint's values.
        installation (str, optional): The command that installs the runtime. None if a pip extra of this
            package installs the runtime. The pip extra that installs a runtime has the name of the export
            format.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    beam_search: ClassVar[Literal["same", "other", "none"]] = "same"
    search: ClassVar[Mapping[str, Any]] = {}
    installation: ClassVar[str | None] = None

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @classmethod
    def is_available(cls) -> bool:
        """Return True if the programs that the runtime needs, such as Node.js, are installed."""
        return True

    @classmethod
    def beam_counts(cls, num_beams: int) -> list[int]:
        """Return the numbers of beams with which `vaswani certify` measures the exported model.

        Greedy search (one beam) depends only on the log-probabilities. Therefore
        `vaswani certify` also measures greedy search if the beam search of a format has other rules than the
        beam search of this package. If greedy search gives other translations, the log-probabilities of the
        exported model differ from the log-probabilities of the checkpoint. The translations with `num_beams`
        beams show the effect of the other rules.
        """
        if cls.beam_search == "none" or num_beams == 1:
            return [1]
        if cls.beam_search == "other":
            return [num_beams, 1]
        return [num_beams]

    @abstractmethod
    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities [B][T] (nats) of given translations.

        `source_ids` [B][S] end with the end token if the source tokenizer adds an end token. `target_ids`
        [B][T] end with the end token, and do not contain the start token.
        """

    @abstractmethod
    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """Translate texts. The values in the attribute `search` replace the search settings of the
        checkpoint.
        """


class TranslatorEngine(Engine):
    """An `Engine` that runs an exported model in the translator of this package."""

    def __init__(self, folder: Path):
        self.translator = self.load(folder)
        # The generation config can ask for more translations than `num_beams`, and for sampling. Sampled
        # translations of two engines are not comparable.
        self.translator.backend.generation_config.num_return_sequences = 1
        self.translator.backend.generation_config.do_sample = False

    @abstractmethod
    def load(self, folder: Path) -> BaseTranslator:
        """Return a translator for the exported model in `folder`."""

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        def score(batch: list[tuple[list[int], list[int]]]) -> list[tuple[list[float], Any]]:
            segments = [Segment("", source) for source, _ in batch]
            hypotheses = [Hypothesis(target) for _, target in batch]
            return self.translator.backend.score(segments, hypotheses, 0)

        pairs = list(zip(source_ids, target_ids, strict=True))
        lengths = [source + target for source, target in pairs]
        return [log_probs for log_probs, _ in map_batches(score, pairs, lengths, _TOKENS_PER_BATCH)]

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        return list(self.translator.translate(texts, num_beams=num_beams, **self.search))


@dataclass(frozen=True)
class ExportFormat:
    """Describes an export format.

    Attributes:
        name (str): The value of `--format`. The extra called `name` in pyproject.toml installs the modules in
            `libraries`.
        main_file (str): The name of a file that each export of this format contains, or a pattern for the
            name. `format_of_export` recognises an export by `main_file` and `model_type`.
        library_name (str): The library that reads the format, for the model card.
        expressible (Expressible): Describes which configs the format supports.
        settings (SupportedSettings, optional): Describes which search settings the format supports. None if
            the exported folder contains all search settings of the checkpoint.
        export (Export): The function that writes a model.
        engine (type): The class that runs an exported model.
        libraries (tuple): The names of the modules that the format needs in addition to the dependencies of
            the package.
        quantizations (tuple): The supported values of `--quantization`, such as "int8".
        needs_tokenizers (bool): True if a checkpoint without tokenizers cannot be exported.
        keeps_records (bool): True if the export copies the recipe (without private paths) and
            calibration.json. The recipe is for `vaswani distill`, and calibration.json is for the option
            `--min_confidence`.
        describe (function, optional): Writes the name, the languages and the licence of the model into the
            exported folder, for example into a model card.
        needs_languages (bool): True if a checkpoint without a known source language and target language
            cannot be exported.
        certified (tuple): The values of `quantization` that `vaswani certify` measures.
        model_type (str, optional): The `model_type` in the config.json of the format, if there is one.
        optional_files (tuple): The files that only some exports of this format contain. A push deletes these
            files from the repository if the export does not contain them, because they come from an earlier
            export.
    """

    name: str
    main_file: str
    library_name: str
    expressible: Expressible
    settings: SupportedSettings | None
    export: Export
    engine: type[Engine]
    libraries: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    needs_tokenizers: bool = False
    keeps_records: bool = False
    describe: Describe | None = None
    needs_languages: bool = False
    certified: tuple[str | None, ...] = (None,)
    model_type: str | None = None
    optional_files: tuple[str, ...] = ()

    def check(self, model: Any) -> None:
        """Raise a NotExpressibleError if the format does not support the config or the search settings of a
        model. Log a warning about search settings that the export leaves out.
        """
        self.expressible.refuse_others(model.config)
        if self.settings is not None:
            self.settings.check(model.generation_config)


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
