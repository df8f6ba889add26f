"""Multi-head attention (Section 3.2) with its masks, score functions and caches.

All parts of the package compute attention with `VaswaniAttention` or a subclass. A subclass may override
`scores` to change the score function, and define `local_mask` to change the mask. Training, cached decoding,
the search, the coverage penalty and the word alignments use the score function and the mask of the subclass.
A fused kernel is used only if the kernel can compute this score function and this mask.

If the config field `attention_window` is r, a token attends only to tokens that are at most r tokens away
(Section 4). The config fields `attention_score` and `cross_attention_score` select the function that computes
a score from the query q and the key k of a head:

- "scaled_dot": the dot product q k / sqrt(d_k), as in Equation 1 of the paper (Section 3.2.1).
- "dot": the dot product q k, Luong et al. 2015 (arXiv 1508.04025), Section 3.1.
- "dot_mean": q k / d_k, the mean over the features, Yang et al. 2022 (arXiv 2203.03466), Definition 4.1.
- "general": q W k with a learned matrix W per head, Luong et al. 2015, Section 3.1.
- "additive_linear": w_q q + w_k k with two learned vectors w_q and w_k per head, Veličković et al. 2018
  (arXiv 1710.10903), Equation 3 without its LeakyReLU. The attention weights do not depend on the query,
  because w_q q is equal for all keys and cancels in the softmax.
- "additive": v tanh(W q + U k) with learned matrices W and U and a learned vector v per head, Bahdanau et al.
  2015 (arXiv 1409.0473), A.1.2.

Every fused kernel can compute "scaled_dot", "dot" and "dot_mean", because each of these scores is the dot
product times a constant. For "general", `GeneralAttention` multiplies the query by W before the kernel
computes the dot product. No fused kernel can compute "additive_linear" or "additive". To add a score
function, call `register_attention`. The learned parameters of a built-in score function start with values
that give scores a variance of about 1, if the features of queries and keys have a variance of 1.

This file is saved with every checkpoint because the models compute attention with `VaswaniAttention`.

Section and equation numbers refer to "Attention Is All You Need" (arXiv 1706.03762). In tensor shapes, B is
the batch size, S the source length (or the number of keys), T the target length (or the number of queries), H
the number of heads, D the model width and K the width of the keys of a head. In beam search, N is the number
of sentences, and M the number of tokens in the tree of a sentence. The tree contains the tokens of all beams
of the sentence.
"""

# Turn off some mypy errors, because transformers annotates caches and masks with wider types than this file
# uses.

# mypy: disable-error-code="arg-type,union-attr"

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import is_tracing

from .configuration_vaswani import VaswaniConfig
from .errors_vaswani import InvalidValueError
from .extension_vaswani import ATTENTIONS

# A mask function. The arguments of a mask function are query positions and key positions (broadcastable int64
# tensors). A mask function returns True where the query may attend to the key.
LocalMask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# The minimum number of queries in a block of windowed attention. With fewer queries in a block, copying the
# keys would take longer than computing the attention.
SMALLEST_BLOCK = 64

# The name of the cache in model outputs and in the arguments of `forward`. transformers 5.24 renamed
# `past_key_values` to `cache`.
CACHE_NAME = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"

# Device types that execute operations asynchronously. Reading a value of a tensor on such a device waits
# until all queued operations are finished.
QUEUING_DEVICES = ("cuda",)


# The methods that a fast path may replace. A fast path is faster code with the same result, such as a fused
# attention kernel or a decoding step without calls of `forward`.
_FAST_PATH_METHODS: set[Any] = {nn.Linear.forward, nn.LayerNorm.forward}


def fast_path(*methods: str) -> Callable[[type], type]:
    """Return a class decorator that permits faster code with the same result in place of the named methods.
    If a subclass overrides a named method, the method of the subclass is called instead of the faster code.
    """

    def register(kind: type) -> type:
        _FAST_PATH_METHODS.update(getattr(kind, name) for name in methods)
        return kind

    return register


