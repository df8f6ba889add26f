"""A recipe: one YAML file that describes one run, read with strict types."""

import dataclasses
import difflib
import os
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from sacrebleu.metrics.bleu import BLEU

from ..model.configuration_vaswani import VaswaniConfig
from .licenses import check_allowed, check_known

# Byte-level BPE has all bytes and the special tokens.
SMALLEST_VOCABULARY = 260

# What a recipe may say of the model: the shape; the vocabulary comes from the tokenizer.
MODEL_FIELDS = """
    d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads encoder_ffn_dim
    decoder_ffn_dim d_k d_v dropout attention_dropout activation_dropout activation_function norm_position
    layer_norm_eps position_embedding max_position_embeddings scale_embedding tie_word_embeddings attention_bias
    label_smoothing label_smoothing_form
""".split()


@dataclass
class DataSection:
    """Where the sentence pairs come from and which of them are used.

    Each split is two aligned text files (`…_source`, `…_target`; plain or .gz), or one file of pairs (`…_pairs`; JSON
    lines, CSV or Parquet with a `translation` column), or a split of the `datasets` dataset `dataset`; or the corpus
    that the package makes itself (`corpus: numbers`). `license` is that of the training data, an identifier of the Hub or
    "research-only"; null is not known, or what a dataset of the Hub says itself. `attribution` is whom to credit for it.
    """

    source_language: str
    target_language: str
    corpus: Literal["numbers"] | None = None
    numbers_train_size: int = 30000
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    train_split: str = "train"
    validation_split: str | None = "validation"
    test_split: str | None = "test"
    train_source: str | None = None
    train_target: str | None = None
    train_pairs: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    validation_pairs: str | None = None
    test_source: str | None = None
    test_target: str | None = None
    test_pairs: str | None = None
    streaming: bool = False
    max_length: int = 256
    max_length_ratio: float | None = None
    num_proc: int = 1
    license: str | None = None
    attribution: str | None = None


@dataclass
class TokenizerSection:
    """The byte-level BPE that is trained on the training text."""

    vocab_size: int = 37000
    target_vocab_size: int | None = None
    shared_vocabulary: bool = True
    lowercase: bool = False
    normalization: Literal["NFC", "NFKC"] | None = None
    bpe_dropout: float = 0.0


@dataclass
class TrainingSection:
    """Optimisation; names are those of `TrainingArguments` where it has them."""

    max_steps: int | None = None
    num_train_epochs: float | None = None
    source_tokens_per_batch: int = 25000
    target_tokens_per_batch: int = 25000
    gradient_accumulation_steps: int = 1
    learning_rate_factor: float = 1.0
    warmup_steps: int = 4000
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-9
    max_grad_norm: float = 0.0
    bf16: bool = False
    torch_compile: bool = False
    gradient_checkpointing: bool = False
    logging_steps: int = 50
    eval_steps: int = 500
    save_steps: int = 500
    save_total_limit: int = 5
    average_checkpoints: int = 0
    early_stopping_patience: int | None = None
    metric_for_best_model: Literal["loss", "bleu"] = "loss"
    dataloader_num_workers: int = 0
    report_to: list[str] = field(default_factory=list)
    resume: bool = False


@dataclass
class DecodingSection:
    """What is written to the checkpoint's generation_config.json: by default the paper's search, Section 6.1."""

    num_beams: int = 4
    length_penalty: float = 0.6
    length_penalty_type: Literal["gnmt", "power"] = "gnmt"
    # At most a * source tokens + b new tokens; and no more than max_length where it is given.
    max_length_a: float = 1.0
    max_length_b: int = 50
    max_length: int | None = None
    early_stopping: bool = False


@dataclass
class EvaluationSection:
    """How translations are scored, in validation and at the end on the test split."""

    tokenize: str = "13a"
    lowercase: bool = False
    validation_bleu: bool = False
    tokens_per_batch: int = 4096


@dataclass
class PublishingSection:
    """Where the finished checkpoint is pushed to, what is pushed on the way (see publishing.py), and under which licence.

    The licence is by default that of the training data.
    """

    push_to_hub: bool = False
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = "end"
    hub_model_id: str | None = None
    hub_private_repo: bool = False
    license: str | None = None


