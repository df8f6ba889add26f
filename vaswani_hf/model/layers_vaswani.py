"""The layers of the Transformer of Vaswani et al. 2017 around its attention: positions, feed-forward, residuals.

This file travels with every checkpoint because encoder and decoder are made of these layers. Sections and equations are those of
"Attention Is All You Need" (arXiv 1706.03762). Letters of shapes: B batch, S source length, T target length, D model width.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import is_tracing

from .attention_vaswani import OTHER_SCORES, VaswaniAttention, needs_sync, permits_fast_path, register_fast_path
from .configuration_vaswani import VaswaniConfig
from .loss_vaswani import dropout


def sinusoids(position_ids: torch.Tensor, d_model: int) -> torch.Tensor:
    """The position encodings of Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same).

    Float32, of the shape of `position_ids` (int64, from 0) followed by D, which is even.
    """
    # A float32 angle is off by 6e-5 at position 1000; float64 is exact to float32 and costs little. Metal has none.
    dtype = torch.float32 if position_ids.device.type == "mps" else torch.float64
    exponent = torch.arange(0, d_model, 2, dtype=dtype, device=position_ids.device) / d_model
    angles = position_ids.to(dtype).unsqueeze(-1) * torch.pow(10000.0, -exponent)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


class VaswaniLearnedPositions(nn.Embedding):
    """Learned position embeddings (Table 3, row E)."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """The embeddings [B or 1, T, D] of positions [B or 1, T] from 0.

        Raises:
            ValueError: If a position has no row in the table.
        """
        # In training, where nothing is cached, a device need not be waited for: no position is beyond the input.
        is_within = self.training and needs_sync(position_ids) and position_ids.shape[-1] <= self.num_embeddings
        if not is_within and position_ids.device.type != "meta" and not is_tracing(position_ids):
            last = int(position_ids.max()) if position_ids.numel() else 0
            if last >= self.num_embeddings:
                raise ValueError(
                    f"`max_position_embeddings` is {self.num_embeddings}, but the input has {last + 1} tokens; shorten "
                    'the input or train with more positions or with `position_embedding="sinusoidal"`.'
                )
        return super().forward(position_ids)


def require_one(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str = "") -> None:
    """Refuse no input, and two; `prefix` stands before their names in the message.

    Raises:
        ValueError: If not exactly one of them is given.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "both" if input_ids is not None else "neither"
        raise ValueError(f"Exactly one of `{prefix}input_ids` and `{prefix}inputs_embeds` must be given, not {given}.")


def attention_class(config: VaswaniConfig, is_cross: bool = False) -> type[VaswaniAttention]:
    """The class of a config's self-attention, or of its cross-attention."""
    return OTHER_SCORES.get(config.score_of(is_cross), VaswaniAttention)


class VaswaniLayer(GradientCheckpointingLayer):
    """Base of encoder and decoder layers: residual connections, layer normalization and the feed-forward network."""

    _checkpoints_gradients = False

    def __init__(self, config: VaswaniConfig, num_heads: int, ffn_dim: int, layer_idx: int, is_decoder: bool):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.self_attn = attention_class(config)(config, num_heads, layer_idx, is_causal=is_decoder)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @property
    def gradient_checkpointing(self) -> bool:  # type: ignore[override]
        """True if the layer is recomputed in the backward pass; transformers reads and sets this attribute.

        False while no gradients are recorded, because transformers takes the cache away from a layer that it recomputes.
        `generate` records no gradients and needs the cache, also in a training loop.
        """
        return self._checkpoints_gradients and torch.is_grad_enabled()

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self._checkpoints_gradients = value

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """FFN(x) = max(0, xW_1 + b_1)W_2 + b_2, Section 3.3, Eq. (2)."""
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        hidden_states = dropout(hidden_states, self.activation_dropout, self.training)
        return self.fc2(hidden_states)

    def _add_and_norm(self, hidden_states: torch.Tensor, sublayer: Callable, norm: nn.LayerNorm) -> torch.Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4; pre-norm: x + Dropout(Sublayer(LayerNorm(x)))."""
        output = sublayer(norm(hidden_states) if self.pre_norm else hidden_states)
        hidden_states = hidden_states + dropout(output, self.dropout, self.training)
        return hidden_states if self.pre_norm else norm(hidden_states)


class VaswaniEncoderLayer(VaswaniLayer):
    """One of the encoder's N layers: self-attention, then the feed-forward network (Section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, config.encoder_attention_heads, config.encoder_ffn_dim, layer_idx, is_decoder=False)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """Apply both sub-layers to states [B, S, D]; the mask is the one that the attention takes."""

        def attend(states: torch.Tensor) -> torch.Tensor:
            return self.self_attn(states, attention_mask=attention_mask, **kwargs)[0]

        hidden_states = self._add_and_norm(hidden_states, attend, self.self_attn_layer_norm)
        return self._add_and_norm(hidden_states, self._feed_forward, self.final_layer_norm)