def permits_fast_path(module: nn.Module, *methods: str) -> bool:
    """Return True if faster code with the same result may replace the named methods of a module. Return False
    if a subclass overrides a named method. For "forward", also return False if the module has hooks or is
    compiled.
    """
    for name in methods:
        if name in vars(module) or getattr(type(module), name) not in _FAST_PATH_METHODS:
            return False
    if "forward" not in methods:
        return True
    has_hooks = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
    return not has_hooks and module._compiled_call_impl is None


def are_plain(kind: type[nn.Module], *modules: nn.Module) -> bool:
    """Return True if the class of each module is exactly `kind` (not a subclass), and no module has hooks or
    is compiled.
    """
    return all(type(module) is kind and permits_fast_path(module, "forward") for module in modules)


def in_window(window: int, own: LocalMask | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a bool tensor that is True where the query is at most `window` tokens away from the key. If
    `own` is given, this mask function of the attention class must also return True.
    """
    near = (query - key).abs() <= window
    return near if own is None else near & own(query, key)


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a boolean mask to an additive mask for attention scores: 0 where `visible` is True, else the
    lowest finite number of `dtype`.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


@dataclass
class Blocks:
    """The mask of an attention layer with a window, for a sequence that is divided into N blocks of W
    queries.

    A block attends only to C keys: the keys in the windows of its queries. Therefore the time and the memory
    of attention grow linearly with the sequence length.

    `mask` is [B * N, 1, W, C] bool. The first `num_before` of the C keys of a block come before the first
    query of the block.
    """

    mask: torch.Tensor
    num_before: int

    def to(self, *args, **kwargs) -> "Blocks":
        """Copy the mask to another device, because the layers of a model may be on several devices."""
        return Blocks(self.mask.to(*args, **kwargs), self.num_before)

    def attended(
        self,
        kernel: Callable,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs,
    ) -> torch.Tensor:
        """Compute the attention of all blocks with a kernel. Return the output [B, T, H, d_v].

        `query` and `key` are [B, H, T, K], and `value` is [B, H, T, d_v].
        """
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
    """Return the mask of an attention layer with a window: a `Blocks` object, a bool tensor [B or 1, 1, T,
    S], or a bool tensor [B, S] for flash kernels.

    `states` [B, T, D] are the hidden states of the new tokens. `cache`, if given, contains the keys of
    earlier tokens. `attention_mask` [B, S] is nonzero for real tokens. Padding does not count in the distance
    between two tokens. A flash kernel needs no mask (None) if there is no padding. If `is_recorded` is True,
    return a mask for eager attention, because only eager attention returns attention weights.
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
    # Do not use blocks in an exported graph, because the number of blocks depends on the sequence length.
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
    """Return the number of tokens in the window of a query, without the token of the query."""
    return attention.window if attention.is_causal else 2 * attention.window


def _window_blocks(attention: Any, states: torch.Tensor, real: torch.Tensor | None) -> Blocks:
    """Return the mask for `states` [B, T, D], divided into blocks. `real` [B, T] is False for padding. No
    padding may lie between two tokens.
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
    # The positions of the keys of a block, relative to the first query of the block.
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


def needs_sync(tensor: torch.Tensor) -> bool:
    """Return True if reading a value of the tensor makes the CPU wait for the GPU."""
    return tensor.device.type in QUEUING_DEVICES


def has_gaps(real: torch.Tensor | None) -> bool:
    """Return True if padding lies between two real tokens of a row."""
    if real is None or real.device.type == "meta" or is_tracing(real):
        return False
    real = real.bool()
    return bool(((real[:, 1:] & ~real[:, :-1]).sum(dim=1) + real[:, 0] > 1).any())


def decoding_cache(config: Any, prompt_mask: torch.Tensor | None = None, is_whole: bool = False) -> Cache:
    """Return an empty cache for the decoder. Layers with a window of r tokens cache only the last r tokens.

    If `is_whole` is True, all layers cache all tokens. If `prompt_mask` [B, P] has padding after a token, all
    layers cache all tokens, because the last r entries of a prompt could be padding. If the model uses flex
    attention, all layers cache all tokens, because flex attention needs the same number of keys in all
    layers.
    """
    own = DynamicCache()
    windows = config.windows_of(is_causal=True)
    if any(windows) and not is_whole and config._attn_implementation != "flex_attention":
        real = torch.ones(1, 1) if prompt_mask is None else prompt_mask.bool()
        if bool((real[:, 1:] >= real[:, :-1]).all()):
            # Use a `DynamicLayer` for a window of 0 tokens. A `DynamicSlidingWindowLayer` with a size of one
            # token would also cache all tokens.
            own.layers = [
                DynamicSlidingWindowLayer(window + 1) if window else DynamicLayer() for window in windows
            ]
    return EncoderDecoderCache(own, DynamicCache()) if config.is_encoder_decoder else own


class AttentionRecorder:
    """Records the cross-attention weights of selected decoder layers. The selected layers compute the weights
    without a fused kernel, because fused kernels return no weights.

    Pass a recorder to the model as `attention_recorder=`. The attribute `weights` maps the index of a layer
    (counted from 0) to attention weights [B, T, S] float32, averaged over the heads. The weights of each
    target token add up to 1.
    """

    def __init__(self, layers: Collection[int]):
        self.layers = frozenset(layers)
        self.weights: dict[int, torch.Tensor] = {}

    def record(self, layer_idx: int, weights: torch.Tensor) -> None:
        """Store the attention weights [B, H, T, S] of a layer, averaged over the heads."""
        self.weights[layer_idx] = weights.float().mean(dim=1)


def infer_mask(input_ids: torch.Tensor, pad_token_id: int, shared_with: str | None = None) -> torch.Tensor:
    """Return the attention mask [B, S] bool for `input_ids` [B, S]. The mask is False for padding.

    `shared_with="end"` is for models whose `<pad>` and `</s>` have the same id: the first `<pad>` after a
    token counts as `</s>`. `shared_with="start"` is for models whose `<pad>` and start token have the same
    id: the last `<pad>` before the first token counts as the start token.
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

    `attention_mask` [B, S] includes the cached tokens and is nonzero for real tokens. With a static cache,
    `generate` passes a causal mask [B, 1, T, S] instead; in this case `is_causal` must be True. Without such
    a mask the padding is unknown. Padding then counts like a real token, and the first position is
    `past_length`.
    """
    length = states.shape[1]
    if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2:
        return (attention_mask.bool().cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]
    if isinstance(attention_mask, torch.Tensor) and is_causal:
        visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask.eq(0)
        return (visible[:, 0].sum(dim=-1) - 1).clamp(min=0)
    return (torch.arange(length, device=states.device) + past_length).unsqueeze(0)


def attention_masks(
    attentions: Sequence["VaswaniAttention"],
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
    is_recorded: bool = False,
) -> list[Any]:
    """Return one mask for each attention layer of an encoder or a decoder. The masks hide padding. The masks
    of causal self-attention also hide later tokens.

    Each mask has the form that the attention implementation of the layer needs. Queries come from
    `inputs_embeds` [B, T, D]. `attention_mask` [B, S] includes the cached tokens and is nonzero for real
    tokens. An `attention_mask` [B, 1, T, S] is used unchanged. If `encoder_hidden_states` [B, S, D] is given,
    return masks for cross-attention. `encoder_hidden_states` may have one row for each sentence instead of
    one row for each beam. If `is_recorded` is True, return masks for eager attention, because only eager
    attention returns attention weights.
    """
    own_cache = past_key_values
    if isinstance(past_key_values, EncoderDecoderCache):
        own_cache = past_key_values.self_attention_cache
    implementations = ["eager" if is_recorded else attention.implementation for attention in attentions]
    is_plain = {"eager", "sdpa"}.issuperset(implementations) and all(
        attention.local_mask is None for attention in attentions
    )
    if (
        past_key_values is None
        and is_plain
        and needs_sync(inputs_embeds)
        and getattr(attention_mask, "ndim", 0) == 2
    ):
        return [_mask_without_reading(attention_mask, attentions[0].is_causal)] * len(attentions)
    is_cross = encoder_hidden_states is not None
    shares_sources = is_cross and encoder_hidden_states.shape[0] != inputs_embeds.shape[0]
    # A mask with four dimensions means that `generate` uses a static cache. A mask for a static cache must
    # have one column for each position of the cache.
    is_static = getattr(attention_mask, "ndim", 2) == 4 or (
        not is_cross and getattr(own_cache, "is_compileable", False)
    )
    made: dict[Any, Any] = {}
    masks = []
    for attention, implementation in zip(attentions, implementations, strict=True):
        if implementation == "flex_attention" and shares_sources:
            # Use sdpa instead of flex attention, because flex attention does not support several beams that
            # share one row of the encoder's output.
            implementation = "sdpa"
        # Cross-attention has no window.
        allowed = None if is_cross else attention.local_mask
        kind = (implementation, getattr(allowed, "args", allowed))
        if kind not in made:
            has_window = attention.window is not None and not is_static
            is_flex = implementation == "flex_attention"
            # Create an additive mask if padding lies between tokens. The masks of flex attention would be
            # wrong, because they compare indices in the padded row instead of positions of tokens.
            if has_window and is_flex and has_gaps(attention_mask):
                mask = window_mask(attention, inputs_embeds, attention_mask, own_cache, is_recorded)
                made[kind] = additive_mask(mask, inputs_embeds.dtype)
            elif has_window and not is_flex:
                made[kind] = window_mask(attention, inputs_embeds, attention_mask, own_cache, is_recorded)
            else:
                made[kind] = _transformers_mask(
                    attention, implementation, inputs_embeds, attention_mask, own_cache, encoder_hidden_states
                )
        masks.append(made[kind])
    return masks


def _mask_without_reading(mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Expand a mask [B, S] to [B, 1, 1 or T, S] without reading its values, because reading values makes the
    CPU wait for the GPU.
    """
    visible = mask.bool()[:, None, None]
    return visible & visible.new_ones(mask.shape[1], mask.shape[1]).tril() if is_causal else visible


def _transformers_mask(
    attention: "VaswaniAttention",
    implementation: str,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    own_cache: Cache | None,
    encoder_hidden_states: torch.Tensor | None,
) -> Any:
    """Create a mask with a function of transformers. The mask also hides the keys that `local_mask` hides."""
    config = attention.config
    if implementation != config._attn_implementation:
        config = copy.copy(config)
        config._attn_implementation = implementation
    if encoder_hidden_states is not None:
        return create_bidirectional_mask(
            config=config,
            inputs_embeds=inputs_embeds[: encoder_hidden_states.shape[0]],
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
    allowed = attention.local_mask
    and_mask = None if allowed is None else lambda batch, head, query, key: allowed(query, key)
    if not attention.is_causal:
        return create_bidirectional_mask(
            config=config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            and_mask_function=and_mask,
        )
    return create_causal_mask(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        **{CACHE_NAME: own_cache},
        and_mask_function=and_mask,
    )


def tree_masks(
    attentions: Sequence["VaswaniAttention"],
    mask: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor | None,
) -> list[torch.Tensor]:
    """Return an additive mask [N, 1, T, M] for each self-attention layer of the decoder. The keys are the
    tokens in the tree of a sentence.

    `mask` [N, T, M] hides the tokens of other beams. `query_positions` are [N, T or 1], and `key_positions`
    are [N, M].
    """
    made: dict[Any, torch.Tensor] = {None: mask[:, None]}
    masks = []
    for attention in attentions:
        allowed = attention.local_mask if key_positions is not None else None
        kind = getattr(allowed, "args", allowed)
        if kind not in made and allowed is not None and key_positions is not None:
            near = allowed(query_positions[:, :, None], key_positions[:, None])  # [N, T, M]
            # Use `masked_fill` instead of the sum of two masks, because the lowest finite number plus itself
            # is -inf.
            made[kind] = mask.masked_fill(~near, torch.finfo(mask.dtype).min)[:, None]
        masks.append(made[kind])
    return masks


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
    """Compute attention without a fused kernel. Return the output softmax(scores(Q, K)) V [B, T, H, d_v]
    (Equation 1), and the attention weights [B, H, T, S].
    """
    weights = module.weights(query, key, attention_mask).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


@fast_path("scores", "weights", "forward", "attend", "keys_and_values")
class VaswaniAttention(nn.Module):
    """Multi-head attention (Section 3.2.2): Concat(head_1 … head_h) W^O.

    To use another score function, write a subclass of `VaswaniAttention` and pass the subclass to
    `register_attention`.

    Args:
        config (VaswaniConfig): The config of the model.
        num_heads (int): Number h of heads.
        layer_idx (int): The index of the layer in its stack, counted from 0.
        is_causal (bool): True for self-attention of a decoder.
        is_cross (bool): True for cross-attention.

    Example:
        >>> import torch
        >>> from vaswani_hf import VaswaniAttention, VaswaniConfig
        >>> attention = VaswaniAttention(VaswaniConfig(vocab_size=9, d_model=16), num_heads=2, layer_idx=0)
        >>> attention(torch.zeros(1, 5, 16))[0].shape
        torch.Size([1, 5, 16])
    """

    # A subclass may define a method `local_mask(query_positions, key_positions)` that restricts
    # self-attention to some pairs of tokens. The arguments are broadcastable int64 tensors. The result of
    # `local_mask` may depend only on the difference between query position and key position, because padding
    # shifts the positions of a row.
    local_mask: LocalMask | None = None

    def __init__(
        self,
        config: VaswaniConfig,
        num_heads: int,
        layer_idx: int,
        is_causal: bool = False,
        is_cross: bool = False,
    ):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.d_k = config.d_k or config.d_model // num_heads
        self.d_v = config.d_v or config.d_model // num_heads
        factors = {"dot": 1.0, "general": 1.0, "dot_mean": 1 / self.d_k}
        self.scaling = factors.get(config.score_of(is_cross), self.d_k**-0.5)
        # Cross-attention has no window.
        self.window = None if is_cross else config.windows_of(is_causal)[layer_idx]
        if self.window is not None:
            self.local_mask = partial(in_window, self.window, self.local_mask)
        self.attention_dropout = config.attention_dropout
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=bias)
        self.k_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=bias)
        self.v_proj = nn.Linear(config.d_model, num_heads * self.d_v, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.d_v, config.d_model, bias=bias)

    @property
    def supports_fused_kernel(self) -> bool:
        """True if a fused kernel may compute softmax(factor * QK^T) instead of the method `weights`."""
        return permits_fast_path(self, "scores", "weights")

    @property
    def supports_fast_path(self) -> bool:
        """True if the search may compute a decoding step with the faster `AttentionStep` instead of
        `forward`.
        """
        return permits_fast_path(self, "forward", "attend", "keys_and_values") and are_plain(
            nn.Linear, self.q_proj, self.k_proj, self.v_proj, self.out_proj
        )

    @property
    def implementation(self) -> str:
        """The attention implementation of the config, such as "sdpa", or "eager" if no fused kernel can
        compute the scores.
        """
        return self.config._attn_implementation if self.supports_fused_kernel else "eager"

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return the scores QK^T * `scaling` [B, H, T, S] of queries Q [B, H, T, K] and keys K [B, H, S, K].
        The factor `scaling` is 1 / sqrt(d_k) for "scaled_dot" (Section 3.2.1).
        """
        return torch.matmul(query, key.transpose(2, 3)) * self.scaling

    def weights(
        self, query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the attention weights: the softmax [B, H, T, S] of the masked scores, in float32 or float64.
        The weights of each query add up to 1.

        `attention_mask` is boolean or additive. `attention_mask` has the shape [B, S], or a shape that
        broadcasts to [B, H, T, S].
        """
        scores = self.scores(query, key)  # [B, H, T, S]
        expected = (*query.shape[:3], key.shape[2])
        if scores.shape != expected:
            # Check the shape, because a smaller shape would broadcast to wrong weights without an error.
            raise InvalidValueError(
                f"`{type(self).__name__}.scores` must return the shape [B, H, T, S] = {list(expected)}, but "
                f"returns the shape {list(scores.shape)}; queries have the shape {list(query.shape)}, and "
                f"keys have the shape {list(key.shape)}."
            )
        if attention_mask is not None:
            mask = attention_mask[:, None, None] if attention_mask.dim() == 2 else attention_mask
            if mask.is_floating_point():
                scores = scores + mask
            else:
                scores = scores.masked_fill(~mask.bool(), torch.finfo(scores.dtype).min)
        return nn.functional.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        attention_recorder: AttentionRecorder | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention. Return the output [B, T, D], and the attention weights [B, H, T, S] or None.

        Queries come from `hidden_states` [B, T, D]. In cross-attention, keys and values come from the
        encoder's output `key_value_states` [B, S, D]. `key_value_states` may have one row for each sentence
        instead of one row for each beam.
        """
        batch_shape = hidden_states.shape[:-1]
        query = self.q_proj(hidden_states).view(*batch_shape, -1, self.d_k).transpose(1, 2)  # [B, H, T, K]
        key, value = self.keys_and_values(
            hidden_states, key_value_states, past_key_values
        )  # [B, H, S, K], [B, H, S, d_v]
        recorder = None if key_value_states is None else attention_recorder
        output, weights = self.attend(query, key, value, attention_mask, recorder, **kwargs)  # [B, T, H, d_v]
        return self.out_proj(output.reshape(*batch_shape, -1)), weights  # [B, T, D]

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        recorder: AttentionRecorder | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weighted sums of the values [B, T, H, d_v], and the attention weights [B, H, T, S] or
        None.

        If `output_attentions` is True, use eager attention, because fused kernels return no attention
        weights. Queries [B, H, T, K] have one row for each beam. Keys [B, H, S, K] and values [B, H, S, d_v]
        have one row for each beam, or one row for each sentence.
        """
        # Use `shape[0]` instead of `len`, because `len` would fix the batch size in an exported graph.
        num_rows = query.shape[0]
        length = query.shape[2]
        implementation = "eager" if output_attentions else self.implementation
        if key.shape[0] != num_rows:
            if implementation == "flex_attention":
                implementation = "sdpa"
            # Merge the beams of a sentence into one row: [B, H, T, K] to [B / beams, H, beams * T, K].
            query = query.unflatten(0, (key.shape[0], -1)).transpose(1, 2).flatten(2, 3)
            if (
                isinstance(attention_mask, torch.Tensor)
                and attention_mask.dim() == 4
                and attention_mask.shape[2] > 1
            ):
                attention_mask = attention_mask.repeat(1, 1, query.shape[2] // length, 1)
        if recorder is not None and self.layer_idx in recorder.layers:
            recorded = self.weights(query, key, attention_mask)
            recorder.record(self.layer_idx, _split_beams(recorded, num_rows, length))
        output, weights = self._run_kernel(implementation, query, key, value, attention_mask, **kwargs)
        if output.shape[0] != num_rows:
            output = output.unflatten(1, (-1, length)).flatten(0, 1)
        if weights is not None:
            weights = _split_beams(weights, num_rows, length)
        return output, weights

    def _run_kernel(
        self,
        implementation: str | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention with the function that transformers registers for an attention implementation."""
        kernel: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        settings: dict[str, Any] = {
            "dropout": self.attention_dropout if self.training else 0.0,
            "scaling": self.scaling,
            **kwargs,
        }
        if "flash" in (implementation or ""):
            # Pad keys or values with zeros, because flash kernels need keys and values of equal width.
            if self.d_v < self.d_k:
                value = nn.functional.pad(value, (0, self.d_k - self.d_v))
            elif self.d_k < self.d_v:
                query = nn.functional.pad(query, (0, self.d_v - self.d_k))
                key = nn.functional.pad(key, (0, self.d_v - self.d_k))
            if self.window is not None:
                # Add 1, because in transformers the window includes the token of the query.
                settings["sliding_window"] = self.window + 1
        is_in_slow_dtype = query.dtype == torch.bfloat16 and query.device.type == "cpu"
        if isinstance(attention_mask, Blocks):
            output = attention_mask.attended(kernel, self, query, key, value, **settings)
            weights = None
        elif implementation == "sdpa" and self.training and is_in_slow_dtype:
            # Compute attention in float32, because the backward pass of PyTorch's CPU kernel is 14 times
            # slower in bfloat16 (126 ms against 9 ms in one measurement).
            if getattr(attention_mask, "dtype", None) == torch.bfloat16:
                attention_mask = attention_mask.float()
            with torch.autocast("cpu", enabled=False):
                output, weights = kernel(
                    self, query.float(), key.float(), value.float(), attention_mask, **settings
                )
            output = output.to(query.dtype)
        else:
            output, weights = kernel(self, query, key, value, attention_mask, **settings)
        return output[..., : self.d_v], weights

    def attend_fused(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any
    ) -> torch.Tensor:
        """Return the same weighted sums of the values as `attend`, computed with PyTorch's fused kernel. Call
        `attend_fused` only if `supports_fused_kernel` is True. The mask must be additive.
        """
        return nn.functional.scaled_dot_product_attention(
            query, key, value, mask, scale=self.scaling
        ).transpose(1, 2)

    def keys_and_values(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys [B, H, S, K] and values [B, H, S, d_v] of the tokens in the cache and of the new
        tokens. Add the keys and values of the new tokens to the cache.
        """
        is_cross = key_value_states is not None
        states = key_value_states if is_cross else hidden_states
        is_pair = isinstance(past_key_values, EncoderDecoderCache)
        if is_cross and is_pair and past_key_values.is_updated.get(self.layer_idx):
            layer: Any = past_key_values.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        key = self.k_proj(states).view(*states.shape[:-1], -1, self.d_k).transpose(1, 2)
        value = self.v_proj(states).view(*states.shape[:-1], -1, self.d_v).transpose(1, 2)
        # A cache that is not an `EncoderDecoderCache` contains only the keys and values of self-attention.
        cache = None if is_cross else past_key_values
        if is_cross and is_pair:
            cache = past_key_values.cross_attention_cache
            past_key_values.is_updated[self.layer_idx] = True
        elif is_pair:
            cache = past_key_values.self_attention_cache
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return key, value


def _split_beams(weights: torch.Tensor, num_rows: int, length: int) -> torch.Tensor:
    """Return attention weights [B, H, T, S] with one row for each beam. A row of `weights` may contain all
    beams of a sentence.
    """
    if weights.shape[0] == num_rows:
        return weights
    return weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)


class LearnedScores(VaswaniAttention):
    """Base class of attention modules with learned parameters in the score function. The shape of a parameter
    is [H, number of values per head].
    """

    def __init__(self, config, num_heads, layer_idx, **kwargs):
        super().__init__(config, num_heads, layer_idx, **kwargs)
        for name, (numbers, _) in self.score_parameters().items():
            setattr(self, name, nn.Parameter(torch.empty(num_heads, numbers)))

    def score_parameters(self) -> dict[str, tuple[int, float]]:
        """Return a dict that maps the name of each parameter to two numbers: the number of values per head,
        and the reciprocal of the variance of the initial values.
        """
        raise NotImplementedError

    def init_scores(self) -> None:
        """Draw the initial values of the learned parameters from normal distributions."""
        for name, (_, inverse_variance) in self.score_parameters().items():
            init.normal_(getattr(self, name), std=inverse_variance**-0.5)


@fast_path("attend")
class GeneralAttention(LearnedScores):
    """Computes the score q W k of a query q and a key k. `score_weight` [H, K * K] contains the matrix W of
    each head.
    """

    def score_parameters(self):
        return {"score_weight": (self.d_k**2, self.d_k**2)}

    def projected(self, query: torch.Tensor) -> torch.Tensor:
        """Return the queries [B, H, T, K], multiplied by the matrix W of each head."""
        return torch.matmul(query, self.score_weight.view(-1, self.d_k, self.d_k))

    def attend(self, query, *args, **kwargs):
        return super().attend(self.projected(query), *args, **kwargs)

    def attend_fused(self, query, *args, **kwargs):
        return super().attend_fused(self.projected(query), *args, **kwargs)


class AdditiveLinearAttention(LearnedScores):
    """Computes the score w_q q + w_k k of a query q and a key k. `score_query` [H, K] contains w_q, and
    `score_key` [H, K] contains w_k.
    """

    def score_parameters(self):
        return {"score_query": (self.d_k, 2 * self.d_k), "score_key": (self.d_k, 2 * self.d_k)}

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        of_query = torch.matmul(query, self.score_query[..., None])  # [B, H, T, 1]
        of_key = torch.matmul(key, self.score_key[..., None])  # [B, H, S, 1]
        return of_query + of_key.transpose(2, 3)


class AdditiveAttention(LearnedScores):
    """Computes the score v tanh(W q + U k) of a query q and a key k. `score_vector` [H, K] contains v.
    `score_query` [H, K * K] contains W, and `score_key` [H, K * K] contains U.
    """

    def score_parameters(self):
        return {
            "score_query": (self.d_k**2, 2 * self.d_k),
            "score_key": (self.d_k**2, 2 * self.d_k),
            # The factor 0.39 is the mean of tanh(x)^2 if x has a normal distribution with variance 1.
            "score_vector": (self.d_k, 0.39 * self.d_k),
        }

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        query = torch.matmul(query, self.score_query.view(-1, self.d_k, self.d_k))  # [B, H, T, K]
        key = torch.matmul(key, self.score_key.view(-1, self.d_k, self.d_k))  # [B, H, S, K]
        summed = (query.unsqueeze(3) + key.unsqueeze(2)).tanh_()  # [B, H, T, S, K]
        return torch.matmul(summed, self.score_vector[:, None, :, None]).squeeze(-1)  # [B, H, T, S]


# The attention classes of the built-in score functions.
_BUILT_IN = {
    "scaled_dot": VaswaniAttention,
    "dot": VaswaniAttention,
    "dot_mean": VaswaniAttention,
    "general": GeneralAttention,
    "additive_linear": AdditiveLinearAttention,
    "additive": AdditiveAttention,
}


def register_attention(name: str, attention_class: type[VaswaniAttention]) -> None:
    """Register a new score function for attention. After the call, the config fields `attention_score` and
    `cross_attention_score` accept the new name.

    A model with the new name in its config uses the class in training and in the search. A checkpoint with
    the new name contains the Python file that defines the class. To load such a checkpoint, call
    `register_attention` first, or pass `trust_remote_code=True` in a Python process that has not imported the
    package.

    Args:
        name (str): The name of the score function in configs. The name must not be the name of a built-in
            score function.
        attention_class (type): A subclass of `VaswaniAttention`, defined at the top level of a Python file.
            The class may override `scores(query, key)`, which maps queries [B, H, T, K] and keys [B, H, S, K]
            to scores [B, H, T, S]. The class may also define `local_mask`. `scores` may use `self.scaling`,
            which is 1 / sqrt(d_k). The class must create its parameters in `__init__`, and may set their
            initial values in a method `init_scores()`.

    Raises:
        ValueError: If the name is built in or registered for another class, or if the class is not a subclass
            of `VaswaniAttention`.

    Example:
        >>> import torch
        >>> from vaswani_hf import VaswaniAttention, VaswaniConfig, register_attention
        >>> class DistanceAttention(VaswaniAttention):
        ...     def scores(self, query, key):
        ...         return -torch.cdist(query, key) * self.scaling
        >>> register_attention("distance", DistanceAttention)
        >>> VaswaniConfig(attention_score="distance").attention_score
        'distance'
    """
    ATTENTIONS.add(name, attention_class, VaswaniAttention)


def attention_class(config: VaswaniConfig, is_cross: bool = False) -> type[VaswaniAttention]:
    """Return the class for the score function of a config: `cross_attention_score` if `is_cross` is True,
    else `attention_score`.
    """
    name = config.score_of(is_cross)
    return _BUILT_IN[name] if name in _BUILT_IN else ATTENTIONS.classes[name]


def can_be_fused(kind: type[VaswaniAttention]) -> bool:
    """Return True if a fused kernel can compute the scores of an attention class."""
    return {kind.scores, kind.weights} <= _FAST_PATH_METHODS
