"""Ensembles: models of one vocabulary that search together, by the mean of their probabilities."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig


def add(task: Any, ensemble: Sequence[Any], source_ids: torch.Tensor | None, config: GenerationConfig) -> None:
    """Let further models search with the one that generates.

    A further model may be of any encoder-decoder class of transformers with the same vocabulary, such as MarianMT.

    Args:
        task (SearchTask): The batch, as `generate` searches it.
        ensemble (Sequence): The further models.
        source_ids (torch.Tensor, optional): [B, S] int64, which each model encodes by itself.
        config (GenerationConfig): The settings.

    Raises:
        ValueError: If they are no models of one vocabulary, there are no source tokens, or these are too many.
    """
    for number, other in enumerate(ensemble):
        _check(task.models[0], other, f"ensemble[{number}]", config)
    if source_ids is None or source_ids.is_floating_point() or bool((source_ids < 0).any()):
        raise ValueError("`ensemble` needs `input_ids`: each model encodes the source by itself.")
    for number, other in enumerate(ensemble):
        positions = _max_positions(other)
        for name, length in (("source", source_ids.shape[1]), ("target prefix", task.prompt.shape[1])):
            if length > positions:
                raise ValueError(
                    f"`ensemble` must be models with positions for all tokens, but ensemble[{number}] has {positions} and the "
                    f"{name} has {length} tokens."
                )
        # The last token is never read.
        task.max_length = min(task.max_length, positions + 1)
        task.inputs.append(_inputs_for(other, source_ids, task.inputs[0]))
        task.models.append(other)


def _check(model: Any, other: Any, name: str, config: GenerationConfig) -> None:
    """Refuse a model that cannot search with the one that generates.

    Raises:
        ValueError: If its vocabulary is another one, it is no encoder-decoder, or it is on another device.
    """
    if not other.config.is_encoder_decoder:
        raise ValueError(f"`ensemble` must be encoder-decoder models, but {name} is a {type(other).__name__}.")
    own, foreign = _vocabulary(model), _vocabulary(other)
    for field in own:
        if own[field] != foreign[field]:
            raise ValueError(
                f"`ensemble` must be models of one vocabulary, but `{field}` is {foreign[field]!r} in {name} and "
                f"{own[field]!r} in the model that generates."
            )
    is_vaswani = other.config.model_type == "vaswani"
    if not is_vaswani and other.training and other.is_gradient_checkpointing:
        raise ValueError(
            f"`ensemble` must be models with a cache, but {name}, a {type(other).__name__}, has none under gradient checkpointing "
            "in training mode; call its `eval()`."
        )
    if getattr(config, "coverage_penalty", None) and not is_vaswani:
        raise ValueError(
            f"`coverage_penalty` must be left out with {name}, a {type(other).__name__}: the coverage is read from the "
            "attention of Vaswani models."
        )
    if other.device != model.device:
        raise ValueError(
            f"`ensemble` must be models on one device, but {name} is on {other.device} and the model that generates on "
            f"{model.device}."
        )


def _vocabulary(model: Any) -> dict[str, Any]:
    """What two models of one vocabulary have in common, by the names of config fields."""
    config = model.config
    fields = {
        "vocab_size": config.vocab_size,
        "decoder_vocab_size": getattr(config, "decoder_vocab_size", None) or config.vocab_size,
    }
    for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, name, None)
        value = getattr(model.generation_config, name, None) if value is None else value
        fields[name] = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    return fields


def _max_positions(model: Any) -> int:
    """The positions that a model has, the largest integer if their number is not limited."""
    if getattr(model.config, "position_embedding", None) == "sinusoidal":
        return sys.maxsize
    return getattr(model.config, "max_position_embeddings", None) or sys.maxsize


def _inputs_for(model: Any, source_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a further model."""
    names = ("attention_mask", "decoder_attention_mask", "use_cache")
    kwargs = {name: model_kwargs[name] for name in names if name in model_kwargs}
    encoder_outputs = model.get_encoder()(source_ids, attention_mask=kwargs.get("attention_mask"), return_dict=True)
    return {**kwargs, "encoder_outputs": encoder_outputs}
