"""The sections of a recipe and their keys: dataclasses that loading.py fills and checks.py judges."""

import dataclasses
import inspect
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from ..model.configuration_vaswani import VaswaniConfig
from ..optimization.entries import keys_of
from ..optimization.optimizers import OPTIMIZERS
from ..optimization.regularizers import REGULARIZERS
from ..optimization.schedules import SCHEDULES

# Byte-level BPE has the 256 bytes and 4 special tokens.
SMALLEST_VOCABULARY = 260

# The fields of the model's config that follow from the tokenizer, or that training and decoding set by themselves.
_FIELDS_OF_THE_RUN = """
    vocab_size decoder_vocab_size share_encoder_decoder_embeddings is_encoder_decoder use_cache bos_token_id pad_token_id
    eos_token_id decoder_start_token_id
""".split()
# What a model is trained for: translation and parsing train an encoder and a decoder, the others one stack of the two.
TASKS = ("translation", "causal_lm", "masked_lm", "parsing")
# Those whose corpus is plain text.
TEXT_TASKS = ("causal_lm", "masked_lm")
# The parts of an encoder-decoder, each of which may begin with the weights of another model.
STACKS = ("encoder", "decoder")

# All other fields of the config are keys of the recipe's section `model`, beside `init_from`, the model to begin with,
# or one for the encoder, the decoder or each of them (`init_from: {encoder: …, decoder: …}`).
MODEL_FIELDS = tuple(name for name in inspect.get_annotations(VaswaniConfig) if name not in _FIELDS_OF_THE_RUN)
# Those of them that change how a model is trained, and not what it computes.
FREE_FIELDS = "dropout attention_dropout activation_dropout label_smoothing label_smoothing_form".split()


@dataclass
class DataSection:
    """The sources of the sentence pairs, and which of the pairs are used.

    Each split is two aligned text files (`…_source`, `…_target`; plain or .gz), or one file of pairs (`…_pairs`; JSON
    lines, CSV or Parquet with a `translation` column), or a split of the `datasets` dataset `dataset`; or the corpus
    that the package makes itself (`corpus: numbers`). For a file there may be a list of files, the first source with the
    first target and so on, and a name may be a pattern (`train-*.parquet`), whose files are taken by name.

    `train_weights` has a number for each entry of these lists: how often each pair of that corpus is seen in an epoch, on the
    average. With 0.25 an epoch has a quarter of them, and the next one another quarter; with 2.5 it has all twice and half of
    them a third time. The tokenizer is trained on all pairs as they are.

    With `both_directions` each training pair is used as it is and turned round. A turned pair's source begins with a tag for
    the language that it is translated into, `>>en<<` where `source_language` is en, which is one token of the vocabulary. Pairs
    in the direction of the recipe have no tag, so that validation, test, exports, and a run that goes on with this direction
    alone take plain text as it is; to translate in the other direction, the same tag stands in front of the text.

    `max_length` is the most tokens of a side, `</s>` included. Longer pairs are dropped from training, before the tokenizer is
    trained if a side has more than 16 characters per token of `max_length`. The test split is scored whole.

    `license` is the licence of the training data, an identifier of
    the Hub or "research-only"; null means that it is unknown, or that the card of a dataset of the Hub states it.
    `attribution` names whom to credit for the data.

    The language models (`task: causal_lm` and `masked_lm`) have one `language`, and each of their splits is plain text with
    one text a line (`…_text`), or the column `text_column` of a dataset, or the number words of both languages
    (`corpus: numbers`). What is said of pairs holds for texts, too.

    A parser (`task: parsing`) has one `language`, and each of its splits is a treebank (`…_trees`): files of trees in brackets,
    plain or .gz, one tree a line or as in Penn files, or folders with .mrg files; or trees of a small grammar that the package
    has itself (`corpus: trees`).
    """

    source_language: str = ""
    target_language: str = ""
    language: str = ""
    corpus: Literal["numbers", "trees"] | None = None
    numbers_train_size: int = 30000
    trees_train_size: int = 20000
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    train_split: str = "train"
    validation_split: str | None = "validation"
    test_split: str | None = "test"
    train_source: str | list[str] | None = None
    train_target: str | list[str] | None = None
    train_pairs: str | list[str] | None = None
    train_text: str | list[str] | None = None
    train_trees: str | list[str] | None = None
    train_weights: list[float] = field(default_factory=list)
    validation_source: str | list[str] | None = None
    validation_target: str | list[str] | None = None
    validation_pairs: str | list[str] | None = None
    validation_text: str | list[str] | None = None
    validation_trees: str | list[str] | None = None
    test_source: str | list[str] | None = None
    test_target: str | list[str] | None = None
    test_pairs: str | list[str] | None = None
    test_text: str | list[str] | None = None
    test_trees: str | list[str] | None = None
    text_column: str = "text"
    both_directions: bool = False
    streaming: bool = False
    max_length: int = 256
    max_length_ratio: float | None = None
    num_proc: int = 1
    license: str | None = None
    attribution: str | None = None

    @property
    def is_text(self) -> bool:
        """The corpus is plain text, for a language model, and no pairs of sentences or of sentences and trees."""
        return not self.source_language and not self.is_treebank

    @property
    def is_treebank(self) -> bool:
        """The corpus is trees, for a parser."""
        return self.corpus == "trees" or bool(self.train_trees)

    def files(self, split: str) -> list[str]:
        """The files and patterns of a split, those of the source before those of the target.

        Args:
            split (str): "train", "validation" or "test".

        Returns:
            list: Empty for a split of a dataset, or none.
        """
        return [
            path for kind in ("source", "target", "pairs", "text", "trees") for path in self.listed(f"{split}_{kind}")
        ]

    def listed(self, key: str) -> list[str]:
        """The entries of a key that names files.

        Args:
            key (str): Such as "train_source".

        Returns:
            list: Files and patterns; empty where the key is not given.
        """
        given = getattr(self, key) or []
        return [given] if isinstance(given, str) else given