@dataclass
class Recipe:
    """One run, from raw sentence pairs to a scored checkpoint."""

    output_dir: str
    data: DataSection
    seed: int = 1
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: dict[str, Any] = field(default_factory=dict)
    training: TrainingSection = field(default_factory=TrainingSection)
    decoding: DecodingSection = field(default_factory=DecodingSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    publishing: PublishingSection = field(default_factory=PublishingSection)

    def to_yaml(self) -> str:
        """The recipe with every key, as YAML that `load_recipe` reads.

        Returns:
            str: YAML.
        """
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """YAML with numbers such as 7e-4, which YAML 1.1 takes for text, and without keys that are given twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(
                    f"`{key}` stands twice in line {node.start_mark.line + 1} and after; keep one of them."
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_recipe(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """A recipe from a file, with keys of the command line over it.

    Args:
        path (str or Path): A YAML file.
        overrides (list, optional): `["--key", "value", …]`; a key is `section.key`, or the key alone.

    Returns:
        Recipe: Checked: every key known, every value of its type, the keys together possible.

    Raises:
        ValueError: If the file or a key is not as it must be.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ValueError(f"The recipe '{path}' cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"The recipe '{path}' is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"The recipe '{path}' must be a mapping of keys to values, but is {type(content).__name__}.")
    for key, text in _pairs(overrides or []):
        _override(content, key, text)
    recipe = _build(Recipe, content, "")
    _check_together(recipe)
    return recipe


def _pairs(overrides: list[str]) -> list[tuple[str, str]]:
    words = [part for word in overrides for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for name in words[::2]:
        if not name.startswith("--"):
            raise ValueError(f"Expected `--key value`, but found '{name}' where a key should be.")
    for name in words[::2]:
        if words[::2].count(name) > 1:
            raise ValueError(f"`{name}` is given twice; keep one of them.")
    if len(words) % 2:
        raise ValueError(f"`{words[-1]}` needs a value.")
    return [(name.removeprefix("--"), value) for name, value in zip(words[::2], words[1::2], strict=True)]


def _sections() -> dict[str, type]:
    hints = typing.get_type_hints(Recipe)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}


def _places() -> dict[str, list[str]]:
    """The places, `section.key`, of each key that a recipe can have."""
    found: dict[str, list[str]] = {}
    for name in ("output_dir", "seed"):
        found[name] = [name]
    for name in MODEL_FIELDS:
        found[name] = [f"model.{name}"]
    for section, section_type in _sections().items():
        for key in dataclasses.fields(section_type):
            found.setdefault(key.name, []).append(f"{section}.{key.name}")
    return found


# The place that a key of the command line means.
def _place_of(key: str) -> str:
    places = _places()
    whole = [place for of_key in places.values() for place in of_key]
    found = [key] if key in whole else places.get(key, [])
    if not found:
        nearest = difflib.get_close_matches(key, [*places, *whole], 1, cutoff=0)[0]
        raise ValueError(f"`--{key}` is no key of a recipe; the nearest key is `--{nearest}`.")
    if len(found) > 1:
        choices = " or ".join(f"`--{place}`" for place in found)
        raise ValueError(f"`--{key}` may mean several keys; write {choices}.")
    return found[0]


def _override(content: dict[str, Any], key: str, text: str) -> None:
    section, _, name = _place_of(key).rpartition(".")
    target = content
    if section:
        target = content[section] = content.get(section) or {}
        if not isinstance(target, dict):
            raise ValueError(f"`{section}` must be a mapping of keys to values, but is {target!r}.")
    hint = typing.get_type_hints(_sections().get(section, Recipe)).get(name, Any)
    if str in _options(hint) and not (type(None) in _options(hint) and text in ("null", "None")):
        target[name] = text
    elif typing.get_origin(hint) is list and not text.startswith("["):
        target[name] = [part for part in text.split(",") if part]
    else:
        target[name] = yaml.load(text, Loader=_Loader) if text != "None" else None


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of `A | B`; `Literal[…] | None` is another class of union than `int | None`."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


# An instance of a section's dataclass from a mapping, each value checked against its annotation.
def _build(section_type: type, content: Any, prefix: str) -> Any:
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ValueError(f"`{prefix.rstrip('.')}` must be a mapping of keys to values, but is {content!r}.")
    hints = typing.get_type_hints(section_type)
    values = {}
    for key, value in content.items():
        if key not in hints:
            nearest = difflib.get_close_matches(str(key), list(hints), 1, cutoff=0)[0]
            elsewhere = " or ".join(f"`{place}`" for place in _places().get(str(key), []))
            hint = f"write {elsewhere}" if elsewhere else f"the nearest key is `{prefix}{nearest}`"
            raise ValueError(f"`{prefix}{key}` is no key of a recipe, given with the value {value!r}; {hint}.")
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(typing.cast(type, hints[key]), value, f"{prefix}{key}.")
        elif key == "model":
            values[key] = _model_fields(value)
        else:
            values[key] = _typed(value, hints[key], f"{prefix}{key}")
    for missing in dataclasses.fields(section_type):
        required = missing.default is dataclasses.MISSING and missing.default_factory is dataclasses.MISSING
        if required and missing.name not in values:
            raise ValueError(f"`{prefix}{missing.name}` must be given in the recipe, but is missing.")
    return section_type(**values)


def _model_fields(content: Any) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"`model` must be a mapping of keys to values, but is {content!r}.")
    for key, value in content.items():
        if key not in MODEL_FIELDS:
            nearest = difflib.get_close_matches(str(key), MODEL_FIELDS, 1, cutoff=0)[0]
            place = _places().get(str(key), [f"model.{nearest}"])[0]
            raise ValueError(
                f"`model.{key}` is no key of a recipe, given with the value {value!r}; the nearest key is `{place}`."
            )
    # The config checks the values and says what is wrong with them.
    VaswaniConfig(**content)
    return dict(content)


