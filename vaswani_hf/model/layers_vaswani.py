"""The layers of the Transformer of Vaswani et al. 2017: positions, attention, feed-forward, residuals.

Sections and equations are those of "Attention Is All You Need" (arXiv 1706.03762). Letters of shapes:
B batch, S source length, T target length, H heads, D model width, K key width per head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_tracing

from .configuration_vaswani import VaswaniConfig


def sinusoids(position_ids: torch.Tensor, d_model: int) -> torch.Tensor:
    """The position encodings of Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same).

    Args:
        position_ids (torch.Tensor): Positions from 0, int64, of any shape.
        d_model (int): Width D, even.

    Returns:
        torch.Tensor: float32, the shape of `position_ids` followed by D.
    """
    # A float32 angle is off by 6e-5 at position 1000; float64 is exact to float32 and costs little. Metal has none.
    dtype = torch.float32 if position_ids.device.type == "mps" else torch.float64
    exponent = torch.arange(0, d_model, 2, dtype=dtype, device=position_ids.device) / d_model
    angles = position_ids.to(dtype).unsqueeze(-1) * torch.pow(10000.0, -exponent)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


class VaswaniLearnedPositions(nn.Embedding):
    """Learned position embeddings (Table 3, row E)."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Look up the position embeddings.

        Args:
            position_ids (torch.Tensor): [B or 1, T] int64, from 0.

        Returns:
            torch.Tensor: [B or 1, T, D].

        Raises:
            ValueError: If a position has no row in the table.
        """
        if position_ids.device.type != "meta" and not is_tracing(position_ids):
            last = int(position_ids.max()) if position_ids.numel() else 0
            if last >= self.num_embeddings:
                raise ValueError(
                    f"`max_position_embeddings` is {self.num_embeddings}, but the input has {last + 1} tokens; shorten "
                    'the input or train with more positions or with `position_embedding="sinusoidal"`.'
                )
        return super().forward(position_ids)


def infer_mask(input_ids: torch.Tensor, pad_token_id: int, shared_with: str | None = None) -> torch.Tensor:
    """The attention mask that the padding tokens imply.

    Args:
        input_ids (torch.Tensor): [B, S] int64.
        pad_token_id (int): The id of `<pad>`.
        shared_with (str, optional): "end" where `</s>` has the same id, so that the first one after a token is no
            padding; "start" where the decoder's start has the same id, so that the last one before a token is none.

    Returns:
        torch.Tensor: [B, S] bool, True for real tokens.
    """
    mask = input_ids != pad_token_id
    if shared_with == "end":
        mask[:, 1:] |= mask[:, :-1].clone()
    elif shared_with == "start":
        mask[:, :-1] |= mask[:, 1:].clone()
        mask[:, :1] |= ~mask.any(dim=1, keepdim=True)
    return mask


def require_one(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str = "") -> None:
    """Refuse no input, and two.

    Args:
        input_ids (torch.Tensor, optional): [B, S] int64.
        inputs_embeds (torch.Tensor, optional): [B, S, D] float.
        prefix (str): Before their names, in the message.

    Raises:
        ValueError: If not exactly one of them is given.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "both" if input_ids is not None else "neither"
        raise ValueError(f"Exactly one of `{prefix}input_ids` and `{prefix}inputs_embeds` must be given, not {given}.")