@dataclass
class TokenizerSection:
    """The byte-level BPE that is trained on the training text, unless a run that begins with a model keeps that one's."""

    vocab_size: int = 37000
    target_vocab_size: int | None = None
    shared_vocabulary: bool = True
    lowercase: bool = False
    normalization: Literal["NFC", "NFKC"] | None = None
    bpe_dropout: float = 0.0
    keep: bool = True


def _with_keys_of_entries(section: Any) -> Any:
    """A section that also has the keys of the entries of all tables; the type checker knows only its own fields.

    Code outside an entry must not read the keys of the entry, because another entry may be selected.
    """
    added: dict[str, tuple[str, Any, Any]] = {}
    entries: list[Any] = [*OPTIMIZERS.values(), *SCHEDULES.values(), *REGULARIZERS.values()]
    for entry in entries:
        for name, key in keys_of(entry.settings).items():
            added[name] = (name, key.type, field(default=key.default, metadata=key.metadata))
    whole = dataclasses.make_dataclass(section.__name__, added.values(), bases=(section,))
    whole.__module__ = section.__module__
    whole.__doc__ = section.__doc__
    return whole


@_with_keys_of_entries
@dataclass
class TrainingSection:
    """Optimisation; names are those of `TrainingArguments` where it has them.

    The section also has the keys of all optimizers, schedules and regularisers, which stand in their files in `optimization`.
    """

    max_steps: int | None = None
    num_train_epochs: float | None = None
    source_tokens_per_batch: int = 25000
    target_tokens_per_batch: int = 25000
    # That of the language models, which have no two sides; both of the others are set to it.
    text_tokens_per_batch: int | None = None
    gradient_accumulation_steps: int = 1
    # The name of an entry of `OPTIMIZERS`. Adam is the paper's.
    optimizer: str = "adam"
    # The name of an entry of `SCHEDULES`.
    lr_scheduler_type: str = "paper"
    warmup_steps: int = 4000
    max_grad_norm: float = 0.0
    # The run validates, and ends with, an exponential moving average of the weights.
    ema_decay: float | None = None
    # Names of parts of the model that are not trained, such as `encoder`.
    frozen: list[str] = field(default_factory=list)
    # auto: on if the processor or GPU multiplies bfloat16 and the model and its batches are large enough to gain by it (see
    # processor.py). The run records what was decided, true or false.
    bf16: bool | Literal["auto"] = "auto"
    torch_compile: bool = False
    gradient_checkpointing: bool = False
    logging_steps: int = 50
    eval_steps: int = 500
    save_steps: int = 500
    save_total_limit: int = 5
    average_checkpoints: int = 0
    early_stopping_patience: int | None = None
    metric_for_best_model: Literal["loss", "bleu"] = "loss"
    dataloader_num_workers: int | None = None
    report_to: list[str] = field(default_factory=list)
    resume: bool = False


