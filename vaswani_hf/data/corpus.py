"""Loads the corpus of a run: text -> sentence pairs -> token ids.

1. `load_pairs` reads files, a dataset of the Hub or a stream into a dataset with the columns `source` and
   `target`.
2. `prepare_pairs` removes sentence pairs that are empty, too long or of very unequal lengths, and encodes the
   other pairs. The library `datasets` stores the token ids in its cache.
3. `Corpus` holds the encoded splits. batching.py cuts the splits into batches.

A task creates its `Corpus` in `load_corpus` (see tasks/translation.py). Details are in pair_files.py (file
formats), dataset_hub.py (datasets of the Hub), text_encoder.py (fast tokenization), corpus_cache.py (a hash
of the corpus), weighted_corpora.py and memory.py.

In array shapes, N is the number of sentence pairs in a batch of text.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.compute
import yaml
from datasets import Dataset, Features, IterableDataset, List, Value, concatenate_datasets
from datasets.exceptions import DatasetGenerationError
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import naming_the_folder
from ..model.errors_vaswani import InvalidValueError
from ..settings.data import SPLITS, CorpusData, DataSettings
from ..version import __version__
from .batching import PairCollator
from .columns import CORPUS_COLUMN, pair_corpora, pair_lengths
from .corpus_cache import CACHE_REMEDY, cached_digest, corpus_digest
from .dataset_hub import open_dataset
from .held_out import hold_out
from .memory import mapped_files
from .pair_files import SIDES, Files, existing_files, existing_pair_files, pair_of_row, read_pairs
from .text_encoder import SerializedTokenizer, serialize_tokenizer, text_encoder
from .weighted_corpora import WeightedPairs

TEXT_FEATURES = {side: Value("string") for side in SIDES}
ID_FEATURES = {
    "input_ids": List(Value("int32")),
    "labels": List(Value("int32")),
    "source_length": Value("int32"),
    "target_length": Value("int32"),
}

# The maximum number of characters of a text, per token of `max_length`. Natural language has 1 to 8
# characters per token. The limit removes lines such as 100,000 equal characters. A tokenizer would learn very
# long tokens from such a line, and the line would then have few enough tokens to be kept.
CHARACTERS_PER_TOKEN = 16

# The number of sentence pairs that are encoded at once. With a larger number, fewer words occur in several
# batches, but the encoding needs more memory.
_ENCODED_AT_ONCE = 10_000


# 1. From text to pairs of sentences


@dataclass(frozen=True)
class PairSource:
    """Names the files or the dataset from which `load_pairs` reads sentence pairs. Set `source_file` and
    `target_file`, or `text_file`, or `pairs_file`, or `dataset`.

    A field that names files is a path, a shell pattern, or a list of paths and patterns. `source_file` and
    `target_file` must name the same number of files.
    """

    # UTF-8 text files with one sentence per line, uncompressed or `.gz`. A line of `target_file` contains the
    # translation of the same line of `source_file`.
    source_file: Files | None = None
    target_file: Files | None = None
    # A `.jsonl`, `.json`, `.csv` or `.parquet` file with one column per language, or with a column
    # `translation` that maps languages to sentences. In a CSV file, the mapping is JSON text.
    pairs_file: Files | None = None
    # The name of a dataset of the Hub, a local folder, or a dataset in memory, with the same columns as a
    # `pairs_file`.
    dataset: str | Dataset | IterableDataset | list[dict] | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    split: str = "train"
    # The languages of the source and the target. If the data has one column per language, the names of the
    # columns.
    source_language: str = "source"
    target_language: str = "target"
    # If True, read the pairs during the training, without the cache of `datasets`.
    streaming: bool = False
    # A UTF-8 text file with one text per line, for a language model. Source and target of a pair are then the
    # same text.
    text_file: Files | None = None
    # The split of the recipe that names the files. Error messages then name the key of the recipe, such as
    # `train_source`, and otherwise the field, such as `source_file`.
    split_of_recipe: str | None = None

    def key_of(self, name: str) -> str:
        """Return the name of a field that names files, for error messages."""
        if self.split_of_recipe is None:
            return name
        return f"{self.split_of_recipe}_{name.removesuffix('_file')}"


def load_pairs(pair_source: PairSource) -> Dataset | IterableDataset:
    """Return sentence pairs as a dataset with the text columns `source` and `target`.

    The library `datasets` stores the pairs of a file in its cache, and reads the file again if the file has
    changed. A stream is read during the training, so an error in its content is raised later.
    """
    with naming_the_folder(Path(datasets.config.HF_DATASETS_CACHE), CACHE_REMEDY):
        if pair_source.dataset is not None:
            return _pairs_of_dataset(pair_source, pair_source.dataset)
        return _pairs_of_files(pair_source)


def _pairs_of_files(pair_source: PairSource) -> Dataset | IterableDataset:
    files = {}
    for name in ("source_file", "target_file", "text_file", "pairs_file"):
        if (given := getattr(pair_source, name)) is not None:
            find = existing_pair_files if name == "pairs_file" else existing_files
            files[name] = find(given, pair_source.key_of(name))
    counts = [f"{len(paths):,}" for paths in files.values()]
    if len(set(counts)) > 1:
        keys = " and ".join(f"`{pair_source.key_of(name)}`" for name in files)
        raise InvalidValueError(f"{keys} must have equally many files, but have {' and '.join(counts)}.")
    stats = [os.stat(path) for paths in files.values() for path in paths]
    arguments = {
        # Pass a list instead of a tuple, because `datasets` divides only lists into the shards of a stream.
        "shards": [dict(zip(files, paths, strict=True)) for paths in zip(*files.values(), strict=True)],
        "languages": (pair_source.source_language, pair_source.target_language),
        "cache_key": (__version__, *((stat.st_size, stat.st_mtime_ns) for stat in stats)),
    }
    if pair_source.streaming:
        features = Features(TEXT_FEATURES)
        return IterableDataset.from_generator(read_pairs, gen_kwargs=arguments, features=features)
    return dataset_of_generator(read_pairs, arguments)


def dataset_of_generator(read: Callable, arguments: dict[str, Any]) -> Dataset:
    """Write the pairs that the generator function `read` yields into the cache of `datasets`. Return the
    pairs as a dataset.
    """
    try:
        return Dataset.from_generator(read, gen_kwargs=arguments, features=Features(TEXT_FEATURES))
    except DatasetGenerationError as error:
        # Raise the cause of the error, because only the message of the cause names the file and the line.
        raise (error.__cause__ if isinstance(error.__cause__, ValueError | OSError) else error) from None


def _pairs_of_dataset(pair_source: PairSource, dataset: Any) -> Dataset | IterableDataset:
    if isinstance(dataset, str):
        dataset = open_dataset(
            dataset,
            pair_source.dataset_config,
            split=pair_source.split,
            revision=pair_source.dataset_revision,
            streaming=pair_source.streaming,
        )
    elif isinstance(dataset, list):
        dataset = Dataset.from_list(dataset)
    if pair_source.streaming and isinstance(dataset, Dataset):
        dataset = dataset.to_iterable_dataset()
    return dataset.map(
        _select_languages,
        batched=True,
        remove_columns=dataset.column_names or list(next(iter(dataset))),
        features=Features(TEXT_FEATURES),
        fn_kwargs={"languages": (pair_source.source_language, pair_source.target_language)},
    )


def _select_languages(batch: dict[str, list], languages: tuple[str, str]) -> dict[str, list[str]]:
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    pairs = [pair_of_row(row, languages) for row in rows]
    return {side: [pair[side] for pair in pairs] for side in SIDES}


def load_dataset_split(
    data: CorpusData, split: str, source_column: str, target_column: str
) -> Dataset | IterableDataset | None:
    """Load two columns of a split of `data.dataset` as sentence pairs. Return None if `data` names no
    dataset, or names no such split.
    """
    name = getattr(data, f"{split}_split")
    if data.dataset is None or name is None:
        return None
    pairs = PairSource(
        dataset=data.dataset,
        dataset_config=data.dataset_config,
        dataset_revision=data.dataset_revision,
        split=name,
        streaming=data.streaming and split == "train",
        source_language=source_column,
        target_language=target_column,
    )
    try:
        return load_pairs(pairs)
    except yaml.YAMLError as error:
        raise ValueError(
            f"the card (README.md) of the dataset '{data.dataset}' must begin with YAML between two lines of "
            "---, but the YAML is damaged; correct the card, or choose another `data.dataset_revision`."
        ) from error


def join_corpora(sources: Sequence[PairSource]) -> Dataset:
    """Concatenate the sentence pairs of several training corpora. The column `corpus` contains the index of
    each pair's corpus.
    """
    corpora = []
    for number, source in enumerate(sources):
        pairs: Any = load_pairs(source)
        corpora.append(pairs.add_column(CORPUS_COLUMN, np.full(len(pairs), number, np.int32)))
    return concatenate_datasets(corpora)


def load_splits(
    load_split: Callable[[Any, str, int], Dataset | IterableDataset | None],
    check_split: Callable[[Dataset, Any, str], None],
    data: DataSettings,
    seed: int,
) -> dict[str, Any]:
    """Load the texts of the training, validation and test split. The value of a missing split is None.

    `data.validation_size` and `data.test_size` take the validation split and the test split out of the
    training split. `load_splits` calls `check_split` for each split that is not a stream.
    """
    texts: dict[str, Any] = {}
    for split in SPLITS:
        with naming_split(split):
            texts[split] = load_split(data, split, seed)
    if data.held_out_sizes:
        texts |= hold_out(texts["train"], data.held_out_sizes)
    for split, pairs in texts.items():
        if isinstance(pairs, Dataset):
            with naming_split(split):
                check_split(pairs, data, split)
    return texts


@contextmanager
def naming_split(split: str) -> Iterator[None]:
    """Context manager that adds the name of a split to the message of an error about the split."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(f"`data`, {split} split: {error}") from error
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"The {split} split of `data`: {error}") from error