def _typed(value: Any, hint: Any, name: str) -> Any:
    options = _options(hint)
    for option in options:
        if _is_of_type(value, option):
            return float(value) if option is float else value
    words = " or ".join(_type_words(option) for option in options)
    # YAML 1.1 takes the language code "no" for False.
    quotes = "; put it in quotes" if isinstance(value, bool) and str in options else ""
    raise ValueError(f"`{name}` must be {words}, but is {value!r}{quotes}.")


def _is_of_type(value: Any, option: Any) -> bool:
    if option is type(None):
        return value is None
    if typing.get_origin(option) is Literal:
        return value in typing.get_args(option)
    if typing.get_origin(option) is list:
        return isinstance(value, list) and all(_is_of_type(item, typing.get_args(option)[0]) for item in value)
    if option in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if option is float else option)


def _type_words(option: Any) -> str:
    if option is type(None):
        return "null"
    if typing.get_origin(option) is Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(option))
    if typing.get_origin(option) is list:
        return "a list"
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}[option]


_AT_LEAST_ONE = """
    data.numbers_train_size data.max_length data.num_proc tokenizer.vocab_size training.max_steps
    training.num_train_epochs training.source_tokens_per_batch training.target_tokens_per_batch
    training.gradient_accumulation_steps training.warmup_steps training.logging_steps training.eval_steps
    training.save_steps training.save_total_limit training.early_stopping_patience decoding.num_beams
    decoding.max_length evaluation.tokens_per_batch
""".split()
_NOT_NEGATIVE = """
    seed training.learning_rate_factor training.adam_epsilon training.max_grad_norm training.average_checkpoints
    training.dataloader_num_workers decoding.max_length_a decoding.max_length_b
""".split()


def _value(recipe: Recipe, place: str) -> Any:
    section, _, name = place.rpartition(".")
    return getattr(getattr(recipe, section) if section else recipe, name)


def _check_together(recipe: Recipe) -> None:
    for place in _AT_LEAST_ONE:
        value = _value(recipe, place)
        if value is not None and (value < 1 if place != "training.num_train_epochs" else value <= 0):
            raise ValueError(f"`{place}` must be positive, but is {value}.")
    for place in _NOT_NEGATIVE:
        if not 0 <= _value(recipe, place) < float("inf"):
            raise ValueError(f"`{place}` must be 0 or more, but is {_value(recipe, place)}.")
    for place in ("training.adam_beta1", "training.adam_beta2", "tokenizer.bpe_dropout"):
        if not 0 <= _value(recipe, place) < 1:
            raise ValueError(f"`{place}` must be from 0 up to, but not including, 1, but is {_value(recipe, place)}.")
    if recipe.seed >= 2**32:
        raise ValueError(f"`seed` must be smaller than 2^32, but is {recipe.seed}.")
    if not -float("inf") < recipe.decoding.length_penalty < float("inf"):
        raise ValueError(
            f"`decoding.length_penalty` must be a finite number, but is {recipe.decoding.length_penalty}."
        )
    _check_training(recipe)
    _check_data(recipe)
    _check_text(recipe)
    check_known(recipe.data.license, "data.license")
    check_allowed(recipe.publishing.license, data_license(recipe.data))


def _check_text(recipe: Recipe) -> None:
    for place in ("tokenizer.vocab_size", "tokenizer.target_vocab_size"):
        size = _value(recipe, place)
        if size is not None and size < SMALLEST_VOCABULARY:
            raise ValueError(
                f"`{place}` must be at least {SMALLEST_VOCABULARY}, 256 bytes and 4 special tokens, but is {size}."
            )
    ratio = recipe.data.max_length_ratio
    if ratio is not None and not ratio >= 1:
        raise ValueError(f"`data.max_length_ratio` must be 1 or more, or null for no limit, but is {ratio}.")
    longest = max(recipe.data.max_length, recipe.decoding.max_length or 0)
    positions = recipe.model.get("max_position_embeddings", VaswaniConfig.max_position_embeddings)
    if recipe.model.get("position_embedding") == "learned" and positions < longest:
        raise ValueError(
            f"`model.max_position_embeddings` must be at least {longest}, the larger of `data.max_length` and "
            f"`decoding.max_length`, but is {positions}."
        )
    try:
        BLEU(tokenize=recipe.evaluation.tokenize)
    except (ValueError, ImportError, RuntimeError, KeyError):
        raise ValueError(
            f"`evaluation.tokenize` must be a tokenizer of sacreBLEU that is installed, such as 13a, intl, char or none, but "
            f"is {recipe.evaluation.tokenize!r}."
        ) from None