@dataclass
class DecodingSection:
    """The search that is written to the checkpoint's generation_config.json.

    Section 6.1 is the default: 4 beams, gnmt 0.6, at most 50 tokens more than the source has.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    length_penalty_type: Literal["gnmt", "power"] = "gnmt"
    # A translation has at most a * source tokens + b new tokens, and no more than max_length where that is given.
    max_length_a: float = 1.0
    max_length_b: int = 50
    max_length: int | None = None
    early_stopping: bool = False

    def settings(self) -> dict[str, Any]:
        """The fields of a GenerationConfig, without those of beam search where there is one beam.

        Returns:
            dict: Values by field.
        """
        settings = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.num_beams == 1:
            # transformers refuses them.
            del settings["length_penalty"], settings["length_penalty_type"], settings["early_stopping"]
        return settings


@dataclass
class EvaluationSection:
    """The scoring of translations: BLEU tokenization and case, in validation and at the end on the test split."""

    tokenize: str = "13a"
    lowercase: bool = False
    validation_bleu: bool = False
    tokens_per_batch: int = 4096


@dataclass
class PublishingSection:
    """The repository that a run is pushed to, when it is pushed (see publish/during_training.py), and its licence.

    The licence of the training data is the default.
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
    task: Literal["translation", "causal_lm", "masked_lm", "parsing"] = "translation"
    seed: int = 1
    tokenizer: TokenizerSection = field(default_factory=TokenizerSection)
    model: dict[str, Any] = field(default_factory=dict)
    training: TrainingSection = field(default_factory=TrainingSection)
    decoding: DecodingSection = field(default_factory=DecodingSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    publishing: PublishingSection = field(default_factory=PublishingSection)

    def to_yaml(self) -> str:
        """The recipe with every key of its task, as YAML that `load_recipe` reads.

        Returns:
            str: YAML.
        """
        content = dataclasses.asdict(self)
        for place, tasks in TASKS_OF_KEYS.items():
            section, _, key = place.partition(".")
            if self.task not in tasks:
                content[section].pop(key, None)
        # A section of which nothing is left belongs to other tasks.
        content = {name: keys for name, keys in content.items() if keys != {} or name == "model"}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

    def values(self) -> dict[str, Any]:
        """The values of all keys by their places, `section.key`.

        Returns:
            dict: For the section `model` only the keys that are given.
        """
        return flat(dataclasses.asdict(self))


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by their places, `section.key`.

    Args:
        content (dict): The mappings.
        prefix (str): Stands before each place.
    """
    values: dict[str, Any] = {}
    for key, value in content.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


_PAIRS = ("translation",)
_STACKS = ("translation", "parsing")


def _of(section: str, keys: str, tasks: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {f"{section}.{key}": tasks for key in keys.split()}


# The tasks that a key belongs to; all others belong to all tasks.
TASKS_OF_KEYS: dict[str, tuple[str, ...]] = {
    **_of("data", "source_language target_language train_source train_target train_pairs", _PAIRS),
    **_of("data", "validation_source validation_target validation_pairs", _PAIRS),
    **_of("data", "test_source test_target test_pairs both_directions max_length_ratio", _PAIRS),
    **_of("data", "train_text validation_text test_text text_column", TEXT_TASKS),
    **_of("data", "train_trees validation_trees test_trees trees_train_size", ("parsing",)),
    **_of("data", "language", (*TEXT_TASKS, "parsing")),
    **_of(
        "data",
        "dataset dataset_config dataset_revision streaming train_weights numbers_train_size",
        (*_PAIRS, *TEXT_TASKS),
    ),
    **_of("tokenizer", "target_vocab_size shared_vocabulary bpe_dropout", _PAIRS),
    **_of("training", "text_tokens_per_batch", TEXT_TASKS),
    **{
        f"training.{name}": _STACKS
        for entry in REGULARIZERS.values()
        if entry.needs_encoder_decoder
        for name in keys_of(entry.settings)
    },
    **_of("evaluation", "tokenize lowercase validation_bleu", _PAIRS),
    **_of("decoding", " ".join(field.name for field in dataclasses.fields(DecodingSection)), _STACKS),
    **_of("model", "encoder_layers encoder_attention_heads encoder_ffn_dim", (*_STACKS, "masked_lm")),
    **_of("model", "decoder_layers decoder_attention_heads decoder_ffn_dim", (*_STACKS, "causal_lm")),
    **_of("model", "cross_attention_score", _STACKS),
}
