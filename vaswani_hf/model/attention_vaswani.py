"""Attention: the one place where masks, scores, weights and the cache of keys and values meet.

This file travels with every checkpoint because encoder, decoder, search and alignments attend through it and nothing else.
Another score function overrides `VaswaniAttention.scores`, another mask defines its `local_mask` (those that a config names
are in score_functions_vaswani and window_vaswani); training, cached decoding, the search's tree, coverage and alignments then
follow, and shortcuts that do not know it are not taken. Sections and equations are those of "Attention Is All You Need" (arXiv
1706.03762). Letters of shapes: B batch, S source length, T target length, H heads, D model width, K key width per head; in the
search N sentences and M tokens of the tree.
"""

# transformers types caches and masks more widely than they come here.
# mypy: disable-error-code="arg-type,union-attr"

import copy
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vaswani import VaswaniConfig
from .window_vaswani import Blocks, additive_mask, has_gaps, in_window, needs_sync, window_mask

# Query positions and key positions, broadcastable to each other, to True where the one may attend to the other.
LocalMask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class AttentionRecorder:
    """Cross-attention weights of chosen decoder layers (numbers from 0), which fused kernels do not give.

    A call of the model takes it as `attention_recorder=`; nothing is attached to the model, so that other threads do not see
    it. `weights` by layer are [B, T, S] float32, the mean over the heads; each row adds up to 1.
    """

    def __init__(self, layers: Collection[int]):
        self.layers = frozenset(layers)
        self.weights: dict[int, torch.Tensor] = {}

    def record(self, layer_idx: int, weights: torch.Tensor) -> None:
        """Keep the weights [B, H, T, S] of a layer."""
        self.weights[layer_idx] = weights.float().mean(dim=1)


