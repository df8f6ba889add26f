"""A run that begins with the weights of another model: its shape, its tokenizers or new ones, and parts that stay as they are."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import recipe_file
from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import direction_tag, load_tokenizers, save_tokenizers, tags_of
from ..data.corpus import Corpus
from ..model.configuration_vaswani import VaswaniConfig, nearest_name
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..recipe import Recipe
from ..recipe.checks import check_recipe
from ..recipe.licenses import data_license, strictest
from ..recipe.loading import load_recipe
from ..recipe.published import last_part
from ..recipe.schema import FREE_FIELDS, MODEL_FIELDS, DataSection, TokenizerSection
from .operations import meta_model
from .plan import planned_config
from .processes import say

_TABLES = ("embed_tokens.weight", "shared.weight", "lm_head.weight")


def with_base(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    """A recipe that says all of the model that it begins with: where it lies, its shape, and the tokenizers that are kept.

    Args:
        recipe (Recipe): The run.
        earlier (Recipe, optional): What the run to be resumed has recorded, which says it already.

    Returns:
        Recipe: Checked; itself where it begins with no model.

    Raises:
        ValueError: If there is no such model, or the recipe asks for another shape or other tokenizers.
        HubError: If it cannot be downloaded.
    """
    name = recipe.model.get("init_from")
    if name is None:
        return recipe
    recorded = earlier.model if earlier is not None else {}
    if earlier is not None and _is_same(name, str(recorded.get("init_from"))):
        model = {**{field: recorded[field] for field in MODEL_FIELDS if field in recorded}, **recipe.model}
        model["init_from"] = recorded["init_from"]
        tokenizer = dataclasses.replace(earlier.tokenizer, bpe_dropout=recipe.tokenizer.bpe_dropout)
        tokenizer = tokenizer if recipe.tokenizer.keep else recipe.tokenizer
        return dataclasses.replace(recipe, model=model, tokenizer=tokenizer, data=_with_terms(recipe.data, earlier))
    folder = checkpoint_folder(name, option="model.init_from")
    check_config(folder, name)
    config = VaswaniConfig.from_pretrained(folder)
    base = {field: getattr(config, field) for field in MODEL_FIELDS}
    for field, value in recipe.model.items():
        if field in base and field not in FREE_FIELDS and base[field] != value:
            raise ValueError(
                f"`model.{field}` is {value!r}, but '{name}', which `model.init_from` begins with, has {base[field]!r}; leave it "
                "out, or begin with another model."
            )
    model = {**base, **recipe.model, "init_from": _pinned(name, folder)}
    tokenizer = _kept_tokenizer(recipe.tokenizer, folder, name) if recipe.tokenizer.keep else recipe.tokenizer
    recipe = dataclasses.replace(recipe, model=model, tokenizer=tokenizer)
    check_recipe(recipe)
    _check_tag(recipe, folder, name)
    path = recipe_file(folder)
    try:
        data = _with_terms(recipe.data, load_recipe(path, needs_data=False)) if path else recipe.data
    except ValueError:
        return recipe
    if data.license != recipe.data.license:
        say(f"'{name}' is under {data.license}, which holds for what is made of it")
    return dataclasses.replace(recipe, data=data)


def _with_terms(data: DataSection, base: Recipe) -> DataSection:
    """The sources with what holds for the model that a run begins with: a licence that restricts its use, whom to credit."""
    # Of several licences it is one that restricts the use, or none.
    restricting = strictest([data.license, base.publishing.license, data_license(base.data)])
    own, other = data.attribution or "", base.data.attribution or ""
    # A run that goes on has both of them already.
    credit = max(own, other, key=len) if own in other or other in own else f"{own}; {other}"
    return dataclasses.replace(data, license=restricting or data.license, attribution=credit or None)


def _pinned(name: str, folder: Path) -> str:
    """A folder by its whole path, a repository with the commit that was taken: the same from wherever it is asked for."""
    if Path(name).is_dir():
        return os.path.abspath(name)
    return f"{name.partition('@')[0]}@{folder.name}"


def _is_same(name: str, recorded: str) -> bool:
    """True if a recipe names the model that a run has recorded; a folder may have been moved."""
    if os.path.isabs(recorded):
        return last_part(name) == last_part(recorded)
    repo_id, _, revision = name.partition("@")
    recorded_id, _, commit = recorded.partition("@")
    is_commit = re.fullmatch("[0-9a-f]{7,40}", revision) is not None
    return repo_id == recorded_id and (not is_commit or commit.startswith(revision))


def _kept_tokenizer(section: TokenizerSection, folder: Path, name: str) -> TokenizerSection:
    """The section that describes the tokenizers of a model.

    Raises:
        ValueError: If the recipe asks for others.
    """
    source, target = load_tokenizers(folder, name)
    normalizers = json.loads(source.backend_tokenizer.to_str())["normalizer"] or {}
    kinds = [step["type"] for step in normalizers.get("normalizers", [normalizers]) if "type" in step]
    found: dict[str, Any] = {
        "vocab_size": len(source),
        "target_vocab_size": None if target is source else len(target),
        "shared_vocabulary": target is source,
        "lowercase": "Lowercase" in kinds,
        "normalization": next((kind for kind in kinds if kind in ("NFC", "NFKC")), None),
    }
    for key, value in found.items():
        asked = getattr(section, key)
        if asked not in (getattr(TokenizerSection, key), value):
            raise ValueError(
                f"`tokenizer.{key}` is {asked!r}, but the tokenizers of '{name}', which `model.init_from` begins with, have "
                f"{value!r}; leave it out, or train new ones with `tokenizer.keep: false`."
            )
    return dataclasses.replace(section, **found)


def _check_tag(recipe: Recipe, folder: Path, name: str) -> None:
    """Refuses kept tokenizers that do not know the tag of a run in both directions.

    Raises:
        ValueError: If they do not.
    """
    tag = direction_tag(recipe.data.source_language)
    if recipe.data.both_directions and recipe.tokenizer.keep and tag not in tags_of(load_tokenizers(folder, name)[0]):
        raise ValueError(
            f"`data.both_directions: true` needs the tag {tag} in the vocabulary, but the tokenizers of '{name}', which "
            "`model.init_from` begins with, have none; train new ones with `tokenizer.keep: false`."
        )


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
    base, (source, target) = load_model(folder, name, dtype=torch.float32), load_tokenizers(folder, name)
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


def frozen_weights(model: nn.Module, names: list[str]) -> list[nn.Parameter]:
    """The weights of parts of a model; where a table is tied, it belongs to each part that has it.

    Args:
        model (Module): The model, or one on the meta device.
        names (list): Its modules or weights, with or without the `model.` in front, such as `encoder` or `decoder.layers.0`.

    Returns:
        list: Weights.

    Raises:
        ValueError: If the model has no such part, or nothing is left to train.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))
    known = {".".join(name.split(".")[:part]) for name in weights for part in range(1, name.count(".") + 2)}
    found: dict[int, nn.Parameter] = {}
    for name in names:
        full = f"model.{name}" if f"model.{name}" in known else name
        if full not in known:
            nearest = nearest_name(name, sorted(part.removeprefix("model.") for part in known))
            raise ValueError(
                f"`training.frozen` must name parts of the model, but has {name!r}; the nearest one is {nearest!r}."
            )
        found |= {id(weight): weight for key, weight in weights.items() if f"{key}.".startswith(f"{full}.")}
    if names and all(id(weight) in found for weight in weights.values()):
        raise ValueError(f"`training.frozen` must leave something to train, but is {names}.")
    return [*found.values()]


def check_frozen(recipe: Recipe) -> None:
    """Refuses names of parts that the model of a run will not have, before anything is read.

    Args:
        recipe (Recipe): The run.
    """
    frozen_weights(meta_model(planned_config(recipe)), recipe.training.frozen)
