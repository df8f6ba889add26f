"""The Transformer of Vaswani et al. 2017, "Attention Is All You Need", as transformers models.

This file travels with every checkpoint because it is the model. Sections and equations are those of the paper (arXiv 1706.03762).
Letters of shapes: B batch, S source length, T target length, D model width, V target vocabulary.

With the defaults of `VaswaniConfig` this is the paper's computation.
Differs from the paper: the padding class takes no part in probabilities because a translation contains none.
Differs from the paper: the options of `VaswaniConfig` that say so; all are off by default.
"""

# transformers types caches, masks and sub-modules more widely than they come here.
# mypy: disable-error-code="arg-type,assignment,index,misc,union-attr"

import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.integrations.fsdp import is_fsdp_managed_module
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as DecoderOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, is_tracing
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vaswani import (
    UNFUSED_SCORES,
    VaswaniAttention,
    attention_masks,
    decoding_cache,
    infer_mask,
    needs_sync,
    permits_fast_path,
    positions_of,
    register_fast_path,
)
from .configuration_vaswani import TARGET_FOLDER, VaswaniConfig, eos_token_ids
from .generation_vaswani import VaswaniGeneration
from .layers_vaswani import VaswaniDecoderLayer, VaswaniEncoderLayer, VaswaniLearnedPositions, require_one, sinusoids
from .layers_vaswani import tensor_parallel_plan as parallel_plan
from .loss_vaswani import IGNORED_LABEL, chunked_cross_entropy, dropout, smoothed_cross_entropy

# The logit of the excluded padding class: its probability is 0 in float32. A finite and moderate value keeps a loss
# moderate that somebody smooths outside over all classes, as Trainer does in evaluation: e/V of it is added there.
EXCLUDED_LOGIT = -1e3
# Attention implementations of transformers that restrict self-attention, beside its flash kernels.
_WITH_WINDOW = ("eager", "sdpa", "flex_attention")


class FromRepository:
    """Loading of a model together with the place that it is loaded from."""

    # The local folder, in the cache that of the commit; None for a model that was built, and for one in a subfolder.
    origin: Path | None = None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]
        name, model = pretrained_model_name_or_path, loaded[0] if isinstance(loaded, tuple) else loaded
        if model._tp_size not in (None, 1) and any(hasattr(module, "init_scores") for module in model.modules()):
            raise ValueError(
                "`tp_plan` must be left out: attention scores with parameters are not split between devices."
            )
        if name is None or kwargs.get("subfolder"):
            return loaded
        if os.path.isdir(name):
            model.origin = Path(name).absolute()
            return loaded
        cached = try_to_load_from_cache(name, "config.json", kwargs.get("cache_dir"), kwargs.get("revision"))
        model.origin = Path(cached).parent if isinstance(cached, str) else None
        if model.origin is not None and not model.config.share_encoder_decoder_embeddings:
            # The commit is that of the weights, even if the branch has moved on. It is fetched now, because the token is not kept.
            place = {key: kwargs[key] for key in ("cache_dir", "token", "local_files_only") if key in kwargs}
            files = [f"{TARGET_FOLDER}/tokenizer*.json"]
            snapshot_download(name, revision=model.origin.name, allow_patterns=files, **place)
        return loaded


