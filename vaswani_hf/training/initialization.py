"""Starts a run from the weights of other models."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..checkpoint.files import has_run, recipe_file
from ..checkpoint.loading import KINDS, TRANSLATION, check_config, checkpoint_folder, load_model
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..data.corpus import Corpus
from ..data.tokenizer_training import MASK
from ..model.errors_vaswani import InvalidValueError
from ..model.tokenizing_vaswani import tags_of
from ..recipe.loading import try_load_recorded_recipe
from ..recipe.published import is_folder_of_base
from ..settings.data import last_part
from ..settings.sections import (
    MODEL_KEYS,
    SMALLEST_VOCABULARY,
    STACKS,
    TRAINING_ONLY_FIELDS,
    InitFrom,
    ModelSettings,
    TokenizerSettings,
)
from ..tasks import Task

_TABLE = "embed_tokens.weight"
_STACKS_OF_TYPES = {TRANSLATION: STACKS, "vaswani_decoder": ("decoder",), "vaswani_encoder": ("encoder",)}
# The config fields that a run copies only if both the encoder and the decoder start from encoder-decoder
# models.
_OF_WHOLE_MODELS = ("cross_attention_score", "norm_position_of_decoder", "tie_word_embeddings")


class Base(NamedTuple):
    """A model that the recipe key `model.init_from` names."""

    name: str
    folder: Path
    model_type: str


def find_bases(model: ModelSettings) -> dict[str, Base]:
    """Map each stack ("encoder" or "decoder") to the model whose weights are the initial weights of the
    stack. Download models from the Hub.
    """
    given = model.init_from
    if given is None:
        return {}
    names = given.by_stack() if isinstance(given, InitFrom) else dict.fromkeys(model.stacks, given)
    if names.keys() - set(model.stacks):
        parts = " or ".join(f"`{stack}`" for stack in model.stacks)
        raise InvalidValueError(
            f"`model.init_from` must have only the key {parts}, but is {names}; the model of this task has no "
            "other part."
        )
    found = {}
    for stack, name in names.items():
        folder = checkpoint_folder(name, option="model.init_from")
        model_type = check_config(folder, name, tuple(KINDS))
        if stack not in _STACKS_OF_TYPES[model_type]:
            (other,) = _STACKS_OF_TYPES[model_type]
            remedy = f"`init_from: {{{other}: {name}}}`" if other in model.stacks else "another model"
            raise InvalidValueError(
                f"`model.init_from` needs a model with {'an' if stack == 'encoder' else 'a'} {stack}, but "
                f"'{name}' is {KINDS[model_type].words} and has none; give {remedy}."
            )
        found[stack] = Base(name, folder, model_type)
    return found


def has_begun_from(folder: Path, model: ModelSettings, recorded: ModelSettings) -> bool:
    """Return True if the run in a folder started from the same models that the new recipe names in
    `model.init_from`.
    """
    now = model.init_from
    before = recorded.init_from
    if not has_run(folder) or now is None or before is None:
        return False
    if isinstance(now, InitFrom) and isinstance(before, InitFrom):
        names = before.by_stack()
        return now.by_stack().keys() == names.keys() and all(
            _is_same(name, names[stack]) for stack, name in now.by_stack().items()
        )
    return isinstance(now, str) and isinstance(before, str) and _is_same(now, before)


def _is_same(name: str, recorded: str) -> bool:
    """Return True if two names mean the same model: `name` from the new settings, and `recorded` from the
    settings of an earlier run. Compare only the last parts of folder paths, because a user can move a folder.
    """
    if is_folder_of_base(recorded):
        return last_part(name) == last_part(recorded)
    repo_id, _, revision = name.partition("@")
    recorded_id, _, commit = recorded.partition("@")
    is_commit = re.fullmatch("[0-9a-f]{7,40}", revision) is not None
    return repo_id == recorded_id and (not is_commit or commit.startswith(revision))


def with_recorded_shape(model: ModelSettings, recorded: ModelSettings) -> ModelSettings:
    """Return the section `model` of the recipe for a resumed run. `recorded` is the section `model` of the
    interrupted run. The result has the key `init_from` of `recorded`. The result also has the config fields
    of `recorded` that `model` does not set.
    """
    fields = {**recorded.config_fields(), **model.config_fields()}
    return model.replace(**fields, init_from=recorded.init_from)


def with_shape_of_bases(model: ModelSettings, bases: dict[str, Base]) -> ModelSettings:
    """Return the section `model` with the config fields of the models in `init_from`. The returned
    `init_from` names models on the Hub with their commits (user/name@commit).
    """
    is_whole = all(base.model_type == TRANSLATION for base in bases.values()) and len(bases) == len(STACKS)
    given = model.config_fields()
    fields: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for stack, base in bases.items():
        config = KINDS[base.model_type].model_class.config_class.from_pretrained(base.folder)
        others = tuple(f"{other}_" for other in STACKS if other != stack)
        for field in MODEL_KEYS:
            if field.startswith(others) or (field in _OF_WHOLE_MODELS and not is_whole):
                continue
            value = getattr(config, field)
            is_free = field in TRAINING_ONLY_FIELDS
            if not is_free and field in fields and fields[field] != value:
                raise InvalidValueError(
                    f"`model.{field}` is {fields[field]!r} in '{origins[field]}' and {value!r} in "
                    f"'{base.name}', the models of `model.init_from`; choose models with equal values."
                )
            if not is_free and field in given and given[field] != value:
                raise InvalidValueError(
                    f"`model.{field}` is {given[field]!r}, but '{base.name}', the model of "
                    f"`model.init_from`, has {value!r}; leave `model.{field}` out, or choose another model."
                )
            if field in type(model).model_fields:
                fields[field] = value
                origins[field] = base.name
    pinned: Any = {stack: _pinned(base.name, base.folder) for stack, base in bases.items()}
    if not isinstance(model.init_from, InitFrom):
        pinned = next(iter(pinned.values()))
    return model.replace(**{**fields, **given}, init_from=pinned)


def _pinned(name: str, folder: Path) -> str:
    """Return the absolute path of a folder, or the name of a repository with its commit."""
    if Path(name).is_dir():
        return os.path.abspath(name)
    return f"{name.partition('@')[0]}@{folder.name}"


def _base_of_tokenizers(bases: dict[str, Base]) -> Base:
    """Return the model whose tokenizers the run uses. Raise an error if the models have different
    vocabularies.
    """
    first, *others = bases.values()
    own = [_without_mask(tokenizer) for tokenizer in load_tokenizers(first.folder, first.name)]
    for other in others:
        if own != [_without_mask(tokenizer) for tokenizer in load_tokenizers(other.folder, other.name)]:
            raise InvalidValueError(
                f"`model.init_from` must name models with one vocabulary, but '{first.name}' and "
                f"'{other.name}' have different vocabularies; train new tokenizers with `tokenizer.keep: "
                "false`."
            )
    return first


def _without_mask(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Return the vocabulary without `<mask>`, because only masked language models use `<mask>`."""
    return {piece: number for piece, number in tokenizer.get_vocab().items() if piece != MASK}


