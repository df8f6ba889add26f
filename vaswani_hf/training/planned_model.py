"""The model that a recipe will train, before anything is read or downloaded."""

from typing import Any

import torch

from ..model.configuration_vaswani import VaswaniConfig
from ..recipe.schema import Recipe
from ..tasks import TASKS


def planned_config(recipe: Recipe) -> VaswaniConfig:
    """The config of the model that a recipe will train, as far as the config is known without the tokenizers.

    The vocabulary has `tokenizer.vocab_size` classes, although a small corpus may give fewer. A parser has the symbols of
    the Wall Street Journal.
    """
    tokenizer = recipe.tokenizer
    return VaswaniConfig(
        **{name: value for name, value in recipe.model.items() if name != "init_from"},
        vocab_size=tokenizer.vocab_size,
        decoder_vocab_size=TASKS[recipe.task].planned_target_size(tokenizer),
        share_encoder_decoder_embeddings=tokenizer.shared_vocabulary,
    )


def planned_model(config: VaswaniConfig, task: str = "translation") -> Any:
    """A model of the class of a task on the meta device, without memory for its weights, which are tied."""
    with torch.device("meta"):
        return TASKS[task].model_class(config)
