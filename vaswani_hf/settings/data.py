"""The section `data` of a recipe: what all tasks share, and one class per kind of corpus."""

import os
from typing import Annotated, Any, ClassVar, Literal, Self

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from pydantic import Field, model_validator

from .base import Settings
from .sections import SMALLEST_VOCABULARY

Files = str | list[str] | None
SPLITS = ("train", "validation", "test")
# Limit a weight, because an epoch holds each pair that often in memory.
_LARGEST_WEIGHT = 1000


def is_on_hub(dataset: str) -> bool:
    """True if `data.dataset` can only be a repository of the Hub, because there is no folder of that name."""
    try:
        validate_repo_id(dataset)
    except HFValidationError:
        return False
    return not os.path.isdir(dataset)


def last_part(path: str) -> str:
    """The name of a file or folder without the folders above it."""
    return os.path.basename(os.path.abspath(path)) or "root"


class DataSettings(Settings):
    """The sources of the examples of a run, and which of the examples are used.

    A key that names a file accepts a list of files, and a name may be a pattern (`train-*.parquet`), whose files
    are taken in the order of their names. Text files may be compressed (.gz).
    """

    # The keys `train_KIND`, `validation_KIND` and `test_KIND` name the files of the splits.
    file_kinds: ClassVar[tuple[str, ...]] = ()
    # Exactly one of these keys names the training data.
    source_keys: ClassVar[tuple[str, ...]] = ("corpus",)

    corpus: str | None = None
    """A corpus that the package generates itself."""
    max_length: int = Field(256, gt=0)
    """The largest number of tokens of a side, `</s>` included. Longer examples are dropped from training. They are
    dropped before the tokenizer is trained if a side has more than 16 characters per token of `max_length`. The test
    split is scored whole."""
    num_proc: int = Field(1, gt=0)
    """The number of processes that tokenize the corpus."""
    license: str | None = None
    """The licence of the training data: an identifier of the Hub, or "research-only". Null means that the licence is
    unknown, or that the card of a dataset of the Hub states it."""
    attribution: str | None = None
    """Whom to credit for the data."""

    def listed(self, key: str) -> list[str]:
        """The files and patterns of a key such as "train_source"; empty if the key is not given, or is of another task."""
        given = getattr(self, key, None) or []
        return [given] if isinstance(given, str) else given

    @property
    def file_keys(self) -> list[str]:
        """The keys that name files."""
        return [f"{split}_{kind}" for split in SPLITS for kind in self.file_kinds]

    def files(self, split: str) -> list[str]:
        """The files and patterns of a split, those of the source before those of the target."""
        return [path for kind in self.file_kinds for path in self.listed(f"{split}_{kind}")]

    @property
    def has_validation(self) -> bool:
        """True if the recipe names a validation split."""
        return bool(self.corpus or self.files("validation"))

    @property
    def validation_keys(self) -> str:
        """The keys that would name a validation split, for messages."""
        kinds = [kind for kind in self.file_kinds if self.listed(f"train_{kind}")]
        return " with ".join(f"`data.validation_{kind}`" for kind in kinds)

    def warnings(self) -> list[str]:
        """Sentences about what may be a mistake."""
        return []

    def require_source(self) -> None:
        """Refuse data without a source. Only a plan needs no source."""
        if not any(getattr(self, key) for key in self.source_keys):
            raise ValueError(f"Exactly one of {self._sources_in_words()} must be given, but none is.")

    def check_with(self, tokenizer: Any, training: Any) -> None:
        """Check the data together with the sections `tokenizer` and `training`."""
        for key in training.batch_keys:
            if getattr(training, key) < self.max_length:
                raise ValueError(
                    f"`training.{key}` must hold a sentence of `data.max_length` = {self.max_length} tokens, but is "
                    f"{getattr(training, key)}."
                )

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        given = [f"`data.{key}`" for key in self.source_keys if getattr(self, key)]
        if len(given) > 1:
            raise ValueError(
                f"Exactly one of {self._sources_in_words()} must be given, but {' and '.join(given)} are; set the "
                "others to null."
            )
        for split in SPLITS:
            kinds = [
                kind for kind in self.file_kinds if kind != "target" and getattr(self, f"{split}_{kind}")
            ]
            named = [f"`data.{split}_{kind}`" for kind in kinds]
            named += ["`data.corpus`"] if self.corpus else []
            if len(named) > 1:
                raise ValueError(f"{' and '.join(named)} cannot be given together; leave one of them out.")
        return self

    def _sources_in_words(self) -> str:
        *names, last = [f"`data.{key}`" for key in self.source_keys]
        return f"{', '.join(names)} and {last}"


