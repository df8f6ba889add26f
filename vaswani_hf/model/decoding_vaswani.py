"""Decoders compute one decoding step of a model for all beams at once. `Decoder` is the interface.

`BeamSearch` of beam_search_vaswani chooses one of the following two classes. The two decoder classes,
`TreeAttentionDecoder` and `RowDecoder`, return the same logits.

- `TreeAttentionDecoder` is fast. The target tokens of all beams of a sentence are stored in one sequence,
  called the tree. If several beams begin with the same target tokens, the tree stores the keys and values of
  these tokens only once. A mask hides the tokens of other beams from each beam. The keys and values of the
  source are stored once per sentence, not once per beam.
- `RowDecoder` calls the model's `forward` with one row per beam. `RowDecoder` supports every cache class,
  every attention implementation, and `generate` calls that return attention weights or hidden states.

This file is saved with every checkpoint because `generate` decodes with the code of this file.

In tensor shapes, B is the number of sentences at the start, and N the number of sentences that are still in
the batch. K is the number of beams, P the prompt length, S the source length and T the number of target
tokens so far. M is the number of cached tokens in a `TreeKVCache`. H is the number of heads, D the model
width and V the size of the target vocabulary.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from .attention_vaswani import AttentionRecorder, VaswaniAttention
from .extension_vaswani import POSITION_ENCODINGS
from .masks_vaswani import CACHE_NAME, additive_mask, tree_masks

# The number of decoding steps for which a `TreeKVCache` reserves memory. When the reserved memory is full,
# the cache removes the tokens that belong to no beam, and reserves memory for further steps.
STEPS_PER_CAPACITY = 16


class Decoder(Protocol):
    """The interface with which the search computes the logits of the next token of each beam."""

    # None for a `RowDecoder`.
    tree: "TreeKVCache | None"
    # For each beam and source token, the sum [N, K, S] of the weights with which the beam's tokens attend to
    # the source token. `coverage` is None if the search has no coverage penalty.
    coverage: Any
    # True if each step computes the decoder layers with `DecoderLayerStep` instead of `forward`.
    is_direct: bool

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Run the model on the prompts [B * K, P]. Return the logits of the next token. The shape is [B, K,
        V], or [B, 1, V] if all beams of a sentence have the same logits.
        """

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Read the last token of each sequence in `sequences` [N, K, T]. Return the logits [N, K, V] of the
        next token. `parents` [N, K] contains the index of the beam of the previous step that each beam
        extends.
        """

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the sentences with the indices `sentences` [N'] in the batch."""


