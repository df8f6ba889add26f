"""The model of a recipe and its training steps, without the data and the trained tokenizers of the recipe.

step_cost.py runs a training step without data, and measure.py runs training steps with random token ids.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..optimization.regularizers import regularizer_of
from ..optimization.section import AnyTraining
from ..settings.sections import ModelSettings, TokenizerSettings
from .initialization import frozen_weights


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


def set_up_training(model: PreTrainedModel, training: AnyTraining) -> None:
    """Switch a model to training: no key-value cache, frozen weights, and gradient checkpointing."""
    model.train()
    model.config.use_cache = False
    for weight in frozen_weights(model, training.frozen):
        weight.requires_grad_(False)
    if training.gradient_checkpointing:
        # Use the method under either of its names, because transformers 5.23 has renamed
        # `gradient_checkpointing_enable` to `activation_checkpointing_enable`.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()


def loss_function(
    model: PreTrainedModel, training: AnyTraining, device_type: str
) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """Return a function that computes the loss of a batch, with the autocast and the regulariser of the
    recipe.
    """
    autocast = partial(torch.autocast, device_type, torch.bfloat16, enabled=training.bf16 is True)
    regularizer = regularizer_of(training)
    compute: Callable[..., Any] = model
    if regularizer is not None:
        compute = partial(regularizer.build(model, training, autocast), model)

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with autocast():
            return compute(**batch).loss

    return loss


def full_batch(source: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch without padding. `source` [B, S] and `labels` [B, T] are token ids (int64)."""
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "labels": labels,
        "num_items_in_batch": torch.tensor(labels.numel(), device=labels.device),
    }
