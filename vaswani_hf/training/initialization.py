"""A run that begins with the weights of another model: its shape, its tokenizers or new ones, and parts that stay as they are."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..checkpoint.files import WEIGHTS_FILE, checkpoints_in, recipe_file
from ..checkpoint.kinds import KINDS, TRANSLATION
from ..checkpoint.loading import check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import direction_tag, is_tree_tokenizer, load_tokenizers, save_tokenizers
from ..data.corpus import Corpus
from ..data.tokenizer_training import MASK
from ..model.configuration_vaswani import nearest_name
from ..model.translator_vaswani import tags_of
from ..recipe import Recipe
from ..recipe.checks import check_recipe
from ..recipe.loading import readable_record
from ..recipe.published import is_folder_of_base, last_part
from ..recipe.schema import FREE_FIELDS, MODEL_FIELDS, STACKS, TokenizerSection
from ..tasks import TASKS
from .planned_model import planned_config, planned_model

_TABLE = "embed_tokens.weight"
_STACKS_OF_TYPES = {TRANSLATION: STACKS, "vaswani_decoder": ("decoder",), "vaswani_encoder": ("encoder",)}
# Fields that a part of a model leaves open for the whole one.
_OF_WHOLE_MODELS = ("cross_attention_score", "tie_word_embeddings")


def with_base(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    """A recipe that says all of the models that it begins with: where they lie, the shape, and the tokenizers that are kept.

    Args:
        recipe (Recipe): The run.
        earlier (Recipe, optional): What the run to be resumed has recorded, which says it already.

    Returns:
        Recipe: Checked; itself where it begins with no model.

    Raises:
        ValueError: If there is no such model, or the recipe asks for another shape or other tokenizers.
        HubError: If it cannot be downloaded.
    """
    given = recipe.model.get("init_from")
    if given is None:
        return recipe
    recorded = earlier.model if earlier is not None else {}
    folder = Path(recipe.output_dir)
    has_begun = bool(checkpoints_in(folder)) or (folder / WEIGHTS_FILE).exists()
    if earlier is not None and has_begun and _are_same(given, recorded.get("init_from")):
        model = {**{field: recorded[field] for field in MODEL_FIELDS if field in recorded}, **recipe.model}
        model["init_from"] = recorded["init_from"]
        tokenizer = dataclasses.replace(earlier.tokenizer, bpe_dropout=recipe.tokenizer.bpe_dropout)
        tokenizer = tokenizer if recipe.tokenizer.keep else recipe.tokenizer
        return dataclasses.replace(recipe, model=model, tokenizer=tokenizer)
    begun = _bases_of(recipe)
    model = _with_shapes(recipe, begun)
    pinned = {stack: _pinned(base.name, base.folder) for stack, base in begun.items()}
    model["init_from"] = pinned if isinstance(given, dict) else next(iter(pinned.values()))
    tokenizer = recipe.tokenizer
    if tokenizer.keep:
        first = _with_the_tokenizers(begun)
        tokenizer = _kept_tokenizer(tokenizer, first.folder, first.name, recipe.task)
    recipe = dataclasses.replace(recipe, model=model, tokenizer=tokenizer)
    check_recipe(recipe)
    for base in {base.name: base for base in begun.values()}.values():
        _check_tag(recipe, base.folder, base.name)
    return recipe


class _Base(NamedTuple):
    """A model that a run begins with."""

    name: str
    folder: Path
    model_type: str


def _bases_of(recipe: Recipe) -> dict[str, _Base]:
    """The models that the parts of a run's model begin with, by the part.

    Raises:
        ValueError: If one is none of this package, or has no such part.
    """
    given = recipe.model["init_from"]
    stacks = TASKS[recipe.task].stacks
    if isinstance(given, dict) and given.keys() - set(stacks):
        parts = " or ".join(f"`{stack}`" for stack in stacks)
        raise ValueError(
            f"`model.init_from` must name a model for {parts} in a recipe of `task: {recipe.task}`, whose model has no other part, but "
            f"is {given!r}."
        )
    names = given if isinstance(given, dict) else dict.fromkeys(stacks, given)
    found = {}
    for stack, name in names.items():
        folder = checkpoint_folder(name, option="model.init_from")
        model_type = check_config(folder, name, tuple(KINDS))
        if stack not in _STACKS_OF_TYPES[model_type]:
            (other,) = _STACKS_OF_TYPES[model_type]
            remedy = f"`init_from: {{{other}: {name}}}`" if other in stacks else "another model"
            raise ValueError(
                f"`model.init_from` needs a model with {'an' if stack == 'encoder' else 'a'} {stack}, but '{name}' is "
                f"{KINDS[model_type].words} and has none; give {remedy}."
            )
        found[stack] = _Base(name, folder, model_type)
    return found


def _with_shapes(recipe: Recipe, begun: dict[str, _Base]) -> dict[str, Any]:
    """The fields of a run's model, with those of the models that its parts begin with.

    Raises:
        ValueError: If the recipe, or two of these models, contradict each other.
    """
    is_whole = all(base.model_type == TRANSLATION for base in begun.values()) and len(begun) == len(STACKS)
    model: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for stack, base in begun.items():
        config = KINDS[base.model_type].model_class.config_class.from_pretrained(base.folder)
        others = tuple(f"{other}_" for other in STACKS if other != stack)
        for field in MODEL_FIELDS:
            if field.startswith(others) or (field in _OF_WHOLE_MODELS and not is_whole):
                continue
            value = getattr(config, field)
            if field in model and model[field] != value and field not in FREE_FIELDS:
                raise ValueError(
                    f"`model.{field}` is {model[field]!r} in '{origins[field]}' and {value!r} in '{base.name}', which "
                    "`model.init_from` begins with; take models that agree."
                )
            if field in recipe.model and field not in FREE_FIELDS and recipe.model[field] != value:
                raise ValueError(
                    f"`model.{field}` is {recipe.model[field]!r}, but '{base.name}', which `model.init_from` begins with, has {value!r}; "
                    "leave it out, or begin with another model."
                )
            model[field], origins[field] = value, base.name
    return {**model, **recipe.model}


def _with_the_tokenizers(begun: dict[str, _Base]) -> _Base:
    """The model whose tokenizers are kept.

    Raises:
        ValueError: If two models have different vocabularies.
    """
    first, *others = begun.values()
    own = [tokenizer.get_vocab() for tokenizer in load_tokenizers(first.folder, first.name)]
    for other in others:
        # What hides a token is none of a text.
        theirs = [tokenizer.get_vocab() for tokenizer in load_tokenizers(other.folder, other.name)]
        if [_without_mask(one) for one in own] != [_without_mask(one) for one in theirs]:
            raise ValueError(
                f"'{first.name}' and '{other.name}', which `model.init_from` begins with, have different vocabularies; train a new "
                "one with `tokenizer.keep: false`."
            )
    return first


def _without_mask(vocabulary: dict[str, int]) -> dict[str, int]:
    return {piece: number for piece, number in vocabulary.items() if piece != MASK}


def _pinned(name: str, folder: Path) -> str:
    """A folder by its whole path, a repository with the commit that was taken: the same from wherever it is asked for."""
    if Path(name).is_dir():
        return os.path.abspath(name)
    return f"{name.partition('@')[0]}@{folder.name}"


def _are_same(given: Any, recorded: Any) -> bool:
    if isinstance(given, dict) and isinstance(recorded, dict):
        return given.keys() == recorded.keys() and all(_is_same(given[key], recorded[key]) for key in given)
    return isinstance(given, str) and isinstance(recorded, str) and _is_same(given, recorded)


def _is_same(name: str, recorded: str) -> bool:
    """True if a recipe names the model that a run has recorded; a folder may have been moved."""
    if is_folder_of_base(recorded):
        return last_part(name) == last_part(recorded)
    repo_id, _, revision = name.partition("@")
    recorded_id, _, commit = recorded.partition("@")
    is_commit = re.fullmatch("[0-9a-f]{7,40}", revision) is not None
    return repo_id == recorded_id and (not is_commit or commit.startswith(revision))


def _kept_tokenizer(section: TokenizerSection, folder: Path, name: str, task: str) -> TokenizerSection:
    """The section that describes the tokenizers of a model.

    Raises:
        ValueError: If the recipe asks for others.
    """
    source, target = _tokenizers_for(task, folder, name)
    normalizers = json.loads(source.backend_tokenizer.to_str())["normalizer"] or {}
    kinds = [step["type"] for step in normalizers.get("normalizers", [normalizers]) if "type" in step]
    found: dict[str, Any] = {
        "vocab_size": len(source),
        "target_vocab_size": None if target is source else len(target),
        "shared_vocabulary": target is source,
        "lowercase": "Lowercase" in kinds,
        "normalization": next((kind for kind in kinds if kind in ("NFC", "NFKC")), None),
    }
    if is_tree_tokenizer(target):
        # The symbols of trees are as many as there are.
        del found["target_vocab_size"]
    # One task adds `<mask>` to them, and the others have no use for it.
    own = load_tokenizers(folder, name)[0].get_vocab()
    sizes = {("vocab_size", len(vocabulary)) for vocabulary in (own, _without_mask(own))}
    # A small corpus has fewer pieces than its recipe asked for, which one that extends it says again.
    record = readable_record(recipe_file(folder))
    sizes |= {(key, getattr(record.tokenizer, key)) for key in found} if record else set()
    for key, value in found.items():
        asked = getattr(section, key)
        if asked not in (getattr(TokenizerSection, key), value) and (key, asked) not in sizes:
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


def _tokenizers_for(task: str, folder: Path, name: str) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The tokenizers of a model as a task needs them."""
    source, target = load_tokenizers(folder, name)
    try:
        return TASKS[task].adopt_tokenizers(source, target)
    except ValueError as error:
        raise ValueError(
            f"'{name}', which `model.init_from` begins with, {error}, and cannot lend its tokenizers to a recipe of `task: {task}`; "
            "train new ones with `tokenizer.keep: false`."
        ) from None


