"""Defines the configuration of the Transformer of Vaswani et al. 2017, "Attention Is All You Need".

This file has five parts: the rules for the values of fields, the class `VaswaniConfig`, the field names that
a config accepts, the names of files that are saved with a checkpoint, and functions that also accept models
from other libraries.

This file is saved with every checkpoint because transformers reads config.json with this file. transformers
also loads the code files that this file imports.
"""

import copy
import difflib
import inspect
import math
import os
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_origin

from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import is_torch_available, logging

from .checks_vaswani import (
    A_SIZE,
    PAPER_SYMBOLS,
    Rule,
    a_number,
    an_integer,
    is_int,
    nearest_name,
    or_none,
    rule_of,
    union_members,
)
from .errors_vaswani import InvalidValueError
from .extension_vaswani import (
    ATTENTIONS,
    POSITION_ENCODINGS,
    Registry,
    checked_value,
    fields_of_subclass,
    registered_names,
    save_package_code,
    save_user_code,
)

logger = logging.get_logger(__name__)


# The rules for the values of fields, and the function that declares a field.


def _are_ints(value: Any, may_be_none: bool = False) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return len(values) > 0 and all(is_int(one) or (may_be_none and one is None) for one in values)


def _is_activation(value: Any) -> bool:
    if not isinstance(value, str) or not is_torch_available():
        return isinstance(value, str)
    from transformers.activations import ACT2FN

    return value in ACT2FN


def _name_in(registry: Registry) -> Rule:
    names = ", ".join(f'"{name}"' for name in registry.built_in)
    return Rule(
        registry.accepts,
        f"{names} or a name that `{registry.function}` has added",
        remedy="; to use an added name, import its Python file, or name this file with `model.code` in a recipe "
        "or `--code` on the command line",
    )


A_RATE = a_number("a number from 0 up to, but not including, 1", ge=0, lt=1)
A_POSITIVE_NUMBER = a_number("a positive number", gt=0)
A_TOKEN_OR_NONE = or_none(an_integer("a token id (an integer of 0 or more)", ge=0))
TOKENS_OR_NONE = or_none(Rule(_are_ints, "a token id (an integer of 0 or more), a list of token ids"))
AN_ACTIVATION = Rule(_is_activation, 'the name of an activation of transformers, such as "relu" or "gelu"')
A_POSITION_ENCODING = _name_in(POSITION_ENCODINGS)
A_SCORE = _name_in(ATTENTIONS)
A_SCORE_OR_NONE = replace(or_none(A_SCORE), words=f"{A_SCORE.words}, or None")
AN_OFFSET = an_integer("an integer of 0 or more (tokens)", ge=0)
WINDOWS = Rule(
    lambda value: _are_ints(value, may_be_none=True),
    "an integer of 0 or more (tokens), None, or a list with one such value per layer",
)
ALWAYS_TRUE = Rule(lambda value: value is True, "True, because the model always has an encoder and a decoder")


def config_field(
    default: Any,
    help: str,
    rule: Rule | None = None,
    *,
    unit: str = "",
    is_recipe_key: bool = True,
    changes_outputs: bool = True,
    needs_encoder_decoder: bool = False,
) -> Any:
    """Declare a field of `VaswaniConfig`. `CONFIG_FIELDS` contains the properties of all fields.

    Args:
        default (Any): The default value.
        help (str): The meaning of the field, for the docstring of `VaswaniConfig` and for the manual.
        rule (Rule, optional): The rule for the values of the field. A field of the type bool or `Literal`
            needs no rule, because the type already defines the permitted values.
        unit (str): The unit of a field that is a count or a size, such as "layers".
        is_recipe_key (bool): False if the section `model` of a recipe cannot set the field, for example
            because the tokenizer determines the value.
        changes_outputs (bool): False if the field affects only training, and not the outputs of a trained
            model.
        needs_encoder_decoder (bool): True if the field has no meaning for a model with one stack.
    """
    properties = {
        "help": help,
        "rule": rule,
        "unit": unit,
        "is_recipe_key": is_recipe_key,
        "changes_outputs": changes_outputs,
        "needs_encoder_decoder": needs_encoder_decoder,
    }
    return field(default=default, metadata=properties)


