"""Language models with one stack: the decoder without cross-attention, or the encoder.

`VaswaniForCausalLM` predicts the next token, as GPT does (Radford et al. 2018). `VaswaniForMaskedLM` predicts
masked tokens, as BERT does (Devlin et al. 2019, arXiv 1810.04805). `VaswaniForCausalLM` and
`VaswaniForMaskedLM` use the code of the encoder-decoder model for the layers, the attention and the loss.
`VaswaniForCausalLM` also has the same `generate` method as the encoder-decoder model, with the same search.
Differs from the paper: the paper describes no model with a single stack.

This file is saved with every checkpoint of a language model because the file defines the model.

In tensor shapes, B is the batch size, T the number of tokens of a text, P the prompt length, D the model
width and V the size of the vocabulary.
"""

# Turn off some mypy errors, because transformers declares wider types for caches, outputs and sub-modules
# than this file uses.
# mypy: disable-error-code="arg-type,assignment,index,misc,union-attr"

from typing import Any, ClassVar, NoReturn

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_vaswani import ENCODER_DECODER_FIELDS, VaswaniConfig
from .errors_vaswani import InvalidValueError
from .fast_path_vaswani import fast_path
from .generation_vaswani import VaswaniGeneration
from .length_limits_vaswani import TRANSFORMERS_LIMIT, max_new_tokens_of, set_max_new_tokens
from .loss_vaswani import IGNORED_LABEL
from .masks_vaswani import CACHE_NAME
from .modeling_vaswani import VaswaniDecoder, VaswaniEncoder, VaswaniHeadModel
from .pretrained_vaswani import tensor_parallel_plan

# Names of config fields, without the prefix `encoder_` or `decoder_`. For example, "layers" means the two
# fields `encoder_layers` and `decoder_layers`. In a model with one stack, the encoder field and the decoder
# field have the same value.
_OF_EACH_STACK = ("layers", "attention_heads", "ffn_dim")
# The fields that have a fixed value in a model with one stack.
_FIXED = {"share_encoder_decoder_embeddings": True, "is_encoder_decoder": False}


