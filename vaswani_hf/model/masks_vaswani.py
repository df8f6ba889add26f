"""Creates attention masks. The masks hide padding, later tokens and tokens outside of attention windows. This
file also computes the positions of tokens, and creates the cache of a decoder with attention windows.

`self_attention_masks` and `cross_attention_masks` return one mask for each layer of a stack, in the form that
the attention implementation of the layer needs. This file itself creates the following masks, and
transformers creates all other masks:

- for eager and sdpa attention on a GPU: the padding masks, and without a cache also the causal masks
- the masks of layers with an attention window (Section 4 of the paper), except for a static cache and for
  most calls with flex attention
- in beam search, the masks for beams that share a tree of tokens

This file is saved with every checkpoint because the models and the search create masks with this file.

In tensor shapes, B is the batch size, S the source length (or the number of keys), T the target length (or
the number of queries), H the number of heads, D the model width and K the width of the keys of a head. In
beam search, N is the number of sentences. M is the number of cached tokens in the tree that stores all beams
of a sentence.
"""

# Turn off some mypy errors, because transformers annotates caches and masks with wider types than this file
# uses.

# mypy: disable-error-code="arg-type,union-attr"

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import is_tracing

from .fast_path_vaswani import needs_sync

# A mask function of query positions and key positions (broadcastable int64 tensors). The function returns
# True where the query is allowed to attend to the key.
LocalMask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# The minimum number of queries in a block of windowed attention. In a block with fewer than `SMALLEST_BLOCK`
# queries, copying the keys would take longer than computing the attention.
SMALLEST_BLOCK = 64

# The name of the cache in model outputs and in the arguments of `forward`. transformers 5.24 renamed
# `past_key_values` to `cache`.
CACHE_NAME = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"


# The masks of all layers of a stack


def self_attention_masks(
    attentions: Sequence[Any],
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None = None,
    is_recorded: bool = False,
) -> list[Any]:
    """Return one mask for each self-attention layer of a stack. The masks hide padding, and later tokens if
    the attention is causal.

    The attention computes the queries from `inputs_embeds` [B, T, D]. `attention_mask` [B, S] also covers the
    cached tokens. `attention_mask` is 0 for padding and nonzero for real tokens. An `attention_mask` [B, 1,
    T, S] is used unchanged. If `is_recorded` is True, return masks for eager attention, because only eager
    attention returns attention weights.
    """
    cache = past_key_values
    if isinstance(past_key_values, EncoderDecoderCache):
        cache = past_key_values.self_attention_cache
    implementations = _implementations(attentions, is_recorded)
    has_simple_masks = past_key_values is None and all(
        attention.local_mask is None for attention in attentions
    )
    if has_simple_masks and _must_not_read(attention_mask, implementations, inputs_embeds):
        return [_mask_without_reading(attention_mask, attentions[0].is_causal)] * len(attentions)
    made: dict[Any, Any] = {}
    masks = []
    for attention, implementation in zip(attentions, implementations, strict=True):
        # Layers with the same attention implementation and the same window share one mask.
        kind = (implementation, attention.local_mask)
        if kind not in made:
            made[kind] = _self_attention_mask(
                attention, implementation, inputs_embeds, attention_mask, cache, is_recorded
            )
        masks.append(made[kind])
    return masks