@dataclass(frozen=True)
class StackShape:
    """The sizes, the norms and the attention windows of a stack: of the encoder or of the decoder.
    `VaswaniConfig.shape_of` creates the `StackShape` from the fields of the config.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    norm_position: str  # "post" or "pre"
    has_final_norm: bool  # True if a LayerNorm follows the last layer
    # The attention window of each layer in tokens, or None for a layer without a window.
    windows: list[int | None]


class VaswaniConfig(PreTrainedConfig):
    """Describes the architecture of a [`VaswaniModel`]. The defaults are the paper's base model (Section 3,
    Table 3 row "base").

    Fields have the names that MarianMT and BART use. If MarianMT and BART lack a field, but the paper has a
    symbol for the field, the symbol is the name of the field, such as `d_k`. Each assignment to a field
    checks the value. The constructors of configs and models check the combination of all fields.

    `config.json` contains the values of `d_k` and `d_v`, also if the values are defaults. If a call of
    `from_pretrained` changes `d_model` or a number of heads, pass `d_k=None` and `d_v=None` to get the
    defaults of the new sizes.

    Raises:
        ValueError: If a field has an invalid value, two fields contradict each other, or a keyword argument
            is not the name of a field.

    Example:
        >>> from vaswani_hf import VaswaniConfig
        >>> config = VaswaniConfig(vocab_size=8000, d_model=256)
        >>> config.d_k
        32
    """

    model_type = "vaswani"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    base_model_fsdp_plan = {}  # type: ignore[var-annotated]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    # Maps the name of each Auto class to the class ("module.class") that transformers loads for the config.
    # The dict is saved in config.json, so that transformers can load the class with `trust_remote_code=True`
    # if the package is not installed.
    auto_classes = {
        "AutoConfig": "configuration_vaswani.VaswaniConfig",
        "AutoModel": "modeling_vaswani.VaswaniModel",
        "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForSeq2SeqLM",
    }

    # The help texts of the fields become the section "Args" of the docstring.
    vocab_size: int = config_field(
        37000,
        "Number of tokens in the source vocabulary, or in the joint vocabulary if embeddings are shared.",
        A_SIZE,
        is_recipe_key=False,
    )
    decoder_vocab_size: int | None = config_field(
        None,
        "Number of tokens in the target vocabulary; by default `vocab_size`.",
        or_none(A_SIZE),
        is_recipe_key=False,
        needs_encoder_decoder=True,
    )
    d_model: int = config_field(
        512,
        "Width of embeddings, sub-layer outputs and residuals (Section 3.1).",
        A_SIZE,
        unit="components of a vector",
    )
    encoder_layers: int = config_field(
        6,
        "Number N of encoder layers (Section 3.1).",
        A_SIZE,
        unit="layers",
    )
    decoder_layers: int = config_field(
        6,
        "Number N of decoder layers (Section 3.1).",
        A_SIZE,
        unit="layers",
    )
    encoder_attention_heads: int = config_field(
        8,
        "Number h of heads of the encoder's self-attention (Section 3.2.2).",
        A_SIZE,
        unit="heads",
    )
    decoder_attention_heads: int = config_field(
        8,
        "Number h of heads of the decoder's self-attention and cross-attention (Section 3.2.2).",
        A_SIZE,
        unit="heads",
    )
    encoder_ffn_dim: int = config_field(
        2048,
        "Inner width d_ff of the encoder's feed-forward networks (Section 3.3).",
        A_SIZE,
        unit="components of a vector",
    )
    decoder_ffn_dim: int = config_field(
        2048,
        "Inner width d_ff of the decoder's feed-forward networks (Section 3.3).",
        A_SIZE,
        unit="components of a vector",
    )
    d_k: int | None = config_field(
        None,
        "Width of the queries and keys of a head (Section 3.2.2, Table 3 row B). The default of `d_k` is `d_model` "
        "divided by the number of heads. If the encoder and the decoder have different numbers of heads, "
        "`d_k` stays None, and each stack divides `d_model` by its own number of heads.",
        or_none(A_SIZE),
        unit="components of a vector",
    )
    d_v: int | None = config_field(
        None,
        "Width of the values of a head (Section 3.2.2, Table 3 row A). `d_v` has the same default as `d_k`.",
        or_none(A_SIZE),
        unit="components of a vector",
    )
    dropout: float = config_field(
        0.1,
        "Dropout rate of sub-layer outputs and of the sums of embeddings and positions (Section 5.4).",
        A_RATE,
        changes_outputs=False,
    )
    attention_dropout: float = config_field(
        0.0,
        "Dropout rate of attention weights. Values above 0 differ from the paper, because the paper has "
        "no dropout of attention weights.",
        A_RATE,
        changes_outputs=False,
    )
    activation_dropout: float = config_field(
        0.0,
        "Dropout rate after the activation function of the feed-forward networks. Values above 0 differ "
        "from the paper, because the paper has no dropout after the activation function.",
        A_RATE,
        changes_outputs=False,
    )
    activation_function: str = config_field(
        "relu",
        "Activation of the feed-forward networks (Section 3.3, Equation 2).",
        AN_ACTIVATION,
    )
    norm_position: Literal["post", "pre"] = config_field(
        "post",
        '"post" computes LayerNorm(x + Sublayer(x)), as Section 3.1 does. "pre" computes x + '
        'Sublayer(LayerNorm(x)), and adds a LayerNorm at the end of each stack. "pre" differs from the '
        "paper, but makes the training of deep stacks more stable.",
    )
    norm_position_of_decoder: Literal["post", "pre"] | None = config_field(
        None,
        '"post" or "pre" for the decoder; by default `norm_position`. Different norm positions in the '
        'encoder and the decoder differ from the paper. Models converted from JoeyNMT may have a "pre" '
        'encoder and a "post" decoder.',
        needs_encoder_decoder=True,
    )
    final_norm: bool | None = config_field(
        None,
        'True if a LayerNorm follows the last layer of each stack. By default a "pre" stack has a final '
        'LayerNorm, and a "post" stack has no final LayerNorm. A "post" stack with a final LayerNorm '
        "differs from the paper, but models of torch.nn.Transformer have such stacks.",
    )
    layer_norm_eps: float = config_field(
        1e-5,
        "The epsilon that LayerNorm adds to the variance. The paper gives no value of the epsilon. tensor2tensor uses 1e-6.",
        A_POSITIVE_NUMBER,
    )
    position_embedding: str = config_field(
        "sinusoidal",
        '"sinusoidal" (Section 3.5), "learned" (Table 3 row E), "none" for a model without position '
        'information, or a name that `register_position_encoding` has added. "none" and registered '
        "position encodings differ from the paper.",
        A_POSITION_ENCODING,
    )
    position_timescales: Literal["paper", "tensor2tensor"] = config_field(
        "paper",
        'The formula for the timescale of the feature pair i of sinusoidal positions. "paper" uses '
        '10000^(2i/d_model) (Section 3.5). "tensor2tensor" uses 10000^(i/(d_model/2-1)). "tensor2tensor" '
        "differs from the paper, but models converted from tensor2tensor, Marian or fairseq need "
        '"tensor2tensor". Only "sinusoidal" positions use `position_timescales`.',
    )
    position_offset: int = config_field(
        0,
        "The position of the first token in sinusoidal position encodings. In the paper, the first "
        "position is 0. A `position_offset` above 0 differs from the paper, but models converted from "
        'fairseq need the offset 2. Only "sinusoidal" positions use `position_offset`.',
        AN_OFFSET,
        unit="tokens",
    )
    max_position_embeddings: int = config_field(
        1024,
        "Number of learned positions. A model with learned positions cannot read a sequence with more than `max_position_embeddings` "
        "tokens. Sinusoidal positions ignore `max_position_embeddings`.",
        A_SIZE,
        unit="tokens",
    )
    scale_embedding: bool = config_field(
        True,
        "True if embeddings are multiplied by sqrt(d_model) (Section 3.4).",
    )
    share_encoder_decoder_embeddings: bool = config_field(
        True,
        "True if the source embedding and the target embedding share one matrix (Section 3.4).",
        is_recipe_key=False,
        needs_encoder_decoder=True,
    )
    tie_word_embeddings: bool = config_field(
        True,
        "True if the output projection and the target embedding share one matrix (Section 3.4).",
    )
    lm_head_bias: bool = config_field(
        False,
        "True if the output projection has a bias. A bias differs from the paper, but models converted "
        "from Marian and other libraries have an output bias.",
    )
    zero_start_embedding: bool = config_field(
        False,
        "True if decoding starts with `<pad>`, and the embedding of `<pad>` is a vector of zeros that "
        "training does not change. `zero_start_embedding` requires equal `pad_token_id` and "
        "`decoder_start_token_id`, and gives `<pad>` the probability 0 in the label-smoothed loss. "
        "`zero_start_embedding` differs from the paper, but models converted from Marian or tensor2tensor "
        "have such an embedding.",
        needs_encoder_decoder=True,
    )
    attention_score: str = config_field(
        "scaled_dot",
        "The function that computes an attention score from a query and a key. The paper uses "
        '"scaled_dot" (Equation 1). The score functions "dot", "dot_mean", "general", "additive_linear", "additive" '
        "(see attention_vaswani), and the score functions that `register_attention` has added, differ from the "
        "paper.",
        A_SCORE,
    )
    cross_attention_score: str | None = config_field(
        None,
        "The score function of cross-attention; by default `attention_score`.",
        A_SCORE_OR_NONE,
        needs_encoder_decoder=True,
    )
    attention_window: int | list[int | None] | None = config_field(
        None,
        "The window r of self-attention: a token attends only to tokens that are at most r tokens away. A "
        "token of the encoder attends to itself and to r tokens on each side. A token of the decoder attends "
        "to itself and to the r tokens before it. If the window is None, the distance has no limit. The paper mentions such restricted self-attention in Section 4, but does not use "
        "restricted self-attention. Self-attention with a window of r tokens needs time and memory O(r n d) for n tokens of "
        "width d. With a window, the maximum path length between two tokens is O(n/r) layers. A list of windows contains "
        "r or None for each layer. A list of windows either applies to both stacks, or contains first the "
        "windows of the encoder layers and then the windows of the decoder layers.",
        WINDOWS,
        unit="tokens",
    )
    attention_bias: bool = config_field(
        False,
        "True if the projections of attention layers have biases. Biases differ from the paper.",
    )
    initializer_range: float | None = config_field(
        None,
        "Standard deviation of the initial weights. If `initializer_range` is set, the weights are drawn as in GPT-2. If `initializer_range` is None, the "
        "initial weights are drawn as in tensor2tensor.",
        or_none(A_POSITIVE_NUMBER),
    )
    label_smoothing: float = config_field(
        0.0,
        "Probability that label smoothing takes from the reference token and gives to other tokens in "
        "training (Section 5.4). The paper uses 0.1. The default 0 turns label smoothing off.",
        A_RATE,
        changes_outputs=False,
    )
    label_smoothing_form: Literal["t2t", "torch"] = config_field(
        "t2t",
        "The formula for the target probabilities of a label smoothing e with V tokens in the vocabulary. "
        '"t2t" gives the probability 1-e to the reference token and e/(V-1) to each other token, as tensor2tensor does. '
        '"torch" gives the probability 1-e+e/V to the reference token and e/V to each other token, as PyTorch does.',
        changes_outputs=False,
    )
    use_cache: bool = config_field(
        True,
        "True to cache keys and values during decoding.",
        is_recipe_key=False,
    )
    is_encoder_decoder: bool = config_field(
        True,
        "True, because the model always has an encoder and a decoder.",
        ALWAYS_TRUE,
        is_recipe_key=False,
        needs_encoder_decoder=True,
    )
    bos_token_id: int | None = config_field(
        0,
        "The id of `<s>`.",
        A_TOKEN_OR_NONE,
        is_recipe_key=False,
    )
    pad_token_id: int | None = config_field(
        1,
        "The id of `<pad>`.",
        A_TOKEN_OR_NONE,
        is_recipe_key=False,
    )
    eos_token_id: int | list[int] | None = config_field(
        2,
        "The id of `</s>`.",
        TOKENS_OR_NONE,
        is_recipe_key=False,
    )
    decoder_start_token_id: int | None = config_field(
        0,
        "The id of the first token in the decoder's input. If `decoder_start_token_id` is None, decoding starts with `bos_token_id`.",
        A_TOKEN_OR_NONE,
        is_recipe_key=False,
        needs_encoder_decoder=True,
    )

    # The prefix of the field names in the error messages of `validate_architecture`.
    field_prefix = ""
    # The config fields that a subclass defines: maps the name of each field to its type.
    added_fields = {}  # type: ignore[var-annotated]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.added_fields = fields_of_subclass(cls, VaswaniConfig, _field_names(VaswaniConfig))

    def __setattr__(self, name: str, value: Any) -> None:
        own_name = self.attribute_map.get(name, name)
        if own_name in CONFIG_FIELDS:
            rule_of(CONFIG_FIELDS[own_name]).check(name, value)
        elif own_name in self.added_fields:
            value = checked_value(self, own_name, value)
        if name == "decoder_vocab_size" and value is None:
            value = self.vocab_size
        # Assign both vocabulary sizes, because `resize_token_embeddings` of transformers assigns only
        # `vocab_size`.
        if (
            name == "vocab_size"
            and self.share_encoder_decoder_embeddings
            and self.decoder_vocab_size is not None
        ):
            super().__setattr__("decoder_vocab_size", value)
        super().__setattr__(name, value)

    def __post_init__(self, **kwargs):
        _refuse_unknown(type(self), kwargs)
        for alias, name in self.attribute_map.items():
            if alias in kwargs:
                setattr(self, name, kwargs.pop(alias))
        heads = self.encoder_attention_heads
        if heads == self.decoder_attention_heads and self.d_model % heads == 0:
            self.d_k = self.d_k or self.d_model // heads
            self.d_v = self.d_v or self.d_model // heads
        super().__post_init__(**kwargs)
        self.validate_architecture()

    @property
    def output_attentions(self) -> bool:
        """True if a call without the argument `output_attentions` returns attention weights. Calls that
        return attention weights use eager attention, because fused kernels return no attention weights.
        """
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        # Do not call the setter of `output_attentions` in the base class of transformers, because the base
        # class accepts True only with the attention implementation "eager".
        self._output_attentions = value

    def validate_architecture(self) -> None:
        """Check that the fields of the config do not contradict each other. Each model calls
        `validate_architecture` again, because a program can change the fields of a config.

        Raises:
            ValueError: If two fields contradict each other.
        """
        prefix = self.field_prefix
        for stack in self.stacks:
            heads = self.shape_of(stack).num_heads
            if None in (self.d_k, self.d_v) and self.d_model % heads:
                raise InvalidValueError(
                    f"`{prefix}d_model` must be a multiple of `{prefix}{stack}_attention_heads` unless "
                    f"`{prefix}d_k` and `{prefix}d_v` are given, but {self.d_model} is no multiple of {heads}."
                )
        if self.position_embedding == "sinusoidal" and self.d_model % 2:
            raise InvalidValueError(
                f"`{prefix}d_model` must be even for sinusoidal positions, but is {self.d_model}; use an even "
                f'width or `{prefix}position_embedding="learned"`.'
            )
        start = self.decoder_start_token_id
        if self.zero_start_embedding and (start is None or start != self.pad_token_id):
            raise InvalidValueError(
                f"`decoder_start_token_id` must equal `pad_token_id` ({self.pad_token_id}) if "
                f"`zero_start_embedding` is True, but is {start}."
            )
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise InvalidValueError(
                "`decoder_vocab_size` must equal `vocab_size` if the embeddings are shared, but is "
                f"{self.decoder_vocab_size} instead of {self.vocab_size}; for two vocabularies set "
                "`share_encoder_decoder_embeddings=False`."
            )
        depths = (self.encoder_layers, self.decoder_layers)
        windows = self.attention_window
        if isinstance(windows, (list, tuple)) and len(windows) not in (max(depths), sum(depths)):
            raise InvalidValueError(
                f"`{prefix}attention_window` must have one entry per layer: {max(depths)} entries that both stacks "
                f"use, or {sum(depths)} entries for the encoder layers and then the decoder layers, but has "
                f"{len(windows)} entries."
            )
        for end in eos_token_ids(self):
            self._require_class("eos_token_id", end, "target", self.decoder_vocab_size)
        for name in ("bos_token_id", "pad_token_id", "decoder_start_token_id"):
            self._require_class(name, getattr(self, name), "target", self.decoder_vocab_size)
        self._require_class("pad_token_id", self.pad_token_id, "source", self.vocab_size)

    @staticmethod
    def _require_class(name: str, token_id: int | None, side: str, size: Any) -> None:
        if token_id is not None and token_id >= size:
            raise InvalidValueError(
                f"`{name}` must be smaller than the {side} vocabulary size {size}, but is {token_id}."
            )

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the stacks of the model."""
        return ("encoder", "decoder")

    def shape_of(self, stack: str) -> StackShape:
        """Return the sizes, the norms and the attention windows of a stack, "encoder" or "decoder"."""
        is_decoder = stack == "decoder"
        num_layers = self.decoder_layers if is_decoder else self.encoder_layers
        norm_position = (self.norm_position_of_decoder if is_decoder else None) or self.norm_position
        windows = self.attention_window
        if not isinstance(windows, (list, tuple)):
            windows = [windows] * num_layers
        elif is_decoder and len(windows) == self.encoder_layers + self.decoder_layers:
            windows = windows[self.encoder_layers :]
        return StackShape(
            vocab_size=(self.decoder_vocab_size if is_decoder else None) or self.vocab_size,
            num_layers=num_layers,
            num_heads=self.decoder_attention_heads if is_decoder else self.encoder_attention_heads,
            ffn_dim=self.decoder_ffn_dim if is_decoder else self.encoder_ffn_dim,
            norm_position=norm_position,
            has_final_norm=norm_position == "pre" if self.final_norm is None else self.final_norm,
            # Replace a window of more than 2^40 tokens by 2^40 tokens (more than any sentence has), because
            # PyTorch cannot represent integers of 2^63 and more.
            windows=[None if r is None else min(r, 2**40) for r in windows[:num_layers]],
        )

    @property
    def position_table_size(self) -> int | None:
        """The number of rows of the position table, or None if `position_embedding` is not "learned". A
        model with a position table cannot read more tokens than the table has rows.
        """
        return self.max_position_embeddings if self.position_embedding == "learned" else None

    @property
    def num_positions(self) -> float:
        """The maximum number of tokens that the model can read: `position_table_size`, or infinity without a
        position table.
        """
        return math.inf if self.position_table_size is None else self.position_table_size

    def score_of(self, is_cross: bool) -> str:
        """Return the name of the score function: of cross-attention if `is_cross` is True, else of
        self-attention.
        """
        return (self.cross_attention_score if is_cross else None) or self.attention_score

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Create a config from a dict, such as the content of `config.json`. Keyword arguments override the
        dict.

        If transformers has saved the dict, an unknown config field in the dict is ignored with a warning.
        If transformers has not saved the dict, an unknown config field in the dict raises an error.

        Raises:
            ValueError: If the dict describes another type of model, or a keyword argument looks like a
                misspelled field.
        """
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise InvalidValueError(
                f"`model_type` must be {cls.model_type!r} for {cls.__name__}, but is {found!r}; use the "
                f"config class of {found!r}, and a model class with the same `config_class`."
            )
        # Raise an error for keyword arguments that look like misspelled fields, because transformers silently
        # ignores unknown keyword arguments.
        if not kwargs.get("return_unused_kwargs", False):
            names = [*_field_names(cls), *PAPER_SYMBOLS]
            _refuse_unknown(
                cls, [key for key in kwargs if difflib.get_close_matches(key, names, 1, cutoff=0.8)]
            )
        # Remove `auto_map` and `custom_pipelines`, because these entries make transformers ask for
        # `trust_remote_code`.
        ignored = (
            set() if cls.__module__.startswith("transformers_modules.") else {"auto_map", "custom_pipelines"}
        )
        # If transformers has written config.json, ignore unknown entries. Other versions of transformers and
        # other tools add entries.
        saved_names = config_dict if "transformers_version" in config_dict else ()
        for name, message in _unknown(cls, saved_names).items():
            logger.warning_once(f"{message} The entry is ignored.")
            ignored.add(name)
        config_dict = {key: value for key, value in config_dict.items() if key not in ignored}
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the config and the code of the model. transformers can then load the checkpoint without the
        package.

        If the config uses classes that a user has defined, the Python files of these classes are also saved.
        """
        saved = copy.copy(self)
        # Remove the attention implementation from the saved copy, because transformers refuses to save
        # `output_attentions=True` with a fused attention implementation. config.json never contains the
        # attention implementation.
        saved._attn_implementation = None
        saved.auto_map = dict(self.auto_classes)
        if "AutoModelForSeq2SeqLM" in saved.auto_map:
            saved.custom_pipelines = copy.deepcopy(CUSTOM_PIPELINES)
        # Save the code files here, and not in `save_pretrained` of transformers. transformers reads all files
        # at each call, copies many files twice, and copies a user's file without converting its imports from
        # the package. If `_auto_class` is None, transformers saves no code files.
        saved.__dict__["_auto_class"] = None
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        save_package_code(self._package_class, folder)
        if self.user_classes():
            try:
                save_user_code(saved, self._package_class, folder)
            except ValueError as error:
                logger.warning(
                    f"{error} The checkpoint does not contain this file, so only programs that define the "
                    "class can load the checkpoint."
                )
        super(VaswaniConfig, saved).save_pretrained(save_directory, *args, **kwargs)

    def user_classes(self) -> list[type]:
        """Return the user-defined classes that the config needs: the registered classes, and the config class
        itself if a user has defined it.
        """
        classes = [registry.classes[name] for registry, name in registered_names(self)]
        return classes if self._package_class is type(self) else [*classes, type(self)]

    @property
    def _package_class(self) -> type:
        """The config class of the package. If a user has defined `type(self)`, the config class of the
        package is a base class of `type(self)`.
        """
        name = self.auto_classes["AutoConfig"].partition(".")[2]
        return next(kind for kind in type(self).__mro__ if kind.__name__ == name)