def split_name(data: DataSettings, split: str) -> str:
    """Return the name of a split for messages: its files, its size (`data.validation_size` or
    `data.test_size`), its dataset and key, or its toy corpus.
    """
    if files := data.files(split):
        return " and ".join(files)
    if split in data.held_out_sizes:
        return f"`data.{split}_size: {data.held_out_sizes[split]}`"
    if dataset := getattr(data, "dataset", None):
        return f"'{dataset}', `{split}_split` {getattr(data, f'{split}_split')},"
    return f"`data.corpus: {data.corpus}`"


def refuse_unusable(pairs: Dataset, data: DataSettings, split: str, fault: str) -> None:
    """Raise an error if every pair of a split has an empty source or an empty target. `fault` is the message
    of this error. Also raise an error if all other pairs of a training or validation split have too many
    characters.
    """
    name = split_name(data, split)
    max_length = data.max_length
    with_text = (pair for pair in pairs if pair["source"].strip() and pair["target"].strip())
    first = next(with_text, None)
    if first is None:
        raise ValueError(f"{name} {fault}")
    if split == "test":
        # Do not check sentence lengths in a test split, because a test translates and scores sentences of any
        # length.
        return
    for pair in itertools.chain([first], with_text):
        if not has_too_many_characters(pair["source"], pair["target"], max_length):
            return
    raise ValueError(
        f"{name} must have at least one line with 1 to {character_limit(max_length):,} characters "
        f"({CHARACTERS_PER_TOKEN} for each token of `data.max_length`), but all {len(pairs):,} lines are "
        "longer or empty; split the lines, or raise `data.max_length`."
    )