class VaswaniPreTrainedModel(FromRepository, PreTrainedModel):
    """Initialisation, tying, what transformers asks of every model, and the output projection of those that have one."""

    config: VaswaniConfig
    config_class = VaswaniConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = _supports_sdpa = _supports_flex_attn = _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: VaswaniConfig, *inputs, **kwargs):
        # Fields may have been assigned since the config was made.
        config.validate_architecture()
        super().__init__(config, *inputs, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as tensor2tensor does; the paper does not say how.

        Projections: Glorot uniform ("uniform_unit_scaling" with gain 1 in transformer_base, models/transformer.py).
        Embeddings and output projection: normal with deviation d_model^-0.5 (get_weights, layers/modalities.py).
        With an `initializer_range` all normal with that deviation, over sqrt(N) where one of a stack's N sub-layers ends, as GPT-2.
        """
        deviation = self.config.initializer_range
        if isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            init.normal_(module.weight, mean=0.0, std=deviation or self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            share = getattr(module, "num_sublayers", 1) ** -0.5
            init.normal_(module.weight, std=deviation * share) if deviation else init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif hasattr(module, "init_scores"):
            module.init_scores()
        else:
            super()._init_weights(module)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        config, asked = self.config, attn_implementation or "sdpa"
        unfused = [score for is_cross in (False, True) if (score := config.score_of(is_cross)) in UNFUSED_SCORES]
        if unfused and attn_implementation not in (None, "eager"):
            raise ValueError(
                f'`attn_implementation` must be "eager" for the attention score "{unfused[0]}", but is {attn_implementation!r}.'
            )
        windows = {*config.windows_of(is_causal=False), *config.windows_of(is_causal=True)} - {None}
        if windows and not (asked in _WITH_WINDOW or "flash" in asked):
            raise ValueError(
                f"`attn_implementation` must be {', '.join(_WITH_WINDOW)} or flash with `attention_window`, but is {attn_implementation!r}."
            )
        attn_implementation = "eager" if unfused else attn_implementation
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # transformers ties nothing at all where `tie_word_embeddings` is False; here the switch is for the output
        # projection alone, and `share_encoder_decoder_embeddings` says whether the two embeddings are one.
        own = dict(self._tied_weights_keys or {})
        return super().get_expanded_tied_weights_keys(all_submodels=True) if all_submodels else own

    def mark_tied_weights_as_initialized(self, loading_info):
        # Ties are made before loading here: what is missing under all its names would pass for loaded, and stay garbage.
        ties, missing = self.all_tied_weights_keys, loading_info.missing_keys
        absent = {of for of in ties.values() if {of, *(copy for copy in ties if ties[copy] == of)} <= missing}
        super().mark_tied_weights_as_initialized(loading_info)
        for name in absent:
            self.get_parameter(name)._is_hf_initialized = False
        loading_info.missing_keys |= absent

    def load_state_dict(self, state_dict, strict=True, assign=False):
        # A state is complete without the copies of tied weights.
        ties = {copy: state_dict[of] for copy, of in self.all_tied_weights_keys.items() if of in state_dict}
        return super().load_state_dict({**ties, **state_dict}, strict, assign)

    def gather_sharded_state_dict_for_save(self, model_to_save, *args, **kwargs):
        state_dict = super().gather_sharded_state_dict_for_save(model_to_save, *args, **kwargs)
        if not is_fsdp_managed_module(model_to_save):
            return state_dict
        # transformers gathers what it has sharded itself, and finds tied weights by a place in memory that gathered
        # copies do not share.
        own = ((name, tensor) for name, tensor in state_dict.items() if name not in self.all_tied_weights_keys)
        return {name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor for name, tensor in own}

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """The target embedding of a model with two, resized with the projection, as `resize_token_embeddings` does the source's.

        Raises:
            ValueError: If source and target share one embedding.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`resize_decoder_token_embeddings` is for two vocabularies, but this model has one; use `resize_token_embeddings`."
            )
        decoder, head = self.get_decoder(), getattr(self, "lm_head", None)
        sizes = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, *sizes)
        self.config.decoder_vocab_size = size = decoder.embed_tokens.num_embeddings
        if head is not None:
            self.lm_head = self._get_resized_lm_head(head, size, mean_resizing=mean_resizing)
        self.tie_weights()
        return decoder.embed_tokens

    def _init_stack(self, vocab_size: int, layer_class: type[nn.Module], num_layers: int) -> None:
        """The embeddings of a stack, Sections 3.4 and 3.5, and its layers."""
        config = self.config
        self.embed_scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        if config.position_embedding == "learned":
            self.embed_positions = VaswaniLearnedPositions(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList([layer_class(config, index) for index in range(num_layers)])
        ends = [part for name, part in self.layers.named_modules() if name.endswith(("out_proj", "fc2"))]
        for part in ends:
            part.num_sublayers = len(ends)
        if config.norm_position == "pre":
            self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def position_states(self, position_ids: torch.Tensor) -> torch.Tensor:
        """The position encodings or embeddings [B or 1, T, D] of a stack, Section 3.5, for positions [B or 1, T] from 0."""
        if self.config.position_embedding == "learned":
            return self.embed_positions(position_ids)
        return sinusoids(position_ids, self.config.d_model)

    def add_positions(self, inputs_embeds: torch.Tensor, position_states: torch.Tensor) -> torch.Tensor:
        """Dropout(embedding * sqrt(d_model) + positions), Sections 3.4, 3.5 and 5.4: [B, T, D], for the first layer."""
        hidden_states = inputs_embeds * self.embed_scale + position_states.to(inputs_embeds.dtype)
        return dropout(hidden_states, self.config.dropout, self.training)

    def _padding_is_end(self) -> bool:
        pad = self.config.pad_token_id
        return pad in eos_token_ids(self.config) or (pad is None and self.config.eos_token_id is None)

    def _infer_source_mask(self, input_ids: torch.Tensor | None) -> torch.Tensor | None:
        if input_ids is None or self.config.pad_token_id is None:
            return None
        return infer_mask(input_ids, self.config.pad_token_id, "end" if self._padding_is_end() else None)

    def _infer_target_mask(self, decoder_input_ids: torch.Tensor) -> torch.Tensor | None:
        """The mask of padding before or between target tokens, if any; causality keeps what is behind from real tokens."""
        pad = self.config.pad_token_id
        if pad is None or self._padding_is_end():
            return None
        mask = infer_mask(decoder_input_ids, pad, "start" if pad == self.config.decoder_start_token_id else None)
        # While tracing nobody can look at the values, elsewhere not without waiting; and the mask is always right.
        is_unread = is_tracing(mask) or mask.device.type == "meta" or needs_sync(mask)
        if not is_unread and bool((mask[:, 1:] <= mask[:, :-1]).all()):
            return None
        return mask

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of the next target token for decoder states [B, T, D]; the probability of `<pad>` is 0."""
        return self._loss_and_logits(hidden_states)[1]

    def _loss_and_logits(
        self, hidden_states: torch.Tensor, labels: torch.Tensor | None = None, num_items=None, skip_logits=None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The loss and the logits of these decoder states [B, T, D], each where it is asked for."""
        smoothing = self.config.label_smoothing if self.training and labels is not None else 0.0
        excluded = self.excluded_class(smoothing, labels)
        loss = (num_items, smoothing, self.config.label_smoothing_form)
        if labels is not None:
            mask = self._infer_source_mask(labels)
            labels = labels if mask is None else labels.masked_fill(~mask, IGNORED_LABEL)
            if (self.training if skip_logits is None else skip_logits) and self._has_plain_head():
                removed = None if excluded is None else (excluded, EXCLUDED_LOGIT)
                return chunked_cross_entropy(hidden_states, self.lm_head.weight, labels, *loss, removed), None
        logits = self.lm_head(hidden_states)
        if excluded is not None:
            logits = logits.clone() if logits.requires_grad else logits  # A hook may have given a view.
            logits[..., excluded] = EXCLUDED_LOGIT
        return None if labels is None else smoothed_cross_entropy(logits, labels, *loss), logits

    def excluded_class(self, smoothing: float, labels: torch.Tensor | None) -> int | None:
        """The padding class, or None where it takes part in the probabilities."""
        # Smoothing gives it a share, in our loss or, without labels, in the one that a training loop computes from logits.
        smoothed_outside = self.training and labels is None and torch.is_grad_enabled()
        return None if smoothing or smoothed_outside or self._padding_is_end() else self.config.pad_token_id

    def _has_plain_head(self) -> bool:
        # A bare matrix: no adapter, no quantization, no tensor-parallel share, nobody who listens.
        head = self.lm_head
        if type(head) is not nn.Linear or head.bias is not None:
            return False
        return permits_fast_path(head, "forward") and self._tp_size in (None, 1)

    @property
    def supports_fast_path(self) -> bool:
        """`TreeAttentionDecoder` may take the place of `forward` while searching.

        False for a class with a forward of its own, unless it says otherwise, where something was put around or in place
        of one or it is compiled, where devices share the weights, and for attention kernels that take no additive mask.
        """
        modules = (self, self.model, self.get_decoder())
        if not all(permits_fast_path(module, "forward") for module in modules):
            return False
        kinds = {one.implementation for one in self.get_decoder().modules() if isinstance(one, VaswaniAttention)}
        return kinds <= {"sdpa", "eager"} and self._tp_size in (None, 1)


class VaswaniEncoder(VaswaniPreTrainedModel):
    """The stack of N encoder layers over the embedded source (Section 3.1)."""

    _tp_plan = parallel_plan("self_attn")
    _fsdp_plan = {"layers.*": "free_full_weight"}
    _can_record_outputs = {"hidden_states": VaswaniEncoderLayer, "attentions": VaswaniAttention}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self._init_stack(config.vocab_size, VaswaniEncoderLayer, config.encoder_layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode the source: `last_hidden_state` [B, S, D]; the arguments are those of `VaswaniForSeq2SeqLM.forward`."""
        require_one(input_ids, inputs_embeds)
        attention_mask = self._infer_source_mask(input_ids) if attention_mask is None else attention_mask
        inputs_embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        position_ids = positions_of(attention_mask, inputs_embeds)
        hidden_states = self.add_positions(inputs_embeds, self.position_states(position_ids))
        is_recorded = kwargs.get("output_attentions", self.config.output_attentions)
        attentions = [layer.self_attn for layer in self.layers]
        masks = attention_masks(attentions, inputs_embeds, attention_mask, is_recorded=is_recorded)
        for layer, mask in zip(self.layers, masks, strict=True):
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(self.layer_norm(hidden_states) if self.config.norm_position == "pre" else hidden_states)


class VaswaniDecoder(VaswaniPreTrainedModel):
    """The stack of N decoder layers over the embedded target (Section 3.1)."""

    _tp_plan = parallel_plan("self_attn", "encoder_attn")
    _fsdp_plan = {"layers.*": "free_full_weight"}
    _can_record_outputs = {
        "hidden_states": VaswaniDecoderLayer,
        "attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VaswaniAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self._init_stack(config.decoder_vocab_size, VaswaniDecoderLayer, config.decoder_layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DecoderOutput:
        """Decode the target as far as it is given: `last_hidden_state` [B, T, D], the cache, what was recorded.

        The arguments are those of `VaswaniForSeq2SeqLM.forward`, where they begin with `decoder_`, and the encoder's states
        [B, S, D] with their mask. Padding before the first token is inferred from `<pad>` where nothing is cached.
        """
        require_one(input_ids, inputs_embeds, "decoder_")
        if use_cache and past_key_values is None:
            is_traced = is_tracing(input_ids if inputs_embeds is None else inputs_embeds)
            past_key_values = decoding_cache(self.config, attention_mask, is_whole=is_traced)
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        if attention_mask is None and input_ids is not None and isinstance(past_length, int) and past_length == 0:
            attention_mask = self._infer_target_mask(input_ids)
        inputs_embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        position_ids = positions_of(attention_mask, inputs_embeds, past_length, is_causal=True)
        hidden_states = self.add_positions(inputs_embeds, self.position_states(position_ids))
        attentions = [layer.self_attn for layer in self.layers]
        is_recorded = kwargs.get("output_attentions", self.config.output_attentions)
        masks = attention_masks(attentions, inputs_embeds, attention_mask, past_key_values, is_recorded=is_recorded)
        source_masks = [None] * len(masks)
        if encoder_hidden_states is not None:
            attentions = [layer.encoder_attn for layer in self.layers]
            shared = {"encoder_hidden_states": encoder_hidden_states}
            source_masks = attention_masks(attentions, inputs_embeds, encoder_attention_mask, **shared)
        for layer, mask, source_mask in zip(self.layers, masks, source_masks, strict=True):
            source = (encoder_hidden_states, source_mask)
            hidden_states = layer(hidden_states, mask, *source, past_key_values=past_key_values, **kwargs)
        hidden_states = self.layer_norm(hidden_states) if self.config.norm_position == "pre" else hidden_states
        return DecoderOutput(hidden_states, past_key_values)


class VaswaniModel(VaswaniPreTrainedModel):
    """Encoder and decoder without the output projection (Figure 1)."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
            copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
            self._tied_weights_keys = dict.fromkeys(copies, "shared.weight")
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        if config.share_encoder_decoder_embeddings:
            # One module and not only one weight: FSDP2 refuses a weight in modules that it shards apart.
            self.set_input_embeddings(self.shared)
        self.post_init()
        if config.share_encoder_decoder_embeddings:
            for stack in ("encoder", "decoder"):
                self._tp_plan.pop(f"{stack}.embed_tokens", None)
            self._tp_plan["shared"] = "embedding_rowwise"

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = self.decoder.embed_tokens = value

    def state_dict(self, *args, prefix: str = "", **kwargs):
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        if self.config.share_encoder_decoder_embeddings and is_fsdp_managed_module(self.shared):
            # PyTorch cannot load a sharded module by a second name.
            for stack in ("encoder", "decoder"):
                state.pop(f"{prefix}{stack}.embed_tokens.weight", None)
        return state

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source and decode the target to states [B, T, D]; the arguments are those of `VaswaniForSeq2SeqLM.forward`."""
        attention_mask = self._infer_source_mask(input_ids) if attention_mask is None else attention_mask
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        source = {"encoder_hidden_states": encoder_outputs.last_hidden_state, "encoder_attention_mask": attention_mask}
        target = {"input_ids": decoder_input_ids, "attention_mask": decoder_attention_mask}
        target |= {"inputs_embeds": decoder_inputs_embeds, "past_key_values": past_key_values}
        decoder_outputs = self.decoder(**target, **source, use_cache=use_cache, **kwargs)
        recorded = ("last_hidden_state", "hidden_states", "attentions")
        given = {f"encoder_{name}": encoder_outputs.get(name) for name in recorded}
        given |= {f"decoder_{name}": decoder_outputs.get(name) for name in recorded[1:]}
        given |= {name: decoder_outputs.get(name) for name in (recorded[0], "past_key_values", "cross_attentions")}
        return Seq2SeqModelOutput(**given)


class VaswaniForSeq2SeqLM(VaswaniGeneration, VaswaniPreTrainedModel, GenerationMixin):
    """The Transformer with its output projection, loss and `generate` (Figure 1)."""

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        self.model = VaswaniModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        ties = {f"model.{copy}": f"model.{source}" for copy, source in (self.model._tied_weights_keys or {}).items()}
        if config.tie_word_embeddings:
            shared = config.share_encoder_decoder_embeddings
            ties["lm_head.weight"] = "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"
        self._tied_weights_keys = ties
        self.post_init()
        if config.tie_word_embeddings:
            # transformers ties a model on the meta device later than FSDP2 shards it.
            self.lm_head.weight = self.model.decoder.embed_tokens.weight

    def get_output_embeddings(self) -> nn.Module | None:
        """The output projection; None where accelerate would shard it apart from a target embedding that it is tied to."""
        is_tied_to_target = self.config.tie_word_embeddings and not self.config.share_encoder_decoder_embeddings
        return None if is_tied_to_target and os.environ.get("ACCELERATE_USE_FSDP") == "true" else self.lm_head

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True):
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # The source vocabulary alone: the output projection belongs to the target's.
        sizes = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.set_input_embeddings(self._get_resized_embeddings(self.get_input_embeddings(), *sizes))
        return self.get_input_embeddings()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's inputs [B, T] for labels [B, T]: shifted right by one, the start in front (Section 3.1).

        Raises:
            ValueError: If the config has no `pad_token_id` or no `decoder_start_token_id`.
        """
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(self.config, name) is None:
                raise ValueError(f"`{name}` must be set in the config to make the decoder's inputs from labels.")
        shifted = labels.new_full(labels.shape, self.config.decoder_start_token_id)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill_(shifted == IGNORED_LABEL, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple | BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits of the next target token at each position, and the loss where labels are given.

        Args:
            input_ids (torch.Tensor, optional): [B, S] int64.
            attention_mask (torch.Tensor, optional): [B, S], 1 = may attend; inferred from `<pad>` if not given.
            decoder_input_ids (torch.Tensor, optional): [B, T] int64; made from `labels` if not given.
            decoder_attention_mask (torch.Tensor, optional): [B, T with the cached ones], 1 = may attend.
            encoder_outputs (tuple or BaseModelOutput, optional): The encoded source, in place of the source.
            past_key_values (Cache, optional): Keys and values of earlier calls.
            inputs_embeds (torch.Tensor, optional): [B, S, D] float in place of `input_ids`, before the scaling.
            decoder_inputs_embeds (torch.Tensor, optional): [B, T, D] float in place of `decoder_input_ids`.
            labels (torch.Tensor, optional): [B, T] int64; -100 and `<pad>` are ignored. In training mode the loss is
                label-smoothed as the config says (Section 5.4), in eval mode the negative log-likelihood (nats per token).
            use_cache (bool, optional): Give back a cache; `config.use_cache` by default, never with labels.
            num_items_in_batch (torch.Tensor or int, optional): Divides the summed loss (tokens of all accumulated batches).
            skip_logits (bool, optional): Compute the loss without holding the logits, by default in training with labels.
            **kwargs: `output_attentions`, `output_hidden_states`, `return_dict`; the rest goes to the attention.

        Returns:
            Seq2SeqLMOutput: `loss` (float32 scalar), `logits` [B, T, V], the cache, what was recorded.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        target = {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        target |= {"decoder_inputs_embeds": decoder_inputs_embeds, "past_key_values": past_key_values}
        outputs = self.model(**source, **target, encoder_outputs=encoder_outputs, use_cache=use_cache, **kwargs)
        loss, logits = self._loss_and_logits(outputs.last_hidden_state, labels, num_items_in_batch, skip_logits)
        recorded = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **recorded)


for _kind in (VaswaniForSeq2SeqLM, VaswaniModel, VaswaniDecoder):
    register_fast_path(_kind, "forward")
