"""The sections `tokenizer`, `model`, `decoding`, `evaluation` and `publishing` of a recipe."""

import inspect
import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, create_model, model_validator

from ..model.configuration_vaswani import VaswaniConfig
from .base import NO_DOCSTRINGS, Settings

# Byte-level BPE has the 256 bytes and 4 special tokens.
SMALLEST_VOCABULARY = 260


class TokenizerSettings(Settings):
    """The byte-level BPE that is trained on the training text, unless a run that begins with a model keeps its BPE."""

    vocab_size: int = Field(37000, ge=SMALLEST_VOCABULARY)
    """The largest number of tokens of the vocabulary. A small corpus may fill less."""
    lowercase: bool = False
    """Lowercase all text."""
    normalization: Literal["NFC", "NFKC"] | None = None
    """The Unicode normalization of all text."""
    keep: bool = True
    """Keep the tokenizers of the model in `model.init_from`. False trains new ones."""

    @property
    def planned_target_size(self) -> int:
        """The number of target classes of a plan."""
        return self.vocab_size

    @property
    def has_one_vocabulary(self) -> bool:
        """True if source and target have one vocabulary."""
        return True

    def kept(self, recorded: "TokenizerSettings") -> "TokenizerSettings":
        """The recorded section of the run that continues, whose tokenizers are kept."""
        return recorded


# The parts of an encoder-decoder. Each of them may begin with the weights of another model.
STACKS = ("encoder", "decoder")
# The fields of the config that follow from the tokenizer, or that training and decoding set by themselves.
_FIELDS_OF_THE_RUN = """
    vocab_size decoder_vocab_size share_encoder_decoder_embeddings is_encoder_decoder use_cache bos_token_id
    pad_token_id eos_token_id decoder_start_token_id
""".split()
# All other fields of the config are keys of the recipe's section `model`.
MODEL_FIELDS = tuple(
    name for name in inspect.get_annotations(VaswaniConfig) if name not in _FIELDS_OF_THE_RUN
)
# The fields that change how a model is trained, and not what it computes.
FREE_FIELDS = "dropout attention_dropout activation_dropout label_smoothing label_smoothing_form".split()


class InitFrom(Settings):
    """A model for the encoder, for the decoder, or for each of them."""

    encoder: str | None = None
    """The model whose encoder the encoder begins with."""
    decoder: str | None = None
    """The model whose decoder the decoder begins with."""

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not self.by_stack():
            raise ValueError(
                "`model.init_from` must name a model, or a model for `encoder`, for `decoder` or for each of them, but "
                "names none."
            )
        return self

    def by_stack(self) -> dict[str, str]:
        """The names of the models that are given, by "encoder" and "decoder"."""
        return self.model_dump(exclude_none=True)


class ModelSettings(Settings):
    """The shape of the model: the fields of `VaswaniConfig`, and the models that the weights begin with."""

    init_from: str | InitFrom | None = None
    """The model that the run begins with: a folder, or a repository of the Hub, `user/name` or `user/name@revision`;
    or a model for each part, `{encoder: …, decoder: …}`."""

    def config_fields(self) -> dict[str, Any]:
        """The fields of the config that the recipe gives."""
        return {name: getattr(self, name) for name in MODEL_FIELDS if name in self.model_fields_set}

    @property
    def stacks(self) -> list[str]:
        """The parts of the model of this task."""
        return [stack for stack in STACKS if f"{stack}_layers" in type(self).model_fields]

    def bases(self) -> list[str]:
        """The names of the models that the run begins with, each name once."""
        if isinstance(self.init_from, InitFrom):
            return list(dict.fromkeys(self.init_from.by_stack().values()))
        return [self.init_from] if self.init_from else []

    @model_validator(mode="after")
    def _check_config(self) -> Self:
        # The config checks the ranges of its fields, and the fields together.
        VaswaniConfig(**self.config_fields())
        return self


