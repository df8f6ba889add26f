"""A run that begins with the weights of another model: its shape, its tokenizers or new ones, and parts that stay as they are."""

import dataclasses
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..data.corpus import Corpus
from ..model.configuration_vaswani import VaswaniConfig, nearest_name
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..recipe import Recipe
from ..recipe.schema import MODEL_FIELDS

# The fields of a config that change how a model is trained, and not what it computes.
FREE_FIELDS = "dropout attention_dropout activation_dropout label_smoothing label_smoothing_form".split()
_TABLES = ("embed_tokens.weight", "shared.weight", "lm_head.weight")


def with_shape_of_base(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    """A recipe whose section `model` has all fields of the model that it begins with; itself where it begins anew.

    Args:
        recipe (Recipe): The run.
        earlier (Recipe, optional): What the run to be resumed has recorded, which has them already.

    Returns:
        Recipe: Its `model` describes the model alone.

    Raises:
        ValueError: If there is no such model, or the recipe asks for another shape.
        HubError: If it cannot be downloaded.
    """
    name = recipe.model.get("init_from")
    if name is None:
        return recipe
    if earlier is not None and earlier.model.get("init_from") == name:
        base = {field: earlier.model[field] for field in MODEL_FIELDS if field in earlier.model}
    else:
        folder = checkpoint_folder(name, option="model.init_from")
        check_config(folder, name)
        config = VaswaniConfig.from_pretrained(folder)
        base = {field: getattr(config, field) for field in MODEL_FIELDS}
        for field, value in recipe.model.items():
            if field in base and field not in FREE_FIELDS and base[field] != value:
                raise ValueError(
                    f"`model.{field}` is {value!r}, but '{name}', which `model.init_from` begins with, has {base[field]!r}; leave "
                    "it out, or begin with another model."
                )
    return dataclasses.replace(recipe, model={**base, **recipe.model})


def take_tokenizers(recipe: Recipe, folder: Path) -> bool:
    """Writes the tokenizers of the model that a run begins with into the run's folder, if the recipe keeps them.

    Args:
        recipe (Recipe): The run.
        folder (Path): The output folder.

    Returns:
        bool: False where new ones are to be trained.
    """
    name = recipe.model.get("init_from")
    if name is None or not recipe.tokenizer.keep:
        return False
    save_tokenizers(*load_tokenizers(checkpoint_folder(name, option="model.init_from"), name), folder)
    return True


@torch.no_grad()
def begin_with_base(model: VaswaniForSeq2SeqLM, recipe: Recipe, corpus: Corpus) -> str:
    """Puts the weights of the model that a run begins with into its own; the rows of pieces that that one does not know stay.

    Args:
        model (VaswaniForSeq2SeqLM): The untrained model of the run.
        recipe (Recipe): The run.
        corpus (Corpus): Its tokenizers.

    Returns:
        str: What was done, in words; empty where the run begins anew.
    """
    name = recipe.model.get("init_from")
    if name is None:
        return ""
    folder = checkpoint_folder(name, option="model.init_from")
    base, (source, target) = load_model(folder, name), load_tokenizers(folder, name)
    state = {key: weight for key, weight in base.state_dict().items() if not key.endswith(_TABLES)}
    model.load_state_dict(state, strict=False)
    known = 0
    for tokenizer, of_base, is_target in (
        (corpus.source_tokenizer, source, False),
        (corpus.target_tokenizer, target, True),
    ):
        ids, base_ids = _ids_of_known_pieces(tokenizer, of_base)
        known += len(ids)
        for weight, base_weight in zip(_tables(model, is_target), _tables(base, is_target), strict=True):
            weight[ids] = base_weight[base_ids]
    pieces = len(corpus.source_tokenizer) + len(corpus.target_tokenizer)
    return f"begins with the weights of '{name}', which knows {known / pieces:.1%} of the pieces"


def _tables(model: VaswaniForSeq2SeqLM, is_target: bool) -> list[nn.Parameter]:
    """The tables [V, D] with a row for each piece of a language, which may be one."""
    if is_target:
        return [model.get_decoder().embed_tokens.weight, model.lm_head.weight]
    return [model.get_encoder().embed_tokens.weight]


def _ids_of_known_pieces(
    tokenizer: PreTrainedTokenizerFast, base: PreTrainedTokenizerFast
) -> tuple[list[int], list[int]]:
    known = base.get_vocab()
    pairs = [(index, known[piece]) for piece, index in tokenizer.get_vocab().items() if piece in known]
    return [index for index, _ in pairs], [index for _, index in pairs]


def freeze(model: nn.Module, names: list[str]) -> None:
    """Keeps parts of a model from being trained.

    Args:
        model (Module): The model.
        names (list): Its modules or weights, with or without the `model.` in front, such as `encoder` or `decoder.layers.0`.

    Raises:
        ValueError: If the model has no such part, or nothing is left to train.
    """
    weights = dict(model.named_parameters())
    known = {".".join(name.split(".")[:part]) for name in weights for part in range(1, name.count(".") + 2)}
    for name in names:
        full = name if name in known else f"model.{name}"
        if full not in known:
            nearest = nearest_name(name, sorted(part.removeprefix("model.") for part in known))
            raise ValueError(
                f"`training.frozen` must name parts of the model, but has {name!r}; the nearest one is {nearest!r}."
            )
        for weight_name, weight in weights.items():
            if weight_name == full or weight_name.startswith(f"{full}."):
                weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ValueError(f"`training.frozen` must leave something to train, but is {names}.")
