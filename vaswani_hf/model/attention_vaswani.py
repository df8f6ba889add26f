"""Multi-head attention (Section 3.2) with its score functions. The file masks_vaswani contains the masks.

A subclass of `VaswaniAttention` can override `scores` to change the score function, and define `local_mask`
to change the mask. Training, the search, the coverage penalty and the word alignments call `scores` and
`local_mask` of the subclass. A fused kernel is used only if the kernel can compute the score function and the
mask.

If the config field `attention_window` is r, a token attends in self-attention only to tokens that are at most
r tokens away (Section 4). The config fields `attention_score` and `cross_attention_score` select the function
that computes a score from the query q and the key k of a head:

- "scaled_dot": the dot product q k / sqrt(d_k), as in Equation 1 of the paper (Section 3.2.1).
- "dot": the dot product q k, Luong et al. 2015 (arXiv 1508.04025), Section 3.1.
- "dot_mean": q k / d_k, the mean over the features, Yang et al. 2022 (arXiv 2203.03466), Definition 4.1.
- "general": q W k with a learned matrix W per head, Luong et al. 2015, Section 3.1.
- "additive_linear": w_q q + w_k k with two learned vectors w_q and w_k per head, Veličković et al. 2018
  (arXiv 1710.10903), Equation 3 without its LeakyReLU. With "additive_linear", the attention weights do not
  depend on the query, because w_q q is equal for all keys and cancels in the softmax.
- "additive": v tanh(W q + U k) with learned matrices W and U and a learned vector v per head, Bahdanau et al.
  2015 (arXiv 1409.0473), A.1.2.

Fused kernels can compute all score functions in this list except "additive_linear" and "additive". For
"general", `GeneralAttention` multiplies the query by W before the kernel computes the dot product. W, U, v,
w_q and w_k are initialised so that scores have a variance of about 1 if the elements of q and k have variance
1. `register_attention` adds a score function.

This file is saved with every checkpoint because the models compute attention with `VaswaniAttention`.

Section and equation numbers refer to "Attention Is All You Need" (arXiv 1706.03762). In tensor shapes, B is
the batch size, S the source length (or the number of keys), T the target length (or the number of queries), H
the number of heads, D the model width and K the width of the keys of a head.
"""

# Turn off some mypy errors, because transformers annotates caches with wider types than this file uses.

# mypy: disable-error-code="arg-type,union-attr"

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vaswani import VaswaniConfig
from .errors_vaswani import InvalidValueError
from .extension_vaswani import ATTENTIONS
from .fast_path_vaswani import are_plain, class_permits_fast_path, fast_path, permits_fast_path
from .masks_vaswani import Blocks, LocalMask, Window


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
    """Return softmax(scores(Q, K)) V [B, T, H, d_v] (Equation 1) and the attention weights [B, H, T, S]."""
    weights = module.weights(query, key, attention_mask).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