def _with_config_fields(name: str, excluded: str) -> Any:
    """A class of model settings with the fields of the config, except those whose name matches a pattern."""
    docs = inspect.getdoc(VaswaniConfig) or ""
    defaults = VaswaniConfig()
    fields: dict[str, Any] = {}
    for field in MODEL_FIELDS:
        if re.match(excluded, field):
            continue
        help = re.search(rf"^    {field} \(.*?\): (.*(?:\n        .*)*)", docs, re.MULTILINE)
        # Python has no docstrings with the option -OO.
        description = " ".join(help.group(1).split()) if help else ""
        annotation = inspect.get_annotations(VaswaniConfig)[field]
        default = getattr(VaswaniConfig, field, getattr(defaults, field))
        fields[field] = (annotation, Field(default, description=description))
    return create_model(name, __base__=ModelSettings, __cls_kwargs__=NO_DOCSTRINGS, **fields)


EncoderDecoderSettings = _with_config_fields("EncoderDecoderSettings", "nothing")
EncoderSettings = _with_config_fields("EncoderSettings", "decoder_|cross_")
DecoderSettings = _with_config_fields("DecoderSettings", "encoder_|cross_")
_MODEL_SETTINGS = {STACKS: EncoderDecoderSettings, STACKS[:1]: EncoderSettings, STACKS[1:]: DecoderSettings}


def model_settings(stacks: tuple[str, ...]) -> type[ModelSettings]:
    """The class of the section `model` for a model with these parts of an encoder-decoder."""
    return _MODEL_SETTINGS[stacks]


class DecodingSettings(Settings):
    """The search that is written to the generation_config.json of the checkpoint; Section 6.1 is the default."""

    num_beams: int = Field(4, gt=0)
    """The number of beams; 1 is greedy search."""
    length_penalty: float = 0.6
    """The exponent alpha of the length penalty."""
    length_penalty_type: Literal["gnmt", "power"] = "gnmt"
    """The length penalty of a translation with n tokens: "gnmt" is ((5 + n) / 6)^alpha, "power" is n^alpha."""
    max_length_a: float = Field(1.0, ge=0)
    """A translation has at most `max_length_a` * source tokens + `max_length_b` new tokens."""
    max_length_b: int = Field(50, ge=0)
    """A translation has at most `max_length_a` * source tokens + `max_length_b` new tokens."""
    max_length: int | None = Field(None, gt=0)
    """The largest number of tokens of a translation."""
    early_stopping: bool = False
    """Stop as soon as there are `num_beams` complete translations."""

    def settings(self) -> dict[str, Any]:
        """The fields of a GenerationConfig, without those of beam search if there is one beam."""
        settings = self.model_dump(exclude_none=True)
        if self.num_beams == 1:
            # transformers refuses them.
            del settings["length_penalty"], settings["length_penalty_type"], settings["early_stopping"]
        return settings


class NoDecoding(Settings):
    """The tasks without translations search nothing."""

    max_length: ClassVar[None] = None

    def settings(self) -> dict[str, Any]:
        """No fields."""
        return {}


class EvaluationSettings(Settings):
    """The scores at validation, and at the end on the test split."""

    tokens_per_batch: int = Field(4096, gt=0)
    """The number of tokens that are scored at once."""

    @property
    def validation_switch(self) -> str | None:
        """The name of the key that is true and lets each validation score outputs, if there is such a key."""
        return None

    def check_tokenizer(self) -> None:
        """Refuse a tokenizer of BLEU that this machine does not have."""


class PublishingSettings(Settings):
    """The repository that a run is pushed to, and the licence of the model."""

    push_to_hub: bool = False
    """Push the finished checkpoint to the Hub."""
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "end"
    """What is pushed during training: "end" nothing, "every_save" the model, "checkpoint" also the newest checkpoint,
    "all_checkpoints" also each checkpoint."""
    hub_model_id: str | None = None
    """The repository, such as user/name."""
    hub_private_repo: bool = False
    """A new repository is private."""
    license: str | None = None
    """The licence of the model; that of the training data by default."""

    @model_validator(mode="after")
    def _check_push(self) -> Self:
        if self.push_to_hub and not self.hub_model_id:
            raise ValueError(
                "`publishing.push_to_hub: true` needs `publishing.hub_model_id`, such as user/name."
            )
        if self.hub_strategy != "end" and not self.push_to_hub:
            raise ValueError(
                f"`publishing.hub_strategy: {self.hub_strategy}` needs `publishing.push_to_hub: true`."
            )
        return self
