"""Checks of a recipe: the range of each number, and the keys that must fit each other.

The types of single values are checked while the recipe is loaded (see loading.py), licences in licenses.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from ..model.configuration_vaswani import VaswaniConfig, nearest_name
from ..optimization.entries import Optimizer, Range, Schedule, keys_of
from ..optimization.optimizers import OPTIMIZERS
from ..optimization.regularizers import REGULARIZERS, regularizer_of
from ..optimization.schedules import SCHEDULES
from .licenses import check_license, data_license
from .schema import (
    SMALLEST_VOCABULARY,
    TEXT_TASKS,
    DataSection,
    EvaluationSection,
    PublishingSection,
    Recipe,
    TokenizerSection,
    TrainingSection,
)
from .tasks import check_task

_AT_LEAST_ONE = """
    data.numbers_train_size data.trees_train_size data.max_length data.num_proc tokenizer.vocab_size training.max_steps
    training.num_train_epochs training.text_tokens_per_batch training.source_tokens_per_batch training.target_tokens_per_batch
    training.gradient_accumulation_steps training.warmup_steps training.logging_steps training.eval_steps
    training.save_steps training.save_total_limit training.early_stopping_patience decoding.num_beams
    decoding.max_length evaluation.tokens_per_batch
""".split()
_NOT_NEGATIVE = """
    seed training.max_grad_norm training.average_checkpoints training.dataloader_num_workers
    decoding.max_length_a decoding.max_length_b