def positions_of(
    attention_mask: torch.Tensor | None,
    states: torch.Tensor,
    past_length: torch.Tensor | int = 0,
    is_causal: bool = False,
) -> torch.Tensor:
    """Positions that count real tokens only: the first real token of each row has position 0.

    Args:
        attention_mask (torch.Tensor, optional): [B, S] with the cached tokens, nonzero for real ones; or a causal mask
            [B, 1, T, S], bool or added to the scores, as `generate` makes one for a static cache. With any other mask
            all tokens count.
        states (torch.Tensor): [B, T, D], the embedded tokens.
        past_length (torch.Tensor or int): Tokens before these, where all count.
        is_causal (bool): Whether a mask [B, 1, T, S] is causal, so that a token sees itself and the real ones before.

    Returns:
        torch.Tensor: [B or 1, T] int64; 0 for padding before the first token.
    """
    length = states.shape[1]
    if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2:
        return (attention_mask.bool().cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]
    if isinstance(attention_mask, torch.Tensor) and is_causal:
        visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask.eq(0)
        return (visible[:, 0].sum(dim=-1) - 1).clamp(min=0)
    return (torch.arange(length, device=states.device) + past_length).unsqueeze(0)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention(Q, K, V) = softmax(QK^T / sqrt(d_k)) V, Section 3.2.1, Eq. (1).

    Args:
        module (nn.Module): The attention that asks.
        query (torch.Tensor): [B, H, T, K] float.
        key (torch.Tensor): [B, H, S, K] float.
        value (torch.Tensor): [B, H, S, d_v] float.
        attention_mask (torch.Tensor, optional): Added to the scores: broadcastable to [B, H, T, S].
        scaling (float): 1 / sqrt(d_k).
        dropout (float): Rate on the weights.
        **kwargs: Ignored; other implementations take more.

    Returns:
        tuple: The values [B, T, H, d_v] and the weights [B, H, T, S].
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class VaswaniAttention(nn.Module):
    """Multi-head attention, Section 3.2.2: Concat(head_1 … head_h) W^O with head_i = Attention(QW_i^Q, KW_i^K, VW_i^V)."""

    def __init__(self, config: VaswaniConfig, num_heads: int, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.d_k = config.d_k or config.d_model // num_heads
        self.d_v = config.d_v or config.d_model // num_heads
        self.scaling = self.d_k**-0.5
        self.attention_dropout = config.attention_dropout
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=bias)
        self.k_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=bias)
        self.v_proj = nn.Linear(config.d_model, num_heads * self.d_v, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.d_v, config.d_model, bias=bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from each position to those that the mask allows.

        Args:
            hidden_states (torch.Tensor): [B, T, D] float, where the queries come from.
            key_value_states (torch.Tensor, optional): [B, S, D] float, the encoder's output in cross-attention; [B/K,
                S, D] where every K rows, the beams of a sentence, have one source in common.
            past_key_values (Cache, optional): Keys and values of earlier calls.
            attention_mask (torch.Tensor, optional): The mask that the attention implementation takes.
            **kwargs: Passed on to the attention implementation.

        Returns:
            tuple: [B, T, D] float, and the weights [B, H, T, S] where the implementation gives them.
        """
        batch_shape = hidden_states.shape[:-1]
        query = self.q_proj(hidden_states).view(*batch_shape, -1, self.d_k).transpose(1, 2)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        if key.shape[0] != query.shape[0]:
            # Beams attend to their common source as positions of one row.
            query = query.unflatten(0, (key.shape[0], -1)).transpose(1, 2).flatten(2, 3)
            if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 4 and attention_mask.shape[2] > 1:
                attention_mask = attention_mask.repeat(1, 1, query.shape[2] // attention_mask.shape[2], 1)
        implementation = self.config._attn_implementation
        # The flash kernels take one width for keys and values; added zeros change neither scores nor values.
        pad = self.d_k - self.d_v if "flash" in (implementation or "") else 0
        if pad > 0:
            value = nn.functional.pad(value, (0, pad))
        elif pad < 0:
            query, key = nn.functional.pad(query, (0, -pad)), nn.functional.pad(key, (0, -pad))
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        output = output[..., : self.d_v].reshape(*batch_shape, -1)
        if weights is not None and len(weights) != batch_shape[0]:
            weights = weights.unflatten(2, (-1, batch_shape[1])).transpose(1, 2).flatten(0, 1)
        return self.out_proj(output), weights

    def _keys_and_values(
        self, hidden_states: torch.Tensor, key_value_states: torch.Tensor | None, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, H, S, K] and values [B, H, S, d_v]: from the cache, from these states, or both."""
        # A cache that is no pair holds the decoder's own keys and values only.
        cache = past_key_values if key_value_states is None else None
        if isinstance(past_key_values, EncoderDecoderCache):
            cache = past_key_values.self_attention_cache
            if key_value_states is not None:
                cache = past_key_values.cross_attention_cache
                if past_key_values.is_updated.get(self.layer_idx):
                    layer: Any = cache.layers[self.layer_idx]
                    return layer.keys, layer.values
                past_key_values.is_updated[self.layer_idx] = True
        states = hidden_states if key_value_states is None else key_value_states
        key = self.k_proj(states).view(*states.shape[:-1], -1, self.d_k).transpose(1, 2)
        value = self.v_proj(states).view(*states.shape[:-1], -1, self.d_v).transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return key, value


class VaswaniLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: residual connections and the feed-forward network."""

    def __init__(self, config: VaswaniConfig, num_heads: int, ffn_dim: int, layer_idx: int, is_decoder: bool):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.self_attn = VaswaniAttention(config, num_heads, layer_idx, is_causal=is_decoder)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """FFN(x) = max(0, xW_1 + b_1)W_2 + b_2, Section 3.3, Eq. (2)."""
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        hidden_states = nn.functional.dropout(hidden_states, p=self.activation_dropout, training=self.training)
        return self.fc2(hidden_states)

    def _add_and_norm(self, hidden_states: torch.Tensor, sublayer: Callable, norm: nn.LayerNorm) -> torch.Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4; pre-norm: x + Dropout(Sublayer(LayerNorm(x)))."""
        output = sublayer(norm(hidden_states) if self.pre_norm else hidden_states)
        hidden_states = hidden_states + nn.functional.dropout(output, p=self.dropout, training=self.training)
        return hidden_states if self.pre_norm else norm(hidden_states)


class VaswaniEncoderLayer(VaswaniLayer):
    """One of the encoder's N layers: self-attention, then the feed-forward network (Section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, config.encoder_attention_heads, config.encoder_ffn_dim, layer_idx, is_decoder=False)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
    ) -> torch.Tensor:
        """Apply both sub-layers.

        Args:
            hidden_states (torch.Tensor): [B, S, D] float.
            attention_mask (torch.Tensor, optional): The mask that the attention implementation takes.
            **kwargs: Passed on to the attention implementation.

        Returns:
            torch.Tensor: [B, S, D] float.
        """

        def attend(states: torch.Tensor) -> torch.Tensor:
            return self.self_attn(states, attention_mask=attention_mask, **kwargs)[0]

        hidden_states = self._add_and_norm(hidden_states, attend, self.self_attn_layer_norm)
        return self._add_and_norm(hidden_states, self._feed_forward, self.final_layer_norm)


class VaswaniDecoderLayer(VaswaniLayer):
    """One of the decoder's N layers: masked self-attention, attention to the source, feed-forward (Section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__(config, config.decoder_attention_heads, config.decoder_ffn_dim, layer_idx, is_decoder=True)
        self.encoder_attn = VaswaniAttention(config, config.decoder_attention_heads, layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> torch.Tensor:
        """Apply the three sub-layers.

        Args:
            hidden_states (torch.Tensor): [B, T, D] float.
            attention_mask (torch.Tensor, optional): The causal mask that the attention implementation takes.
            encoder_hidden_states (torch.Tensor, optional): [B, S, D] float; without it there is no cross-attention.
            encoder_attention_mask (torch.Tensor, optional): The source mask that the attention implementation takes.
            past_key_values (Cache, optional): Keys and values of earlier calls.
            **kwargs: Passed on to the attention implementation.

        Returns:
            torch.Tensor: [B, T, D] float.
        """

        def attend(states: torch.Tensor) -> torch.Tensor:
            return self.self_attn(states, past_key_values=past_key_values, attention_mask=attention_mask, **kwargs)[0]

        def attend_to_source(states: torch.Tensor) -> torch.Tensor:
            return self.encoder_attn(
                states,
                key_value_states=encoder_hidden_states,
                past_key_values=past_key_values,
                attention_mask=encoder_attention_mask,
                **kwargs,
            )[0]

        hidden_states = self._add_and_norm(hidden_states, attend, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            hidden_states = self._add_and_norm(hidden_states, attend_to_source, self.encoder_attn_layer_norm)
        return self._add_and_norm(hidden_states, self._feed_forward, self.final_layer_norm)


def tensor_parallel_plan(*attentions: str) -> dict[str, str]:
    """How transformers splits a stack over devices: by classes, by heads and by inner features.

    Args:
        *attentions (str): Names of the attentions in a layer.

    Returns:
        dict: The way of splitting, by the name of the projection in the stack.
    """
    plan = {"embed_tokens": "embedding_rowwise", "layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"}
    for name in attentions:
        plan |= {f"layers.*.{name}.{projection}": "colwise" for projection in ("q_proj", "k_proj", "v_proj")}
        plan[f"layers.*.{name}.out_proj"] = "rowwise"
    return plan