class TreeKVCache:
    """Caches the keys and values of the target tokens of all beams. For each beam, a mask hides the tokens of
    the other beams.
    """

    def __init__(self, attentions: Sequence[Any], dtype: torch.dtype):
        self.attentions = attentions
        self.dtype = dtype
        self.is_restricted = any(attention.local_mask is not None for attention in attentions)
        windows = [attention.window for attention in attentions]
        # The largest attention window (in tokens) of all layers, or None if a layer has no window.
        self.reach: int | None = None if None in windows else max(windows)
        self.keys: list[Any] = [None] * len(attentions)
        self.values: list[Any] = [None] * len(attentions)
        self.length = self.capacity = 0
        # The largest number of cached tokens of one sentence, counting only tokens that belong to at least
        # one beam. The number is `sys.maxsize` until the search has counted the cached tokens.
        self.num_living = sys.maxsize
        # The additive attention mask [N, beams, capacity], or None if every beam can attend to every token.
        self.visible: torch.Tensor | None = None
        # The positions [N, capacity] int64 of the tokens, or None if no attention layer has a `local_mask`.
        self.positions: torch.Tensor | None = None

    def begin(self, real: torch.Tensor, num_beams: int) -> list[torch.Tensor | None]:
        """Reserve memory for prompts. `real` [N, P] is False for padding. Return the mask of each layer."""
        length = real.shape[1]
        self.capacity = length + STEPS_PER_CAPACITY * num_beams
        padded = nn.functional.pad(real, (0, self.capacity - length))
        # Use no mask if a single beam attends to every token, because attention without a mask is fastest.
        if num_beams > 1 or self.is_restricted or not bool(real.all()):
            self.visible = additive_mask(padded, self.dtype)[:, None].expand(-1, num_beams, -1)
        if self.is_restricted:
            self.positions = (padded.cumsum(dim=1) - 1).clamp(min=0)
        if length == 1:
            return [None] * len(self.keys)
        positions = real.cumsum(dim=1) - 1
        mask = additive_mask(real[:, None].expand(-1, length, -1).tril(), self.dtype)
        return tree_masks(self.attentions, mask, positions, positions)

    def branch(self, parents: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor | None]:
        """Reserve memory for a new token of each beam. `positions` [N, 1] contains the position of the new
        tokens in each sentence. Return the attention mask of each layer. Each beam extends a beam of the
        previous step. `parents` [N, beams] int64 contains the indices of the extended beams.
        """
        num_beams = parents.shape[1]
        if self.visible is not None:
            self.visible = gather_beams(self.visible, parents)
        if self.length + num_beams > self.capacity:
            self._prune(num_beams)
        start = self.length
        end = self.length + num_beams
        if self.visible is None:
            return [None] * len(self.keys)
        key_positions = None if self.positions is None else self.positions[:, :end]
        torch.diagonal(self.visible[:, :, start:end], dim1=1, dim2=2).zero_()
        if key_positions is not None:
            key_positions[:, start:] = positions
        if self.reach is not None:
            is_far = key_positions < positions - self.reach
            self.visible[:, :, :end].masked_fill_(is_far.unsqueeze(1), torch.finfo(self.dtype).min)
        return tree_masks(self.attentions, self.visible[:, :, :end], positions, key_positions)

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the keys [N, H, beams, d_k] and the values of new tokens to the cache. Return all keys and
        values of the layer.
        """
        end = self.length + key.shape[2]
        for store, new in ((self.keys, key), (self.values, value)):
            if store[layer_idx] is None:
                store[layer_idx] = new.new_empty(*new.shape[:2], self.capacity, new.shape[3])
            store[layer_idx][:, :, self.length : end] = new
        return self.keys[layer_idx][:, :, :end], self.values[layer_idx][:, :, :end]

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the sentences with the indices `sentences` [N'] in the batch."""
        for store in (self.keys, self.values):
            for layer_idx, old in enumerate(store):
                store[layer_idx] = old.index_select(0, sentences)
        self.visible = _selected(self.visible, sentences)
        self.positions = _selected(self.positions, sentences)

    @property
    def is_nearly_full(self) -> bool:
        """True if the reserved memory has space for only one more step. If `is_nearly_full` is True, the
        search must set `num_living`, because `_prune` reads `num_living`.
        """
        return self.visible is not None and self.capacity - self.length == self.visible.shape[1]

    def living(self) -> torch.Tensor:
        """Return a bool tensor [N, M] that is True for each cached token that at least one beam contains."""
        return (self.visible[:, :, : self.length] == 0).any(dim=1)  # type: ignore[index]

    def _prune(self, num_beams: int) -> None:
        """Remove tokens that belong to no beam, and reserve memory for further steps."""
        # Add one token per beam, because `num_living` (the number of tokens in use) does not count the newest
        # token of each beam.
        length = min(self.length, self.num_living + num_beams)
        capacity = length + STEPS_PER_CAPACITY * num_beams
        kept = None
        if length < self.length:
            # Keep the same number of tokens for every sentence, because one tensor stores the tokens of all
            # sentences. Therefore the cache of some sentences also keeps tokens that belong to no beam, and
            # the attention mask hides these tokens.
            living_first = self.living().byte().argsort(dim=1, descending=True, stable=True)
            kept = living_first[:, :length]  # [N, length]
        # Copy the layers one after the other, so that the cache of only one layer is in memory twice.
        for store in (self.keys, self.values):
            for layer_idx, old in enumerate(store):
                entries = None if kept is None else kept[:, None, :, None]
                new = old.new_empty(*old.shape[:2], capacity, old.shape[3])  # [N, H, capacity, d_k or d_v]
                new[:, :, :length] = _entries(old, entries, 2, length)
                store[layer_idx] = new
        if self.visible is not None:
            entries = None if kept is None else kept[:, None]
            visible = _entries(self.visible, entries, 2, length)
            self.visible = nn.functional.pad(
                visible, (0, capacity - length), value=torch.finfo(self.dtype).min
            )
        if self.positions is not None:
            positions = _entries(self.positions, kept, 1, length)
            self.positions = nn.functional.pad(positions, (0, capacity - length))
        self.length = length
        self.capacity = capacity
        self.num_living = sys.maxsize


