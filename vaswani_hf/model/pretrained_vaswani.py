"""The base class of all models: loads, initialises, ties, resizes and saves weights, and infers masks from
`<pad>`. The layers of the Transformer are in the file modeling_vaswani.

This file is saved with every checkpoint because all models derive from `VaswaniPreTrainedModel`.

Section and equation numbers refer to "Attention Is All You Need" (arXiv 1706.03762). In tensor shapes, B is
the batch size, S the source length and T the target length.
"""

# Turn off some mypy errors, because transformers declares wider types for sub-modules than this file uses.
# mypy: disable-error-code="arg-type,assignment,index,misc,union-attr"

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from torch import nn
from transformers import initialization as init
from transformers.integrations.fsdp import is_fsdp_managed_module
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import is_tracing

from .attention_vaswani import attention_class, can_be_fused
from .configuration_vaswani import TARGET_FOLDER, VaswaniConfig, decoder_start_token_id, eos_token_ids
from .errors_vaswani import InvalidValueError
from .fast_path_vaswani import needs_sync
from .masks_vaswani import infer_mask

# The attention implementations that support `attention_window`, besides all implementations with "flash" in
# their names.
_WITH_WINDOW = ("eager", "sdpa", "flex_attention")


def _folder_in_cache(name: str, config: VaswaniConfig, options: Mapping[str, Any]) -> Path | None:
    """Return the folder of a loaded commit in the cache of huggingface_hub, or None.

    If the model has two vocabularies, also download the target tokenizer of the same commit. A later download
    could fail, because the model does not store the access token.
    """
    cached = try_to_load_from_cache(name, "config.json", options.get("cache_dir"), options.get("revision"))
    if not isinstance(cached, str):
        return None
    folder = Path(cached).parent
    if not config.share_encoder_decoder_embeddings:
        snapshot_download(
            name,
            revision=folder.name,
            allow_patterns=[f"{TARGET_FOLDER}/tokenizer*.json"],
            cache_dir=options.get("cache_dir"),
            token=options.get("token"),
            local_files_only=options.get("local_files_only", False),
        )
    return folder