""".split()


# An epoch holds each pair so often in memory.
_LARGEST_WEIGHT = 1000


def check_recipe(recipe: Recipe, *, needs_data: bool = True, is_record: bool = False) -> None:
    """Refuses a recipe that describes no possible run.

    Args:
        recipe (Recipe): Keys and types are right already.
        needs_data (bool): It must say what it is trained on.
        is_record (bool): A run has recorded it; some versions took what would be without effect, or lose something.

    Raises:
        ValueError: If a number is out of its range, keys contradict each other, or the data does not allow the licence.
    """
    # What is written for both sides of a text is checked by the name that it was given as.
    _check_numbers(recipe.values())
    check_task(recipe)
    _check_training(recipe.training)
    _check_entry("optimizer", OPTIMIZERS, recipe.training)
    _check_entry("lr_scheduler_type", SCHEDULES, recipe.training)
    _check_regularizers(recipe)
    _check_moving_average(recipe.training)
    if recipe.training.metric_for_best_model == "bleu" and not recipe.evaluation.validation_bleu:
        raise ValueError("`training.metric_for_best_model: bleu` needs `evaluation.validation_bleu: true`.")
    _check_publishing(recipe.publishing)
    _check_batches(recipe.data, recipe.training, recipe.tokenizer)
    _check_sources(recipe, needs_data)
    if not is_record:
        # Another machine may lack what this one had.
        _check_bleu(recipe.evaluation)
    _check_weights(recipe.data)
    _check_directions(recipe)
    if not is_record:
        _check_languages(recipe.data)
    _check_tokenizer(recipe.tokenizer)
    _check_beginning(recipe)
    _check_positions(recipe.model, max(recipe.data.max_length, recipe.decoding.max_length or 0))
    check_license(recipe.publishing.license, data_license(recipe.data))


def check_training(recipe: Recipe) -> list[str]:
    """Refuses a recipe that asks for a validation without data, and finds what may be a mistake.

    Only a run needs this: other commands use such a recipe for its training data or its shape.

    Args:
        recipe (Recipe): Checked by `check_recipe`.

    Returns:
        list: Sentences for the user.

    Raises:
        ValueError: If the recipe needs a validation split and has none.
    """
    data, training = recipe.data, recipe.training
    _check_validation(recipe)
    sentences = []
    if _has_one_language(data):
        sentences.append(
            f"`data.source_language` and `data.target_language` are both {data.source_language!r}; correct one of them unless "
            "the targets are paraphrases or corrections of the sources."
        )
    if training.max_steps is not None:
        sentences += check_warmup(training, training.max_steps)
    return sentences


def check_warmup(training: TrainingSection, max_steps: int) -> list[str]:
    """Finds a warm-up that is longer than the run.

    Args:
        training (TrainingSection): Of a checked recipe.
        max_steps (int): The number of steps of the run. It follows from the corpus if the recipe counts epochs.

    Returns:
        list: A sentence for the user, or none.
    """
    if training.warmup_steps <= max_steps:
        return []
    return [
        f"`training.warmup_steps` is {training.warmup_steps:,}, but the run has {max_steps:,} steps, so that the learning rate "
        "never reaches its highest value; lower the number, or train for longer."
    ]


def _check_validation(recipe: Recipe) -> None:
    data, patience = recipe.data, recipe.training.early_stopping_patience
    if data.corpus or data.files("validation") or (data.dataset and data.validation_split):
        return
    kind = "split" if data.dataset else "trees" if data.train_trees else "text" if data.train_text else "source"
    target = " with `data.validation_target`" if kind == "source" else ""
    needs = f"needs a validation split, but there is none; give `data.validation_{kind}`{target}"
    if patience:
        raise ValueError(f"`training.early_stopping_patience: {patience}` {needs}, or leave the patience out.")
    if recipe.evaluation.validation_bleu:
        raise ValueError(f"`evaluation.validation_bleu: true` {needs}, or set it to false.")


def _check_numbers(values: dict[str, Any]) -> None:
    for place in _AT_LEAST_ONE:
        value = values[place]
        if value is not None and not (value >= 1 if place != "training.num_train_epochs" else value > 0):
            raise ValueError(f"`{place}` must be positive, but is {value}.")
        if value == float("inf"):
            raise ValueError(f"`{place}` must be finite, but is {value}; how long a run is decides its schedule.")
    for place in _NOT_NEGATIVE:
        if values[place] is not None and not 0 <= values[place] < float("inf"):
            raise ValueError(f"`{place}` must be 0 or more, but is {values[place]}.")
    if not 0 <= values["tokenizer.bpe_dropout"] < 1:
        dropout = values["tokenizer.bpe_dropout"]
        raise ValueError(f"`tokenizer.bpe_dropout` must be from 0 up to, but not including, 1, but is {dropout}.")
    for field in dataclasses.fields(TrainingSection):
        accepted: Range | None = field.metadata.get("range")
        value = values[f"training.{field.name}"]
        if accepted is not None and value is not None and not accepted.contains(value):
            raise ValueError(f"`training.{field.name}` must be {accepted.words}, but is {value}.")
    if values["seed"] >= 2**32:
        raise ValueError(f"`seed` must be smaller than 2^32, but is {values['seed']}.")
    ratio, penalty = values["data.max_length_ratio"], values["decoding.length_penalty"]
    if ratio is not None and not ratio >= 1:
        raise ValueError(f"`data.max_length_ratio` must be 1 or more, or null for no limit, but is {ratio}.")
    if not -float("inf") < penalty < float("inf"):
        raise ValueError(f"`decoding.length_penalty` must be a finite number, but is {penalty}.")


def _check_training(training: TrainingSection) -> None:
    if (training.max_steps is None) == (training.num_train_epochs is None):
        raise ValueError(
            "Exactly one of `training.max_steps` and `training.num_train_epochs` must be given, but "
            f"they are {training.max_steps} and {training.num_train_epochs}."
        )
    if training.average_checkpoints > training.save_total_limit:
        raise ValueError(
            f"`training.average_checkpoints` is {training.average_checkpoints}, but only `training.save_total_limit` "
            f"= {training.save_total_limit} checkpoints are kept; raise the limit."
        )
    if training.early_stopping_patience and training.average_checkpoints:
        raise ValueError(
            "`training.early_stopping_patience` ends with the best checkpoint and `training.average_checkpoints` with "
            "an average of the last ones; give only one of them."
        )
    if training.early_stopping_patience and training.save_steps % training.eval_steps:
        raise ValueError(
            f"`training.save_steps` must be a multiple of `training.eval_steps` for early stopping, but "
            f"{training.save_steps} is no multiple of {training.eval_steps}."
        )


def _check_entry(key: str, table: Mapping[str, Optimizer | Schedule], training: TrainingSection) -> None:
    """Refuses a name that the table of a key does not have, and the keys of entries that are not selected."""
    selected = getattr(training, key)
    if selected not in table:
        names = " or ".join(repr(name) for name in table)
        raise ValueError(
            f"`training.{key}` must be {names}, but is {selected!r}; the nearest name is "
            f"{nearest_name(selected, table)!r}."
        )
    own = keys_of(table[selected].settings)
    for name, field in own.items():
        if field.metadata.get("is_required") and getattr(training, name) is None:
            raise ValueError(f"`training.{name}` must be given with `training.{key}: {selected}`, but is missing.")
    for entry in table.values():
        for name, field in keys_of(entry.settings).items():
            value = getattr(training, name)
            if name in own or value == field.default:
                continue
            owners = [owner for owner, other in table.items() if name in keys_of(other.settings)]
            raise ValueError(
                f"`training.{name}` belongs to `training.{key}: {' or '.join(owners)}`, but is {value} with "
                f"`training.{key}: {selected}`; leave one of them out."
            )


def _check_regularizers(recipe: Recipe) -> None:
    training = recipe.training
    selected = regularizer_of(training)
    for entry in REGULARIZERS.values():
        strength = getattr(training, entry.strength)
        if strength and selected is not None and entry is not selected:
            first = f"`training.{selected.strength}: {getattr(training, selected.strength)}`"
            raise ValueError(
                f"{first} and `training.{entry.strength}: {strength}` turn on two regularisers, but a run has one; set one of "
                "them to 0."
            )
        for name, field in keys_of(entry.settings).items():
            value = getattr(training, name)
            if not strength and value != field.default:
                raise ValueError(
                    f"`training.{name}: {value}` needs `training.{entry.strength}`, but that is {strength}; set it to a "
                    f"positive number, or leave `{name}` out."
                )
    if selected is not None:
        selected.check(training, recipe.model)


def _check_moving_average(training: TrainingSection) -> None:
    decay = training.ema_decay
    if decay is not None and not 0 < decay < 1:
        raise ValueError(f"`training.ema_decay` must lie between 0 and 1, such as 0.999, but is {decay}.")


def _check_publishing(publishing: PublishingSection) -> None:
    if publishing.push_to_hub and not publishing.hub_model_id:
        raise ValueError("`publishing.push_to_hub: true` needs `publishing.hub_model_id`, such as user/name.")
    if publishing.hub_strategy != "end" and not publishing.push_to_hub:
        raise ValueError(f"`publishing.hub_strategy: {publishing.hub_strategy}` needs `publishing.push_to_hub: true`.")


def _check_batches(data: DataSection, training: TrainingSection, tokenizer: TokenizerSection) -> None:
    for key in ("source_tokens_per_batch", "target_tokens_per_batch"):
        if getattr(training, key) < data.max_length:
            name = "text_tokens_per_batch" if data.is_text else key
            raise ValueError(
                f"`training.{name}` must hold a sentence of `data.max_length` = {data.max_length} tokens, but is "
                f"{getattr(training, key)}."
            )
    if data.streaming and (training.dataloader_num_workers or training.num_train_epochs or tokenizer.bpe_dropout):
        raise ValueError(
            "`data.streaming: true` needs `training.max_steps`, `training.dataloader_num_workers: 0` and "
            "`tokenizer.bpe_dropout: 0`."
        )


def _check_sources(recipe: Recipe, needs_data: bool) -> None:
    data = recipe.data
    kinds: dict[str, Any] = {"corpus": data.corpus, "dataset": data.dataset}
    if recipe.task == "parsing":
        kinds = {"corpus": data.corpus, "train_trees": data.train_trees}
    elif recipe.task in TEXT_TASKS:
        kinds["train_text"] = data.train_text
    else:
        kinds |= {"train_pairs": data.train_pairs, "train_source": data.train_source}
    if data.corpus is not None and (data.corpus == "trees") != (recipe.task == "parsing"):
        other = "numbers" if data.corpus == "trees" else "trees"
        raise ValueError(
            f"`data.corpus: {data.corpus}` is not for `task: {recipe.task}`; it may be {other} there, or null with files of your own."
        )
    if data.dataset is None and data.text_column != DataSection.text_column:
        raise ValueError(
            f"`data.text_column` is for a `data.dataset`, but is {data.text_column!r} without one; leave it out."
        )
    *names, last = [f"`data.{name}`" for name in kinds]
    last += " with `data.train_target`" if "train_source" in kinds else ""
    given = [f"`data.{name}`" for name, value in kinds.items() if value]
    if len(given) > 1 or (needs_data and not given):
        raise ValueError(
            f"Exactly one of {', '.join(names)} and {last} must be given, but {' and '.join(given) or 'none'} "
            f"{'are; set the others to null' if given else 'is'}."
        )
    for split in ("train", "validation", "test"):
        source, target = getattr(data, f"{split}_source"), getattr(data, f"{split}_target")
        if (source is None) != (target is None):
            raise ValueError(
                f"`data.{split}_source` and `data.{split}_target` go together, but they are {source!r} and {target!r}."
            )
        sources = ("source", "pairs", "text", "trees")
        named = [f"`data.{split}_{kind}`" for kind in sources if getattr(data, f"{split}_{kind}")]
        named += ["`data.corpus`"] if data.corpus else []
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} cannot be given together; leave one of them out.")


def _check_weights(data: DataSection) -> None:
    weights = data.train_weights
    if not weights:
        return
    given = [name for name in ("train_source", "train_target", "train_pairs", "train_text") if data.listed(name)]
    if not given:
        raise ValueError(
            f"`data.train_weights: {weights}` is for the files of `data.train_source` and `data.train_target`, of "
            "`data.train_pairs` or of `data.train_text`, but none are given; name the corpora there, or leave the weights out."
        )
    if data.streaming:
        raise ValueError(
            f"`data.train_weights: {weights}` cannot be given with `data.streaming: true`, which does not know how many pairs "
            "there are; leave one of them out."
        )
    if not all(0 <= weight <= _LARGEST_WEIGHT for weight in weights) or not any(weights):
        raise ValueError(
            f"`data.train_weights` must be numbers from 0 to {_LARGEST_WEIGHT:,}, and one of them above 0, but is {weights}; correct "
            "them."
        )
    for name in given:
        if len(data.listed(name)) != len(weights):
            raise ValueError(
                f"`data.train_weights` must have a number for each entry of `data.{name}`, which has "
                f"{len(data.listed(name))}, but is {weights}; give a file or pattern and a weight for each corpus."
            )


def _check_languages(data: DataSection) -> None:
    if not _has_one_language(data):
        return
    if data.corpus:
        raise ValueError(
            f"`data.corpus: {data.corpus}` has pairs of two languages, but `data.source_language` and `data.target_language` "
            f"are both {data.source_language!r}; correct one of them."
        )
    kinds = ("dataset", "train_pairs", "validation_pairs", "test_pairs")
    of_columns = [f"`data.{kind}`" for kind in kinds if getattr(data, kind)]
    if of_columns:
        raise ValueError(
            f"{of_columns[0]} has the sides of a pair by the names of the languages, but `data.source_language` and "
            f"`data.target_language` are both {data.source_language!r}; name its two columns."
        )


def _has_one_language(data: DataSection) -> bool:
    """Whether source and target language are the same; a task without pairs has neither."""
    return bool(data.source_language) and data.source_language == data.target_language


def _check_directions(recipe: Recipe) -> None:
    data, tokenizer = recipe.data, recipe.tokenizer
    if not data.both_directions:
        return
    if not tokenizer.shared_vocabulary:
        raise ValueError(
            "`data.both_directions: true` needs one vocabulary for both languages, but `tokenizer.shared_vocabulary` is false; "
            "set it to true."
        )
    if data.source_language == data.target_language:
        raise ValueError(
            f"`data.both_directions: true` needs two languages, but `data.source_language` and `data.target_language` are both "
            f"{data.source_language!r}; correct one of them."
        )
    if data.source_language.split() != [data.source_language]:
        raise ValueError(
            f"`data.source_language` must be a word with `data.both_directions: true`, whose tag it becomes part of, but is "
            f"{data.source_language!r}; name the language by a code such as en."
        )
    if tokenizer.vocab_size <= SMALLEST_VOCABULARY:
        raise ValueError(
            f"`tokenizer.vocab_size` must be at least {SMALLEST_VOCABULARY + 1} with `data.both_directions: true`, 256 bytes, 4 "
            f"special tokens and the tag, but is {tokenizer.vocab_size}; raise it."
        )


def _check_beginning(recipe: Recipe) -> None:
    if not recipe.tokenizer.keep and recipe.model.get("init_from") is None:
        raise ValueError(
            "`tokenizer.keep: false` is for a run with `model.init_from`, but there is none; leave it out."
        )


def _check_tokenizer(tokenizer: TokenizerSection) -> None:
    if tokenizer.target_vocab_size and tokenizer.shared_vocabulary:
        raise ValueError("`tokenizer.target_vocab_size` needs `tokenizer.shared_vocabulary: false`.")
    for key in ("vocab_size", "target_vocab_size"):
        size = getattr(tokenizer, key)
        if size is not None and size < SMALLEST_VOCABULARY:
            raise ValueError(
                f"`tokenizer.{key}` must be at least {SMALLEST_VOCABULARY}, 256 bytes and 4 special tokens, but is {size}."
            )


def _check_positions(model: dict[str, Any], longest: int) -> None:
    positions = model.get("max_position_embeddings", VaswaniConfig.max_position_embeddings)
    if model.get("position_embedding") == "learned" and positions < longest:
        raise ValueError(
            f"`model.max_position_embeddings` must be at least {longest}, the larger of `data.max_length` and "
            f"`decoding.max_length`, but is {positions}."
        )


def _check_bleu(evaluation: EvaluationSection) -> None:
    try:
        BLEU(tokenize=evaluation.tokenize)
    except (ValueError, ImportError, RuntimeError, KeyError):
        raise ValueError(
            f"`evaluation.tokenize` must be a tokenizer of sacreBLEU that is installed, such as 13a, intl, char or none, but "
            f"is {evaluation.tokenize!r}."
        ) from None