# The dataclass fields that `VaswaniConfig` itself declares, in the order of their declaration. `metadata` of
# a field contains the properties that `config_field` has set.
CONFIG_FIELDS: dict[str, Field] = {
    name: VaswaniConfig.__dataclass_fields__[name] for name in inspect.get_annotations(VaswaniConfig)
}
# The fields that have no meaning for a model with one stack.
ENCODER_DECODER_FIELDS = frozenset(
    name for name, declared in CONFIG_FIELDS.items() if declared.metadata["needs_encoder_decoder"]
)


def _document_fields() -> None:
    """Insert the section "Args" into the docstring of `VaswaniConfig`."""
    lines = []
    for name, declared in CONFIG_FIELDS.items():
        kinds = union_members(declared.type)
        names = ["str" if get_origin(kind) is Literal else kind.__name__ for kind in kinds]
        optional = ", optional" if "NoneType" in names else ""
        words = " or ".join(name for name in names if name != "NoneType")
        lines.append(f"    {name} ({words}{optional}): {declared.metadata['help']}\n")
    # With the option `-OO` of Python, `VaswaniConfig` has no docstring, so `_document_fields` inserts no
    # text.
    description = inspect.cleandoc(VaswaniConfig.__doc__ or "")
    VaswaniConfig.__doc__ = description.replace("Raises:\n", f"Args:\n{''.join(lines)}\nRaises:\n")


