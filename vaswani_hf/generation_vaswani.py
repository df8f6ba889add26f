"""What `generate` of transformers needs to know of this model; its search runs as transformers has it."""

import copy
from typing import Any

import torch
from transformers.generation import GenerationMixin


class VaswaniGeneration(GenerationMixin):
    """Keeps padding out of `generate`, and the two vocabularies apart."""

    config: Any

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # The decoder is handed no source tokens from which the mask could be inferred at each step.
        given = model_kwargs.get("attention_mask") is not None or model_kwargs.get("encoder_outputs") is not None
        mask = self._infer_source_mask(inputs) if name == "input_ids" and not given else None
        if mask is not None:
            model_kwargs["attention_mask"] = mask.long()
        return inputs, name, model_kwargs

    def _prepare_decoder_input_ids_for_generation(self, *args, **kwargs):
        input_ids, model_kwargs = super()._prepare_decoder_input_ids_for_generation(*args, **kwargs)
        # Padding before a target prefix stays masked at every later step only if its mask is known from the first.
        if model_kwargs.get("decoder_attention_mask") is None:
            mask = self._infer_target_mask(input_ids)
            if mask is not None:
                model_kwargs["decoder_attention_mask"] = mask.long()
        return input_ids, model_kwargs

    def _beam_search(self, input_ids: torch.Tensor, *args, **kwargs):
        # transformers 5.17 takes the number of target classes from `vocab_size`, which is the source's.
        config = self.config
        self.config = copy.copy(config)
        self.config.share_encoder_decoder_embeddings = False
        self.config.vocab_size = config.decoder_vocab_size
        try:
            return super()._beam_search(input_ids, *args, **kwargs)
        finally:
            self.config = config