@fast_path("scores", "weights", "forward", "attend", "keys_and_values")
class VaswaniAttention(nn.Module):
    """Multi-head attention (Section 3.2.2): Concat(head_1 … head_h) W^O. Each head computes softmax(QK^T /
    sqrt(d_k)) V from its projections Q, K and V (Equation 1).

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

    # A subclass can define a method `local_mask(query_positions, key_positions)` that restricts
    # self-attention to some pairs of tokens. The result of `local_mask` must depend only on the difference
    # between query position and key position, because padding shifts the positions of a row.
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
        shape = config.shape_of("decoder" if is_causal else "encoder")
        self.window = None if is_cross else shape.windows[layer_idx]
        if self.window is not None:
            self.local_mask = Window(self.window, self.local_mask)
        self.attention_dropout = config.attention_dropout
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=bias)
        self.k_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=bias)
        self.v_proj = nn.Linear(config.d_model, num_heads * self.d_v, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.d_v, config.d_model, bias=bias)

    @property
    def supports_fused_kernel(self) -> bool:
        """True if a fused kernel can compute softmax(factor * QK^T) instead of the methods `scores` and
        `weights`.
        """
        return permits_fast_path(self, "scores", "weights")

    @property
    def supports_fast_path(self) -> bool:
        """True if the search can compute a decoding step with the faster `AttentionStep` instead of
        `forward`.
        """
        return permits_fast_path(self, "forward", "attend", "keys_and_values") and are_plain(
            nn.Linear, self.q_proj, self.k_proj, self.v_proj, self.out_proj
        )

    @property
    def implementation(self) -> str:
        """The attention implementation of the config, or "eager" if no fused kernel can compute the
        scores.
        """
        return self.config._attn_implementation if self.supports_fused_kernel else "eager"

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return the scores [B, H, T, S]: the dot products of queries [B, H, T, K] and keys [B, H, S, K],
        multiplied by `scaling`. The factor `scaling` is 1 / sqrt(d_k) for "scaled_dot" (Section 3.2.1).
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
        attention_recorder: "AttentionRecorder | None" = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention. Return the output [B, T, D], and the attention weights [B, H, T, S] or None.

        Queries come from `hidden_states` [B, T, D]. In cross-attention, keys and values come from the
        encoder's output `key_value_states` [B, S, D]. `key_value_states` can have one row for each sentence
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
        recorder: "AttentionRecorder | None" = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weighted sums [B, T, H, d_v] of the values, and the weights [B, H, T, S] or None.

        Queries [B, H, T, K] have one row for each beam. Keys [B, H, S, K] and values [B, H, S, d_v] have one
        row for each beam, or one row for each sentence. `output_attentions=True` selects eager attention,
        because fused kernels return no attention weights.
        """
        # Use `shape[0]` instead of `len`, because `len` would fix the batch size in an exported graph.
        num_rows = query.shape[0]
        length = query.shape[2]
        implementation = "eager" if output_attentions else self.implementation
        if key.shape[0] != num_rows:
            query, attention_mask = _merge_beams(query, key.shape[0], attention_mask)
            if implementation == "flex_attention":
                implementation = "sdpa"
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
        kernel: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        settings: dict[str, Any] = {
            "dropout": self.attention_dropout if self.training else 0.0,
            "scaling": self.scaling,
            **kwargs,
        }
        if "flash" in (implementation or ""):
            query, key, value = _pad_to_equal_widths(query, key, value)
            if self.window is not None:
                # Add 1, because in transformers the window includes the token of the query.
                settings["sliding_window"] = self.window + 1
        is_in_slow_dtype = query.dtype == torch.bfloat16 and query.device.type == "cpu"
        if isinstance(attention_mask, Blocks):
            output = attention_mask.attended(kernel, self, query, key, value, **settings)
            weights = None
        elif implementation == "sdpa" and self.training and is_in_slow_dtype:
            output, weights = _run_in_float32(kernel, self, query, key, value, attention_mask, **settings)
        else:
            output, weights = kernel(self, query, key, value, attention_mask, **settings)
        return output[..., : self.d_v], weights

    def attend_fused(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any
    ) -> torch.Tensor:
        """Return the same weighted sums as `attend`. `supports_fused_kernel` must be True. `mask` is an
        additive mask or None.
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
        """Add new keys and values to the cache. Return all keys [B, H, S, K] and values [B, H, S, d_v]."""
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


def _merge_beams(query: torch.Tensor, num_sentences: int, attention_mask: Any) -> tuple[torch.Tensor, Any]:
    """Merge the beams of each sentence into one row. The shape of the query changes from [B, H, T, K] to
    [num_sentences, H, beams * T, K].
    """
    length = query.shape[2]
    query = query.unflatten(0, (num_sentences, -1)).transpose(1, 2).flatten(2, 3)
    is_tensor = isinstance(attention_mask, torch.Tensor)
    if is_tensor and attention_mask.dim() == 4 and attention_mask.shape[2] > 1:
        attention_mask = attention_mask.repeat(1, 1, query.shape[2] // length, 1)
    return query, attention_mask


def _split_beams(weights: torch.Tensor, num_rows: int, length: int) -> torch.Tensor:
    """Undo `_merge_beams` for attention weights: return [B, H, T, S], where B counts all beams."""
    if weights.shape[0] == num_rows:
        return weights
    return weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)


def _pad_to_equal_widths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad queries and keys, or values, with zeros, because flash kernels need keys and values of
    equal width.
    """
    d_k = key.shape[-1]
    d_v = value.shape[-1]
    if d_v < d_k:
        value = nn.functional.pad(value, (0, d_k - d_v))
    elif d_k < d_v:
        query = nn.functional.pad(query, (0, d_v - d_k))
        key = nn.functional.pad(key, (0, d_v - d_k))
    return query, key, value