_document_fields()


# The field names that a config accepts, and the error messages about unknown names.

# Some versions of transformers and PEFT write entries with the following names to config.json, although
# `VaswaniConfig` has no such fields.
STORED_BY_TRANSFORMERS = frozenset(
    """
    add_cross_attention adapters attn_implementation auto_map bad_words_ids base_model_tp_plan
    cross_attention_hidden_size custom_pipelines experts_implementation finetuning_task is_decoder model_type
    name_or_path num_labels output_attentions per_layer_config prefix pruned_heads quantization_config
    sep_token_id task_specific_params tf_legacy_loss tie_encoder_decoder tie_last_hidden_states
    tokenizer_class torch_dtype torchscript use_bfloat16
    """.split()
)


def _field_names(cls: type[VaswaniConfig]) -> set[str]:
    return {declared.name for declared in fields(cls)} | {*cls.attribute_map, *cls.added_fields}


def _unknown(cls: type[VaswaniConfig], names: Iterable[str]) -> dict[str, str]:
    """Return a dict that maps each unknown field name in `names` to an error message."""
    known = _field_names(cls) | STORED_BY_TRANSFORMERS | set(vars(GenerationConfig()))
    candidates = sorted([*CONFIG_FIELDS, *cls.attribute_map, *cls.added_fields])
    messages = {}
    for name in names:
        if name in known or name.startswith("_"):
            continue
        nearest = PAPER_SYMBOLS.get(name)
        if nearest not in candidates:
            nearest = nearest_name(name, candidates)
        messages[name] = f"`{name}` is no field of {cls.__name__}; the nearest field is `{nearest}`."
    return messages


