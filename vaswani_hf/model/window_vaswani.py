"""Restricted self-attention (Section 4 of the paper): a neighbourhood of r tokens, at a cost that grows with the length alone.

This file travels with every checkpoint because a config may have an `attention_window`. A whole sequence is cut into
blocks of queries, each with the keys that lie near it, for any kernel and any score; a cache holds the last r tokens.
Letters of shapes: B batch, T length, S keys, H heads, K key width per head; N blocks of W queries, each with C keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.utils import is_tracing

# Queries of a block at least: with fewer the kernels do more copying than computing.
SMALLEST_BLOCK = 64

# The kinds of devices on which work is queued up, so that to read a number is to wait for all that was queued before.
WAITED_FOR = ("cuda",)


def in_window(window: int, own: Callable | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """True where a key is within the window of a query, by positions, int64 and broadcastable, and by an `own` neighbourhood."""
    near = (query - key).abs() <= window
    return near if own is None else near & own(query, key)


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask that is added to attention scores of a dtype: 0 where `visible` (bool, any shape), else the smallest number.

    A row of nothing but padding stays finite, unlike with -inf.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


@dataclass
class Blocks:
    """A whole sequence in blocks: the mask [B * N, 1, W, C] bool, and how many keys lie before a block's first query."""

    mask: torch.Tensor
    num_before: int

    def to(self, *args, **kwargs) -> "Blocks":
        """The same on another device, for a model that several share."""
        return Blocks(self.mask.to(*args, **kwargs), self.num_before)

    def attended(self, kernel: Callable, module: nn.Module, *states: torch.Tensor, **kwargs) -> torch.Tensor:
        """The output [B, T, H, d_v] of an attention function, for query and key [B, H, T, K] and value [B, H, T, d_v]."""
        query, *keys_and_values = states
        (batch, _, length, _), (width, num_keys) = query.shape, self.mask.shape[2:]
        num_blocks = len(self.mask) // batch
        behind = num_blocks * width - length
        query = nn.functional.pad(query, (0, 0, 0, behind)).unflatten(2, (num_blocks, width)).transpose(1, 2)
        around = (0, 0, self.num_before, behind + num_keys - width - self.num_before)
        key, value = (
            nn.functional.pad(tensor, around).unfold(2, num_keys, width).permute(0, 2, 1, 4, 3).flatten(0, 1)
            for tensor in keys_and_values
        )
        output, _ = kernel(module, query.flatten(0, 1), key, value, self.mask, **kwargs)
        return output.unflatten(0, (batch, num_blocks)).flatten(1, 2)[:, :length]


def window_mask(
    attention: Any, states: torch.Tensor, attention_mask: torch.Tensor | None, cache: Cache | None, is_recorded: bool
) -> Any:
    """What an attention with a window takes as its mask: `Blocks`, [B or 1, 1, T, S] bool, or, for flash kernels, [B, S].

    Queries come from `states` [B, T, D], keys from these and the cache; the mask [B, S] is nonzero for real tokens, which
    alone count as neighbours. Weights that are recorded are those of all pairs.
    """
    (batch, length, _), past, first, num_keys = states.shape, 0, 0, states.shape[1]
    if cache is not None:
        past = cache.get_seq_length(attention.layer_idx)
        num_keys, first = cache.get_mask_sizes(length, attention.layer_idx)
    real = None if attention_mask is None else attention_mask.bool()
    if "flash" in attention.implementation:
        return None if real is None or bool(real.all()) else real[:, first : first + num_keys]
    # An exported graph has no number of blocks; a compiled one does, and cannot look at the mask's values.
    is_exported = torch.jit.is_tracing() or torch.compiler.is_exporting()
    is_whole = not (is_recorded or is_exported) and num_keys == length
    num_before, num_after = attention.window, 0 if attention.is_causal else attention.window
    width = max(attention.window, SMALLEST_BLOCK)
    if is_whole and length > width + num_before + num_after and not has_gaps(real):
        num_blocks = -(-length // width)
        real = torch.ones(batch, length, dtype=torch.bool, device=states.device) if real is None else real
        places = torch.arange(width + num_before + num_after, device=states.device) - num_before
        near = _visible(attention, places[num_before : num_before + width, None], places[None])
        around = (num_before, num_blocks * width - length + num_after)
        near_and_real = near & nn.functional.pad(real, around).unfold(1, len(places), width)[:, :, None]
        return Blocks(near_and_real.flatten(0, 1).unsqueeze(1), num_before)
    positions = torch.arange(past + length, device=states.device)[None] if real is None else real.cumsum(dim=1) - 1
    keys = positions[:, None, first : first + num_keys]
    visible = _visible(attention, positions[:, -length:, None], keys)
    return (visible if real is None else visible & real[:, None, first : first + num_keys])[:, None]


def _visible(attention: Any, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
    near = attention.local_mask(query_positions, key_positions)
    return near & (key_positions <= query_positions) if attention.is_causal else near


def needs_sync(tensor: torch.Tensor) -> bool:
    """To read its numbers is to wait; a step of training never does."""
    return tensor.device.type in WAITED_FOR


def has_gaps(real: torch.Tensor | None) -> bool:
    """Padding lies between real tokens, so that neighbours may be further apart than their places."""
    if real is None or real.device.type == "meta" or is_tracing(real):
        return False
    real = real.bool()
    return bool(((real[:, 1:] & ~real[:, :-1]).sum(dim=1) + real[:, 0] > 1).any())


def decoding_cache(config: Any, prompt_mask: torch.Tensor | None = None, is_whole: bool = False) -> Cache:
    """An empty cache of the decoder: of layers with a window the last r tokens, of the others and of the source, if any, all.

    It `is_whole`, and holds all tokens everywhere, if asked to, for flex attention, whose masks have one length, and behind
    a prompt whose mask [B, P] has padding after tokens, because the last tokens are not the nearest ones there.
    """
    own, windows = DynamicCache(), config.windows_of(is_causal=True)
    if any(windows) and not is_whole and config._attn_implementation != "flex_attention":
        real = torch.ones(1, 1) if prompt_mask is None else prompt_mask.bool()
        if bool((real[:, 1:] >= real[:, :-1]).all()):
            # Of one token transformers' layer would hold all; of a window of 0 that is right too.
            own.layers = [DynamicSlidingWindowLayer(window + 1) if window else DynamicLayer() for window in windows]
    return EncoderDecoderCache(own, DynamicCache()) if config.is_encoder_decoder else own