def _check_training(recipe: Recipe) -> None:
    training = recipe.training
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
    if training.metric_for_best_model == "bleu" and not recipe.evaluation.validation_bleu:
        raise ValueError("`training.metric_for_best_model: bleu` needs `evaluation.validation_bleu: true`.")
    if recipe.publishing.push_to_hub and not recipe.publishing.hub_model_id:
        raise ValueError("`publishing.push_to_hub: true` needs `publishing.hub_model_id`, such as user/name.")
    if recipe.publishing.hub_strategy != "end" and not recipe.publishing.push_to_hub:
        raise ValueError(
            f"`publishing.hub_strategy: {recipe.publishing.hub_strategy}` needs `publishing.push_to_hub: true`."
        )


def _check_data(recipe: Recipe) -> None:
    data, training = recipe.data, recipe.training
    for place in ("source_tokens_per_batch", "target_tokens_per_batch"):
        if getattr(training, place) < data.max_length:
            raise ValueError(
                f"`training.{place}` must hold a sentence of `data.max_length` = {data.max_length} tokens, but is "
                f"{getattr(training, place)}."
            )
    if data.streaming and (
        training.dataloader_num_workers or training.num_train_epochs or recipe.tokenizer.bpe_dropout
    ):
        raise ValueError(
            "`data.streaming: true` needs `training.max_steps`, `training.dataloader_num_workers: 0` and "
            "`tokenizer.bpe_dropout: 0`."
        )
    if recipe.tokenizer.target_vocab_size and recipe.tokenizer.shared_vocabulary:
        raise ValueError("`tokenizer.target_vocab_size` needs `tokenizer.shared_vocabulary: false`.")
    kinds = {
        "corpus": data.corpus,
        "dataset": data.dataset,
        "train_pairs": data.train_pairs,
        "train_source": data.train_source,
    }
    given = [f"`data.{name}`" for name, value in kinds.items() if value]
    if len(given) != 1:
        raise ValueError(
            "Exactly one of `data.corpus`, `data.dataset`, `data.train_pairs` and `data.train_source` with "
            f"`data.train_target` must be given, but {' and '.join(given) or 'none'} is."
        )
    for split in ("train", "validation", "test"):
        source, target = getattr(data, f"{split}_source"), getattr(data, f"{split}_target")
        if (source is None) != (target is None):
            raise ValueError(
                f"`data.{split}_source` and `data.{split}_target` go together, but they are {source!r} and {target!r}."
            )
        named = [f"`data.{split}_{kind}`" for kind in ("source", "pairs") if getattr(data, f"{split}_{kind}")]
        named += ["`data.corpus`"] if data.corpus else []
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} cannot be given together; leave one of them out.")


def data_license(data: DataSection) -> str | None:
    """The licence of the training data.

    Args:
        data (DataSection): The `data` section of a recipe.

    Returns:
        str: An identifier of the Hub or "research-only"; None where it is not known.
    """
    # The corpus of number words is made by this package.
    return data.license or ("apache-2.0" if data.corpus == "numbers" else None)


def is_on_hub(dataset: str) -> bool:
    """Whether `data.dataset` can only mean a repository, and no folder; it is a folder wherever there is one.

    Args:
        dataset (str): As the recipe gives it.

    Returns:
        bool: True if so.
    """
    try:
        validate_repo_id(dataset)
    except HFValidationError:
        return False
    return not os.path.isdir(dataset)


def last_part(path: str) -> str:
    """A path without the folders before it.

    Args:
        path (str): Of a file or a folder.

    Returns:
        str: Its name.
    """
    return os.path.basename(os.path.abspath(path)) or "root"


def published_recipe(recipe: Recipe) -> Recipe:
    """A recipe as others may see it: without folders, and without the repository that its owner pushes to.

    Args:
        recipe (Recipe): The run.

    Returns:
        Recipe: Files by their names, `output_dir` by its last part.
    """
    data = recipe.data
    paths = [f"{split}_{kind}" for split in ("train", "validation", "test") for kind in ("source", "target", "pairs")]
    names: dict[str, Any] = {name: last_part(getattr(data, name)) for name in paths if getattr(data, name)}
    if data.dataset and not is_on_hub(data.dataset):
        names["dataset"] = last_part(data.dataset)
    return dataclasses.replace(
        recipe,
        output_dir=last_part(recipe.output_dir),
        data=dataclasses.replace(data, **names),
        publishing=PublishingSection(license=recipe.publishing.license),
    )