def _refuse_unknown(cls: type[VaswaniConfig], names: Iterable[str]) -> None:
    messages = [*_unknown(cls, names).values()]
    if messages:
        raise InvalidValueError(messages[0])


# The Python files and the tokenizer folder that are saved with a checkpoint.

_PIPELINE = {"impl": "pipeline_vaswani.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
CUSTOM_PIPELINES = {"translation": _PIPELINE}

if TYPE_CHECKING:
    # Do not delete the imports of modeling_vaswani and pipeline_vaswani, although Python never executes the
    # statements. The Python files of the package in a checkpoint are the file of the config class, the files
    # that this file imports, and the files that those files import. transformers finds the files by searching
    # the text for import statements, so Python need not execute the statements. If Python executed the
    # statements, the imports would be circular.
    from .modeling_vaswani import VaswaniForSeq2SeqLM  # noqa: F401
    from .pipeline_vaswani import TranslationPipeline  # noqa: F401

# The folder of the target tokenizer in a checkpoint with two vocabularies.
TARGET_FOLDER = "target_tokenizer"


# Functions that also accept models from other libraries, or their configs.


def is_vaswani_seq2seq(model: Any) -> bool:
    """Return True if the model is an encoder-decoder model of this package."""
    return model.config.model_type == VaswaniConfig.model_type


def eos_token_ids(config: Any) -> list[int]:
    """Return the ids of `</s>` as a list. The field `eos_token_id` is one id, a list of ids or None."""
    eos = config.eos_token_id
    if eos is None:
        return []
    return list(eos) if isinstance(eos, (list, tuple)) else [eos]


def decoder_start_token_id(config: Any) -> int | None:
    """Return `decoder_start_token_id` of a config, or `bos_token_id` if `decoder_start_token_id` is None."""
    start = config.decoder_start_token_id
    return config.bos_token_id if start is None else start