class VaswaniPreTrainedModel(PreTrainedModel):
    """Base class of all models. Initialises weights, ties weights, and infers masks from `<pad>`."""

    config: VaswaniConfig
    config_class = VaswaniConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VaswaniEncoderLayer", "VaswaniDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # The folder from which `from_pretrained` loaded the model: a local folder, or the folder of a commit in
    # the cache of huggingface_hub. None if unknown.
    origin: Path | None = None

    def save_pretrained(self, save_directory, is_main_process=True, *args, **kwargs):
        """Save the model as transformers does. If the weights are saved as shards, delete the
        model.safetensors of an earlier save.
        """
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        folder = Path(save_directory)
        if is_main_process and any(folder.glob("model-?????-of-?????.safetensors")):
            # transformers would load the old model.safetensors instead of the new shards.
            (folder / "model.safetensors").unlink(missing_ok=True)

    def __init__(self, config: VaswaniConfig, *inputs, **kwargs):
        # Check the config again, because its fields have perhaps changed since the config was created.
        config.validate_architecture()
        super().__init__(config, *inputs, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        loaded = super().from_pretrained(name, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        has_parameters = any(hasattr(module, "init_scores") for module in model.modules())
        if has_parameters and model._tp_size not in (None, 1):
            raise InvalidValueError(
                "`tp_plan` must be left out, because score functions with parameters are not split between "
                "devices."
            )
        if name is None or kwargs.get("subfolder"):
            return loaded
        if os.path.isdir(name):
            model.origin = Path(name).absolute()
        else:
            model.origin = _folder_in_cache(name, model.config, kwargs)
        return loaded

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise weights as tensor2tensor does, because the paper does not describe the initialisation.

        Projections have the Glorot uniform distribution (tensor2tensor: "uniform_unit_scaling" with gain 1,
        models/transformer.py). Embeddings and the output projection have a normal distribution with standard
        deviation d_model^-0.5 (tensor2tensor: get_weights, layers/modalities.py). If `initializer_range` is
        set, projections, embeddings and the output projection have a normal distribution with the standard
        deviation `initializer_range`. As in GPT-2, `initializer_range` is divided by sqrt(N) for the last
        projection of each of the N sub-layers in a stack.
        """
        deviation = self.config.initializer_range
        if isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            init.normal_(module.weight, mean=0.0, std=deviation or self.config.d_model**-0.5)
            padding = self._zero_row(module)
            if padding is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[padding])
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            if deviation:
                init.normal_(module.weight, std=deviation * getattr(module, "num_sublayers", 1) ** -0.5)
            else:
                init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif hasattr(module, "init_scores"):
            module.init_scores()
        else:
            super()._init_weights(module)

    def _zero_row(self, module: nn.Module) -> int | None:
        """Return the index of the row of `<pad>` if the row must stay zero, else None."""
        if isinstance(module, nn.Embedding):
            return module.padding_idx
        return self.config.pad_token_id if self.config.zero_start_embedding else None

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args, **kwargs) -> str:
        config = self.config
        asked = attn_implementation or "sdpa"
        classes = {config.score_of(is_cross): attention_class(config, is_cross) for is_cross in (False, True)}
        unfused = [score for score, kind in classes.items() if not can_be_fused(kind)]
        if unfused and attn_implementation not in (None, "eager"):
            raise InvalidValueError(
                f'`attn_implementation` must be "eager" for the attention score "{unfused[0]}", '
                f"but is {attn_implementation!r}."
            )
        masked = [score for score, kind in classes.items() if kind.local_mask is not None]
        if masked and asked not in _WITH_WINDOW:
            raise InvalidValueError(
                f"`attn_implementation` must be {' or '.join(_WITH_WINDOW)} for the `local_mask` of the attention score "
                f'"{masked[0]}", but is {attn_implementation!r}.'
            )
        windows = config.shape_of("encoder").windows + config.shape_of("decoder").windows
        has_window = any(window is not None for window in windows)
        if has_window and asked not in _WITH_WINDOW and "flash" not in asked:
            raise InvalidValueError(
                f"`attn_implementation` must be {', '.join(_WITH_WINDOW)} or flash if `attention_window` is set, "
                f"but is {attn_implementation!r}."
            )
        attn_implementation = "eager" if unfused else attn_implementation
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # Replace the method of transformers, because transformers ties no weights if `tie_word_embeddings` is
        # False. In this package `tie_word_embeddings` concerns only the output projection, and
        # `share_encoder_decoder_embeddings` concerns the embeddings.
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

    def mark_tied_weights_as_initialized(self, loading_info):
        # Mark a tied weight as missing if the weight file contains the weight under none of its names.
        # transformers regards all tied weights as loaded, so a missing tied weight would stay uninitialised.
        ties = self.all_tied_weights_keys
        missing = loading_info.missing_keys
        absent = set()
        for name in ties.values():
            names = {name, *(copy for copy in ties if ties[copy] == name)}
            if names <= missing:
                absent.add(name)
        super().mark_tied_weights_as_initialized(loading_info)
        for name in absent:
            self.get_parameter(name)._is_hf_initialized = False
        loading_info.missing_keys |= absent

    def load_state_dict(self, state_dict, strict=True, assign=False):
        # Add the missing names of tied weights, because a state dict can contain a tied weight under only one
        # of its names.
        ties = self.all_tied_weights_keys
        copies = {copy: state_dict[name] for copy, name in ties.items() if name in state_dict}
        return super().load_state_dict({**copies, **state_dict}, strict, assign)

    def gather_sharded_state_dict_for_save(self, model_to_save, *args, **kwargs):
        state_dict = super().gather_sharded_state_dict_for_save(model_to_save, *args, **kwargs)
        if not is_fsdp_managed_module(model_to_save):
            return state_dict
        # Gather the weights that FSDP2 has sharded, because transformers gathers only weights that
        # transformers itself has sharded. Keep only one name of each tied weight. transformers recognises
        # tied weights by shared memory, but after `full_tensor` the weights do not share memory.
        gathered = {}
        for name, tensor in state_dict.items():
            if name not in self.all_tied_weights_keys:
                gathered[name] = tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor
        return gathered

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target embedding and the output projection of a model with two vocabularies.

        The arguments are the same as for the method `resize_token_embeddings`, which resizes the source
        embedding.

        Returns:
            nn.Embedding: The target embedding.

        Raises:
            ValueError: If the source and the target share one embedding.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise InvalidValueError(
                "`resize_decoder_token_embeddings` can only be used for a model with two vocabularies, but "
                "this model has one vocabulary; use `resize_token_embeddings`."
            )
        decoder = self.get_decoder()
        decoder.embed_tokens = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        size = decoder.embed_tokens.num_embeddings
        self.config.decoder_vocab_size = size
        head = getattr(self, "lm_head", None)
        if head is not None:
            self.lm_head = self._get_resized_lm_head(head, size, mean_resizing=mean_resizing)
        self.tie_weights()
        return decoder.embed_tokens

    def _padding_is_end(self) -> bool:
        pad = self.config.pad_token_id
        return pad in eos_token_ids(self.config) or (pad is None and self.config.eos_token_id is None)

    def _infer_source_mask(self, input_ids: torch.Tensor | None) -> torch.Tensor | None:
        """Return the mask [B, S] of tokens or labels, False for padding. Return None if the config has no
        `pad_token_id` or `input_ids` is None.
        """
        if input_ids is None or self.config.pad_token_id is None:
            return None
        return infer_mask(input_ids, self.config.pad_token_id, "end" if self._padding_is_end() else None)

    def _infer_target_mask(self, decoder_input_ids: torch.Tensor) -> torch.Tensor | None:
        """Return the mask [B, T] of target tokens, False for padding, or None if no mask is necessary."""
        pad = self.config.pad_token_id
        if pad is None or self._padding_is_end():
            return None
        is_start = pad == decoder_start_token_id(self.config)
        mask = infer_mask(decoder_input_ids, pad, "start" if is_start else None)
        # Causal self-attention needs no mask if all padding is at the end of the rows. Skip the check on a
        # GPU, because the CPU would wait for the GPU. In tracing and on the meta device, the mask has no
        # values, so skip the check.
        is_unread = is_tracing(mask) or mask.device.type == "meta" or needs_sync(mask)
        if not is_unread and bool((mask[:, 1:] <= mask[:, :-1]).all()):
            return None
        return mask


def tensor_parallel_plan(*attentions: str) -> dict[str, str]:
    """Return a `_tp_plan` of transformers that divides the vocabulary, the attention heads and the inner
    features of the feed-forward network between devices.
    """
    plan = {"embed_tokens": "embedding_rowwise", "layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"}
    for name in attentions:
        for projection in ("q_proj", "k_proj", "v_proj"):
            plan[f"layers.*.{name}.{projection}"] = "colwise"
        plan[f"layers.*.{name}.out_proj"] = "rowwise"
    return plan
