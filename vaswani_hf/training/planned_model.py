"""The model that a recipe describes, before the data is read and the tokenizers are trained."""

from typing import Any

import torch
from transformers import PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..settings.sections import ModelSettings, TokenizerSettings


def planned_config(model: ModelSettings, tokenizer: TokenizerSettings) -> VaswaniConfig:
    """Return the config of the model of a recipe, with `tokenizer.vocab_size` as the size of the
    vocabulary.
    """
    return model.make_config(
        vocab_size=tokenizer.vocab_size,
        decoder_vocab_size=tokenizer.planned_target_size,
        share_encoder_decoder_embeddings=tokenizer.has_one_vocabulary,
    )


def planned_model(config: VaswaniConfig, model_class: type[PreTrainedModel] = VaswaniForSeq2SeqLM) -> Any:
    """Return a model with tied weights on the meta device, where weights take no memory."""
    with torch.device("meta"):
        return model_class(config)