class CorpusData(DataSettings):
    """Data whose splits are files of text, or splits of a dataset."""

    corpus: Literal["numbers"] | None = None
    """A corpus that the package generates itself: "numbers" has the number words of English and German."""
    numbers_train_size: int = Field(30000, gt=0)
    """The number of training examples of `corpus: numbers`."""
    dataset: str | None = None
    """A dataset of the Hub, or a folder, that `datasets` loads."""
    dataset_config: str | None = None
    """The configuration of the dataset."""
    dataset_revision: str | None = None
    """The commit or the branch of the dataset. A run records the commit."""
    train_split: str = "train"
    """The split of the dataset that the run trains on."""
    validation_split: str | None = "validation"
    """The split of the dataset that the run validates on."""
    test_split: str | None = "test"
    """The split of the dataset that the run is scored on."""
    train_weights: list[Annotated[float | int, Field(ge=0, le=_LARGEST_WEIGHT)]] = []
    """A number for each entry of the list of training files: how often an epoch has each example of that corpus, on
    average. With 0.25 an epoch has a quarter of the corpus, and the next epoch has another quarter. With 2.5 an epoch
    has the corpus twice, and half of it a third time. The tokenizer is trained on each corpus once."""
    streaming: bool = False
    """Read the training data while the run trains, instead of preparing all of it before."""

    @property
    def has_validation(self) -> bool:
        """True if the recipe names a validation split."""
        return super().has_validation or bool(self.dataset and self.validation_split)

    @property
    def validation_keys(self) -> str:
        """The keys that would name a validation split, for messages."""
        return "`data.validation_split`" if self.dataset else super().validation_keys

    def check_with(self, tokenizer: Any, training: Any) -> None:
        """Check the data together with the sections `tokenizer` and `training`."""
        super().check_with(tokenizer, training)
        if self.streaming and (
            training.dataloader_num_workers or training.num_train_epochs or tokenizer.bpe_dropout
        ):
            raise ValueError(
                "`data.streaming: true` needs `training.max_steps`, `training.dataloader_num_workers: 0` and "
                "`tokenizer.bpe_dropout: 0`."
            )

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weights = self.train_weights
        keys = [f"train_{kind}" for kind in self.file_kinds]
        given = [key for key in keys if self.listed(key)]
        if not weights:
            return self
        if not given:
            names = " or ".join(f"`data.{key}`" for key in keys)
            raise ValueError(
                f"`data.train_weights: {weights}` needs files in {names}, but there are none; name the corpora "
                "there, or leave the weights out."
            )
        if self.streaming:
            raise ValueError(
                f"`data.train_weights: {weights}` cannot be given with `data.streaming: true`, because the size of "
                "a stream is unknown; leave one of them out."
            )
        if not any(weights):
            raise ValueError(f"`data.train_weights` must have a number above 0, but is {weights}.")
        for key in given:
            if len(self.listed(key)) != len(weights):
                raise ValueError(
                    f"`data.train_weights` must have a number for each entry of `data.{key}`, which has "
                    f"{len(self.listed(key))}, but is {weights}; give a file or pattern and a weight for each corpus."
                )
        return self