def _run_in_float32(
    kernel: Callable,
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **settings,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute attention of bfloat16 tensors in float32. The backward pass of PyTorch's CPU kernel is 14 times
    slower in bfloat16 (126 ms against 9 ms in one measurement).
    """
    if getattr(attention_mask, "dtype", None) == torch.bfloat16:
        attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        output, weights = kernel(
            module, query.float(), key.float(), value.float(), attention_mask, **settings
        )
    return output.to(query.dtype), weights


class LearnedScores(VaswaniAttention):
    """Base class of score functions with learned parameters [H, n]: n values for each of the H heads."""

    def __init__(self, config, num_heads, layer_idx, **kwargs):
        super().__init__(config, num_heads, layer_idx, **kwargs)
        for name, (numbers, _) in self.score_parameters().items():
            setattr(self, name, nn.Parameter(torch.empty(num_heads, numbers)))

    def score_parameters(self) -> dict[str, tuple[int, float]]:
        """Map the name of each parameter to two numbers: the number of elements per head, and 1 / variance of
        the initial values.
        """
        raise NotImplementedError

    def init_scores(self) -> None:
        """Initialise the parameters of the score function with random values from normal distributions."""
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
        """Return the queries [B, H, T, K] times the matrix W of each head."""
        return torch.matmul(query, self.score_weight.view(-1, self.d_k, self.d_k))

    def attend(self, query, *args, **kwargs):
        return super().attend(self.projected(query), *args, **kwargs)

    def attend_fused(self, query, *args, **kwargs):
        return super().attend_fused(self.projected(query), *args, **kwargs)


class AdditiveLinearAttention(LearnedScores):
    """Computes the score w_q q + w_k k, with w_q in `score_query` [H, K] and w_k in `score_key` [H, K]."""

    def score_parameters(self):
        return {"score_query": (self.d_k, 2 * self.d_k), "score_key": (self.d_k, 2 * self.d_k)}

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        of_query = torch.matmul(query, self.score_query[..., None])  # [B, H, T, 1]
        of_key = torch.matmul(key, self.score_key[..., None])  # [B, H, S, 1]
        return of_query + of_key.transpose(2, 3)


class AdditiveAttention(LearnedScores):
    """Computes the score v tanh(W q + U k), with v in `score_vector` [H, K], W in `score_query` [H, K * K]
    and U in `score_key` [H, K * K].
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


_BUILT_IN = {
    "scaled_dot": VaswaniAttention,
    "dot": VaswaniAttention,
    "dot_mean": VaswaniAttention,
    "general": GeneralAttention,
    "additive_linear": AdditiveLinearAttention,
    "additive": AdditiveAttention,
}


def register_attention(name: str, attention_class: type[VaswaniAttention]) -> None:
    """Register a new score function for attention. After the call of `register_attention`, the config fields
    `attention_score` and `cross_attention_score` accept the new name.

    If the config of a model contains the new name, the model uses `attention_class` in training and in the
    search. A checkpoint with the registered name in its config also contains the Python file that defines the
    attention class. To load such a checkpoint, call `register_attention` first, or pass
    `trust_remote_code=True` in a Python process that has not imported the package.

    Args:
        name (str): The name of the score function in configs. The name must not be the name of a built-in
            score function.
        attention_class (type): A subclass of `VaswaniAttention`, defined at the top level of a Python file.
            The class can override `scores(query, key)`, which maps queries [B, H, T, K] and keys [B, H, S, K]
            to scores [B, H, T, S]. The attention class can also define a method `local_mask`, which restricts
            self-attention. `scores` can use `self.scaling`, which is 1 / sqrt(d_k). The class must create its
            parameters in `__init__`, and can set their initial values in a method `init_scores()`.

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
    """Return the attention class that the config selects: for cross-attention if `is_cross` is True, else for
    self-attention.
    """
    name = config.score_of(is_cross)
    return _BUILT_IN.get(name) or ATTENTIONS.classes[name]


def can_be_fused(kind: type[VaswaniAttention]) -> bool:
    """Return True if a fused kernel can compute the scores of an attention class."""
    return class_permits_fast_path(kind, "scores", "weights")


class AttentionRecorder:
    """Records the cross-attention weights of selected decoder layers. Pass a recorder to a model as the
    argument `attention_recorder`. A selected layer computes its attention weights with
    `VaswaniAttention.weights`, because fused kernels return no weights.
    """

    def __init__(self, layers: Collection[int]):
        self.layers = frozenset(layers)
        # Maps the index of each recorded layer to the attention weights [B, T, S] float32, averaged over the
        # heads.
        self.weights: dict[int, torch.Tensor] = {}

    def record(self, layer_idx: int, weights: torch.Tensor) -> None:
        """Average the attention weights [B, H, T, S] of a layer over the heads, and store the result [B, T,
        S].
        """
        self.weights[layer_idx] = weights.float().mean(dim=1)
