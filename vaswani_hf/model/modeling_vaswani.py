"""Implements the Transformer of Vaswani et al. 2017, "Attention Is All You Need", as models of transformers.

`VaswaniForSeq2SeqLM` computes logits and the loss from token ids. This file contains the position encodings
(Section 3.5), the layers (Sections 3.1 and 3.3), the encoder and the decoder (Sections 3.1 and 3.4), and the
output projection (Section 3.4). The file attention_vaswani contains attention (Section 3.2), loss_vaswani
contains dropout and the label-smoothed loss (Section 5.4), generation_vaswani contains `generate`, and
pretrained_vaswani contains the base class that loads and saves weights.

With the default values of `VaswaniConfig`, the models compute what the paper describes, with two exceptions.
The padding token has probability 0, because no translation contains padding. The default of `label_smoothing`
is 0; the paper uses 0.1. The docstring of `VaswaniConfig` names the config fields that make a model differ
from the paper.

This file is saved with every checkpoint because the file defines the models.

Section and equation numbers refer to the paper (arXiv 1706.03762). In tensor shapes, B is the batch size, S
the source length, T the target length, D the model width, F the inner width and V the size of the target
vocabulary.
"""

# Turn off some mypy errors, because transformers declares wider types for caches, masks and sub-modules than
# this file uses.
# mypy: disable-error-code="arg-type,assignment,index,misc,union-attr"

import os

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.integrations.fsdp import is_fsdp_managed_module
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as DecoderOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, is_tracing
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vaswani import VaswaniAttention, attention_class
from .configuration_vaswani import VaswaniConfig, decoder_start_token_id
from .errors_vaswani import InvalidValueError
from .extension_vaswani import POSITION_ENCODINGS
from .fast_path_vaswani import are_plain, fast_path, needs_sync, permits_fast_path
from .generation_vaswani import VaswaniGeneration
from .loss_vaswani import (
    EXCLUDED_LOGIT,
    IGNORED_LABEL,
    chunked_cross_entropy,
    dropout,
    smoothed_cross_entropy,
)
from .masks_vaswani import (
    CACHE_NAME,
    cross_attention_masks,
    decoding_cache,
    positions_of,
    self_attention_masks,
)
from .pretrained_vaswani import VaswaniPreTrainedModel, tensor_parallel_plan


def sinusoids(position_ids: torch.Tensor, d_model: int, timescales: str = "paper") -> torch.Tensor:
    """Return the encodings PE(pos, 2i) = sin(x) and PE(pos, 2i+1) = cos(x) with x = pos / 10000^(2i/d_model),
    Section 3.5.

    `position_ids` is an int64 tensor of any shape, and the first position is 0. The returned position
    encodings [..., D] are float32. Differs from the paper: with `timescales="tensor2tensor"`, the argument x
    of sin and cos is pos / 10000^(i/(d_model/2-1)). Models converted from tensor2tensor, Marian or fairseq
    need `timescales="tensor2tensor"`.
    """
    # Use float64, because a float32 angle has an error of about 6e-5 radians at position 1000. Use float32 on
    # Apple's GPUs, because Apple's GPUs do not support float64.
    dtype = torch.float32 if position_ids.device.type == "mps" else torch.float64
    exponent = torch.arange(0, d_model, 2, dtype=dtype, device=position_ids.device) / d_model  # [D / 2]
    if timescales == "tensor2tensor":
        exponent = exponent * d_model / max(d_model - 2, 1)
    angles = position_ids.to(dtype).unsqueeze(-1) * torch.pow(10000.0, -exponent)  # [..., D / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()  # [..., D]


