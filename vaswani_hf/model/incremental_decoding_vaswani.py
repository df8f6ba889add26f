"""One decoding step for all beams of all sentences: what a search asks of a model.

Two ways to the same logits. `TreeDecoder` is the fast one: the beams of a sentence are given to the decoder's layers as
positions of one sequence, so that keys and values of the source exist once per sentence and those of the target once
per token that was ever chosen, however many beams descend from it; nothing is reordered, a mask says which tokens are a
beam's own. `RowDecoder` is the general one: one row per beam through the model's forward, with any cache, any attention
implementation and anything recorded.

Letters of shapes: B sentences at the start, N sentences still searched, K beams, P prompt length, S source length,
M tokens in the tree, H heads, D model width, V target vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from .layers_vaswani import VaswaniAttention, VaswaniDecoderLayer

# Steps for which room is made at once. A tree is pruned when its room is used up.
STEPS_PER_ROOM = 16


class TokenTree:
    """Self-attention keys and values of every token of a sentence's beams, each once."""

    def __init__(self, num_layers: int):
        self.keys: list[Any] = [None] * num_layers
        self.values: list[Any] = [None] * num_layers
        self.length = 0
        self.room = 0

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Take up new tokens; `length` is advanced by the caller when all layers have them.

        Args:
            key (torch.Tensor): [N, H, K, d_k] float.
            value (torch.Tensor): [N, H, K, d_v] float.
            layer_idx (int): The layer.

        Returns:
            tuple: Keys [N, H, M, d_k] and values [N, H, M, d_v] of all tokens, the new ones included.
        """
        end = self.length + key.shape[2]
        for store, new in ((self.keys, key), (self.values, value)):
            if store[layer_idx] is None:
                store[layer_idx] = new.new_empty(*new.shape[:2], self.room, new.shape[3])
            store[layer_idx][:, :, self.length : end] = new
        return self.keys[layer_idx][:, :, :end], self.values[layer_idx][:, :, :end]

    def rebuild(self, entries: torch.Tensor | None, room: int) -> None:
        """Make room for more tokens, dropping those that no beam descends from.

        Args:
            entries (torch.Tensor, optional): [N, M'] int64, the tokens that stay; all by default.
            room (int): How many tokens there shall be room for.
        """
        length = self.length if entries is None else entries.shape[1]
        # Layer by layer, so that no more than one layer is held twice.
        for store in (self.keys, self.values):
            for layer_idx, old in enumerate(store):
                kept = old[:, :, : self.length]
                if entries is not None:
                    kept = kept.gather(2, entries[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3]))
                store[layer_idx] = old.new_empty(*old.shape[:2], room, old.shape[3])
                store[layer_idx][:, :, :length] = kept
        self.length, self.room = length, room

    def select(self, sentences: torch.Tensor) -> None:
        """Keep these sentences only.

        Args:
            sentences (torch.Tensor): [N'] int64.
        """
        for store in (self.keys, self.values):
            for layer_idx, old in enumerate(store):
                store[layer_idx] = old.index_select(0, sentences)


class TreeCache(EncoderDecoderCache):
    """What the decoder's layers take as a cache: the tree of target tokens, and the source once per sentence."""

    def __init__(self, num_layers: int):
        self.self_attention_cache: Any = TokenTree(num_layers)
        self.cross_attention_cache = DynamicCache()
        self.is_updated: dict[int, bool] = {}


class TreeDecoder:
    """Decoding steps on trees of tokens.

    Args:
        model (VaswaniForSeq2SeqLM): The model.
        config (GenerationConfig): `num_beams` is K; `coverage_penalty` asks for the coverage.
        model_kwargs (dict): `encoder_outputs` of B sentences, `attention_mask` [B, S] and `decoder_attention_mask`
            [B * K, P] where there is padding.
    """

    def __init__(self, model: Any, config: GenerationConfig, model_kwargs: dict[str, Any]):
        self.model, self.decoder, self.num_beams = model, model.get_decoder(), config.num_beams
        self.encoder_states = model_kwargs["encoder_outputs"][0]
        self.prompt_mask = model_kwargs.get("decoder_attention_mask")
        mask = model_kwargs.get("attention_mask")
        self.source_mask = None if mask is None or bool(mask.all()) else self._added(mask.bool())
        self.cache = TreeCache(len(self.decoder.layers))
        # Added to scores, [N, K, room]: which tokens of the tree are a beam's own.
        self.visible: torch.Tensor | None = None
        self.encodings = self.encoder_states[0, :0]
        # [N, K, S]: the attention that each source token has had from each beam, where it is asked for.
        self.coverage: torch.Tensor | None = None
        self.with_coverage = bool(getattr(config, "coverage_penalty", None))
        self.fast_layers: list[_FastLayer] = []
        if not self.with_coverage and _is_plain(self.decoder, model.config):
            self.fast_layers = [_FastLayer(layer, self.cache) for layer in self.decoder.layers]

    @property
    def tree(self) -> TokenTree:
        """The target tokens of all beams."""
        return self.cache.self_attention_cache

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Read the prompts.

        Args:
            input_ids (torch.Tensor): [B * K, P] int64, padded on the left where some are shorter; the same in all K
                rows of a sentence.

        Returns:
            torch.Tensor: Logits [B, 1, V] float32 of the first new token.
        """
        prompt, mask = input_ids[:: self.num_beams], None
        length = prompt.shape[1]
        real = torch.ones_like(prompt, dtype=torch.bool)
        if self.prompt_mask is not None:
            real = self.prompt_mask[:: self.num_beams].bool()
        self.tree.room = length + STEPS_PER_ROOM * self.num_beams
        # With one beam and no padding everything is visible, and no mask is the fastest one.
        if self.num_beams > 1 or not bool(real.all()):
            visible = self._added(nn.functional.pad(real, (0, self.tree.room - length)))[:, 0]
            self.visible = visible.expand(-1, self.num_beams, -1)
        if length > 1:
            mask = self._added(real[:, None] & torch.ones(length, length, dtype=torch.bool, device=real.device).tril())
        self.position, self.num_read = real.sum(dim=1, keepdim=True), 0
        states = self._run(prompt, (real.cumsum(dim=1) - 1).clamp(min=0), mask)
        if self.coverage is not None:
            # Padding attends as well, to no end.
            covered = (self.coverage * real[:, :, None]).sum(dim=1, keepdim=True)
            self.coverage = covered.expand(-1, self.num_beams, -1)
        return self.model.logits(states[:, -1:]).float()

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Read the newest token of each beam.

        Args:
            sequences (torch.Tensor): [N, K, T] int64.
            parents (torch.Tensor): [N, K] int64: the beam of the step before that each one goes on from.

        Returns:
            torch.Tensor: Logits [N, K, V] float32 of the next token.
        """
        num_beams = sequences.shape[1]
        if self.visible is not None:
            self.visible = gather_beams(self.visible, parents)
        if self.tree.length + num_beams > self.tree.room:
            self._make_room(num_beams)
        start, end = self.tree.length, self.tree.length + num_beams
        mask = None
        if self.visible is not None:
            torch.diagonal(self.visible[:, :, start:end], dim1=1, dim2=2).zero_()
            mask = self.visible[:, None, :, :end]
        covered = None if self.coverage is None else gather_beams(self.coverage, parents)
        states = self._run(sequences[:, :, -1], self.position, mask)
        self.position = self.position + 1
        if covered is not None:
            self.coverage = covered + self.coverage
        return self.model.logits(states).float()

    def select(self, sentences: torch.Tensor) -> None:
        """Keep these sentences only.

        Args:
            sentences (torch.Tensor): [N'] int64.
        """
        self.tree.select(sentences)
        for layer in self.cache.cross_attention_cache.layers:
            layer.keys, layer.values = layer.keys.index_select(0, sentences), layer.values.index_select(0, sentences)
        self.encoder_states = self.encoder_states.index_select(0, sentences)
        self.position = self.position.index_select(0, sentences)
        for name in ("source_mask", "visible", "coverage"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, sentences))

    def _added(self, visible: torch.Tensor) -> torch.Tensor:
        """[N, S] or [N, T, S] bool as a mask [N, 1, 1 or T, S] that is added to attention scores."""
        visible = visible[:, None, None] if visible.dim() == 2 else visible[:, None]
        zeros = torch.zeros(visible.shape, dtype=self.encoder_states.dtype, device=visible.device)
        # Not -inf: a row of nothing but padding would become NaN and, even times zero, everything after it.
        return zeros.masked_fill_(~visible, torch.finfo(zeros.dtype).min)

    def _run(self, input_ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The decoder's output [N, T, D] at these tokens [N, T], which are the tree's from now on."""
        decoder = self.decoder
        states = decoder.add_positions(decoder.embed_tokens(input_ids), self._position_states(positions))
        # The first call fills the cache of the source.
        if self.fast_layers and self.tree.length > 0:
            shape = (*input_ids.shape, -1)
            states = states.flatten(0, 1)
            for fast_layer in self.fast_layers:
                states = fast_layer(states, shape, mask, self.source_mask)
            self.tree.length += input_ids.shape[1]
            return states.view(*input_ids.shape, -1)
        with self._watch_coverage():
            for layer in decoder.layers:
                states = layer(
                    states,
                    mask,
                    self.encoder_states,
                    encoder_attention_mask=self.source_mask,
                    past_key_values=self.cache,
                )
        self.tree.length += input_ids.shape[1]
        return decoder.layer_norm(states) if self.model.config.norm_position == "pre" else states

    def _position_states(self, positions: torch.Tensor) -> torch.Tensor:
        """Looked up in a table that grows, since sinusoids are dear to compute at each step."""
        self.num_read += positions.shape[1] if self.num_read == 0 else 1
        if len(self.encodings) < self.num_read:
            longest = getattr(self.decoder, "embed_positions", None)
            size = 2 * self.num_read + 62
            # A learned table has an end; beyond it the decoder says so.
            size = size if longest is None else max(self.num_read, min(size, longest.num_embeddings))
            self.encodings = self.decoder.position_states(torch.arange(size, device=positions.device))
        return self.encodings[positions]

    @contextmanager
    def _watch_coverage(self) -> Iterator[None]:
        """Where it is asked for, `coverage` becomes what these tokens [N, T] attend to, [N, T, S]."""
        if not self.with_coverage:
            yield
            return
        with cross_attention_watched(self.decoder.layers[-1]) as weights:
            yield
        self.coverage = weights[0]

    def _make_room(self, num_beams: int) -> None:
        """Drop the tokens that no beam descends from, and make room for more."""
        length, entries = self.tree.length, None
        visible = self.visible
        if visible is not None:
            alive = (visible[:, :, :length] == 0).any(dim=1)
            most = int(alive.sum(dim=1).max())
            visible = visible[:, :, :length]
            if most < length:
                # Of a sentence that has fewer, dead ones fill up; they stay invisible.
                entries = alive.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
                visible, length = visible.gather(2, entries[:, None].expand(-1, visible.shape[1], -1)), most
        room = length + STEPS_PER_ROOM * num_beams
        self.tree.rebuild(entries, room)
        if visible is not None:
            self.visible = nn.functional.pad(visible, (0, room - length), value=torch.finfo(visible.dtype).min)


def _is_plain(decoder: Any, config: Any) -> bool:
    """Whether the layers are the paper's and nobody has put anything in or around them, so that `_FastLayer` does."""
    kinds = {VaswaniDecoderLayer, VaswaniAttention, nn.Linear, nn.LayerNorm, type(decoder.layers[0].activation_fn)}
    return (
        not decoder.training
        and config.norm_position == "post"
        and config._attn_implementation == "sdpa"
        and all(
            type(module) in kinds
            and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
            for module in decoder.layers.modules()
            if module is not decoder.layers
        )
    )


class _FastLayer:
    """What a decoder layer computes, without the calls of its modules: with few beams they take longer than the work."""

    def __init__(self, layer: VaswaniDecoderLayer, cache: TreeCache):
        own, source = layer.self_attn, layer.encoder_attn
        # Looking up a sub-module takes as long as adding two small tensors: all are looked up here.
        self.q, self.k, self.v, self.out = (
            (projection.weight, projection.bias) for projection in (own.q_proj, own.k_proj, own.v_proj, own.out_proj)
        )
        self.source_q, self.source_out, self.fc1, self.fc2 = (
            (projection.weight, projection.bias)
            for projection in (source.q_proj, source.out_proj, layer.fc1, layer.fc2)
        )
        self.norms = [
            (norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            for norm in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
        ]
        self.activation_fn, self.index = layer.activation_fn, own.layer_idx
        self.d_k, self.d_v, self.scaling = own.d_k, own.d_v, own.scaling
        self.tree, self.source = cache.self_attention_cache, cache.cross_attention_cache.layers

    def __call__(
        self, states: torch.Tensor, shape: tuple, mask: torch.Tensor | None, source_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """The output [N * K, D] for states [N * K, D]; `shape` is (N, K, -1)."""
        linear, norm, (first, second, last) = nn.functional.linear, torch.layer_norm, self.norms
        key, value = self.tree.update(
            linear(states, *self.k).view(*shape, self.d_k).transpose(1, 2),
            linear(states, *self.v).view(*shape, self.d_v).transpose(1, 2),
            self.index,
        )
        output = self._attend(linear(states, *self.q), shape, key, value, mask)
        states = norm(linear(output, *self.out).add_(states), *first)
        source = self.source[self.index]
        output = self._attend(linear(states, *self.source_q), shape, source.keys, source.values, source_mask)
        states = norm(linear(output, *self.source_out).add_(states), *second)
        output = linear(self.activation_fn(linear(states, *self.fc1)), *self.fc2)
        return norm(output.add_(states), *last)

    def _attend(
        self, query: torch.Tensor, shape: tuple, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        query = query.view(*shape, self.d_k).transpose(1, 2)
        output = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=self.scaling)
        return output.transpose(1, 2).reshape(shape[0] * shape[1], -1)


def gather_beams(values: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """What belongs to the beams that others go on from.

    Args:
        values (torch.Tensor): [N, K, ...].
        parents (torch.Tensor): [N, K'] int64.

    Returns:
        torch.Tensor: [N, K', ...].
    """
    first = torch.arange(len(values), device=values.device).unsqueeze(1) * values.shape[1]
    rows = values.reshape(-1, *values.shape[2:]).index_select(0, (parents + first).view(-1))
    return rows.view(*parents.shape, *values.shape[2:])


@contextmanager
def cross_attention_watched(layer: Any) -> Iterator[list[torch.Tensor]]:
    """Collects the cross-attention weights of a decoder layer, which fused implementations do not give.

    Args:
        layer (VaswaniDecoderLayer): The layer.

    Yields:
        list: For each call of the layer inside, [B, T, S] float32: the mean over its heads; each row adds up to 1.
    """
    weights: list[torch.Tensor] = []

    def watch(attention: Any, arguments: tuple, kwargs: dict[str, Any], _: Any) -> None:
        weights.append(_attention_weights(attention, arguments[0], **kwargs))

    handle = layer.encoder_attn.register_forward_hook(watch, with_kwargs=True)
    try:
        yield weights
    finally:
        handle.remove()


def _attention_weights(
    attention: Any,
    states: torch.Tensor,
    key_value_states: torch.Tensor,
    past_key_values: Any = None,
    attention_mask: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    keys, _values = attention._keys_and_values(states, key_value_states, past_key_values)
    queries = attention.q_proj(states).unflatten(-1, (-1, attention.d_k)).transpose(1, 2)
    # The beams of a sentence may have one source in common.
    queries = queries.unflatten(0, (len(keys), -1))
    scores = (queries @ keys.transpose(2, 3).unsqueeze(1)).float() * attention.scaling
    if attention_mask is not None:
        mask = attention_mask[:, None, None] if attention_mask.dim() == 2 else attention_mask
        mask = mask.unsqueeze(1)
        added = mask.dtype.is_floating_point
        scores = scores + mask if added else scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).mean(dim=2).flatten(0, 1)


class RowDecoder:
    """Decoding steps of one row per beam, through the model's own forward.

    Args:
        model (VaswaniForSeq2SeqLM): The model.
        config (GenerationConfig): `num_beams` is K; what to record, what to compile.
        model_kwargs (dict): What `generate` has prepared: the source of B sentences, the target of B * K rows.
    """

    def __init__(self, model: Any, config: GenerationConfig, model_kwargs: dict[str, Any]):
        self.model, self.config, self.num_beams = model, config, config.num_beams
        self.model_kwargs = dict(model_kwargs)
        is_compiled = model._valid_auto_compile_criteria(model_kwargs, config)
        self.forward = model.get_compiled_call(config.compile_config) if is_compiled else model.__call__
        self.attentions: list[Any] = []
        self.cross_attentions: list[Any] = []
        self.hidden_states: list[Any] = []
        self.coverage: torch.Tensor | None = None
        cache = model_kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            # A cache of earlier calls holds the source for each beam.
            for name in ("encoder_outputs", "attention_mask"):
                self.model_kwargs[name] = _repeated(self.model_kwargs.get(name), self.num_beams)

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Read the prompts.

        Args:
            input_ids (torch.Tensor): [B * K, P] int64, the same in all K rows of a sentence.

        Returns:
            torch.Tensor: Logits [B, K, V] float32 of the first new token.
        """
        is_first = not self.config.is_assistant
        with self._watch_coverage():
            outputs = self.model._prefill(input_ids, self.config, self.model_kwargs, is_first_iteration=is_first)
        return self._take(outputs)

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Read the newest token of each beam.

        Args:
            sequences (torch.Tensor): [N, K, T] int64.
            parents (torch.Tensor): [N, K] int64: the beam of the step before that each one goes on from.

        Returns:
            torch.Tensor: Logits [N, K, V] float32 of the next token.
        """
        self._reorder(parents)
        inputs = self.model.prepare_inputs_for_generation(
            sequences.flatten(0, 1), next_sequence_length=1 if self.config.use_cache else None, **self.model_kwargs
        )
        covered = None if self.coverage is None else gather_beams(self.coverage, parents)
        with self._watch_coverage():
            outputs = self.forward(**inputs, return_dict=True)
        if covered is not None and self.config.use_cache:
            self.coverage = covered + self.coverage
        return self._take(outputs)

    def _reorder(self, parents: torch.Tensor) -> None:
        cache = self.model_kwargs.get("past_key_values")
        if cache is not None:
            first = torch.arange(len(parents), device=parents.device).unsqueeze(1) * self.num_beams
            # The beams of a sentence have its source in common: there is nothing to reorder.
            cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            cache.reorder_cache((parents + first).flatten())

    @contextmanager
    def _watch_coverage(self) -> Iterator[None]:
        """Where it is asked for, `coverage` [N, K, S] becomes what the tokens of this call attend to."""
        if not getattr(self.config, "coverage_penalty", None):
            yield
            return
        with cross_attention_watched(self.model.get_decoder().layers[-1]) as weights:
            yield
        mask = self.model_kwargs.get("decoder_attention_mask")
        if mask is not None:
            weights[0] = weights[0] * mask[:, -weights[0].shape[1] :, None]
        self.coverage = weights[0].sum(dim=1).unflatten(0, (-1, self.num_beams))

    def _take(self, outputs: Any) -> torch.Tensor:
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.model_kwargs, is_encoder_decoder=True
        )
        if self.config.return_dict_in_generate and self.config.output_attentions:
            self.attentions.append(outputs.decoder_attentions)
            self.cross_attentions.append(outputs.cross_attentions)
        if self.config.return_dict_in_generate and self.config.output_hidden_states:
            self.hidden_states.append(outputs.decoder_hidden_states)
        logits = outputs.logits[:, -1].to(copy=True, dtype=torch.float32)
        return logits.unflatten(0, (-1, self.num_beams))

    def select(self, sentences: torch.Tensor) -> None:
        """Keep these sentences only; for dynamic caches.

        Args:
            sentences (torch.Tensor): [N'] int64.
        """
        kwargs = self.model_kwargs
        beams = torch.arange(self.num_beams, device=sentences.device)
        rows = (sentences.unsqueeze(1) * self.num_beams + beams).flatten()
        cache = kwargs.get("past_key_values")
        if cache is not None:
            cache.self_attention_cache.batch_select_indices(rows)
            cache.cross_attention_cache.batch_select_indices(sentences)
        kwargs["encoder_outputs"] = BaseModelOutput(kwargs["encoder_outputs"][0][sentences])
        self.coverage = None if self.coverage is None else self.coverage[sentences]
        for name, kept in (("attention_mask", sentences), ("decoder_attention_mask", rows)):
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name].index_select(0, kept)

    def returned_cache(self, parents: torch.Tensor) -> Any:
        """The cache as transformers gives it back: of the beams that would go on, with the source for each.

        Args:
            parents (torch.Tensor): [B, K] int64: the beam of the step before that each one goes on from.

        Returns:
            Cache: None where there is none.
        """
        self._reorder(parents)
        cache = self.model_kwargs.get("past_key_values")
        if isinstance(cache, EncoderDecoderCache):
            beams = len(cache.self_attention_cache.layers[0].keys)
            for layer in cache.cross_attention_cache.layers:
                times = beams // len(layer.keys)
                layer.keys, layer.values = _repeated(layer.keys, times), _repeated(layer.values, times)
        return cache


def _repeated(values: Any, times: int) -> Any:
    if values is None or times == 1:
        return values
    if isinstance(values, torch.Tensor):
        return values.repeat_interleave(times, dim=0)
    return BaseModelOutput(values[0].repeat_interleave(times, dim=0))