def cross_attention_masks(
    attentions: Sequence[Any],
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    encoder_hidden_states: torch.Tensor,
    is_recorded: bool = False,
) -> list[Any]:
    """Return one mask for each cross-attention layer of a decoder. The masks hide padding of the source.

    The attention computes the queries from `inputs_embeds` [B, T, D]. `attention_mask` [B, S] is nonzero for
    real tokens. `encoder_hidden_states` [B, S, D] can have one row per sentence or one row per beam. If
    `is_recorded` is True, return masks for eager attention, because only eager attention returns attention
    weights.
    """
    implementations = _implementations(attentions, is_recorded)
    if _must_not_read(attention_mask, implementations, inputs_embeds):
        return [_mask_without_reading(attention_mask, is_causal=False)] * len(attentions)
    num_sources = encoder_hidden_states.shape[0]
    shares_sources = num_sources != inputs_embeds.shape[0]
    made: dict[str, Any] = {}
    masks = []
    for attention, implementation in zip(attentions, implementations, strict=True):
        if implementation == "flex_attention" and shares_sources:
            # Flex attention does not support beams that share one row of the encoder's output.
            implementation = "sdpa"
        if implementation not in made:
            made[implementation] = create_bidirectional_mask(
                config=_config_for(attention, implementation),
                inputs_embeds=inputs_embeds[:num_sources],
                attention_mask=attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        masks.append(made[implementation])
    return masks


def _implementations(attentions: Sequence[Any], is_recorded: bool) -> list[str]:
    return ["eager" if is_recorded else attention.implementation for attention in attentions]


def _must_not_read(
    attention_mask: torch.Tensor | None, implementations: list[str], states: torch.Tensor
) -> bool:
    """Return True if reading `attention_mask` would make the CPU wait for the GPU. Return False if a layer
    uses a fused kernel other than sdpa, because the mask of such a kernel depends on the values of
    `attention_mask`.
    """
    is_plain = {"eager", "sdpa"}.issuperset(implementations)
    return is_plain and needs_sync(states) and getattr(attention_mask, "ndim", 0) == 2


def _mask_without_reading(mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Expand a mask [B, S] to [B, 1, 1, S], or to a causal mask [B, 1, S, S], without reading mask values."""
    visible = mask.bool()[:, None, None]
    return visible & visible.new_ones(mask.shape[1], mask.shape[1]).tril() if is_causal else visible


def _self_attention_mask(
    attention: Any,
    implementation: str,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache | None,
    is_recorded: bool,
) -> Any:
    # A mask with four dimensions means that `generate` uses a static cache. A mask for a static cache must
    # have one column for each position of the cache.
    is_static = getattr(attention_mask, "ndim", 2) == 4 or getattr(cache, "is_compileable", False)
    has_window = attention.window is not None and not is_static
    if has_window and implementation != "flex_attention":
        return window_mask(attention, inputs_embeds, attention_mask, cache, is_recorded)
    if has_window and has_gaps(attention_mask):
        # If padding lies between tokens, create an additive mask instead of a mask for flex attention. A mask
        # for flex attention would also count the padding in the distance between two tokens.
        mask = window_mask(attention, inputs_embeds, attention_mask, cache, is_recorded)
        return additive_mask(mask, inputs_embeds.dtype)
    allowed = attention.local_mask
    arguments = {
        "config": _config_for(attention, implementation),
        "inputs_embeds": inputs_embeds,
        "attention_mask": attention_mask,
        # Also hide the tokens that `local_mask` hides.
        "and_mask_function": None if allowed is None else lambda batch, head, query, key: allowed(query, key),
    }
    if not attention.is_causal:
        return create_bidirectional_mask(**arguments)
    return create_causal_mask(**arguments, **{CACHE_NAME: cache})


def _config_for(attention: Any, implementation: str) -> Any:
    """Return the config of an attention layer, with `_attn_implementation` set to `implementation`."""
    if implementation == attention.config._attn_implementation:
        return attention.config
    config = copy.copy(attention.config)
    config._attn_implementation = implementation
    return config


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask to add to attention scores: 0 where `visible` is True, else the lowest finite number of
    `dtype`.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


# Masks of padding, and positions of tokens in rows with padding


def infer_mask(input_ids: torch.Tensor, pad_token_id: int, shared_with: str | None = None) -> torch.Tensor:
    """Return the attention mask [B, S] bool for `input_ids` [B, S]. The mask is False for padding.

    Set `shared_with="end"` if `<pad>` and `</s>` have the same id: the first `<pad>` after a token then
    counts as `</s>`. Set `shared_with="start"` if `<pad>` and the start token have the same id. With
    `shared_with="start"`, the last `<pad>` before the text counts as the start token.
    """
    mask = input_ids != pad_token_id
    if shared_with == "end":
        mask[:, 1:] |= mask[:, :-1].clone()
    elif shared_with == "start":
        mask[:, :-1] |= mask[:, 1:].clone()
        mask[:, :1] |= ~mask.any(dim=1, keepdim=True)
    return mask


def positions_of(
    attention_mask: torch.Tensor | None,
    states: torch.Tensor,
    past_length: torch.Tensor | int = 0,
    is_causal: bool = False,
) -> torch.Tensor:
    """Return the positions [B or 1, T] of tokens. The first real token has position 0, and padding is not
    counted.

    `attention_mask` [B, S] also covers the cached tokens. `attention_mask` is 0 for padding and nonzero for
    real tokens. With a static cache, `generate` passes a causal mask [B, 1, T, S], and `is_causal` must be
    True. Without `attention_mask`, padding counts like a real token, and the first token in `states` has the
    position `past_length`.
    """
    length = states.shape[1]
    if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2:
        return (attention_mask.bool().cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]
    if isinstance(attention_mask, torch.Tensor) and is_causal:
        visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask.eq(0)
        return (visible[:, 0].sum(dim=-1) - 1).clamp(min=0)
    return (torch.arange(length, device=states.device) + past_length).unsqueeze(0)


def has_gaps(real: torch.Tensor | None) -> bool:
    """Return True if padding lies between two real tokens of a row."""
    if real is None or real.device.type == "meta" or is_tracing(real):
        return False
    real = real.bool()
    return bool(((real[:, 1:] & ~real[:, :-1]).sum(dim=1) + real[:, 0] > 1).any())


# Attention windows (Section 4 of the paper)


@dataclass(frozen=True)
class Window:
    """A `LocalMask` that is True where the query is at most `size` tokens from the key. If the mask function
    `own` is given, the result is True only where the result of `own` is also True.
    """

    size: int
    own: LocalMask | None

    def __call__(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        near = (query - key).abs() <= self.size
        return near if self.own is None else near & self.own(query, key)


@dataclass
class Blocks:
    """The mask of an attention layer with a window. The mask is divided into N blocks of W queries.

    Each block attends only to the C keys in the windows of its queries, so that the time and the memory of
    attention grow linearly with the sequence length. `mask` is [B * N, 1, W, C] bool. Of the C keys of a
    block, `num_before` keys come before the first query of the block.
    """

    mask: torch.Tensor
    num_before: int

    def to(self, *args, **kwargs) -> "Blocks":
        """Copy the mask to another device, because the layers of a model can be on several devices."""
        return Blocks(self.mask.to(*args, **kwargs), self.num_before)

    def attended(
        self,
        kernel: Callable,
        module: nn.Module,
        query: torch.Tensor,  # [B, H, T, K]
        key: torch.Tensor,  # [B, H, T, K]
        value: torch.Tensor,  # [B, H, T, d_v]
        **kwargs,
    ) -> torch.Tensor:
        """Return the output [B, T, H, d_v] of windowed attention, computed with the function `kernel`."""
        batch = query.shape[0]
        length = query.shape[2]
        width, num_keys = self.mask.shape[2:]
        num_blocks = len(self.mask) // batch
        num_added = num_blocks * width - length
        query = nn.functional.pad(query, (0, 0, 0, num_added))  # [B, H, N * W, K]
        query = query.unflatten(2, (num_blocks, width)).transpose(1, 2).flatten(0, 1)  # [B * N, H, W, K]
        num_after = num_added + num_keys - width - self.num_before
        key = self._keys_of_blocks(key, num_after, width, num_keys)  # [B * N, H, C, K]
        value = self._keys_of_blocks(value, num_after, width, num_keys)  # [B * N, H, C, d_v]
        output, _ = kernel(module, query, key, value, self.mask, **kwargs)  # [B * N, W, H, d_v]
        return output.unflatten(0, (batch, num_blocks)).flatten(1, 2)[:, :length]

    def _keys_of_blocks(
        self, states: torch.Tensor, num_after: int, width: int, num_keys: int
    ) -> torch.Tensor:
        padded = nn.functional.pad(states, (0, 0, self.num_before, num_after))
        blocks = padded.unfold(2, num_keys, width)  # [B, H, N, K, C]
        return blocks.permute(0, 2, 1, 4, 3).flatten(0, 1)  # [B * N, H, C, K]


def window_mask(
    attention: Any,
    states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache | None,
    is_recorded: bool,
) -> Any:
    """Return the mask of an attention layer with a window: a `Blocks` object, or a bool tensor [B or 1, 1, T,
    S]. For flash kernels, the mask is a bool tensor [B, S], or None if the batch has no padding.

    `states` [B, T, D] contains the vectors of the new tokens. `cache` contains the keys of earlier tokens.
    `attention_mask` [B, S] is nonzero for real tokens. Padding does not count in the distance between two
    tokens. If the model returns attention weights (`is_recorded` is True), return a mask for eager attention.
    """
    length = states.shape[1]
    past = 0
    first_key = 0
    num_keys = length
    if cache is not None:
        past = cache.get_seq_length(attention.layer_idx)
        num_keys, first_key = cache.get_mask_sizes(length, attention.layer_idx)
    real = None if attention_mask is None else attention_mask.bool()  # [B, S]
    if "flash" in attention.implementation and not is_recorded:
        if real is None or bool(real.all()):
            return None
        return real[:, first_key : first_key + num_keys]
    # In an exported graph, do not divide the mask into blocks of queries, because the number of blocks
    # depends on the sequence length.
    is_exported = torch.jit.is_tracing() or torch.compiler.is_exporting()
    is_whole = num_keys == length and not is_recorded and not is_exported
    if is_whole and length > _width_of_block(attention) + _num_near(attention) and not has_gaps(real):
        return _window_blocks(attention, states, real)
    positions = torch.arange(past + length, device=states.device)[None]  # [1, S]
    if real is not None:
        positions = real.cumsum(dim=1) - 1  # [B, S]
    query_positions = positions[:, -length:, None]  # [B or 1, T, 1]
    key_positions = positions[:, None, first_key : first_key + num_keys]  # [B or 1, 1, S]
    visible = _visible_pairs(attention, query_positions, key_positions)  # [B or 1, T, S]
    if real is not None:
        visible = visible & real[:, None, first_key : first_key + num_keys]
    return visible[:, None]


def _width_of_block(attention: Any) -> int:
    return max(attention.window, SMALLEST_BLOCK)


def _num_near(attention: Any) -> int:
    """Return the number of tokens to which a token can attend, not counting the token itself."""
    return attention.window if attention.is_causal else 2 * attention.window


def _window_blocks(attention: Any, states: torch.Tensor, real: torch.Tensor | None) -> Blocks:
    """Return the mask of an attention layer for the states [B, T, D], as `Blocks`. `real` [B, T] is False for
    padding. Padding must not be between two tokens of a sentence.
    """
    batch = states.shape[0]
    length = states.shape[1]
    num_before = attention.window
    num_after = _num_near(attention) - num_before
    width = _width_of_block(attention)
    num_keys = num_before + width + num_after
    num_blocks = -(-length // width)
    if real is None:
        real = torch.ones(batch, length, dtype=torch.bool, device=states.device)
    # The positions of the C keys of a block, minus the position of the first query of the block.
    places = torch.arange(num_keys, device=states.device) - num_before  # [C]
    query_places = places[num_before : num_before + width, None]  # [W, 1]
    near = _visible_pairs(attention, query_places, places[None])  # [W, C]
    padded = nn.functional.pad(real, (num_before, num_blocks * width - length + num_after))
    real_keys = padded.unfold(1, num_keys, width)  # [B, N, C]
    mask = near & real_keys[:, :, None]  # [B, N, W, C]
    return Blocks(mask.flatten(0, 1).unsqueeze(1), num_before)


def _visible_pairs(
    attention: Any, query_positions: torch.Tensor, key_positions: torch.Tensor
) -> torch.Tensor:
    near = attention.local_mask(query_positions, key_positions)
    return near & (key_positions <= query_positions) if attention.is_causal else near


def decoding_cache(config: Any, prompt_mask: torch.Tensor | None = None, is_whole: bool = False) -> Cache:
    """Return an empty cache for the decoder. Layers with a window of r tokens cache only the last r tokens.

    If `is_whole` is True, all layers cache all tokens. If `prompt_mask` [B, P] has padding after a token,
    even layers with a window cache all tokens. If a layer cached only the last r tokens, padding would take
    the place of real tokens in the cache. With flex attention, all layers cache all tokens, because flex
    attention needs the same number of keys in all layers.
    """
    own = DynamicCache()
    windows = config.shape_of("decoder").windows
    if any(windows) and not is_whole and config._attn_implementation != "flex_attention":
        real = torch.ones(1, 1) if prompt_mask is None else prompt_mask.bool()
        if bool((real[:, 1:] >= real[:, :-1]).all()):
            # Layers without a window use a `DynamicLayer`. Layers with a window of 0 tokens also use a
            # `DynamicLayer`, because a `DynamicSlidingWindowLayer(1)` would cache all tokens too.
            own.layers = [
                DynamicSlidingWindowLayer(window + 1) if window else DynamicLayer() for window in windows
            ]
    return EncoderDecoderCache(own, DynamicCache()) if config.is_encoder_decoder else own


# Beam search


def tree_masks(
    attentions: Sequence[Any],
    mask: torch.Tensor,  # [N, T, M], hides the tokens of other beams
    query_positions: torch.Tensor,  # [N, T or 1]
    key_positions: torch.Tensor | None,  # [N, M]
) -> list[torch.Tensor]:
    """Return an additive mask [N, 1, T, M] for each layer. T is the number of queries, and M the number of
    tokens in the `TreeKVCache`.
    """
    made: dict[LocalMask | None, torch.Tensor] = {None: mask[:, None]}
    masks = []
    for attention in attentions:
        allowed = attention.local_mask if key_positions is not None else None
        if allowed not in made and allowed is not None and key_positions is not None:
            near = allowed(query_positions[:, :, None], key_positions[:, None])  # [N, T, M]
            # Use `masked_fill` instead of the sum of two masks, because the lowest finite number plus itself
            # is -inf.
            made[allowed] = mask.masked_fill(~near, torch.finfo(mask.dtype).min)[:, None]
        masks.append(made[allowed])
    return masks
