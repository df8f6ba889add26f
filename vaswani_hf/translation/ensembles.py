"""Ensembles: models of one vocabulary that search together, by the mean of their probabilities."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation import GenerationMixin


def add(task: Any, ensemble: Sequence[Any], source_ids: torch.Tensor | None) -> None:
    """Let further models search with the one that generates.

    Args:
        task (SearchTask): The batch, as `generate` searches it.
        ensemble (Sequence): The further models.
        source_ids (torch.Tensor, optional): [B, S] int64, which each model encodes by itself.

    Raises:
        ValueError: If they are no models of one vocabulary, or there are no source tokens.
    """
    _check(task.models[0], ensemble)
    task.inputs += [_inputs_for(model, source_ids, task.inputs[0]) for model in ensemble]
    task.models += ensemble


def _check(model: Any, others: Sequence[Any]) -> None:
    if not isinstance(others, (list, tuple)) or not all(isinstance(other, GenerationMixin) for other in others):
        raise ValueError(f"`ensemble` must be a list of models, but is {type(others).__name__} of something else.")
    for number, other in enumerate(others):
        for name in ("vocab_size", "decoder_vocab_size", "decoder_start_token_id", "eos_token_id", "pad_token_id"):
            own, foreign = getattr(model.config, name), getattr(other.config, name, None)
            if own != foreign:
                raise ValueError(
                    f"`ensemble` must be models of one vocabulary, but `{name}` is {foreign!r} in ensemble[{number}] "
                    f"and {own!r} in the model that generates."
                )


def _inputs_for(model: Any, source_ids: torch.Tensor | None, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a further model.

    Raises:
        ValueError: If there are no source tokens.
    """
    if source_ids is None or source_ids.is_floating_point() or bool((source_ids < 0).any()):
        raise ValueError("`ensemble` needs `input_ids`: each model encodes the source by itself.")
    names = ("attention_mask", "decoder_attention_mask", "use_cache")
    kwargs = {name: model_kwargs[name] for name in names if name in model_kwargs}
    encoder_outputs = model.get_encoder()(source_ids, attention_mask=kwargs.get("attention_mask"), return_dict=True)
    return {**kwargs, "encoder_outputs": encoder_outputs}