class VaswaniSinusoidalPositions(nn.Module):
    """Computes the sinusoidal position encodings of `sinusoids` (Section 3.5), without parameters."""

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.d_model = config.d_model
        self.timescales = config.position_timescales
        self.offset = config.position_offset

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the encodings [B or 1, T, D] of positions [B or 1, T]."""
        return sinusoids(position_ids + self.offset, self.d_model, self.timescales)


class VaswaniNoPositions(VaswaniSinusoidalPositions):
    """Returns zeros as position encodings, for experiments without position information. Differs from the
    paper: a model with `VaswaniNoPositions` has no position information.
    """

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Return zeros [B or 1, T, D] for positions [B or 1, T]."""
        return torch.zeros(*position_ids.shape, self.d_model, device=position_ids.device)


class VaswaniLearnedPositions(nn.Embedding):
    """Looks up learned position embeddings in a table (Table 3, row E)."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config.max_position_embeddings, config.d_model)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [B or 1, T, D] of positions [B or 1, T]. Raise an error if a position is not
        in the table.
        """
        if self._reads_positions(position_ids):
            last = int(position_ids.max()) if position_ids.numel() else 0
            if last >= self.num_embeddings:
                raise InvalidValueError(
                    f"`max_position_embeddings` is {self.num_embeddings}, but the input has {last + 1} tokens; "
                    'shorten the input or train with more positions or with `position_embedding="sinusoidal"`.'
                )
        return super().forward(position_ids)

    def _reads_positions(self, position_ids: torch.Tensor) -> bool:
        if position_ids.device.type == "meta" or is_tracing(position_ids):
            return False
        # In training on a GPU, reading the positions would make the CPU wait for the GPU. Without a cache, as
        # in training, every position is smaller than the input length.
        is_short = position_ids.shape[-1] <= self.num_embeddings
        return not (self.training and needs_sync(position_ids) and is_short)


_BUILT_IN_POSITIONS = {
    "sinusoidal": VaswaniSinusoidalPositions,
    "learned": VaswaniLearnedPositions,
    "none": VaswaniNoPositions,
}


def register_position_encoding(name: str, encoding_class: type[nn.Module]) -> None:
    """Register a new position encoding. After the registration, the config field `position_embedding` accepts
    the new name.

    If the config of a model has `position_embedding=name`, the model uses `encoding_class` in training and in
    the search. A checkpoint with the position encoding `name` contains the Python file that defines
    `encoding_class`. To load a checkpoint with a registered position encoding, call
    `register_position_encoding` first. A Python process that has not imported the package can also load the
    checkpoint with `trust_remote_code=True`.

    Args:
        name (str): The name of the position encoding in configs. The name must not be the name of a built-in
            position encoding.
        encoding_class (type): A subclass of `torch.nn.Module`, defined at the top level of a Python file. The
            model calls `encoding_class(config)` with the config of the model. `forward(position_ids)` maps
            int64 positions [B or 1, T] to encodings [B or 1, T, D] that the model adds to the embeddings.
            Positions count from 0 and leave out padding. `forward` must return the same encoding for a
            position in each call. The tensors of the class must be parameters or persistent buffers.

    Raises:
        ValueError: If the name is built in or registered for another class, or if the class is not a subclass
            of `torch.nn.Module`.

    Example:
        >>> from torch import nn
        >>> from vaswani_hf import VaswaniConfig, register_position_encoding
        >>> class LinearPositions(nn.Module):
        ...     def __init__(self, config):
        ...         super().__init__()
        ...         self.direction = nn.Linear(1, config.d_model)
        ...     def forward(self, position_ids):
        ...         return self.direction(position_ids[..., None] / 100)
        >>> register_position_encoding("linear", LinearPositions)
        >>> VaswaniConfig(position_embedding="linear").position_embedding
        'linear'
    """
    POSITION_ENCODINGS.add(name, encoding_class, nn.Module)


def _position_encoding(config: VaswaniConfig) -> nn.Module:
    name = config.position_embedding
    encoding_class = _BUILT_IN_POSITIONS.get(name) or POSITION_ENCODINGS.classes[name]
    return encoding_class(config)


