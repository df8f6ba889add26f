"""Defines the keys that several tasks share in the section `data` of a recipe.

Each module in tasks/ adds the keys of its task to the section `data`.
"""

import os
from typing import Annotated, Any, ClassVar, Literal, Self

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from pydantic import Field, model_validator

from ..model.errors_vaswani import InvalidValueError
from .base import Settings
from .keys import recipe_key
from .names import joined

Files = str | list[str] | None
SPLITS = ("train", "validation", "test")
# The maximum weight of a corpus in `data.train_weights`. A larger weight would need too much memory, because
# the run keeps a list of all examples of an epoch in memory. Each example of a corpus with the weight 1000
# occurs 1000 times in the list of examples.
_LARGEST_WEIGHT = 1000


def is_on_hub(dataset: str) -> bool:
    """Return True if the value of `data.dataset` names a repository of the Hub instead of a local folder."""
    try:
        validate_repo_id(dataset)
    except HFValidationError:
        return False
    return not os.path.isdir(dataset)


def last_part(path: str) -> str:
    """Return the last part of a path: the name of the file or folder."""
    return os.path.basename(os.path.abspath(path)) or "root"


class DataSettings(Settings):
    """The section `data` of a recipe: the data of a run, and the maximum length of examples.

    A key for a file also accepts a list of files. A file name can be a pattern such as `train-*.parquet`. The
    files that match a pattern are read in the order of their names. Text files can be compressed (.gz).
    """

    # The kinds of files of a task, such as "source". For example, the recipe keys for files of the kind
    # "source" are `train_source`, `validation_source` and `test_source`.
    file_kinds: ClassVar[tuple[str, ...]] = ()
    # The keys that can name the training data. A recipe must contain exactly one of the keys in
    # `source_keys`.
    source_keys: ClassVar[tuple[str, ...]] = ("corpus",)

    corpus: str | None = None
    """The name of a corpus that the package generates."""
    max_length: int = recipe_key(256, gt=0, unit="tokens")
    """The maximum number of tokens in a source or target, including `</s>`. The training and the validation
    loss leave out longer examples. The scores of the test split include all examples. The training of the
    tokenizer leaves out an example if its source or target has more than 16 * `max_length` characters."""
    validation_size: int | None = recipe_key(None, gt=0, unit="examples")
    """The number of examples that the run takes out of the training data for validation, if the recipe names
    no validation data. Equal training data always gives equal validation examples. The training uses neither
    the validation examples nor their duplicates."""
    test_size: int | None = recipe_key(None, gt=0, unit="examples")
    """The number of examples that the run takes out of the training data for the scores at the end of the
    run, if the recipe names no test data. Equal training data always gives equal test examples. The training
    uses neither the test examples nor their duplicates."""
    num_proc: int = recipe_key(1, gt=0, unit="processes", on_resume="free")
    """The number of processes that tokenize the corpus."""
    license: str | None = recipe_key(None, on_resume="free")
    """The licence of the training data: an identifier of the Hub such as cc-by-4.0, or "research-only". If
    `data.license` is null, the run uses the licence in the card of a Hub dataset, or the licence of the
    package for a generated corpus. For all other data, the licence is unknown."""
    attribution: str | None = recipe_key(None, on_resume="free")
    """The people or projects that the model card credits for the data."""
    test_name: str | None = recipe_key(None, on_resume="continue")
    """The name of the test set in the model card, such as newstest2014. If `data.test_name` is null, the card
    shows the name of the dataset or of the first file."""
    test_dataset: str | None = recipe_key(None, on_resume="continue")
    """The dataset of the Hub that contains the test set, such as wmt/wmt14, for the metadata of the model
    card. `data.test_dataset` does not change the data that the run reads."""

    def listed(self, key: str) -> list[str]:
        """Return the files and patterns of a key such as "train_source", or an empty list."""
        given = getattr(self, key, None) or []
        return [given] if isinstance(given, str) else given

    @property
    def file_keys(self) -> list[str]:
        """The keys of the section `data` whose values are files."""
        return [f"{split}_{kind}" for split in SPLITS for kind in self.file_kinds]

    def files(self, split: str) -> list[str]:
        """Return the files and patterns of a split, source files before target files."""
        return [path for kind in self.file_kinds for path in self.listed(f"{split}_{kind}")]

    @property
    def held_out_sizes(self) -> dict[str, int]:
        """Maps "validation" and "test" to the number of examples that are taken out of the training data."""
        sizes = {"validation": self.validation_size, "test": self.test_size}
        return {split: size for split, size in sizes.items() if size is not None}

    @property
    def has_validation(self) -> bool:
        """True if the recipe has a validation split."""
        return bool(self.corpus or self.files("validation") or self.validation_size)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of target languages that the vocabulary must contain as tokens, such as `>>en<<`."""
        return ()

    @property
    def validation_keys(self) -> str:
        """The keys that can add a validation split to the recipe, as a text for an error message."""
        kinds = [kind for kind in self.file_kinds if self.listed(f"train_{kind}")]
        files = " with ".join(f"`data.validation_{kind}`" for kind in kinds)
        return f"{files}, or `data.validation_size`"

    def warnings(self) -> list[str]:
        """Return warnings about possible mistakes in the section `data`."""
        return []

    def require_source(self) -> None:
        """Raise a ValueError if the section names no training data."""
        if not any(getattr(self, key) for key in self.source_keys):
            raise InvalidValueError(
                f"Exactly one of {self._sources_in_words()} must be given, but none is given."
            )

    def check_with(self, tokenizer: Any, training: Any) -> None:
        """Check the keys that depend on the sections `tokenizer` and `training`."""
        for key in training.batch_keys:
            if getattr(training, key) < self.max_length:
                raise InvalidValueError(
                    f"`training.{key}` must be at least `data.max_length` = {self.max_length} tokens, "
                    f"but is {getattr(training, key)}."
                )

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        given = [f"`data.{key}`" for key in self.source_keys if getattr(self, key)]
        if len(given) > 1:
            raise InvalidValueError(
                f"Exactly one of {self._sources_in_words()} must be given, but {' and '.join(given)} are "
                "given; keep one of these keys and set the other keys to null."
            )
        for split in SPLITS:
            kinds = [
                kind for kind in self.file_kinds if kind != "target" and getattr(self, f"{split}_{kind}")
            ]
            named = [f"`data.{split}_{kind}`" for kind in kinds]
            named += ["`data.corpus`"] if self.corpus else []
            if len(named) > 1:
                raise InvalidValueError(
                    f"{' and '.join(named)} cannot be given together; give only one of these keys."
                )
        return self

    @model_validator(mode="after")
    def _check_held_out(self) -> Self:
        for split, size in self.held_out_sizes.items():
            key = f"`data.{split}_size: {size}`"
            if self.corpus:
                raise InvalidValueError(
                    f"{key} cannot be given with `data.corpus: {self.corpus}`, because the package generates "
                    f"the {split} split; leave `data.{split}_size` out."
                )
            for kind in self.file_kinds:
                name = f"data.{split}_{kind}"
                if self.listed(f"{split}_{kind}"):
                    raise InvalidValueError(
                        f"{key} and `{name}` cannot be given together, because each of them sets the {split} "
                        "split; give only one of these keys."
                    )
        return self

    def _sources_in_words(self) -> str:
        return joined([f"`data.{key}`" for key in self.source_keys], "and")


class Augmentation(Settings):
    """The section `data.augment`: the rate of each perturbation. A rate is the fraction of training pairs
    that the perturbation changes in an epoch.
    """

    upper_case: float = Field(0.0, ge=0, le=1)
    """Convert source and target to upper case."""
    title_case: float = Field(0.0, ge=0, le=1)
    """Convert the first letter of each word in source and target to upper case."""
    typos: float = Field(0.0, ge=0, le=1)
    """Add typos to the source: one typo for each 10 words, and at least one typo."""
    final_punctuation: float = Field(0.0, ge=0, le=1)
    """Remove the punctuation at the end of source and target, if both texts end with punctuation."""
    spaces: float = Field(0.0, ge=0, le=1)
    """Add or remove spaces in the source: one change for each 10 words, and at least one change."""
    placeholders: float = Field(0.0, ge=0, le=1)
    """Replace a name or number in source and target by the same placeholder, such as `{name}`, or insert the
    placeholder at the beginning of source and target.
    """


class CorpusData(DataSettings):
    """The section `data` for text files, for the splits of a dataset, or for a generated corpus."""

    corpus: Literal["numbers"] | None = None
    """The name of a corpus that the package generates. The corpus "numbers" contains number words in English
    and German."""
    numbers_train_size: int = recipe_key(30000, gt=0, unit="examples")
    """The number of training examples of `corpus: numbers`."""
    dataset: str | None = None
    """A dataset that the library `datasets` can load: a dataset of the Hub, or a local folder."""
    dataset_config: str | None = None
    """The name of the configuration of the dataset. Datasets with several configurations need the key
    `dataset_config`.
    """
    dataset_revision: str | None = None
    """The commit, tag or branch of the dataset on the Hub. The recorded recipe of a run contains the
    commit."""
    train_split: str = "train"
    """The name of the dataset's split for training."""
    validation_split: str | None = "validation"
    """The name of the dataset's split for validation. If `validation_split` is null, the run reads no
    validation split from the dataset."""
    test_split: str | None = recipe_key("test", on_resume="continue")
    """The name of the dataset's split for the scores at the end of the run. If `test_split` is null, the run
    reads no test split from the dataset."""
    train_weights: list[Annotated[float | int, Field(ge=0, le=_LARGEST_WEIGHT)]] = recipe_key(
        [], unit="passes per epoch", range=f"numbers from 0 to {_LARGEST_WEIGHT}"
    )
    """One weight for each corpus. A corpus is an entry in the list of training files. The weight is the
    average number of times that an example of the corpus occurs in an epoch. With the weight 0.25, each epoch
    contains a random quarter of the corpus. With the weight 2.5, each epoch contains the corpus twice, and a
    random half of the corpus a third time. The training of the tokenizer uses each corpus once."""
    streaming: bool = False
    """Read and tokenize the training data during the training, instead of before the training."""

    @property
    def has_validation(self) -> bool:
        """True if the recipe has a validation split."""
        return super().has_validation or bool(self.dataset and self.validation_split)

    @property
    def validation_keys(self) -> str:
        """The keys that can add a validation split to the recipe, as a text for an error message."""
        keys = (
            "`data.validation_split`, or `data.validation_size`" if self.dataset else super().validation_keys
        )
        return keys.removesuffix(", or `data.validation_size`") if self.streaming else keys

    def check_with(self, tokenizer: Any, training: Any) -> None:
        """Check the keys that depend on the sections `tokenizer` and `training`."""
        super().check_with(tokenizer, training)
        if self.streaming and (
            training.dataloader_num_workers
            or training.num_train_epochs
            or getattr(tokenizer, "bpe_dropout", 0)
        ):
            raise InvalidValueError(
                "`data.streaming: true` needs `training.max_steps`, `training.dataloader_num_workers: 0` and "
                "`tokenizer.bpe_dropout: 0`."
            )

    @model_validator(mode="after")
    def _check_held_out_of_dataset(self) -> Self:
        for split, size in self.held_out_sizes.items():
            key = f"data.{split}_size"
            if self.streaming:
                raise InvalidValueError(
                    f"`{key}: {size}` cannot be given with `data.streaming: true`, because a stream is read "
                    f"only once, during the training; give a separate {split} split, or leave "
                    "`data.streaming` out."
                )
            name = getattr(self, f"{split}_split")
            if self.dataset and name is not None:
                raise InvalidValueError(
                    f"`{key}: {size}` and `data.{split}_split: {name}` cannot be given together, because "
                    f"each of them sets the {split} split; set `data.{split}_split: null`, or leave `{key}` "
                    "out."
                )
        return self

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weights = self.train_weights
        keys = [f"train_{kind}" for kind in self.file_kinds]
        given = [key for key in keys if self.listed(key)]
        if not weights:
            return self
        if not given:
            names = " or ".join(f"`data.{key}`" for key in keys)
            raise InvalidValueError(
                f"`data.train_weights: {weights}` needs files in {names}, but there are none; name a file "
                "for each weight, or leave `data.train_weights` out."
            )
        if self.streaming:
            raise InvalidValueError(
                f"`data.train_weights: {weights}` cannot be given with `data.streaming: true`, because the "
                "size of a stream is unknown; leave `data.train_weights` or `data.streaming` out."
            )
        if not any(weights):
            raise InvalidValueError(
                f"`data.train_weights` must have at least one number above 0, but is {weights}."
            )
        for key in given:
            if len(self.listed(key)) != len(weights):
                raise InvalidValueError(
                    f"`data.train_weights` must have a number for each entry of `data.{key}`, which has "
                    f"{len(self.listed(key))} entries, but is {weights}; give a file or pattern and a weight "
                    "for each corpus."
                )
        return self
