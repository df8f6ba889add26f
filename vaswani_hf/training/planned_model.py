"""The model that a recipe will train, before anything is read or downloaded."""

from typing import Any

import torch
from transformers import PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..settings.sections import ModelSettings, TokenizerSettings


def planned_config(model: ModelSettings, tokenizer: TokenizerSettings) -> VaswaniConfig:
    """The config of the model that a recipe will train, as far as the config is known without the tokenizers.

    The vocabulary has `tokenizer.vocab_size` classes, although a small corpus may give fewer.
    """
    return VaswaniConfig(
        **model.config_fields(),
        vocab_size=tokenizer.vocab_size,
        decoder_vocab_size=tokenizer.planned_target_size,
        share_encoder_decoder_embeddings=tokenizer.has_one_vocabulary,
    )


def planned_model(config: VaswaniConfig, model_class: type[PreTrainedModel] = VaswaniForSeq2SeqLM) -> Any:
    """A model on the meta device, without memory for its weights, which are tied."""
    with torch.device("meta"):
        return model_class(config)