@fast_path("_sublayer_input", "_add_and_norm", "_feed_forward")
class VaswaniLayer(GradientCheckpointingLayer):
    """Base class of encoder and decoder layers. With post-norm, as in the paper, each sub-layer computes
    LayerNorm(x + Dropout(Sublayer(x))) (Sections 3.1 and 5.4). With pre-norm, each sub-layer computes x +
    Dropout(Sublayer(LayerNorm(x))). The first sub-layer is self-attention (Section 3.2), and the last
    sub-layer is the feed-forward network (Section 3.3).
    """

    _checkpoints_gradients = False

    def __init__(self, config: VaswaniConfig, layer_idx: int, stack: str):
        super().__init__()
        shape = config.shape_of(stack)
        self.pre_norm = shape.norm_position == "pre"
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.self_attn = attention_class(config)(
            config, shape.num_heads, layer_idx, is_causal=stack == "decoder"
        )
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, shape.ffn_dim)
        self.fc2 = nn.Linear(shape.ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @property
    def gradient_checkpointing(self) -> bool:  # type: ignore[override]
        """True if the backward pass runs the forward pass of the layer a second time to save memory. False if
        autograd records no gradients, as in `generate`. If `gradient_checkpointing` were True in `generate`,
        transformers would not pass the key-value cache to a layer in training mode.
        """
        return self._checkpoints_gradients and torch.is_grad_enabled()

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self._checkpoints_gradients = value

    def _sublayer_input(self, hidden_states: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        """Return the input of a sub-layer: x with post-norm, LayerNorm(x) with pre-norm."""
        return norm(hidden_states) if self.pre_norm else hidden_states

    def _add_and_norm(
        self, hidden_states: torch.Tensor, output: torch.Tensor, norm: nn.LayerNorm
    ) -> torch.Tensor:
        """Return LayerNorm(x + Dropout(Sublayer(x))) with post-norm, or x + Dropout(Sublayer(LayerNorm(x)))
        with pre-norm.
        """
        hidden_states = hidden_states + dropout(output, self.dropout, self.training)
        return hidden_states if self.pre_norm else norm(hidden_states)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Compute max(0, xW_1 + b_1)W_2 + b_2 (Equation 2), with residual connection and LayerNorm."""
        states = self._sublayer_input(hidden_states, self.final_layer_norm)
        inner = self.activation_fn(self.fc1(states))  # [B, T, F]
        inner = dropout(inner, self.activation_dropout, self.training)
        return self._add_and_norm(hidden_states, self.fc2(inner), self.final_layer_norm)  # [B, T, D]


class VaswaniEncoderLayer(VaswaniLayer):
    """An encoder layer: self-attention and feed-forward network (Section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, layer_idx, "encoder")

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """Apply the self-attention and the feed-forward layer to states [B, S, D]. `self_attention_masks`
        creates `attention_mask`.
        """
        states = self._sublayer_input(hidden_states, self.self_attn_layer_norm)
        attended, _ = self.self_attn(states, attention_mask=attention_mask, **kwargs)  # [B, S, D]
        hidden_states = self._add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        return self._feed_forward(hidden_states)


@fast_path("forward")
class VaswaniDecoderLayer(VaswaniLayer):
    """A decoder layer: masked self-attention, cross-attention, feed-forward network (Section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, layer_idx, "decoder")
        self.encoder_attn = None
        self.encoder_attn_layer_norm = None
        if config.is_encoder_decoder:
            self.encoder_attn = attention_class(config, is_cross=True)(
                config, config.decoder_attention_heads, layer_idx, is_cross=True
            )
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @property
    def supports_fast_path(self) -> bool:
        """True if the search can compute a decoding step with `DecoderLayerStep` instead of `forward`."""
        norms = [self.self_attn_layer_norm, self.final_layer_norm]
        attentions = [self.self_attn]
        if self.encoder_attn is not None:
            norms.append(self.encoder_attn_layer_norm)
            attentions.append(self.encoder_attn)
        return (
            permits_fast_path(self, "forward", "_sublayer_input", "_add_and_norm", "_feed_forward")
            and are_plain(nn.Linear, self.fc1, self.fc2)
            and are_plain(nn.LayerNorm, *norms)
            and all(attention.supports_fast_path for attention in attentions)
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """Apply the three sub-layers to states [B, T, D]. Without `encoder_hidden_states` [B, S, D], skip
        cross-attention. `self_attention_masks` and `cross_attention_masks` create the masks.
        """
        states = self._sublayer_input(hidden_states, self.self_attn_layer_norm)
        attended, _ = self.self_attn(
            states, past_key_values=past_key_values, attention_mask=attention_mask, **kwargs
        )  # [B, T, D]
        hidden_states = self._add_and_norm(hidden_states, attended, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            states = self._sublayer_input(hidden_states, self.encoder_attn_layer_norm)
            attended, _ = self.encoder_attn(
                states,
                encoder_hidden_states,
                past_key_values=past_key_values,
                attention_mask=encoder_attention_mask,
                **kwargs,
            )  # [B, T, D]
            hidden_states = self._add_and_norm(hidden_states, attended, self.encoder_attn_layer_norm)
        return self._feed_forward(hidden_states)


def _embedding(config: VaswaniConfig, vocab_size: int, has_start_token: bool) -> nn.Embedding:
    """Create an embedding. With `zero_start_embedding`, the embedding of the start token stays zero."""
    is_zero = config.zero_start_embedding and has_start_token
    return nn.Embedding(vocab_size, config.d_model, padding_idx=config.pad_token_id if is_zero else None)


class VaswaniStack(VaswaniPreTrainedModel):
    """Base class of the two stacks: embedding, positions and N layers (Sections 3.4, 3.5 and 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_class: type[nn.Module], stack: str):
        super().__init__(config)
        shape = config.shape_of(stack)
        self.embed_scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.embed_tokens = _embedding(config, shape.vocab_size, has_start_token=stack == "decoder")
        self.embed_positions = _position_encoding(config)
        self.layers = nn.ModuleList([layer_class(config, layer_idx) for layer_idx in range(shape.num_layers)])
        ends = [part for name, part in self.layers.named_modules() if name.endswith(("out_proj", "fc2"))]
        for part in ends:
            part.num_sublayers = len(ends)
        self.layer_norm: nn.LayerNorm | None = None
        if shape.has_final_norm:
            self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        _check_tensors(self)
        self.post_init()

    def position_states(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the position encodings [B or 1, T, D] of positions [B or 1, T] (Section 3.5)."""
        states = self.embed_positions(position_ids)
        expected = (*position_ids.shape, self.config.d_model)
        if states.shape != expected:
            # Check the shape, because a smaller shape would broadcast to wrong encodings without an error.
            raise InvalidValueError(
                f"`{type(self.embed_positions).__name__}.forward` must return the shape [B or 1, T, D] = "
                f"{list(expected)}, but returns the shape {list(states.shape)}."
            )
        return states

    def add_positions(self, inputs_embeds: torch.Tensor, position_states: torch.Tensor) -> torch.Tensor:
        """Return Dropout(embedding * sqrt(d_model) + positions) [B, T, D] (Sections 3.4, 3.5 and 5.4)."""
        hidden_states = inputs_embeds * self.embed_scale + position_states.to(inputs_embeds.dtype)
        return dropout(hidden_states, self.config.dropout, self.training)

    def final_norm(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the output [B, T, D] of the stack. If the stack has a final LayerNorm, apply the final
        LayerNorm.
        """
        return hidden_states if self.layer_norm is None else self.layer_norm(hidden_states)

    def _embed(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str
    ) -> torch.Tensor:
        """Return the embedded tokens [B, T, D] before scaling. `prefix` precedes argument names in errors."""
        if (input_ids is None) == (inputs_embeds is None):
            given = "both" if input_ids is not None else "neither"
            message = (
                f"Exactly one of `{prefix}input_ids` and `{prefix}inputs_embeds` must be given, not {given}"
            )
            if prefix and given == "neither":
                message += "; VaswaniForSeq2SeqLM makes `decoder_input_ids` from `labels`"
            raise ValueError(f"{message}.")
        return self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds


def _check_tensors(stack: nn.Module) -> None:
    """Raise an error if a class that a user has registered has a tensor that checkpoints do not contain."""
    unsaved = [name for name, _ in stack.named_non_persistent_buffers()]
    if unsaved:
        raise ValueError(
            f"The buffer `{unsaved[0]}` of a registered class must be persistent, because `from_pretrained` "
            "does not restore other buffers; register the buffer without `persistent=False`."
        )
    for name, module in stack.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                raise ValueError(
                    f"The tensor `{name}.{attribute}` of a registered class must be a parameter or a "
                    "persistent buffer, because checkpoints do not contain other tensors; use "
                    "`nn.Parameter` or `register_buffer`."
                )


class VaswaniEncoder(VaswaniStack):
    """The encoder: N layers that read the embedded source (Section 3.1)."""

    _tp_plan = tensor_parallel_plan("self_attn")
    _fsdp_plan = {"layers.*": "free_full_weight"}
    _can_record_outputs = {"hidden_states": VaswaniEncoderLayer, "attentions": VaswaniAttention}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, VaswaniEncoderLayer, "encoder")

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode the source to `last_hidden_state` [B, S, D]. See `VaswaniForSeq2SeqLM.forward`."""
        inputs_embeds = self._embed(input_ids, inputs_embeds, "")  # [B, S, D]
        if attention_mask is None:
            attention_mask = self._infer_source_mask(input_ids)  # [B, S]
        is_recorded = kwargs.setdefault("output_attentions", self.config.output_attentions)
        position_ids = positions_of(attention_mask, inputs_embeds)  # [B or 1, S]
        hidden_states = self.add_positions(inputs_embeds, self.position_states(position_ids))  # [B, S, D]
        masks = self_attention_masks(
            [layer.self_attn for layer in self.layers],
            inputs_embeds,
            attention_mask,
            is_recorded=is_recorded,
        )
        for layer, mask in zip(self.layers, masks, strict=True):
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(self.final_norm(hidden_states))


@fast_path("forward")
class VaswaniDecoder(VaswaniStack):
    """The decoder: N layers that read the embedded target (Section 3.1)."""

    _tp_plan = tensor_parallel_plan("self_attn", "encoder_attn")
    _fsdp_plan = {"layers.*": "free_full_weight"}
    _can_record_outputs = {
        "hidden_states": VaswaniDecoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, VaswaniDecoderLayer, "decoder")

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DecoderOutput:
        """Decode target tokens to `last_hidden_state` [B, T, D].

        The argument `input_ids` is called `decoder_input_ids` in `VaswaniForSeq2SeqLM.forward`. The decoder
        also receives the encoder's output [B, S, D], and the mask of this output. If the cache is empty and
        no mask is given, the decoder infers the mask from the positions of `<pad>`.
        """
        # transformers 5.24 renamed the argument `past_key_values` to `cache`. All models pass both `cache`
        # and `past_key_values` to the decoder.
        past_key_values = past_key_values if cache is None else cache
        inputs_embeds = self._embed(input_ids, inputs_embeds, "decoder_")  # [B, T, D]
        if use_cache and past_key_values is None:
            past_key_values = decoding_cache(self.config, attention_mask, is_whole=is_tracing(inputs_embeds))
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        is_first_call = isinstance(past_length, int) and past_length == 0
        if attention_mask is None and input_ids is not None and is_first_call:
            attention_mask = self._infer_target_mask(input_ids)  # [B, T]
        is_recorded = kwargs.setdefault("output_attentions", self.config.output_attentions)
        position_ids = positions_of(attention_mask, inputs_embeds, past_length, is_causal=True)  # [B or 1, T]
        hidden_states = self.add_positions(inputs_embeds, self.position_states(position_ids))  # [B, T, D]
        masks = self_attention_masks(
            [layer.self_attn for layer in self.layers],
            inputs_embeds,
            attention_mask,
            past_key_values,
            is_recorded=is_recorded,
        )
        source_masks = [None] * len(masks)
        if encoder_hidden_states is not None:
            source_masks = cross_attention_masks(
                [layer.encoder_attn for layer in self.layers],
                inputs_embeds,
                encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
                is_recorded=is_recorded,
            )
        for layer, mask, source_mask in zip(self.layers, masks, source_masks, strict=True):
            hidden_states = layer(
                hidden_states,
                mask,
                encoder_hidden_states,
                source_mask,
                past_key_values=past_key_values,
                **kwargs,
            )
        return DecoderOutput(self.final_norm(hidden_states), past_key_values)


@fast_path("forward")
class VaswaniModel(VaswaniPreTrainedModel):
    """The encoder and the decoder in Figure 1 of the paper, without the output projection.

    Example:
        >>> import torch
        >>> from vaswani_hf import VaswaniConfig, VaswaniModel
        >>> config = VaswaniConfig(vocab_size=100, d_model=16)
        >>> model = VaswaniModel(config)
        >>> source = torch.tensor([[5, 6, 7, 2]])
        >>> model(input_ids=source, decoder_input_ids=torch.tensor([[0, 8, 9]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = _embedding(config, config.vocab_size, has_start_token=True)
            copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
            self._tied_weights_keys = dict.fromkeys(copies, "shared.weight")
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        if config.share_encoder_decoder_embeddings:
            # Share the embedding module instead of only its weight, because FSDP2 cannot shard one weight in
            # two modules.
            self.set_input_embeddings(self.shared)
        self.post_init()
        if config.share_encoder_decoder_embeddings:
            for stack in ("encoder", "decoder"):
                self._tp_plan.pop(f"{stack}.embed_tokens", None)
            self._tp_plan["shared"] = "embedding_rowwise"

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value
            self.shared = value

    def state_dict(self, *args, prefix: str = "", **kwargs):
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        if self.config.share_encoder_decoder_embeddings and is_fsdp_managed_module(self.shared):
            # Store the shared embedding only under the name `shared`, because PyTorch cannot load one sharded
            # module under two names.
            for stack in ("encoder", "decoder"):
                state.pop(f"{prefix}{stack}.embed_tokens.weight", None)
        return state

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source, and decode the target to `last_hidden_state` [B, T, D].
        `VaswaniForSeq2SeqLM.forward` explains the arguments.
        """
        if attention_mask is None:
            attention_mask = self._infer_source_mask(input_ids)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,  # [B, S, D]
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,  # [B, T, D]
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE_NAME: decoder_outputs.get(CACHE_NAME)},
        )


class VaswaniHeadModel(VaswaniPreTrainedModel):
    """Base class of models with an output projection: logits (Section 3.4) and loss (Section 5.4)."""

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def _tie_output_projection(self, embedding: nn.Embedding) -> None:
        # Constructors call `_tie_output_projection` to tie the weights before FSDP2 shards the model. If a
        # model is on the meta device, transformers ties its weights only after FSDP2 has sharded the model.
        if self.config.tie_word_embeddings:
            self.lm_head.weight = embedding.weight

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, T, V] for states [B, T, D]. If `excluded_class()` returns a token id, this
        token gets the probability 0.
        """
        return self._project(hidden_states, self.excluded_class())

    def _project(self, hidden_states: torch.Tensor, excluded: int | None) -> torch.Tensor:
        logits = self.lm_head(hidden_states)  # [B, T, V]
        if excluded is not None:
            # Clone the logits, because a hook of the output projection can return a view.
            logits = logits.clone() if logits.requires_grad else logits
            logits[..., excluded] = EXCLUDED_LOGIT
        return logits

    def _loss_and_logits(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        num_items: torch.Tensor | int | None,
        skip_logits: bool | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the loss and the logits [B, T, V] of decoder states [B, T, D]. The loss is None without
        labels. With labels and `skip_logits`, the logits are None, except if the output projection has an
        adapter, quantization, sharding or a hook.

        The loss is the cross-entropy with label smoothing (Section 5.4). The docstring of the file
        loss_vaswani contains the formula. The sum of the token losses is divided by `num_items`, by default
        the number of labels that are not ignored.
        """
        if labels is None:
            return None, self.logits(hidden_states)
        # The cross-entropy of PyTorch needs int64 labels.
        labels = labels.long()
        mask = self._infer_source_mask(labels)
        if mask is not None:
            labels = labels.masked_fill(~mask, IGNORED_LABEL)
        smoothing = self.config.label_smoothing if self.training else 0.0
        form = self.config.label_smoothing_form
        excluded = self.excluded_class(smoothing, labels)
        skip_logits = self.training if skip_logits is None else skip_logits
        # Use the chunked loss only if the output projection has no adapter, quantization, sharding or hook.
        is_plain = are_plain(nn.Linear, self.lm_head) and self._tp_size in (None, 1)
        if skip_logits and is_plain:
            states, weight = self.output_product(hidden_states)
            return chunked_cross_entropy(states, weight, labels, num_items, smoothing, form, excluded), None
        logits = self._project(hidden_states, excluded)
        return smoothed_cross_entropy(logits, labels, num_items, smoothing, form, excluded), logits

    def output_product(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states [B, T, D] and weights [V, D] whose product `states @ weight.T` is the logits. A bias
        becomes an additional feature of the weights, and the states get a feature with the value 1.
        """
        weight = self.lm_head.weight
        bias = self.lm_head.bias
        if bias is None:
            return hidden_states, weight
        ones = hidden_states.new_ones(*hidden_states.shape[:-1], 1)
        return torch.cat((hidden_states, ones), dim=-1), torch.cat((weight, bias.unsqueeze(1)), dim=1)

    def excluded_class(self, smoothing: float = 0.0, labels: torch.Tensor | None = None) -> int | None:
        """Return the id of the padding token if the model must give `<pad>` the probability 0, else None.
        `smoothing` and `labels` are the label smoothing and the labels of the loss. Leave out `smoothing` and
        `labels` if no loss is computed, as in beam search.
        """
        if self._padding_is_end():
            return None
        if self.config.zero_start_embedding:
            # Exclude `<pad>` from the predicted classes with and without label smoothing, so that the
            # embedding of `<pad>` stays zero.
            return self.config.pad_token_id
        # Do not exclude the class `<pad>` from a label-smoothed loss, because label smoothing gives `<pad>` a
        # target probability above 0. In training mode without labels, keep the logit of `<pad>`, because the
        # training loop can compute a label-smoothed loss from the logits.
        smoothed_outside = self.training and labels is None and torch.is_grad_enabled()
        return None if smoothing or smoothed_outside else self.config.pad_token_id

    @property
    def supports_fast_path(self) -> bool:
        """True if beam search can compute decoding steps with `TreeAttentionDecoder` instead of `forward`."""
        decoder = self.get_decoder()
        if not permits_fast_path(self, "forward", "prepare_inputs_for_generation"):
            return False
        if not all(permits_fast_path(model, "forward") for model in (self.model, decoder)):
            return False
        kinds = {
            module.implementation for module in decoder.modules() if isinstance(module, VaswaniAttention)
        }
        return kinds <= {"sdpa", "eager"} and self._tp_size in (None, 1)


@fast_path("forward", "prepare_inputs_for_generation")
class VaswaniForSeq2SeqLM(VaswaniGeneration, VaswaniHeadModel, GenerationMixin):
    """The Transformer in Figure 1 of the paper, with the output projection, the loss and `generate`.

    Example:
        >>> import torch
        >>> from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
        >>> config = VaswaniConfig(vocab_size=100, d_model=16)
        >>> model = VaswaniForSeq2SeqLM(config).eval()
        >>> source = torch.tensor([[5, 6, 7, 2]])
        >>> model(input_ids=source, labels=torch.tensor([[8, 9, 2]])).logits.shape
        torch.Size([1, 3, 100])
        >>> translation = model.generate(input_ids=source, num_beams=2, max_new_tokens=5)
        >>> len(translation), translation[0, 0].item()
        (1, 0)
    """

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.model = VaswaniModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=config.lm_head_bias)
        ties = self.model._tied_weights_keys or {}
        self._tied_weights_keys = {f"model.{copy}": f"model.{source}" for copy, source in ties.items()}
        if config.tie_word_embeddings:
            target = "shared" if config.share_encoder_decoder_embeddings else "decoder.embed_tokens"
            self._tied_weights_keys["lm_head.weight"] = f"model.{target}.weight"
        self.post_init()
        self._tie_output_projection(self.model.decoder.embed_tokens)

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output projection. Return None if accelerate uses FSDP and the projection is tied to a
        separate target embedding. If the method returned such a projection, accelerate would shard the
        projection and the embedding separately.
        """
        is_tied_to_target = (
            self.config.tie_word_embeddings and not self.config.share_encoder_decoder_embeddings
        )
        if is_tied_to_target and os.environ.get("ACCELERATE_USE_FSDP") == "true":
            return None
        return self.lm_head

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True):
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # Resize only the source embedding, because the output projection belongs to the target vocabulary.
        embedding = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.set_input_embeddings(embedding)
        return embedding

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input [B, T] for labels [B, T]: the start token, and then all labels except
        the last (Section 3.1).

        Raises:
            ValueError: If the config has no `pad_token_id`, or no `decoder_start_token_id` and no
                `bos_token_id`.
        """
        pad = self.config.pad_token_id
        start = decoder_start_token_id(self.config)
        if pad is None or start is None:
            name = "pad_token_id" if pad is None else "decoder_start_token_id"
            raise InvalidValueError(
                f"`{name}` must be set in the config to make the decoder's inputs from labels."
            )
        shifted = labels.new_full(labels.shape, start)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill_(shifted == IGNORED_LABEL, pad)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Compute the logits of the next target token at each position. If labels are given, also compute the
        loss.

        Args:
            input_ids (torch.Tensor, optional): Source tokens [B, S] int64.
            attention_mask (torch.Tensor, optional): The mask [B, S] of the source, 1 for visible tokens. By
                default all source tokens except `<pad>` are visible.
            decoder_input_ids (torch.Tensor, optional): Target tokens [B, T] int64. By default,
                `decoder_input_ids` is the start token, followed by all labels except the last label.
            decoder_attention_mask (torch.Tensor, optional): The mask [B, T + cached tokens] of the target, 1
                for visible tokens.
            encoder_outputs (tuple or BaseModelOutput, optional): The output of the encoder, in place of
                `input_ids`.
            past_key_values (Cache, optional): Keys and values of earlier calls.
            inputs_embeds (torch.Tensor, optional): The embedded source [B, S, D] before scaling, in place of
                `input_ids`.
            decoder_inputs_embeds (torch.Tensor, optional): The embedded target [B, T, D] before scaling, in
                place of `decoder_input_ids`.
            labels (torch.Tensor, optional): Reference tokens [B, T] int64. Labels that are -100 or `<pad>`
                are ignored. The loss is the cross-entropy in nats per token. In training mode, the loss
                includes the label smoothing of the config (Section 5.4).
            use_cache (bool, optional): True to return a cache; by default `config.use_cache`. A call with
                labels returns no cache.
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
            Seq2SeqLMOutput: `loss` (float32 scalar), `logits` [B, T, V], the cache, and on request hidden
                states and attention weights. For each layer with H heads, `encoder_attentions` contains a
                tensor [B, H, S, S], `decoder_attentions` a tensor [B, H, T, T + cached tokens], and
                `cross_attentions` a tensor [B, H, T, S].
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **kwargs,
        )
        loss, logits = self._loss_and_logits(
            outputs.last_hidden_state, labels, num_items_in_batch, skip_logits
        )
        recorded = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **recorded)