def with_kept_tokenizers(
    section: TokenizerSettings, bases: dict[str, Base], task: type[Task], tags: Sequence[str]
) -> TokenizerSettings:
    """Return the section `tokenizer`, changed to describe the tokenizers of the model in `init_from`."""
    base = _base_of_tokenizers(bases)
    name = base.name
    source, target = _tokenizers_for(task, base)
    missing = [tag for tag in tags if tag not in tags_of(source)]
    if missing:
        raise InvalidValueError(
            f"`data.both_directions: true` needs the tag {missing[0]} in the vocabulary, but the tokenizers "
            f"of '{name}', the model of `model.init_from`, do not have it; train new tokenizers with "
            "`tokenizer.keep: false`."
        )
    normalizers = json.loads(source.backend_tokenizer.to_str())["normalizer"] or {}
    kinds = [step["type"] for step in normalizers.get("normalizers", [normalizers]) if "type" in step]
    found: dict[str, Any] = {
        # A recipe does not permit a `vocab_size` below `SMALLEST_VOCABULARY`, but an imported model can have
        # fewer tokens. In a recipe, `vocab_size` is only the maximum size of the vocabulary.
        "vocab_size": max(len(source), SMALLEST_VOCABULARY),
        "target_vocab_size": None if target is source else max(len(target), SMALLEST_VOCABULARY),
        "shared_vocabulary": target is source,
        "lowercase": "Lowercase" in kinds,
        "normalization": next((kind for kind in kinds if kind in ("NFC", "NFKC")), None),
    }
    fields = type(section).model_fields
    found = {key: value for key, value in found.items() if key in fields}
    # Raise no error for a tokenizer setting that equals the setting in the model's recipe. A recipe that
    # extends the model's recipe inherits the tokenizer settings of the model's recipe. For `vocab_size`, also
    # accept the number of tokens in the model's vocabulary, counted with or without `<mask>`. The vocabulary
    # has fewer tokens than `vocab_size` if the corpus was small.
    own = load_tokenizers(base.folder, name)[0]
    accepted = {key: [fields[key].default, value] for key, value in found.items()}
    accepted["vocab_size"] += [len(own), len(_without_mask(own))]
    recipe = try_load_recorded_recipe(recipe_file(base.folder))
    for key, value in found.items():
        if recipe is not None:
            accepted[key].append(getattr(recipe.tokenizer, key, None))
        asked = getattr(section, key)
        if asked not in accepted[key]:
            raise InvalidValueError(
                f"`tokenizer.{key}` is {asked!r}, but the tokenizers of '{name}', the model of "
                f"`model.init_from`, have {value!r}; leave `tokenizer.{key}` out, or train new tokenizers "
                "with `tokenizer.keep: false`."
            )
    return section.replace(**found)


