"""Decoding steps of the layers without calls of modules, which with few beams take longer than the work.

They stand in for the layers that declare `may_step` while a tree is searched. They do not travel: without them the search
finds the same, one sentence at a time in about a third more time.

Letters of shapes: N sentences, D model width.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache

from ..model.attention_vaswani import AttentionWatch, VaswaniAttention
from ..model.layers_vaswani import VaswaniDecoderLayer


class AttentionStep:
    """An attention for decoding steps, for one that declares `may_step`: `forward` without calls of modules.

    It attends by the attention's own `attend`, or by `attend_fused` where that declares it.

    Args:
        attention (VaswaniAttention): The attention.
        cache (EncoderDecoderCache): Keys and values; those of the source must be there.
        is_cross (bool): True if it attends to the source.
    """

    def __init__(self, attention: VaswaniAttention, cache: EncoderDecoderCache, is_cross: bool):
        self.attention, self.is_cross, self.layer_idx = attention, is_cross, attention.layer_idx
        self.is_fused = attention.may_fuse and attention.implementation == "sdpa"
        self.d_k, self.d_v = attention.d_k, attention.d_v
        self.q, self.k, self.v, self.out = (
            (projection.weight, projection.bias)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
        )
        self.own, self.source = cache.self_attention_cache, cache.cross_attention_cache.layers

    def __call__(
        self,
        states: torch.Tensor,
        shape: tuple[int, int],
        mask: torch.Tensor | None,
        watch: AttentionWatch | None = None,
    ) -> torch.Tensor:
        """The output [N * beams, D] for states [N * beams, D]; `shape` is (N, beams), `mask` additive."""
        linear = nn.functional.linear
        query = linear(states, *self.q).view(*shape, -1, self.d_k).transpose(1, 2)
        if self.is_cross:
            layer = self.source[self.layer_idx]
            key, value = layer.keys, layer.values
        else:
            key = linear(states, *self.k).view(*shape, -1, self.d_k).transpose(1, 2)
            value = linear(states, *self.v).view(*shape, -1, self.d_v).transpose(1, 2)
            key, value = self.own.update(key, value, self.layer_idx)
        if self.is_fused and watch is None:
            output = self.attention.attend_fused(query, key, value, mask)
        else:
            output, _ = self.attention.attend(query, key, value, mask, watch)
        return linear(output.reshape(len(states), -1), *self.out)


class DecoderLayerStep:
    """A decoder layer for decoding steps, for one that declares `may_step`, in eval mode.

    Args:
        layer (VaswaniDecoderLayer): The layer.
        cache (EncoderDecoderCache): Keys and values; those of the source must be there.
    """

    def __init__(self, layer: VaswaniDecoderLayer, cache: EncoderDecoderCache):
        self.self_attn = AttentionStep(layer.self_attn, cache, is_cross=False)
        self.encoder_attn = AttentionStep(layer.encoder_attn, cache, is_cross=True) if layer.encoder_attn else None
        self.fc1, self.fc2 = ((projection.weight, projection.bias) for projection in (layer.fc1, layer.fc2))
        self.norms: list[Any] = [
            norm and (norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            for norm in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
        ]
        self.activation_fn, self.pre_norm = layer.activation_fn, layer.pre_norm

    def __call__(
        self,
        states: torch.Tensor,
        shape: tuple[int, int],
        mask: torch.Tensor | None,
        source_mask: torch.Tensor | None,
        watch: AttentionWatch | None = None,
    ) -> torch.Tensor:
        """The output [N * beams, D] for states [N * beams, D]; `shape` is (N, beams), both masks are additive."""
        linear, norm, (first, second, last) = nn.functional.linear, torch.layer_norm, self.norms
        if self.pre_norm:
            states = self.self_attn(norm(states, *first), shape, mask).add_(states)
            if self.encoder_attn:
                states = self.encoder_attn(norm(states, *second), shape, source_mask, watch).add_(states)
            inner = self.activation_fn(linear(norm(states, *last), *self.fc1))
            return linear(inner, *self.fc2).add_(states)
        states = norm(self.self_attn(states, shape, mask).add_(states), *first)
        if self.encoder_attn:
            states = norm(self.encoder_attn(states, shape, source_mask, watch).add_(states), *second)
        inner = self.activation_fn(linear(states, *self.fc1))
        return norm(linear(inner, *self.fc2).add_(states), *last)