def _selected(values: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values.index_select(0, rows)


def _entries(values: torch.Tensor, entries: torch.Tensor | None, dim: int, length: int) -> torch.Tensor:
    """Return the elements of `values` at the indices `entries` along `dim`. If `entries` is None, return the
    first `length` elements of `values` along `dim`.
    """
    return values.narrow(dim, 0, length) if entries is None else values.take_along_dim(entries, dim=dim)


def _linear_step(module: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes a linear layer without the overhead of a module call."""
    weight = module.weight
    bias = module.bias
    # Pass the weight by position, because torchao reads a quantized weight only by position.
    return lambda states: nn.functional.linear(states, weight, bias)


def _norm_step(module: nn.LayerNorm) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes a layer normalization without the overhead of a module call."""
    return partial(
        torch.layer_norm,
        normalized_shape=module.normalized_shape,
        weight=module.weight,
        bias=module.bias,
        eps=module.eps,
    )


class AttentionStep:
    """Computes one decoding step of a `VaswaniAttention` without the overhead of module calls.

    Use `AttentionStep` only if `supports_fast_path` of the attention is True. If `is_cross` is True, the
    cache must contain the keys and values of the source before the first call.
    """

    def __init__(self, attention: VaswaniAttention, cache: EncoderDecoderCache, is_cross: bool):
        self.attention = attention
        self.is_cross = is_cross
        self.layer_idx = attention.layer_idx
        self.is_fused = attention.supports_fused_kernel and attention.implementation == "sdpa"
        self.d_k = attention.d_k
        self.d_v = attention.d_v
        self.q_proj = _linear_step(attention.q_proj)
        self.k_proj = _linear_step(attention.k_proj)
        self.v_proj = _linear_step(attention.v_proj)
        self.out_proj = _linear_step(attention.out_proj)
        self.own_cache: Any = cache.self_attention_cache
        self.source_layers: list[Any] = cache.cross_attention_cache.layers

    def __call__(
        self,
        states: torch.Tensor,
        shape: tuple[int, int],
        mask: torch.Tensor | None,
        recorder: AttentionRecorder | None = None,
    ) -> torch.Tensor:
        """Return the output [N * beams, D] of the attention for the input `states` [N * beams, D]. `shape` is
        (N, beams).
        """
        query = self.q_proj(states).view(*shape, -1, self.d_k).transpose(1, 2)  # [N, H, beams, d_k]
        if self.is_cross:
            layer = self.source_layers[self.layer_idx]
            key = layer.keys  # [N, H, S, d_k]
            value = layer.values  # [N, H, S, d_v]
        else:
            key = self.k_proj(states).view(*shape, -1, self.d_k).transpose(1, 2)
            value = self.v_proj(states).view(*shape, -1, self.d_v).transpose(1, 2)
            key, value = self.own_cache.update(key, value, self.layer_idx)  # [N, H, M, d_k], [N, H, M, d_v]
        if self.is_fused and recorder is None:
            output = self.attention.attend_fused(query, key, value, mask)  # [N, beams, H, d_v]
        else:
            output, _ = self.attention.attend(query, key, value, mask, recorder)
        return self.out_proj(output.reshape(len(states), -1))


class DecoderLayerStep:
    """Computes one decoding step of a `VaswaniDecoderLayer` without the overhead of module calls."""

    def __init__(self, layer: Any, cache: EncoderDecoderCache):
        self.pre_norm = layer.pre_norm
        self.activation_fn = layer.activation_fn
        self.self_attn = AttentionStep(layer.self_attn, cache, is_cross=False)
        self.self_attn_layer_norm = _norm_step(layer.self_attn_layer_norm)
        self.encoder_attn = None
        if layer.encoder_attn is not None:
            self.encoder_attn = AttentionStep(layer.encoder_attn, cache, is_cross=True)
            self.encoder_attn_layer_norm = _norm_step(layer.encoder_attn_layer_norm)
        self.fc1 = _linear_step(layer.fc1)
        self.fc2 = _linear_step(layer.fc2)
        self.final_layer_norm = _norm_step(layer.final_layer_norm)

    def __call__(
        self,
        states: torch.Tensor,
        shape: tuple[int, int],
        mask: torch.Tensor | None,
        source_mask: torch.Tensor | None,
        recorder: AttentionRecorder | None = None,
    ) -> torch.Tensor:
        """Return the output [N * beams, D] of the layer for the input `states` [N * beams, D]. `shape` is
        (N, beams).
        """
        if self.pre_norm:
            states = self.self_attn(self.self_attn_layer_norm(states), shape, mask).add_(states)
            if self.encoder_attn is not None:
                normed = self.encoder_attn_layer_norm(states)
                states = self.encoder_attn(normed, shape, source_mask, recorder).add_(states)
            inner = self.activation_fn(self.fc1(self.final_layer_norm(states)))
            return self.fc2(inner).add_(states)
        states = self.self_attn_layer_norm(self.self_attn(states, shape, mask).add_(states))
        if self.encoder_attn is not None:
            attended = self.encoder_attn(states, shape, source_mask, recorder)
            states = self.encoder_attn_layer_norm(attended.add_(states))
        inner = self.activation_fn(self.fc1(states))
        return self.final_layer_norm(self.fc2(inner).add_(states))


class TreeAttentionDecoder:
    """Computes the decoding steps of a search, faster than `RowDecoder`. The beams of a sentence share a tree
    of cached tokens.
    """

    def __init__(self, model: Any, config: GenerationConfig, model_kwargs: dict[str, Any]):
        self.model = model
        self.decoder = model.get_decoder()
        self.num_beams = config.num_beams
        self.prompt_mask = model_kwargs.get(model.prompt_mask)
        # `encoder_states` [B, S, D] are the encoder's output. `source_mask` is an additive mask [B, 1, 1, S],
        # or None if the source has no padding.
        self.encoder_states: torch.Tensor | None = None
        self.source_mask: torch.Tensor | None = None
        dtype = model.dtype
        if model.config.is_encoder_decoder:
            self.encoder_states = model_kwargs["encoder_outputs"][0]
            dtype = self.encoder_states.dtype
            mask = model_kwargs.get("attention_mask")
            if mask is not None and not bool(mask.all()):
                self.source_mask = additive_mask(mask.bool()[:, None, None], dtype)
        self.tree = TreeKVCache([layer.self_attn for layer in self.decoder.layers], dtype)
        self.cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # Cross-attention uses a `DynamicCache` with one row for each sentence.
        self.cache.self_attention_cache = self.tree
        self.encodings = torch.empty(0)
        self.has_registered_positions = self.decoder.config.position_embedding in POSITION_ENCODINGS.classes
        # See `Decoder.coverage`.
        self.coverage: torch.Tensor | None = None
        self.with_coverage = bool(getattr(config, "coverage_penalty", None))
        # True if `DecoderLayerStep` can compute a decoding step of every layer.
        self.is_direct = not self.decoder.training and all(
            layer.supports_fast_path for layer in self.decoder.layers
        )
        self.steps: list[DecoderLayerStep] = []

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Run the decoder on the prompts [B * K, P]. All beams of a sentence have the same prompt. Return the
        logits [B, 1, V].
        """
        prompt = input_ids[:: self.num_beams]
        mask = torch.ones_like(input_ids) if self.prompt_mask is None else self.prompt_mask
        real = mask[:: self.num_beams].bool()
        masks = self.tree.begin(real, self.num_beams)
        # `position` [N, 1] is the position of the next token. `num_read` is the number of tokens, including
        # padding, that the decoder has read in each beam.
        self.position = real.sum(dim=1, keepdim=True)
        self.num_read = prompt.shape[1]
        states, attended = self._run(prompt, (real.cumsum(dim=1) - 1).clamp(min=0), masks)
        if attended is not None:
            # Ignore the attention from padding tokens of the prompt to source tokens.
            covered = (attended * real[:, :, None]).sum(dim=1, keepdim=True)
            self.coverage = covered.expand(-1, self.num_beams, -1)
        if self.is_direct:
            # Create the `DecoderLayerStep` objects after `_run`, because `_run` caches the keys and values of
            # the source.
            self.steps = [DecoderLayerStep(layer, self.cache) for layer in self.decoder.layers]
        return self.model.logits(states[:, -1:]).float()

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """See `Decoder.step`."""
        masks = self.tree.branch(parents, self.position)
        self.num_read += 1
        states, attended = self._run(sequences[:, :, -1], self.position, masks)
        self.position = self.position + 1
        if attended is not None and self.coverage is not None:
            self.coverage = gather_beams(self.coverage, parents) + attended
        return self.model.logits(states).float()

    def select(self, sentences: torch.Tensor) -> None:
        """See `Decoder.select`."""
        self.tree.select(sentences)
        for layer in self.cache.cross_attention_cache.layers:
            layer.keys = layer.keys.index_select(0, sentences)
            layer.values = layer.values.index_select(0, sentences)
        self.position = self.position.index_select(0, sentences)
        self.encoder_states = _selected(self.encoder_states, sentences)
        self.source_mask = _selected(self.source_mask, sentences)
        self.coverage = _selected(self.coverage, sentences)

    def _run(
        self, input_ids: torch.Tensor, positions: torch.Tensor, masks: list[Any]
    ) -> tuple[torch.Tensor, Any]:
        """Return the output [N, T, D] of the decoder, as `VaswaniDecoder.forward` does. Also return the
        cross-attention weights [N, T, S] of the last layer, or None without a coverage penalty.
        """
        decoder = self.decoder
        last = len(decoder.layers) - 1
        recorder = AttentionRecorder([last]) if self.with_coverage else None
        states = decoder.add_positions(decoder.embed_tokens(input_ids), self._position_states(positions))
        if self.steps:
            states = states.flatten(0, 1)
            for step, mask in zip(self.steps, masks, strict=True):
                states = step(states, tuple(input_ids.shape), mask, self.source_mask, recorder)
            states = states.view(*input_ids.shape, -1)
        else:
            for layer, mask in zip(decoder.layers, masks, strict=True):
                states = layer(
                    states,
                    mask,
                    self.encoder_states,
                    self.source_mask,
                    past_key_values=self.cache,
                    attention_recorder=recorder,
                )
        self.tree.length += input_ids.shape[1]
        return decoder.final_norm(states), None if recorder is None else recorder.weights[last]

    def _position_states(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the position encodings [N, T, D] for positions [N, T]."""
        if self.has_registered_positions:
            # Compute only the encodings of the given positions, because a user's position encoding can limit
            # the number of positions.
            return self.decoder.position_states(positions)
        if len(self.encodings) < self.num_read:
            # Compute the encodings of many positions in advance, because computing sinusoids at each step
            # takes long. For learned positions, compute no encodings beyond the end of the position table,
            # because `position_states` raises an error for later positions.
            longest = self.decoder.config.num_positions
            size = int(max(self.num_read, min(2 * self.num_read + 62, longest)))
            self.encodings = self.decoder.position_states(torch.arange(size, device=positions.device))
        return self.encodings[positions]


def gather_beams(values: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Select beams from `values` [N, beams, ...]. `parents` [N, number] int64 contains the indices of the
    beams to select.
    """
    rows = _rows_of_beams(parents, values.shape[1])
    return values.flatten(0, 1).index_select(0, rows).view(*parents.shape, *values.shape[2:])


def _rows_of_beams(beams: torch.Tensor, num_beams: int) -> torch.Tensor:
    """Convert the index of each beam in its sentence, [N, number], to the index of a row, [N * number]."""
    first = torch.arange(len(beams), device=beams.device).unsqueeze(1) * num_beams
    return (beams + first).flatten()


class RowDecoder:
    """Calls `forward` with one row for each beam. Unlike `TreeAttentionDecoder`, `RowDecoder` supports all
    models and all settings.
    """

    is_direct = False
    tree: TreeKVCache | None = None

    def __init__(self, model: Any, config: GenerationConfig, model_kwargs: dict[str, Any]):
        self.model = model
        self.config = config
        self.num_beams = config.num_beams
        self.model_kwargs = dict(model_kwargs)
        is_compiled = model._valid_auto_compile_criteria(model_kwargs, config)
        self.forward = model.get_compiled_call(config.compile_config) if is_compiled else model.__call__
        # Maps the names of outputs that `generate` returns, such as "cross_attentions", to the outputs of all
        # `forward` calls.
        self.recorded: dict[str, tuple] = {}
        # See `Decoder.coverage`.
        self.coverage: torch.Tensor | None = None
        self.recorder: AttentionRecorder | None = None
        if getattr(config, "coverage_penalty", None):
            self.recorder = AttentionRecorder([len(model.get_decoder().layers) - 1])
            self.model_kwargs["attention_recorder"] = self.recorder
        self.is_pair = model.config.is_encoder_decoder
        # True if the beams of a sentence share a row of the encoder's output.
        self.shares_sources = False
        if self.is_pair:
            # A model of another library needs one row of the encoder's output for each beam. If the caller of
            # `generate` passes a cache that contains tokens, each beam also needs its own row of the
            # encoder's output.
            cache = model_kwargs.get(CACHE_NAME)
            has_filled_cache = cache is not None and cache.get_seq_length() > 0
            self.shares_sources = getattr(model, "shares_sources", False) and not has_filled_cache
        if self.is_pair and not self.shares_sources:
            states = model_kwargs["encoder_outputs"][0]
            states = states.repeat_interleave(self.num_beams, dim=0)  # [B * K, S, D]
            self.model_kwargs["encoder_outputs"] = BaseModelOutput(states)
            mask = model_kwargs.get("attention_mask")
            if mask is not None:
                mask = mask.repeat_interleave(self.num_beams, dim=0)  # [B * K, S]
                self.model_kwargs["attention_mask"] = mask

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Run the model on the prompts [B * K, P]. Return the logits [B, K, V] of the next token."""
        is_first = not self.config.is_assistant
        outputs = self.model._prefill(input_ids, self.config, self.model_kwargs, is_first_iteration=is_first)
        if self.recorder is not None:
            self.coverage = self._attention_of_call()
        return self._logits_of_call(outputs)

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """See `Decoder.step`."""
        use_cache = self.config.use_cache
        self._reorder(parents)
        inputs = self.model.prepare_inputs_for_generation(
            sequences.flatten(0, 1), next_sequence_length=1 if use_cache else None, **self.model_kwargs
        )
        outputs = self.forward(**inputs, return_dict=True)
        if self.recorder is not None:
            attention = self._attention_of_call()
            # Without a cache, each call of the model computes the attention weights of all target tokens
            # again. Without a cache, `attention` is therefore already the sum of the weights over all target
            # tokens.
            self.coverage = gather_beams(self.coverage, parents) + attention if use_cache else attention
        return self._logits_of_call(outputs)

    def _attention_of_call(self) -> torch.Tensor:
        """Return the cross-attention weights [N, K, S] of the last layer, summed over the target tokens."""
        recorder: Any = self.recorder
        (weights,) = recorder.weights.values()  # [N * K, T, S]
        mask = self.model_kwargs.get("decoder_attention_mask")
        if mask is not None:
            weights = weights * mask[:, -weights.shape[1] :, None]
        return weights.sum(dim=1).unflatten(0, (-1, self.num_beams))

    def _logits_of_call(self, outputs: Any) -> torch.Tensor:
        """Return the logits [N, K, V] of the next token. Record the attention weights and hidden states."""
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.model_kwargs, is_encoder_decoder=self.is_pair
        )
        for name in (
            "cross_attentions",
            "decoder_attentions",
            "decoder_hidden_states",
            "attentions",
            "hidden_states",
        ):
            values = outputs.get(name)
            if values is not None:
                self.recorded[name] = (*self.recorded.get(name, ()), values)
        return outputs.logits[:, -1].to(copy=True, dtype=torch.float32).unflatten(0, (-1, self.num_beams))

    @property
    def _target_cache(self) -> Any:
        """The cache with the keys and values of target tokens, or None without a cache."""
        cache = self.model_kwargs.get(CACHE_NAME)
        return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache

    def _reorder(self, parents: torch.Tensor) -> None:
        """Reorder the keys and values of target tokens. Do not reorder the keys and values of the source,
        because all beams of a sentence have the same source.
        """
        if self._target_cache is not None:
            self._target_cache.reorder_cache(_rows_of_beams(parents, self.num_beams))

    def select(self, sentences: torch.Tensor) -> None:
        """See `Decoder.select`. The cache must be a dynamic cache or None."""
        kwargs = self.model_kwargs
        beams = torch.arange(self.num_beams, device=sentences.device)
        rows = (sentences.unsqueeze(1) * self.num_beams + beams).flatten()
        source_rows = sentences if self.shares_sources else rows
        if self._target_cache is not None:
            self._target_cache.batch_select_indices(rows)
            if self.is_pair:
                kwargs[CACHE_NAME].cross_attention_cache.batch_select_indices(source_rows)
        if self.is_pair:
            kwargs["encoder_outputs"] = BaseModelOutput(kwargs["encoder_outputs"][0][source_rows])
        self.coverage = _selected(self.coverage, sentences)
        for name, kept in (("attention_mask", source_rows), ("decoder_attention_mask", rows)):
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name].index_select(0, kept)

    def returned_cache(self, parents: torch.Tensor) -> Any:
        """Reorder the cache by the beam indices `parents` [B, K]. Return the key-value cache that `generate`
        returns, with one row per beam. Return None if the search uses no cache.
        """
        self._reorder(parents)
        cache = self.model_kwargs.get(CACHE_NAME)
        if isinstance(cache, EncoderDecoderCache):
            num_rows = len(cache.self_attention_cache.layers[0].keys)
            for layer in cache.cross_attention_cache.layers:
                times = num_rows // len(layer.keys)
                if times > 1:
                    layer.keys = layer.keys.repeat_interleave(times, dim=0)
                    layer.values = layer.values.repeat_interleave(times, dim=0)
        return cache