def _tokenizers_for(task: type[Task], base: Base) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Load the tokenizers of a model in `init_from`, and let the task adapt the tokenizers."""
    source, target = load_tokenizers(base.folder, base.name)
    try:
        return task.adopt_tokenizers(source, target)
    except ValueError as error:
        raise InvalidValueError(
            f"`model.init_from` must have tokenizers for `task: {task.name}`, but '{base.name}' {error}; "
            "train new tokenizers with `tokenizer.keep: false`."
        ) from None


def write_kept_tokenizers(model: ModelSettings, task: type[Task], folder: Path) -> None:
    """Write the tokenizers of the model in `init_from` into the folder of a run."""
    base = _base_of_tokenizers(find_bases(model))
    save_tokenizers(*_tokenizers_for(task, base), folder)


@torch.no_grad()
def load_base_weights(model: PreTrainedModel, settings: ModelSettings, corpus: Corpus) -> str:
    """Copy the weights of the models in `init_from` into a model, and return a message about the models. If
    `init_from` names no model, return an empty text. If the vocabulary of a copied model lacks a token, the
    embedding of the token keeps its random values.
    """
    bases = find_bases(settings)
    if not bases:
        return ""
    loaded: dict[str, PreTrainedModel] = {}
    num_known = 0
    num_tokens = 0
    for stack, base in bases.items():
        if base.name not in loaded:
            loaded[base.name] = load_model(base.folder, base.name, tuple(KINDS), dtype=torch.float32)
        _copy_layers(stack, loaded[base.name], model)
        # The encoder uses the source tokenizer, and the decoder uses the target tokenizer.
        position = STACKS.index(stack)
        vocabulary = (corpus.source_tokenizer, corpus.target_tokenizer)[position].get_vocab()
        of_base = load_tokenizers(base.folder, base.name)[position].get_vocab()
        known = [token for token in vocabulary if token in of_base]
        rows = [vocabulary[token] for token in known]
        base_rows = [of_base[token] for token in known]
        _copy_token_rows(stack, loaded[base.name], base_rows, model, rows)
        num_known += len(known)
        num_tokens += len(vocabulary)
    return _message_about(bases, model, num_known / num_tokens)


def _copy_layers(stack: str, base: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy all weights of a stack, except the embeddings."""
    state = get_stack(base, stack).state_dict()
    layers = {key: weight for key, weight in state.items() if not key.endswith(_TABLE)}
    get_stack(model, stack).load_state_dict(layers, strict=False)


def _copy_token_rows(
    stack: str, base: PreTrainedModel, base_rows: list[int], model: PreTrainedModel, rows: list[int]
) -> None:
    """Copy the rows `base_rows` of the model `base` to the rows `rows` of `model`, in the embedding and in
    the output projection.
    """
    # The two lists of weights can have different lengths, because the encoder of an encoder-decoder model has
    # no output projection, and an output projection can lack the bias.
    for weight, base_weight in zip(_token_matrices(model, stack), _token_matrices(base, stack), strict=False):
        weight[rows] = base_weight[base_rows]


def _message_about(bases: dict[str, Base], model: PreTrainedModel, coverage: float) -> str:
    """Return a message for the user about the models in `init_from`. `coverage` is the fraction of the run's
    tokens that also occur in the vocabularies of the models in `init_from`.
    """
    names = list(dict.fromkeys(base.name for base in bases.values()))
    last = list(bases)[-1]
    models = " and ".join(f"'{name}'" for name in names)
    if model.config.is_encoder_decoder and len(bases) == 1:
        models += f" in the {last}"
    covers = "its vocabulary covers" if len(names) == 1 else "their vocabularies cover"
    message = (
        f"the run begins with the weights of {models}; {covers} {coverage:.1%} of the vocabulary of the run"
    )
    if len(names) == 2 and model.config.share_encoder_decoder_embeddings:
        message += f"; the shared embedding of encoder and decoder comes from '{bases[last].name}'"
    return message


def get_stack(model: PreTrainedModel, stack: str) -> Any:
    """If the model is an encoder-decoder model, return its encoder or decoder. For a model with only one
    stack, return the stack.
    """
    return getattr(model.model, stack) if model.config.is_encoder_decoder else model.model


def _token_matrices(model: PreTrainedModel, stack: str) -> list[nn.Parameter]:
    """Return the weights with one row per token: the embedding [V, D], the output projection [V, D], and the
    bias [V] of the output projection. For the encoder of an encoder-decoder model, return only the embedding.
    """
    found = [get_stack(model, stack).embed_tokens.weight]
    if stack == "decoder" or not model.config.is_encoder_decoder:
        found.append(model.lm_head.weight)
        if model.lm_head.bias is not None:
            found.append(model.lm_head.bias)
    return found