class VaswaniDecoderLayer(VaswaniLayer):
    """One of the decoder's N layers: masked self-attention, attention to the source if any, feed-forward (Section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, config.decoder_attention_heads, config.decoder_ffn_dim, layer_idx, is_decoder=True)
        attention, num_heads = attention_class(config, is_cross=True), config.decoder_attention_heads
        self.encoder_attn = self.encoder_attn_layer_norm = None
        if config.is_encoder_decoder:
            self.encoder_attn = attention(config, num_heads, layer_idx, is_cross=True)  # type: ignore[assignment]
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @property
    def supports_fast_path(self) -> bool:
        """A step without calls of modules may take the place of `forward`.

        False for a class of its own, unless it says otherwise, and if something was put around or in place of a part.
        """
        if not permits_fast_path(self, "forward", "_add_and_norm", "_feed_forward"):
            return False
        parts = [self.fc1, self.fc2, self.self_attn_layer_norm, self.final_layer_norm]
        attentions = [self.self_attn]
        if self.encoder_attn is not None:
            parts.append(self.encoder_attn_layer_norm)
            attentions.append(self.encoder_attn)
        has_plain_parts = all(
            type(part) in (nn.Linear, nn.LayerNorm) and permits_fast_path(part, "forward") for part in parts
        )
        return has_plain_parts and all(attention.supports_fast_path for attention in attentions)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """Apply the three sub-layers to states [B, T, D]; the masks are those that the attentions take.

        Without `encoder_hidden_states` [B, S, D] there is no cross-attention.
        """

        def attend(states: torch.Tensor) -> torch.Tensor:
            return self.self_attn(states, past_key_values=past_key_values, attention_mask=attention_mask, **kwargs)[0]

        def attend_to_source(states: torch.Tensor) -> torch.Tensor:
            given = {"past_key_values": past_key_values, "attention_mask": encoder_attention_mask, **kwargs}
            return self.encoder_attn(states, encoder_hidden_states, **given)[0]  # type: ignore[misc]

        hidden_states = self._add_and_norm(hidden_states, attend, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            hidden_states = self._add_and_norm(hidden_states, attend_to_source, self.encoder_attn_layer_norm)
        return self._add_and_norm(hidden_states, self._feed_forward, self.final_layer_norm)


register_fast_path(nn.LayerNorm, "forward")
register_fast_path(VaswaniDecoderLayer, "forward", "_add_and_norm", "_feed_forward")


def tensor_parallel_plan(*attentions: str) -> dict[str, str]:
    """The plan by which transformers splits a stack with these attentions: by classes, heads and inner features."""
    plan = {"embed_tokens": "embedding_rowwise", "layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"}
    for name in attentions:
        plan |= {f"layers.*.{name}.{projection}": "colwise" for projection in ("q_proj", "k_proj", "v_proj")}
        plan[f"layers.*.{name}.out_proj"] = "rowwise"
    return plan