# 2. From pairs of sentences to token ids


def character_limit(max_length: int) -> int:
    """Return the largest number of characters of a source or target. A pair with a longer text is used neither
    to train the tokenizer nor to train the model. `max_length` is the largest number of tokens.
    """
    return CHARACTERS_PER_TOKEN * max_length


def has_too_many_characters(source: str, target: str, max_length: int) -> bool:
    """Return True if the source or the target of a pair is longer than the limit of `character_limit`."""
    return max(len(source), len(target)) > character_limit(max_length)


@dataclass
class CorpusReport:
    """Counts the sentence pairs that were kept, and the removed pairs for each reason."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    too_many_characters: int = 0

    @property
    def read(self) -> int:
        """The number of sentence pairs that were read: the kept pairs and the removed pairs."""
        return self.kept + self.empty + self.too_long + self.ratio + self.too_many_characters

    def add(self, outcomes: np.ndarray) -> None:
        """Count N sentence pairs. `outcomes` contains the index of the field that counts each pair, such as 0
        for `kept`.
        """
        counts = np.bincount(outcomes, minlength=len(fields(self)))
        for counter, count in zip(fields(self), counts.tolist(), strict=True):
            setattr(self, counter.name, getattr(self, counter.name) + count)

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, are_texts: bool = False) -> str:
        """Return the counts as one sentence. `are_texts` is True for a language model, because its examples
        are texts instead of pairs.
        """
        counts = f"{self.read:,} {'texts' if are_texts else 'pairs'} read, {self.kept:,} kept; dropped: "
        if are_texts:
            counts += f"{self.empty:,} empty, {self.too_long:,} too long"
        else:
            counts += f"{self.empty:,} with an empty side, {self.too_long:,} too long"
            counts += f", {self.ratio:,} of too unequal lengths"
        if self.too_many_characters:
            limit = f"{CHARACTERS_PER_TOKEN} characters per token of `data.max_length`"
            counts += f", {self.too_many_characters:,} with more than {limit}"
        return counts


def prepare_pairs(
    pairs: Dataset | IterableDataset,
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast | None,
    *,
    max_length: int,
    max_length_ratio: float | None,
    num_proc: int | None = None,
    keep_text: bool = False,
) -> tuple[Dataset | IterableDataset, CorpusReport]:
    """Remove sentence pairs that are empty, too long or of very unequal lengths, and encode the other pairs.
    Return the encoded pairs, and a report that counts kept and removed pairs.

    If `target_tokenizer` is None, the corpus has only texts (for a language model), and the source and the
    target of a pair are the same text. The token ids of a dataset
    are stored in the cache of `datasets`. A stream is encoded while the training reads the stream, and the
    report counts each pair when the pair is read.
    """
    are_texts = target_tokenizer is None
    encoder = PairEncoder(
        source_tokenizer=serialize_tokenizer(source_tokenizer),
        target_tokenizer=None if target_tokenizer is None else serialize_tokenizer(target_tokenizer),
        max_characters=character_limit(max_length),
        max_length=max_length,
        max_length_ratio=max_length_ratio,
        keep_text=keep_text,
    )
    report = CorpusReport()
    if isinstance(pairs, IterableDataset):
        return encoder.encode_stream(pairs, report), report
    corpus_column = {name: pairs.features[name] for name in pairs.column_names if name == CORPUS_COLUMN}
    # The folder into which `datasets` writes the encoded pairs. The error message about a full disk names the
    # folder.
    folder = (
        Path(pairs.cache_files[0]["filename"]).parent if pairs.cache_files else Path(tempfile.gettempdir())
    )
    with naming_the_folder(folder, CACHE_REMEDY):
        marked = pairs.with_format("arrow").map(
            encoder,
            batched=True,
            batch_size=_ENCODED_AT_ONCE,
            with_indices=True,
            remove_columns=list(SIDES),
            features=Features({**corpus_column, **encoder.features, "outcome": Value("int8")}),
            num_proc=num_proc,
            desc="Encoding texts" if are_texts else "Encoding sentence pairs",
        )
    outcomes = marked.data.column("outcome").to_numpy()
    report.add(outcomes)
    if report.kept == 0:
        one = "`texts` must hold a text" if are_texts else "`pairs` must hold a pair"
        raise InvalidValueError(f"{one} that survives cleaning, but has none: {report.in_words(are_texts)}.")
    prepared = marked.with_format(None).remove_columns("outcome")
    # Call `select` only if a sentence pair was removed, because `select` is slow for many rows.
    return prepared if report.kept == report.read else prepared.select(np.flatnonzero(outcomes == 0)), report


@dataclass(frozen=True)
class PairEncoder:
    """Encodes batches of sentence pairs, and decides which pairs to keep.

    The library `datasets` finds encoded pairs in its cache by a hash of the fields of this class. Therefore
    every value that changes the token ids must be a field.
    """

    source_tokenizer: SerializedTokenizer
    target_tokenizer: SerializedTokenizer | None
    max_characters: int
    max_length: int
    max_length_ratio: float | None
    keep_text: bool
    version: str = __version__

    @property
    def features(self) -> dict[str, Any]:
        return {**ID_FEATURES, **TEXT_FEATURES, "index": Value("int64")} if self.keep_text else ID_FEATURES

    def __call__(self, batch: pyarrow.Table, indices: list[int]) -> pyarrow.Table:
        mapped_files.release()
        given = [batch[side].combine_chunks() for side in SIDES]
        too_many_characters = np.maximum(*map(_num_characters, given)) > self.max_characters
        texts = [pyarrow.compute.utf8_trim_whitespace(side) for side in given]
        empty = np.minimum(*map(_num_characters, texts)) == 0
        # Do not encode pairs with too many characters, because the encoding would take long and these pairs
        # are removed.
        sources, targets = (pyarrow.compute.if_else(too_many_characters, "", side) for side in texts)
        source_ids = text_encoder(self.source_tokenizer)(sources)
        target_ids = text_encoder(self.target_tokenizer)(targets) if self.target_tokenizer else source_ids
        source_lengths = source_ids.value_lengths().to_numpy()  # [N]
        target_lengths = target_ids.value_lengths().to_numpy()  # [N]
        longer = np.maximum(source_lengths, target_lengths)
        unequal = longer > (self.max_length_ratio or np.inf) * np.minimum(source_lengths, target_lengths)
        # The outcome of a sentence pair is the index of the `CorpusReport` field that counts the pair. If
        # there are several reasons to remove a pair, only the first reason is counted.
        position = {field.name: number for number, field in enumerate(fields(CorpusReport))}
        reasons = {
            "empty": empty,
            "too_many_characters": too_many_characters,
            "too_long": longer > self.max_length,
            "ratio": unequal,
        }
        outcome = np.select(list(reasons.values()), [position[name] for name in reasons], position["kept"])
        columns: dict[str, Any] = {
            "input_ids": source_ids,
            "labels": target_ids,
            "source_length": source_lengths,
            "target_length": target_lengths,
            "outcome": outcome.astype(np.int8),
        }
        if CORPUS_COLUMN in batch.column_names:
            columns[CORPUS_COLUMN] = batch[CORPUS_COLUMN]
        if self.keep_text:
            columns |= {"source": sources, "target": targets, "index": indices}
        return pyarrow.table(columns)

    def encode_stream(self, pairs: IterableDataset, report: CorpusReport) -> IterableDataset:
        """Return a stream of encoded sentence pairs without the removed pairs. `report` counts the pairs
        while the stream is read.
        """

        def kept(batch: dict[str, list], indices: list[int]) -> dict[str, Any]:
            columns = self(pyarrow.table(batch), indices)
            outcomes = columns["outcome"].to_numpy()
            report.add(outcomes)
            return columns.drop_columns("outcome").filter(pyarrow.array(outcomes == 0)).to_pydict()

        return pairs.map(
            kept,
            batched=True,
            with_indices=True,
            remove_columns=list(SIDES),
            features=Features(self.features),
        )


def _num_characters(texts: pyarrow.StringArray) -> np.ndarray:
    """Return the number of characters of each text, [N]."""
    return np.asarray(pyarrow.compute.utf8_length(texts))


# 3. The corpus of a run


@dataclass(kw_only=True)
class Corpus:
    """The texts, the tokenizers and the encoded sentence pairs of a run. The constructor removes unusable
    pairs from the training split and the validation split, and encodes the other pairs.
    """

    # Maps "train", "validation" and "test" to a dataset with the columns `source` and `target`, or to None if
    # the split is missing.
    texts: dict[str, Any]
    source_tokenizer: PreTrainedTokenizerFast
    # The same object as `source_tokenizer` if source and target share a vocabulary.
    target_tokenizer: PreTrainedTokenizerFast
    # The collators pad the sentence pairs of a batch into tensors. `train_collator` also applies BPE-dropout
    # and `data.augment`. The collators of a masked language model also choose the masked tokens.
    train_collator: PairCollator
    validation_collator: PairCollator
    # The maximum length of training and validation sentences in tokens.
    max_length: int
    # The number of processes that encode the pairs.
    num_proc: int
    # The seed of `WeightedPairs`, which chooses the pairs of each epoch.
    seed: int
    # The tokenizer of a language model, or None for sentence pairs.
    text_tokenizer: PreTrainedTokenizerFast | None = None
    # The maximum ratio between the longer and the shorter side of a training pair in tokens. Pairs with a
    # larger ratio are removed.
    max_length_ratio: float | None = None
    # If True, keep the text of the training pairs, because BPE-dropout and augmentation encode the text again
    # in each epoch.
    keep_text: bool = False
    # If True, the training split contains each sentence pair a second time with source and target exchanged.
    both_directions: bool = False
    # The name and the weight of each training corpus, or empty if the corpora have no weights.
    corpora: Sequence[tuple[str, float]] = ()

    # The encoded pairs of the training split and the validation split.
    train: Dataset | IterableDataset = field(init=False)
    validation: Dataset | None = field(init=False, default=None)
    # Maps the name of each split to a report that counts kept and removed sentence pairs. The report of a
    # stream counts the pairs while the stream is read.
    reports: dict[str, CorpusReport] = field(init=False, default_factory=dict)
    # Chooses the training pairs of each epoch. None if the training corpora have no weights.
    weighted: WeightedPairs | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.train = self._encode("train", max_length_ratio=self.max_length_ratio, keep_text=self.keep_text)
        if self.texts["validation"] is not None:
            self.validation = self._encode("validation", max_length_ratio=None)
        if self.corpora:
            weights = [weight for _, weight in self.corpora]
            lengths = pair_lengths(self.train)
            self.weighted = WeightedPairs(*lengths, pair_corpora(self.train), weights, self.seed)

    def _encode(self, split: str, **options: Any) -> Any:
        if self.are_texts:
            tokenizers = (self.text_tokenizer, None)
        else:
            tokenizers = (self.source_tokenizer, self.target_tokenizer)
        with naming_split(split):
            encoded, self.reports[split] = prepare_pairs(
                self.texts[split],
                *tokenizers,
                max_length=self.max_length,
                num_proc=self.num_proc if self.num_proc > 1 else None,
                **options,
            )
        return encoded

    @property
    def are_texts(self) -> bool:
        """True for a language model, because source and target of each pair are then the same text."""
        return self.text_tokenizer is not None

    @cached_property
    def digest(self) -> dict[str, Any]:
        """The digest that identifies the training data: `count` (None for a stream) and `sha256`, see
        `corpus_digest`.
        """
        if isinstance(self.train, Dataset):
            return cached_digest(self.train)
        # Hash the text of a stream instead of the token ids, because reading token ids would count the
        # sentence pairs a second time in the report.
        return corpus_digest(self.texts["train"])
