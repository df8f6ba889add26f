"""Ensembles: the search averages the token probabilities of several models with the same vocabulary.

Each model of an ensemble encodes the source with its own encoder.

This file is saved with every checkpoint because `generate` accepts an ensemble.

In tensor shapes, B is the number of sentences and S the source length.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin

from .beam_search_vaswani import SearchTask
from .configuration_vaswani import is_vaswani_seq2seq
from .errors_vaswani import InvalidValueError


def checked_models(ensemble: Any) -> list[Any]:
    """Return the models of an ensemble as a list. Raise an error if `ensemble` is not a list of models."""
    if not isinstance(ensemble, (list, tuple)):
        raise InvalidValueError(
            f"`ensemble` must be a list of models, but is a {type(ensemble).__name__}; pass one model as "
            "`ensemble=[model]`."
        )
    for number, model in enumerate(ensemble):
        if not isinstance(model, GenerationMixin):
            raise InvalidValueError(
                f"`ensemble` must be a list of models that generate, but ensemble[{number}] is a "
                f"{type(model).__name__}."
            )
    return [*ensemble]


def add_ensemble(
    task: SearchTask, ensemble: Sequence[Any], source_ids: torch.Tensor | None, config: GenerationConfig
) -> None:
    """Add other models with the same vocabulary to a search, for example MarianMT models. `source_ids` is [B,
    S].
    """
    for number, other in enumerate(ensemble):
        _check_member(task.models[0], other, f"ensemble[{number}]", config)
    if source_ids is None or source_ids.is_floating_point() or bool((source_ids < 0).any()):
        raise InvalidValueError("`ensemble` needs `input_ids`: each model encodes the source by itself.")
    for number, other in enumerate(ensemble):
        positions = _num_positions(other.config)
        for name, length in (("source", source_ids.shape[1]), ("target prefix", task.prompt.shape[1])):
            if length > positions:
                raise InvalidValueError(
                    f"`ensemble` must be models with positions for all tokens, but ensemble[{number}] has "
                    f"{positions} positions and the {name} has {length} tokens."
                )
        if positions < math.inf:
            # Permit one token more than the number of free positions, because a model never reads the last
            # new token.
            task.limits = task.limits.clamp(max=int(positions) + 1 - task.prompt.shape[1])
        task.inputs.append(_inputs_of_member(other, source_ids, task.inputs[0]))
        task.models.append(other)


def _check_member(model: Any, other: Any, name: str, config: GenerationConfig) -> None:
    """Raise an error if the model `other` cannot be combined with `model` in an ensemble."""
    if not other.config.is_encoder_decoder:
        raise InvalidValueError(
            f"`ensemble` must be encoder-decoder models, but {name} is a {type(other).__name__}."
        )
    own = _vocabulary(model)
    foreign = _vocabulary(other)
    for field in own:
        if own[field] != foreign[field]:
            raise InvalidValueError(
                f"`ensemble` must be models of one vocabulary, but `{field}` is {foreign[field]!r} in {name} "
                f"and {own[field]!r} in the model whose `generate` is called."
            )
    if not is_vaswani_seq2seq(other) and other.training and other.is_gradient_checkpointing:
        raise InvalidValueError(
            f"`ensemble` must be models with a cache, but {name}, a {type(other).__name__}, has no cache "
            f"in training mode with gradient checkpointing; call `{name}.eval()`."
        )
    if getattr(config, "coverage_penalty", None) and not is_vaswani_seq2seq(other):
        raise InvalidValueError(
            f"`coverage_penalty` must be left out with {name}, a {type(other).__name__}: the coverage needs "
            "recorded attention, and only Vaswani models record attention."
        )


def _vocabulary(model: Any) -> dict[str, Any]:
    """Return the config fields that must be equal in all models of an ensemble."""
    config = model.config
    shared = {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": getattr(config, "decoder_vocab_size", None) or config.vocab_size,
    }
    for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, name, None)
        value = getattr(model.generation_config, name, None) if value is None else value
        shared[name] = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    return shared


def _num_positions(config: Any) -> float:
    """Return the number of tokens that a model can read, or infinity. A model of another library has no
    `num_positions`.
    """
    if hasattr(config, "num_positions"):
        return config.num_positions
    return getattr(config, "max_position_embeddings", None) or math.inf


def _inputs_of_member(model: Any, source_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Encode the source with a model, and return the inputs of the model's decoder."""
    names = ("attention_mask", "decoder_attention_mask", "use_cache")
    kwargs = {name: model_kwargs[name] for name in names if name in model_kwargs}
    encoder_outputs = model.get_encoder()(
        source_ids, attention_mask=kwargs.get("attention_mask"), return_dict=True
    )
    return {**kwargs, "encoder_outputs": encoder_outputs}
