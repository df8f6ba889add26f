"""The section `data` of a recipe: what the tasks share. Each task has a class of its own in tasks/."""

import os
from typing import Annotated, Any, ClassVar, Literal, Self

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from pydantic import Field, model_validator

from .base import Settings

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
    def tags(self) -> tuple[str, ...]:
        """The tags of directions that the vocabulary needs."""
        return ()

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
    average. With 0.25 an epoch has a quarter of the corpus, chosen at random. With 2.5 an epoch
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
            training.dataloader_num_workers
            or training.num_train_epochs
            or getattr(tokenizer, "bpe_dropout", 0)
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