def infer_mask(input_ids: torch.Tensor, pad_token_id: int, shared_with: str | None = None) -> torch.Tensor:
    """The attention mask [B, S] bool that the padding tokens among `input_ids` [B, S] imply, True for real tokens.

    It is `shared_with` the "end" where `</s>` has the same id, so that the first one after a token is no padding, with the
    "start" where the decoder's start has it, so that the last one before a token is none.
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
    """Positions [B or 1, T] that count real tokens only: the first real token of each row, and padding before it, has 0.

    The mask is [B, S] with the cached tokens, nonzero for real ones; or one [B, 1, T, S] that `is_causal`, bool or additive,
    as `generate` makes one for a static cache. With any other all tokens [B, T, D] count, and `past_length` before them.
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
    """The masks of a stack: padding is hidden, and from the decoder's own tokens the later ones too (Section 3.2.3).

    For each attention of a stack the mask that its implementation takes; those with the same implementation and neighbourhood
    share one. Queries come from `inputs_embeds` [B, T, D]; the mask [B, S] is nonzero for real tokens, in self-attention with
    the cached ones. With `encoder_hidden_states` [B or B/K, S, D] it is for cross-attention; K beams of a sentence may share
    one source, which then has one mask. Weights that are recorded are those of all pairs, also where a window hides most;
    a mask [B, 1, T, S] is taken as it is, also where there is a window.
    """
    if past_key_values is None and needs_sync(inputs_embeds) and _are_plain(attentions, attention_mask):
        return [_unread_mask(attention_mask, attentions[0].is_causal)] * len(attentions)
    given: dict[str, Any] = {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
    create: Callable = create_bidirectional_mask
    if encoder_hidden_states is not None:
        given["inputs_embeds"] = inputs_embeds[: encoder_hidden_states.shape[0]]
        given["encoder_hidden_states"] = encoder_hidden_states
    elif attentions[0].is_causal:
        is_pair = isinstance(past_key_values, EncoderDecoderCache)
        given["past_key_values"] = past_key_values.self_attention_cache if is_pair else past_key_values
        create = create_causal_mask
    cache = given.get("past_key_values")
    is_static = getattr(attention_mask, "ndim", 2) == 4 or getattr(cache, "is_compileable", False)
    made: dict[Any, Any] = {}
    masks = []
    for attention in attentions:
        implementation = attention.implementation
        if implementation == "flex_attention" and given["inputs_embeds"].shape[0] != inputs_embeds.shape[0]:
            # Its masks know no positions that are rows.
            implementation = "sdpa"
        # Cross-attention sees the whole source.
        allowed = attention.local_mask if encoder_hidden_states is None else None
        kind, is_flex = (implementation, getattr(allowed, "args", allowed)), implementation == "flex_attention"
        is_local = attention.window is not None and not is_static
        # Flex attention knows places and no positions.
        if kind not in made and is_local and (not is_flex or has_gaps(attention_mask)):
            mask = window_mask(attention, inputs_embeds, attention_mask, cache, is_recorded)
            made[kind] = additive_mask(mask, inputs_embeds.dtype) if is_flex else mask
        elif kind not in made:
            config = attention.config
            if implementation != config._attn_implementation:
                config = copy.copy(config)
                config._attn_implementation = implementation
            near = {"and_mask_function": lambda *places, near=allowed: near(*places[2:])} if allowed else {}
            made[kind] = create(config=config, **given, **near)
        masks.append(made[kind])
    return masks


def _are_plain(attentions: Sequence["VaswaniAttention"], mask: torch.Tensor | None) -> bool:
    of_all = all(one.implementation in ("eager", "sdpa") and one.local_mask is None for one in attentions)
    return of_all and getattr(mask, "ndim", 0) == 2


def _unread_mask(mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """The mask [B, 1, 1 or T, S] that [B, S] comes to; transformers would wait to see if it hides anything."""
    visible = mask.bool()[:, None, None]
    return visible & visible.new_ones(mask.shape[1], mask.shape[1]).tril() if is_causal else visible


def tree_masks(
    attentions: Sequence["VaswaniAttention"],
    mask: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor | None,
) -> list[torch.Tensor]:
    """For each decoder self-attention the additive mask [N, 1, T, M] over a tree of tokens.

    `mask` [N, T, M] hides the tokens that are not before each new one; positions are [N, T or 1] and [N, M].
    """
    made: dict[Any, torch.Tensor] = {None: mask[:, None]}
    masks = []
    for attention in attentions:
        allowed = attention.local_mask if key_positions is not None else None
        kind = getattr(allowed, "args", allowed)
        if kind not in made and allowed is not None and key_positions is not None:
            near = allowed(query_positions[:, :, None], key_positions[:, None])
            # The sum of two smallest numbers would be -inf.
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
    """Attention(Q, K, V) = softmax(scores(Q, K)) V, Section 3.2.1, Eq. (1): values [B, T, H, d_v], weights [B, H, T, S].

    The arguments are those of transformers' attention functions; `module.weights` is the softmax and knows the scaling.
    """
    weights = module.weights(query, key, attention_mask).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class VaswaniAttention(nn.Module):
    """Multi-head attention, Section 3.2.2: Concat(head_1 … head_h) W^O with head_i = Attention(QW_i^Q, KW_i^K, VW_i^V)."""

    # None for all pairs of positions that the order allows; a subclass may narrow self-attention down by a method of query
    # and key positions (int64, broadcastable), True where one may attend. Only their difference may matter: padding shifts both.
    local_mask: LocalMask | None = None

    def __init__(
        self, config: VaswaniConfig, num_heads: int, layer_idx: int, is_causal: bool = False, is_cross: bool = False
    ):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, is_causal
        self.d_k = config.d_k or config.d_model // num_heads
        self.d_v = config.d_v or config.d_model // num_heads
        factors = {"scaled_dot": self.d_k**-0.5, "dot_mean": 1 / self.d_k}
        self.scaling = factors.get(config.score_of(is_cross), 1.0)
        # Cross-attention sees the whole source.
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
    def may_fuse(self) -> bool:
        """Fused kernels may take the place of `weights`: they know the softmax of QK^T times a factor and no other scores.

        False for a class with scores or weights of its own, unless it says otherwise.
        """
        return _is_declared(self, "scores", "weights")

    @property
    def may_step(self) -> bool:
        """A step without calls of modules may take the place of `forward`.

        False for a class with a forward of its own, unless it says otherwise, and where something was put around or in
        place of a projection.
        """
        projections = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        own = _is_declared(self, "forward", "attend", "keys_and_values") and is_untouched(self)
        return own and all(type(projection) is nn.Linear and is_untouched(projection) for projection in projections)

    @property
    def implementation(self) -> str:
        """The attention implementation of transformers that computes this attention: the config's, if it can."""
        return self.config._attn_implementation if self.may_fuse else "eager"

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """QK^T / sqrt(d_k), Section 3.2.1, or another factor: [B, H, T, S] for queries [B, H, T, K] and keys [B, H, S, K]."""
        return torch.matmul(query, key.transpose(2, 3)) * self.scaling

    def weights(self, query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """The softmax of the masked scores [B, H, T, S], in float32 or better; each row adds up to 1.

        The mask is [B, S], or broadcastable to [B, H, T, S]; bool, or additive.
        """
        scores = self.scores(query, key)
        if attention_mask is not None:
            mask = attention_mask[:, None, None] if attention_mask.dim() == 2 else attention_mask
            lowest = torch.finfo(scores.dtype).min
            scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask.bool(), lowest)
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
        """Attend from each position to those that the mask allows: [B, T, D], and the weights [B, H, T, S] where there are any.

        Queries come from `hidden_states` [B, T, D]; in cross-attention keys and values from `key_value_states`, the encoder's
        output [B, S, D], or [B/K, S, D] where every K rows, the beams of a sentence, have one source in common. The mask is
        the one that the implementation takes, which also gets `kwargs`; a watch gets the weights of a cross-attention.
        """
        batch_shape = hidden_states.shape[:-1]
        query = self.q_proj(hidden_states).view(*batch_shape, -1, self.d_k).transpose(1, 2)
        key, value = self.keys_and_values(hidden_states, key_value_states, past_key_values)
        watch = None if key_value_states is None else attention_recorder
        output, weights = self.attend(query, key, value, attention_mask, watch, **kwargs)
        return self.out_proj(output.reshape(*batch_shape, -1)), weights

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        watch: AttentionRecorder | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The weighted values [B, T, H, d_v], and the weights [B, H, T, S] where the implementation gives them.

        Keys [B, H, S, K] and values [B, H, S, d_v] may have fewer rows than the queries, K of which then share a source.
        """
        rows, length, implementation = query.shape[0], query.shape[2], self.implementation
        # `len` would fix the size in an exported graph.
        if key.shape[0] != rows:
            implementation = "sdpa" if implementation == "flex_attention" else implementation
            # Beams attend to their common source as positions of one row.
            query = query.unflatten(0, (key.shape[0], -1)).transpose(1, 2).flatten(2, 3)
            if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 4 and attention_mask.shape[2] > 1:
                attention_mask = attention_mask.repeat(1, 1, query.shape[2] // length, 1)
        if watch is not None and self.layer_idx in watch.layers:
            watched = self.weights(query, key, attention_mask)
            watch.record(self.layer_idx, _unfolded(watched, rows, length))
        # The flash kernels take one width for keys and values; added zeros change neither scores nor values.
        pad = self.d_k - self.d_v if "flash" in (implementation or "") else 0
        if pad > 0:
            value = nn.functional.pad(value, (0, pad))
        elif pad < 0:
            query, key = nn.functional.pad(query, (0, -pad)), nn.functional.pad(key, (0, -pad))
        kernel: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        dropout = self.attention_dropout if self.training else 0.0
        if self.window is not None and "flash" in (implementation or ""):
            # transformers counts the token itself.
            kwargs["sliding_window"] = self.window + 1
        settings = {"dropout": dropout, "scaling": self.scaling, **kwargs}
        is_slow = self.training and query.dtype == torch.bfloat16 and query.device.type == "cpu"
        if isinstance(attention_mask, Blocks):
            output, weights = attention_mask.attended(kernel, self, query, key, value, **settings), None
        elif is_slow and implementation == "sdpa":
            # The kernel's backward pass takes ten times as long in bfloat16 there (126 against 9 ms).
            is_half = getattr(attention_mask, "dtype", None) == torch.bfloat16
            mask = attention_mask.float() if is_half else attention_mask
            with torch.autocast("cpu", enabled=False):
                output, weights = kernel(self, query.float(), key.float(), value.float(), mask, **settings)
            output = output.to(query.dtype)
        else:
            output, weights = kernel(self, query, key, value, attention_mask, **settings)
        output = output[..., : self.d_v]
        if output.shape[0] != rows:
            output = output.unflatten(1, (-1, length)).flatten(0, 1)
        return output, None if weights is None else _unfolded(weights, rows, length)

    def attend_fused(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
        """`attend` by PyTorch's fused kernel itself, for an attention that declares `may_fuse` and an additive mask."""
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=self.scaling).transpose(1, 2)

    def keys_and_values(
        self, hidden_states: torch.Tensor, key_value_states: torch.Tensor | None, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, H, S, K] and values [B, H, S, d_v], from the cache, from these states, or both; see `forward`."""
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


# Shortcuts are declared for these very functions, so that whatever replaces one of them is computed the long way.
_DECLARED: set[Any] = set()


def declare_shortcuts(kind: type[VaswaniAttention], *names: str) -> None:
    """Let these methods of a class not stand in the way of shortcuts."""
    _DECLARED.update(vars(kind)[name] for name in names)


declare_shortcuts(VaswaniAttention, "scores", "weights", "forward", "attend", "keys_and_values")


def _is_declared(attention: VaswaniAttention, *names: str) -> bool:
    kind, own = type(attention), vars(attention)
    return all(getattr(kind, name) in _DECLARED and name not in own for name in names)


def is_untouched(module: nn.Module) -> bool:
    """No hook and no other forward, such as that of offloading, was put into a module itself."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not (any(hooks) or "forward" in vars(module))


def _unfolded(weights: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    """Weights [B, H, T, S] from those of B/K rows in which K beams are K * T positions."""
    return weights if weights.shape[0] == rows else weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