class VaswaniStackConfig(VaswaniConfig):
    """Base class of the configs of models with one stack, one vocabulary and no cross-attention.

    The config has all fields of [`VaswaniConfig`]. Fields of the missing stack, such as `encoder_layers`,
    have the values of the corresponding fields of the existing stack, such as `decoder_layers`.
    """

    model_type = "vaswani_stack"
    # "decoder" or "encoder".
    stack: ClassVar[str] = "decoder"
    is_encoder_decoder: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED:
            if value is not _FIXED[name]:
                raise InvalidValueError(
                    f"`{name}` must be {_FIXED[name]} for a model of one stack, but is {value!r}."
                )
            # Skip the rule of `VaswaniConfig`, because the rule allows only True for `is_encoder_decoder`.
            PreTrainedConfig.__setattr__(self, name, value)
            return
        super().__setattr__(name, value)
        stack, _, part = self.attribute_map.get(name, name).partition("_")
        if stack == self.stack and part in _OF_EACH_STACK:
            super().__setattr__(f"{self._other_stack}_{part}", value)

    @property
    def stacks(self) -> tuple[str, ...]:
        return (self.stack,)

    @property
    def _other_stack(self) -> str:
        return "encoder" if self.stack == "decoder" else "decoder"

    def __post_init__(self, **kwargs):
        for alias in self.attribute_map.keys() & kwargs.keys():
            setattr(self, alias, kwargs.pop(alias))
        for part in _OF_EACH_STACK:
            setattr(self, f"{self.stack}_{part}", getattr(self, f"{self.stack}_{part}"))
        self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON. Leave out the fields of the missing encoder or decoder, and
        the fields of encoder-decoder models.
        """
        others = {f"{self._other_stack}_{part}" for part in _OF_EACH_STACK}
        others |= ENCODER_DECODER_FIELDS
        return {name: value for name, value in super().to_dict().items() if name not in others}

    @classmethod
    def of(cls, config: VaswaniConfig) -> "VaswaniStackConfig":
        """Convert the config of an encoder-decoder model, or of a model with one stack, to this class."""
        unused = {*ENCODER_DECODER_FIELDS, "model_type", "transformers_version", "architectures", "dtype"}
        fields = {}
        for name in VaswaniConfig().to_dict():
            if hasattr(config, name) and name not in unused and not name.startswith("_"):
                fields[name] = getattr(config, name)
        shape = config.shape_of(cls.stack)
        fields["norm_position"] = shape.norm_position
        fields["vocab_size"] = shape.vocab_size
        if isinstance(config.attention_window, (list, tuple)):
            # Keep only the attention windows of this stack, because `config.attention_window` can contain the
            # windows of both encoder and decoder layers.
            fields["attention_window"] = shape.windows
        return cls(**fields)


class VaswaniDecoderConfig(VaswaniStackConfig):
    """Describes the architecture of a decoder-only model. Set the size of the decoder with fields such as
    `decoder_layers`. The config copies `decoder_layers`, `decoder_attention_heads` and `decoder_ffn_dim` to
    the corresponding encoder fields, such as `encoder_layers`.

    Example:
        >>> from vaswani_hf import VaswaniDecoderConfig
        >>> VaswaniDecoderConfig(vocab_size=8000, decoder_layers=12).encoder_layers
        12
    """

    model_type = "vaswani_decoder"
    stack: ClassVar[str] = "decoder"
    auto_classes = {
        "AutoConfig": "language_models_vaswani.VaswaniDecoderConfig",
        "AutoModel": "language_models_vaswani.VaswaniDecoderModel",
        "AutoModelForCausalLM": "language_models_vaswani.VaswaniForCausalLM",
    }
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "decoder_attention_heads",
        "num_hidden_layers": "decoder_layers",
    }


class VaswaniEncoderConfig(VaswaniStackConfig):
    """Describes the architecture of an encoder-only model. Set the size of the encoder with fields such as
    `encoder_layers`. The config copies `encoder_layers`, `encoder_attention_heads` and `encoder_ffn_dim` to
    the corresponding decoder fields, such as `decoder_layers`.

    Example:
        >>> from vaswani_hf import VaswaniEncoderConfig
        >>> VaswaniEncoderConfig(vocab_size=8000, encoder_layers=12).decoder_layers
        12
    """

    model_type = "vaswani_encoder"
    stack: ClassVar[str] = "encoder"
    auto_classes = {
        "AutoConfig": "language_models_vaswani.VaswaniEncoderConfig",
        "AutoModel": "language_models_vaswani.VaswaniEncoderModel",
        "AutoModelForMaskedLM": "language_models_vaswani.VaswaniForMaskedLM",
    }


class VaswaniDecoderModel(VaswaniDecoder):
    """The decoder of a language model, without the output projection. A token does not attend to later tokens
    (Section 3.2.3).
    """

    config: VaswaniDecoderConfig
    config_class = VaswaniDecoderConfig
    _tp_plan = tensor_parallel_plan("self_attn")


class VaswaniEncoderModel(VaswaniEncoder):
    """The encoder of a language model, without the output projection. Each token attends to all tokens
    (Section 3.2.3).
    """

    config: VaswaniEncoderConfig
    config_class = VaswaniEncoderConfig


class _LanguageModel(VaswaniHeadModel):
    """The encoder or the decoder of a language model, with an output projection. By default, the output
    projection is tied to the embedding (Section 3.4).
    """

    _stack_class: Any

    def __init__(self, config: VaswaniConfig):
        kind = self.config_class
        super().__init__(config if isinstance(config, kind) else kind.of(config))
        self.model = self._stack_class(self.config)
        self.lm_head = nn.Linear(self.config.d_model, self.config.vocab_size, bias=self.config.lm_head_bias)
        self._tied_weights_keys = (
            {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tie_word_embeddings else {}
        )
        self.post_init()
        self._tie_output_projection(self.model.embed_tokens)


@fast_path("forward", "prepare_inputs_for_generation")
class VaswaniForCausalLM(VaswaniGeneration, _LanguageModel, GenerationMixin):
    """A language model that predicts the next token with a decoder.

    If `config` is a [`VaswaniConfig`], the model has the architecture of the decoder that `config` describes,
    without cross-attention.

    `generate` continues prompts, with the same greedy search and beam search as for translations. The prompts
    are `inputs` or `input_ids` [B, P] int64, padded on the left. For prompts in `inputs_embeds`, `generate`
    uses the search of transformers. By default a continuation has at most 20 new tokens. If the model has
    learned positions, the prompt and the continuation together can have at most one token more than the table
    of positions has rows, because the model does not read the last token.

    Example:
        >>> import torch
        >>> from vaswani_hf import VaswaniDecoderConfig, VaswaniForCausalLM
        >>> config = VaswaniDecoderConfig(vocab_size=100, d_model=16)
        >>> model = VaswaniForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[0, 5, 6]]), max_new_tokens=1).shape
        torch.Size([1, 4])
    """

    config: VaswaniDecoderConfig
    config_class = VaswaniDecoderConfig
    _stack_class = VaswaniDecoderModel
    prompt_mask = "attention_mask"

    def get_decoder(self) -> nn.Module:
        return self.model

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Compute the logits of the next token at each position. If labels are given, also compute the loss.

        Args:
            input_ids (torch.Tensor, optional): Tokens [B, T] int64.
            attention_mask (torch.Tensor, optional): The mask [B, T + cached tokens], 1 for visible tokens. By
                default no real token attends to `<pad>`.
            past_key_values (Cache, optional): Keys and values of earlier calls.
            inputs_embeds (torch.Tensor, optional): Embedded tokens [B, T, D] before scaling, in place of
                `input_ids`.
            labels (torch.Tensor, optional): The same tokens as `input_ids` [B, T] int64. The model shifts the
                labels itself, as all causal language models of transformers do. Labels that are -100 or
                `<pad>` are ignored. `VaswaniForSeq2SeqLM.forward` describes the loss.
            use_cache (bool, optional): True to return a cache; by default `config.use_cache`. A call with
                labels returns no cache.
            logits_to_keep (int or torch.Tensor): The positions whose logits are returned: an int n for the
                last n positions, 0 for all positions, or a tensor of positions.
            num_items_in_batch (torch.Tensor or int, optional): The number of target tokens in all accumulated
                batches. If `num_items_in_batch` is given, the loss is the sum of the token losses divided by
                `num_items_in_batch`.
            skip_logits (bool, optional): True to compute the loss without storing the logits, which saves
                memory. By default `skip_logits` is True in training with labels.
            cache (Cache, optional): The new name of `past_key_values` since transformers 5.24.
            **kwargs: `output_attentions`, `output_hidden_states`, `return_dict`, and arguments of attention
                functions. A call with `output_attentions=True` uses eager attention, because fused kernels
                return no attention weights.

        Returns:
            CausalLMOutputWithPast: `loss` (float32 scalar), `logits` [B, T, V], the cache, and on request
                hidden states and attention weights. `attentions` contains a tensor [B, H, T, T + cached
                tokens] for each layer with H heads.

        Raises:
            ValueError: If an argument is only for encoder-decoder models, such as `encoder_outputs`.
        """
        for name in ("encoder_hidden_states", "decoder_input_ids", "encoder_outputs"):
            if kwargs.get(name) is not None:
                raise InvalidValueError(
                    f"`{name}` must be left out: {type(self).__name__} is a decoder without a source."
                )
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=False if labels is not None else use_cache,
            cache=cache,
            **kwargs,
        )
        states = outputs.last_hidden_state  # [B, T, D]
        if labels is not None:
            # Shift the labels by one position, because each position predicts the next token.
            labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
        elif isinstance(logits_to_keep, torch.Tensor):
            states = states[:, logits_to_keep]
        elif logits_to_keep > 0:
            states = states[:, -logits_to_keep:]
        loss, logits = self._loss_and_logits(states, labels, num_items_in_batch, skip_logits)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **{CACHE_NAME: outputs.get(CACHE_NAME)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    # Use `prepare_inputs_for_generation` of transformers, because `generate` accepts `inputs_embeds` only if
    # the signature of `prepare_inputs_for_generation` contains `inputs_embeds`.
    prepare_inputs_for_generation = GenerationMixin.prepare_inputs_for_generation

    def _pop_strategies(self, kwargs):
        strategies = super()._pop_strategies(kwargs)
        for name in ("ensemble", "must_contain"):
            value = getattr(strategies, name)
            if value:
                raise InvalidValueError(
                    f"`{name}` is for translations and must be left out, but is {value!r:.60}."
                )
        return strategies

    def _complete_inputs(self, source, config, model_kwargs) -> None:
        if source is None or model_kwargs.get("attention_mask") is not None:
            return
        mask = self._infer_target_mask(source)
        if mask is not None:
            model_kwargs["attention_mask"] = mask.long()

    def _limit_lengths(self, source, config, model_kwargs) -> None:
        prompt = model_kwargs.get("inputs_embeds") if source is None else source
        prompt_length = 1 if prompt is None else prompt.shape[1]
        if prompt_length == 0:
            raise InvalidValueError(
                "`input_ids` must have at least one token to continue, such as `<s>`, but is empty."
            )
        penalty = getattr(config, "coverage_penalty", None)
        if penalty:
            raise InvalidValueError(
                f"`coverage_penalty` is for translations and must be left out, but is {penalty!r}."
            )
        # `max_length_a` of a language model is the number of new tokens per token of the prompt.
        longest = max_new_tokens_of(
            config, prompt_length, prompt_length, self.config.num_positions, default=TRANSFORMERS_LIMIT
        )
        set_max_new_tokens(config, longest, prompt_length)


class VaswaniForMaskedLM(_LanguageModel):
    """A language model that predicts the masked tokens of a text with an encoder.

    If `config` is a [`VaswaniConfig`], the model has the architecture of the encoder that the config
    describes.

    Example:
        >>> import torch
        >>> from vaswani_hf import VaswaniEncoderConfig, VaswaniForMaskedLM
        >>> config = VaswaniEncoderConfig(vocab_size=100, d_model=16)
        >>> model = VaswaniForMaskedLM(config).eval()
        >>> model(torch.tensor([[0, 5, 6, 2]])).logits.shape
        torch.Size([1, 4, 100])
    """

    config: VaswaniEncoderConfig
    config_class = VaswaniEncoderConfig
    _stack_class = VaswaniEncoderModel

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.model

    def generate(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise a TypeError, because an encoder cannot generate text."""
        raise TypeError(
            f"`generate` needs a decoder, but {type(self).__name__} is an encoder, which predicts masked tokens: use "
            '`pipeline("fill-mask")`, or `VaswaniForCausalLM` to generate.'
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Compute logits that predict the token at the same position, not the token at the next position. If
        labels are given, also compute the loss.

        Args:
            input_ids (torch.Tensor, optional): Tokens [B, T] int64. Before the call, put `<mask>` in the
                place of each token that the model must predict.
            attention_mask (torch.Tensor, optional): The mask [B, T], 1 for visible tokens. By default no real
                token attends to `<pad>`.
            inputs_embeds (torch.Tensor, optional): Embedded tokens [B, T, D] before scaling, in place of
                `input_ids`.
            labels (torch.Tensor, optional): The tokens [B, T] int64 before the masking. Labels that are -100
                or `<pad>` are ignored. `VaswaniForSeq2SeqLM.forward` describes the loss.
            num_items_in_batch (torch.Tensor or int, optional): The number of labels in all accumulated
                batches. If `num_items_in_batch` is given, the loss is the sum of the token losses divided by
                `num_items_in_batch`.
            skip_logits (bool, optional): True to compute the loss without storing the logits, which saves
                memory. By default `skip_logits` is True in training with labels.
            **kwargs: `output_attentions`, `output_hidden_states`, `return_dict`, and arguments of attention
                functions. A call with `output_attentions=True` uses eager attention, because fused kernels
                return no attention weights.

        Returns:
            MaskedLMOutput: `loss` (float32 scalar), `logits` [B, T, V], and on request hidden states and
                attention weights. `attentions` contains one tensor [B, H, T, T] for each layer. H is the
                number of heads.
        """
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        loss, logits = self._loss_and_logits(
            outputs.last_hidden_state, labels, num_items_in_batch, skip_logits
        )
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = [
    "VaswaniDecoderConfig",
    "VaswaniDecoderModel",
    "VaswaniEncoderConfig",
    "VaswaniEncoderModel",
    "VaswaniForCausalLM",
    "VaswaniForMaskedLM",
]
