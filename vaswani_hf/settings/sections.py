"""Defines the sections `tokenizer`, `model`, `decoding`, `evaluation` and `publishing` of a recipe."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import create_model, model_validator

from ..model.checks_vaswani import rule_of
from ..model.configuration_vaswani import CONFIG_FIELDS, ENCODER_DECODER_FIELDS, VaswaniConfig
from ..model.errors_vaswani import InvalidValueError
from ..model.inputs_vaswani import BEAM_SEARCH_SETTINGS, DECODING_SETTINGS, SearchSettings, check_sampling
from .base import NO_DOCSTRINGS, Settings, checked_by, words_in_yaml
from .keys import FreeText, OnResume, recipe_key

# The smallest possible size of a byte-level BPE vocabulary, in tokens: 256 bytes and 4 special tokens.
SMALLEST_VOCABULARY = 260


class TokenizerSettings(Settings):
    """The section `tokenizer` of a recipe."""

    vocab_size: int = recipe_key(37000, ge=SMALLEST_VOCABULARY, unit="tokens")
    """The maximum number of tokens in the vocabulary. A small corpus may give a smaller vocabulary."""
    lowercase: bool = False
    """Convert all text to lowercase."""
    normalization: Literal["NFC", "NFKC"] | None = None
    """The Unicode normalization of all text. If `tokenizer.normalization` is null, text is not normalized."""
    keep: bool = True
    """Keep the tokenizers of the model that `model.init_from` names. If `tokenizer.keep` is false, the run
    trains new tokenizers."""

    @property
    def planned_target_size(self) -> int:
        """The number of tokens in the target vocabulary that `vaswani plan` assumes."""
        return self.vocab_size

    @property
    def has_one_vocabulary(self) -> bool:
        """True if source and target share a vocabulary."""
        return True

    def kept(self, recorded: "TokenizerSettings") -> "TokenizerSettings":
        """Return the tokenizer settings of a run that keeps the tokenizers of an earlier run. `recorded` are
        the settings of the earlier run.
        """
        return recorded


STACKS = ("encoder", "decoder")
MODEL_KEYS = tuple(name for name, field in CONFIG_FIELDS.items() if field.metadata["is_recipe_key"])
TRAINING_ONLY_FIELDS = tuple(
    name for name, field in CONFIG_FIELDS.items() if not field.metadata["changes_outputs"]
)


class InitFrom(Settings):
    """The value of `model.init_from` if the recipe names separate models for the encoder and the decoder. A
    recipe can also name a model only for the encoder, or only for the decoder.
    """

    encoder: str | None = None
    """The model whose weights are the initial weights of the encoder."""
    decoder: str | None = None
    """The model whose weights are the initial weights of the decoder."""

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not self.by_stack():
            raise InvalidValueError(
                "`model.init_from` must name a model, or models for `encoder`, `decoder` or both, but names none."
            )
        return self

    def by_stack(self) -> dict[str, str]:
        """Map "encoder" and "decoder" to the name of the model whose weights are the initial weights of the
        stack. The dict has no entry for a stack that starts from random weights.
        """
        return self.model_dump(exclude_none=True)


class _ConfigOfRecipe(VaswaniConfig):
    """A config whose error messages name the fields as recipe keys, such as `model.d_model`."""

    field_prefix = "model."


class _DecoderConfigOfRecipe(_ConfigOfRecipe):
    """The config of a model without an encoder."""

    @property
    def stacks(self) -> tuple[str, ...]:
        return ("decoder",)


class ModelSettings(Settings):
    """The section `model` of a recipe: the fields of `VaswaniConfig`, the models with the initial weights,
    and the user's Python file.
    """

    init_from: str | InitFrom | None = None
    """The model whose weights are the initial weights: a folder, or a repository of the Hub as `user/name`
    or `user/name@revision`. `{encoder: …, decoder: …}` names a model for the encoder and a model for the
    decoder. If `model.init_from` is null, the training starts from random weights."""
    code: str | None = recipe_key(None, on_resume="free")
    """A Python file that registers attention functions or position encodings, relative to the folder of the
    recipe. The file is executed when the recipe is loaded."""

    def config_fields(self) -> dict[str, Any]:
        """Return the fields of `VaswaniConfig` that the recipe sets."""
        return {name: getattr(self, name) for name in MODEL_KEYS if name in self.model_fields_set}

    def make_config(
        self, config_class: type[VaswaniConfig] = VaswaniConfig, **vocabulary: Any
    ) -> VaswaniConfig:
        """Return the config. `vocabulary` contains the config fields whose values come from the
        tokenizers.
        """
        fields = {**self.config_fields(), **vocabulary}
        if len(self.stacks) == 1:
            # Give the missing stack the shape of the existing stack, because the config checks both stacks.
            (stack,) = self.stacks
            for part in ("layers", "attention_heads", "ffn_dim"):
                fields |= {f"{name}_{part}": getattr(self, f"{stack}_{part}") for name in STACKS}
        start = "pad_token_id" if fields.get("zero_start_embedding") else "bos_token_id"
        return config_class(**fields, decoder_start_token_id=fields.get(start, getattr(VaswaniConfig, start)))

    @property
    def stacks(self) -> list[str]:
        """The stacks of the model: "encoder", "decoder" or both, depending on the task."""
        return [stack for stack in STACKS if f"{stack}_layers" in type(self).model_fields]

    def bases(self) -> list[str]:
        """Return the models in `init_from`, each model once."""
        if isinstance(self.init_from, InitFrom):
            return list(dict.fromkeys(self.init_from.by_stack().values()))
        return [self.init_from] if self.init_from else []

    @model_validator(mode="after")
    def _check_config(self) -> Self:
        # The constructor checks whether the values of all fields fit together.
        self.make_config(_ConfigOfRecipe if "encoder" in self.stacks else _DecoderConfigOfRecipe)
        return self


def _key_of(declared: dataclasses.Field, default: Any, help: str) -> tuple[Any, Any]:
    """Convert a dataclass field, such as a field of `VaswaniConfig`, to a recipe key. Return the type and the
    declaration of the key.
    """
    rule = rule_of(declared)
    # If a config field has no rule of its own, all values of its type are allowed.
    has_own_rule = declared.metadata["rule"] is not None
    key = recipe_key(
        default,
        **rule.limits,
        description=help,
        unit=declared.metadata["unit"],
        range=words_in_yaml(rule) if has_own_rule else "",
    )
    return Annotated[declared.type, checked_by(rule)], key


def _with_config_fields(name: str, stacks: tuple[str, ...]) -> Any:
    """Create the settings class of the section `model` for models that consist of the stacks `stacks`. The
    settings class does not contain the config fields that have no effect on models with the stacks `stacks`.
    """
    other_stacks = tuple(f"{stack}_" for stack in STACKS if stack not in stacks)
    fields: dict[str, Any] = {}
    for key in MODEL_KEYS:
        is_of_both = key in ENCODER_DECODER_FIELDS
        if key.startswith(other_stacks) or (is_of_both and stacks != STACKS):
            continue
        declared = CONFIG_FIELDS[key]
        fields[key] = _key_of(declared, declared.default, declared.metadata["help"])
    return create_model(name, __base__=ModelSettings, __cls_kwargs__=NO_DOCSTRINGS, **fields)


EncoderDecoderSettings = _with_config_fields("EncoderDecoderSettings", STACKS)
EncoderSettings = _with_config_fields("EncoderSettings", ("encoder",))
DecoderSettings = _with_config_fields("DecoderSettings", ("decoder",))
# Maps the stacks of a model to the class of the recipe section `model`.
MODEL_SETTINGS: dict[tuple[str, ...], Any] = {
    STACKS: EncoderDecoderSettings,
    ("encoder",): EncoderSettings,
    ("decoder",): DecoderSettings,
}


# The search of the paper (Section 6.1): defaults of the section `decoding`. A run writes the settings in
# `PAPER_SEARCH` to generation_config.json even if their values equal the defaults of `SearchSettings`. With
# greedy search, a run writes no settings of beam search.
PAPER_SEARCH: dict[str, Any] = {
    "num_beams": 4,
    "early_stopping": False,
    "length_penalty": 0.6,
    "length_penalty_type": "gnmt",
    "max_length_a": 1.0,
    "max_length_b": 50,
}


class SearchSection(Settings):
    """The section `decoding`: the search settings (see `SearchSettings`). A run writes the search settings to
    generation_config.json.
    """

    keys_on_resume: ClassVar[OnResume] = "continue"

    def settings(self) -> dict[str, Any]:
        """Return fields of a GenerationConfig: the settings in `PAPER_SEARCH`, and all other settings that
        differ from their defaults.
        """
        settings = {
            name: value
            for name, value in self.model_dump(exclude_none=True).items()
            if name in PAPER_SEARCH or value != DECODING_SETTINGS[name]
        }
        if settings["num_beams"] == 1:
            # Leave out the settings of beam search, because transformers refuses such settings in greedy
            # search.
            for name in BEAM_SEARCH_SETTINGS:
                settings.pop(name, None)
        return settings

    @model_validator(mode="after")
    def _check_sampling(self) -> Self:
        check_sampling(self.settings(), "decoding.")
        return self


def _with_search_settings() -> Any:
    """Create the class of the section `decoding` from the fields of `SearchSettings`. The defaults in
    `PAPER_SEARCH` replace the defaults of `SearchSettings`.
    """
    fields: dict[str, Any] = {}
    for declared in dataclasses.fields(SearchSettings):
        if not declared.metadata["is_recipe_key"]:
            continue
        default = PAPER_SEARCH.get(declared.name, declared.default)
        help = declared.metadata["help"]
        fields[declared.name] = _key_of(declared, default, f"{help[0].upper()}{help[1:]}.")
    return create_model("DecodingSettings", __base__=SearchSection, __cls_kwargs__=NO_DOCSTRINGS, **fields)


DecodingSettings = _with_search_settings()


class NoDecoding(Settings):
    """The section `decoding` of a task without a search, such as language modelling: a section without
    keys.
    """

    max_length: ClassVar[None] = None

    def settings(self) -> dict[str, Any]:
        """Return an empty dict, because a task without a search needs no GenerationConfig."""
        return {}


class EvaluationSettings(Settings):
    """The section `evaluation`: how a run computes the scores of the validation and test splits."""

    keys_on_resume: ClassVar[OnResume] = "continue"

    tokens_per_batch: int = recipe_key(4096, gt=0, unit="tokens")
    """The maximum number of source tokens, and of target tokens, in a batch of the validation split or the
    test split, including padding."""

    @property
    def validation_switch(self) -> str | None:
        """The recipe key that turns on the scores of the model's outputs in each validation, such as
        `validation_bleu`. The value is None if the validations do not generate outputs.
        """
        return None

    def check_dependencies(self) -> None:
        """Raise a ValueError if the recipe turns on a score that needs a missing library."""


class PublishingSettings(Settings):
    """The section `publishing`: the repository on the Hub, the model card, and the dashboard of Trackio."""

    keys_on_resume: ClassVar[OnResume] = "free"

    push_to_hub: bool = False
    """Push the final checkpoint to the Hub when the run ends."""
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "end"
    """When to push: "end" pushes only at the end of the run, and "every_save" pushes the model each time a
    checkpoint is saved. "checkpoint" also pushes the newest checkpoint, so that the run can be resumed.
    "all_checkpoints" also pushes all checkpoints."""
    hub_model_id: str | None = None
    """The repository of the Hub to push to, such as user/name."""
    hub_private_repo: bool = False
    """Make a new repository private."""
    license: str | None = None
    """The licence of the model, such as cc-by-4.0. If `publishing.license` is null, the model has the licence
    of the training data."""
    examples: list[FreeText] | None = recipe_key(None, on_resume="continue")
    """Source texts whose translations the model card shows. If `publishing.examples` is null, the card shows
    the translations of the first 5 texts of the test split with at most 200 characters, but only if the
    licence of the training data is known and is not research-only. If you change this licence after the run
    has finished, the examples stay. An empty list means no examples.
    """
    project: str | None = None
    """The name of the Trackio project, for `training.report_to: [trackio]`."""
    trackio_space_id: str | None = None
    """The Space with the live dashboard of Trackio, as user/name. If `trackio_space_id` is null, Trackio
    writes the log only on this machine. The Space is private if `hub_private_repo` is true."""
    trackio_bucket_id: str | None = None
    """The storage bucket of the dashboard of Trackio, as user/name."""
    trackio_static_space_id: str | Literal[False] | None = None
    """The static Space that keeps the dashboard of Trackio after the training, as user/name. If
    `trackio_static_space_id` is null, Trackio chooses the name. If `trackio_static_space_id` is false,
    Trackio creates no static Space."""

    @property
    def trackio(self) -> dict[str, Any]:
        """The settings of Trackio in the recipe, as arguments of `TrainingArguments` of transformers."""
        values = {
            "project": self.project,
            "trackio_space_id": self.trackio_space_id,
            "trackio_bucket_id": self.trackio_bucket_id,
            "trackio_static_space_id": self.trackio_static_space_id,
        }
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _check_push(self) -> Self:
        if self.push_to_hub and not self.hub_model_id:
            raise InvalidValueError(
                "`publishing.push_to_hub: true` needs `publishing.hub_model_id`, such as user/name."
            )
        if self.hub_strategy != "end" and not self.push_to_hub:
            raise InvalidValueError(
                f"`publishing.hub_strategy: {self.hub_strategy}` needs `publishing.push_to_hub: true`."
            )
        return self