def take_tokenizers(recipe: Recipe, folder: Path) -> bool:
    """Writes the tokenizers of the model that a run begins with into the run's folder, if the recipe keeps them.

    Args:
        recipe (Recipe): The run.
        folder (Path): The output folder.

    Returns:
        bool: False where new ones are to be trained.
    """
    if recipe.model.get("init_from") is None or not recipe.tokenizer.keep:
        return False
    base = _with_the_tokenizers(_bases_of(recipe))
    save_tokenizers(*_tokenizers_for(recipe.task, base.folder, base.name), folder)
    return True


@torch.no_grad()
def begin_with_base(model: PreTrainedModel, recipe: Recipe, corpus: Corpus) -> str:
    """Puts the weights of the models that a run begins with into its own; the rows of pieces that those do not know stay.

    Args:
        model (PreTrainedModel): The untrained model of the run.
        recipe (Recipe): The run.
        corpus (Corpus): Its tokenizers.

    Returns:
        str: What was done, in words; empty where the run begins anew.
    """
    if recipe.model.get("init_from") is None:
        return ""
    loaded: dict[str, Any] = {}
    words = []
    for stack, base in _bases_of(recipe).items():
        if base.name not in loaded:
            weights = load_model(base.folder, base.name, tuple(KINDS), dtype=torch.float32)
            loaded[base.name] = weights, load_tokenizers(base.folder, base.name)
        begun, tokenizers = loaded[base.name]
        own = stack_of(model, stack)
        state = stack_of(begun, stack).state_dict()
        own.load_state_dict({key: weight for key, weight in state.items() if not key.endswith(_TABLE)}, strict=False)
        number = STACKS.index(stack)
        tokenizer = (corpus.source_tokenizer, corpus.target_tokenizer)[number]
        ids, base_ids = _ids_of_known_pieces(tokenizer, tokenizers[number])
        for weight, base_weight in zip(_tables(model, stack), _tables(begun, stack), strict=False):
            weight[ids] = base_weight[base_ids]
        words.append((base.name, len(ids), len(tokenizer), stack))
    known = sum(ids for _, ids, _, _ in words) / sum(pieces for _, _, pieces, _ in words)
    names = " and ".join(f"'{name}'" for name in loaded)
    parts = "" if len(words) == len(TASKS[recipe.task].stacks) else f" in the {words[0][3]}"
    verb = "knows" if len(loaded) == 1 else "know"
    is_shared = len(loaded) == 2 and model.config.share_encoder_decoder_embeddings
    shared = f"; the embedding that encoder and decoder share is that of '{words[-1][0]}'" if is_shared else ""
    return f"begins with the weights of {names}{parts}, which {verb} {known:.1%} of the pieces{shared}"


def stack_of(model: PreTrainedModel, stack: str) -> Any:
    """The encoder or the decoder of a model, which may be all that it has.

    Args:
        model (PreTrainedModel): A model of this package with it.
        stack (str): "encoder" or "decoder".
    """
    return getattr(model.model, stack) if model.config.is_encoder_decoder else model.model


def _tables(model: PreTrainedModel, stack: str) -> list[nn.Parameter]:
    """The tables [V, D] with a row for each piece of a part's language, which may be one: embedding and output projection."""
    has_output = stack == "decoder" or not model.config.is_encoder_decoder
    return [stack_of(model, stack).embed_tokens.weight, *([model.lm_head.weight] if has_output else [])]


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
    frozen_weights(planned_model(planned_config(recipe), recipe.task), recipe.training.frozen)