class TranslationData(CorpusData):
    """Sentence pairs.

    Each split is two aligned text files (`…_source` and `…_target`), one file of pairs (`…_pairs`), a split of
    `dataset`, or a part of the corpus that the package generates (`corpus: numbers`).
    """

    file_kinds = ("source", "target", "pairs")
    source_keys = ("corpus", "dataset", "train_pairs", "train_source")
    language: ClassVar[str] = ""
    is_text: ClassVar[bool] = False
    is_treebank: ClassVar[bool] = False

    source_language: str = Field(min_length=1)
    """The language that the model translates from, such as en. It names a column of a dataset or of pairs."""
    target_language: str = Field(min_length=1)
    """The language that the model translates into, such as de. It names a column of a dataset or of pairs."""
    train_source: Files = None
    """Text files with one source sentence per line, for training."""
    train_target: Files = None
    """Text files with the translations of `train_source`, line by line."""
    train_pairs: Files = None
    """Files of training pairs: JSON lines, CSV or Parquet with a `translation` column."""
    validation_source: Files = None
    """As `train_source`, for validation."""
    validation_target: Files = None
    """As `train_target`, for validation."""
    validation_pairs: Files = None
    """As `train_pairs`, for validation."""
    test_source: Files = None
    """As `train_source`, for the scores at the end."""
    test_target: Files = None
    """As `train_target`, for the scores at the end."""
    test_pairs: Files = None
    """As `train_pairs`, for the scores at the end."""
    both_directions: bool = False
    """Train on each pair as it is and reversed. The source of a reversed pair begins with a tag for its target
    language, `>>en<<` if `source_language` is en. The tag is one token of the vocabulary. Pairs in the direction of
    the recipe have no tag, so that validation, test and exports take plain text."""
    max_length_ratio: float | None = Field(None, ge=1)
    """Drop training pairs of which one side has more than this number of times the tokens of the other."""

    def warnings(self) -> list[str]:
        """Sentences about what may be a mistake."""
        if self.source_language != self.target_language:
            return []
        return [
            f"`data.source_language` and `data.target_language` are both {self.source_language!r}; correct one of them "
            "unless the targets are paraphrases or corrections of the sources."
        ]

    def check_with(self, tokenizer: Any, training: Any) -> None:
        """Check the data together with the sections `tokenizer` and `training`."""
        super().check_with(tokenizer, training)
        if not self.both_directions:
            return
        if not tokenizer.shared_vocabulary:
            raise ValueError(
                "`data.both_directions: true` needs one vocabulary for both languages, but "
                "`tokenizer.shared_vocabulary` is false; set it to true."
            )
        if tokenizer.vocab_size <= SMALLEST_VOCABULARY:
            raise ValueError(
                f"`tokenizer.vocab_size` must be at least {SMALLEST_VOCABULARY + 1} with `data.both_directions: "
                f"true`, 256 bytes, 4 special tokens and the tag, but is {tokenizer.vocab_size}; raise it."
            )

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        for split in SPLITS:
            source = getattr(self, f"{split}_source")
            target = getattr(self, f"{split}_target")
            if (source is None) != (target is None):
                raise ValueError(
                    f"`data.{split}_source` and `data.{split}_target` go together, but they are {source!r} and "
                    f"{target!r}."
                )
        return self

    @model_validator(mode="after")
    def _check_languages(self) -> Self:
        language = self.source_language
        if self.both_directions and language.split() != [language]:
            raise ValueError(
                "`data.source_language` must be one word with `data.both_directions: true`, because the word is part "
                f"of the tag, but is {language!r}; name the language by a code such as en."
            )
        if language != self.target_language:
            return self
        both = f"`data.source_language` and `data.target_language` are both {language!r}"
        if self.both_directions:
            raise ValueError(
                f"`data.both_directions: true` needs two languages, but {both}; correct one of them."
            )
        if self.corpus:
            raise ValueError(
                f"`data.corpus: {self.corpus}` has pairs of two languages, but {both}; correct one of them."
            )
        for key in ("dataset", "train_pairs", "validation_pairs", "test_pairs"):
            if getattr(self, key):
                raise ValueError(
                    f"`data.{key}` has a column for each language, but {both}; name the language by its two columns."
                )
        return self

    def _sources_in_words(self) -> str:
        return f"{super()._sources_in_words()} with `data.train_target`"


class TextData(CorpusData):
    """Texts for a language model.

    Each split is plain text with one text per line (`…_text`), the column `text_column` of a split of `dataset`, or
    the number words of both languages (`corpus: numbers`).
    """

    file_kinds = ("text",)
    source_keys = ("corpus", "dataset", "train_text")
    is_text: ClassVar[bool] = True
    is_treebank: ClassVar[bool] = False
    source_language: ClassVar[str] = ""
    target_language: ClassVar[str] = ""
    both_directions: ClassVar[bool] = False
    max_length_ratio: ClassVar[None] = None

    language: str = Field(min_length=1)
    """The language of the texts, such as en."""
    train_text: Files = None
    """Text files with one text per line, for training."""
    validation_text: Files = None
    """As `train_text`, for validation."""
    test_text: Files = None
    """As `train_text`, for the scores at the end."""
    text_column: str = "text"
    """The column of a dataset that has the texts."""

    @model_validator(mode="after")
    def _check_column(self) -> Self:
        if self.dataset is None and self.text_column != "text":
            raise ValueError(
                f"`data.text_column` is for a `data.dataset`, but is {self.text_column!r} without one; leave it out."
            )
        return self


class TreebankData(DataSettings):
    """Trees for a parser.

    Each split is a treebank (`…_trees`): files of trees in brackets, one tree per line or as in Penn files, or folders
    with .mrg files. `corpus: trees` has trees of a small grammar that the package has itself.
    """

    file_kinds = ("trees",)
    source_keys = ("corpus", "train_trees")
    is_text: ClassVar[bool] = False
    is_treebank: ClassVar[bool] = True
    source_language: ClassVar[str] = ""
    target_language: ClassVar[str] = ""
    both_directions: ClassVar[bool] = False
    max_length_ratio: ClassVar[None] = None
    streaming: ClassVar[bool] = False
    train_weights: ClassVar[list[float]] = []
    dataset: ClassVar[None] = None

    corpus: Literal["trees"] | None = None
    """A corpus that the package generates itself: "trees" has trees of a small grammar."""
    trees_train_size: int = Field(20000, gt=0)
    """The number of training examples of `corpus: trees`."""
    language: str = Field(min_length=1)
    """The language of the sentences, such as en."""
    train_trees: Files = None
    """Files or folders of trees, for training."""
    validation_trees: Files = None
    """As `train_trees`, for validation."""
    test_trees: Files = None
    """As `train_trees`, for the scores at the end."""


# Until each task has its own class (see PLAN): what code that serves all tasks receives.
AnyData = TranslationData | TextData | TreebankData

# The tasks whose corpus is plain text.
TEXT_TASKS = ("causal_lm", "masked_lm")
