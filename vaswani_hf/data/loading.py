"""Loads sentence pairs from files or from a dataset of the Hub. The result is a dataset or a stream with the
columns `source` and `target`.

Details are in pair_files.py (file formats) and dataset_hub.py (datasets of the Hub).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets
from datasets.exceptions import DatasetGenerationError

from ..model.errors_vaswani import InvalidValueError
from ..settings.data import CorpusData
from ..version import __version__
from .columns import CORPUS_COLUMN
from .corpus_cache import explain_cache_errors
from .dataset_hub import open_dataset
from .pair_files import SIDES, Files, existing_files, existing_pair_files, pair_of_row, read_pairs

TEXT_FEATURES = {side: Value("string") for side in SIDES}


@dataclass(frozen=True)
class PairSource:
    """The files or the dataset from which `load_pairs` reads sentence pairs. The pairs come from the two
    fields `source_file` and `target_file`, or from one of the fields `text_file`, `pairs_file` and `dataset`.

    A field that names files is a path, a shell pattern, or a list of paths and patterns. `source_file` and
    `target_file` must name the same number of files.
    """

    # UTF-8 text files with one sentence per line, uncompressed or `.gz`. A line of `target_file` contains the
    # translation of the same line of `source_file`.
    source_file: Files | None = None
    target_file: Files | None = None
    # A `.jsonl`, `.json`, `.csv` or `.parquet` file with one column per language, or with a column
    # `translation` that maps languages to sentences. In a CSV file, the column `translation` contains the
    # mapping as JSON text.
    pairs_file: Files | None = None
    # A dataset with the same columns as a `pairs_file`: the name of a dataset of the Hub, a local folder, or
    # a dataset in memory.
    dataset: str | Dataset | IterableDataset | list[dict] | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    split: str = "train"
    # The languages of the source and the target. If the data has one column per language, the languages are
    # the names of the columns.
    source_language: str = "source"
    target_language: str = "target"
    # If True, read the pairs during the training, without the cache of `datasets`.
    streaming: bool = False
    # A UTF-8 text file with one text per line, for a language model. In pairs from `text_file`, source and
    # target are the same text.
    text_file: Files | None = None
    # The name of the split, such as "train", if the files come from a recipe. If `split_of_recipe` is given,
    # error messages contain the recipe key, such as `train_source`. If `split_of_recipe` is None, error
    # messages contain the name of the field, such as `source_file`.
    split_of_recipe: str | None = None

    def key_of(self, name: str) -> str:
        """Return the name that error messages use for a field with files, such as `source_file`."""
        if self.split_of_recipe is None:
            return name
        return f"{self.split_of_recipe}_{name.removesuffix('_file')}"


def load_pairs(pair_source: PairSource) -> Dataset | IterableDataset:
    """Return sentence pairs as a dataset or a stream with the text columns `source` and `target`.

    The library `datasets` stores the pairs of a file in its cache, and reads the file again if the file has
    changed. A stream is read during the training, so an error in its content is raised later.
    """
    with explain_cache_errors():
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
    """Return the pairs of the generator function `read` as a dataset in the cache of `datasets`."""
    try:
        return Dataset.from_generator(read, gen_kwargs=arguments, features=Features(TEXT_FEATURES))
    except DatasetGenerationError as error:
        # Raise the error of `read` instead of the `DatasetGenerationError`, because only the error of `read`
        # names the file and the line.
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


def load_recipe_split(
    data: CorpusData, split: str, columns: tuple[str, str]
) -> Dataset | IterableDataset | None:
    """Load a split from the files or from the dataset that a recipe names. Return None if the recipe names no
    data for the split. `columns` names the source and the target column of a dataset and of a file of pairs.
    """
    source = PairSource(
        source_language=columns[0],
        target_language=columns[1],
        streaming=data.streaming and split == "train",
        split_of_recipe=split,
    )
    if split == "train" and data.train_weights:
        return _load_corpora(data, source)
    files = {f"{kind}_file": getattr(data, f"{split}_{kind}") for kind in data.file_kinds}
    if any(given is not None for given in files.values()):
        return load_pairs(replace(source, **files))
    split_of_dataset = getattr(data, f"{split}_split")
    if data.dataset is None or split_of_dataset is None:
        return None
    try:
        return load_pairs(
            replace(
                source,
                dataset=data.dataset,
                dataset_config=data.dataset_config,
                dataset_revision=data.dataset_revision,
                split=split_of_dataset,
            )
        )
    except yaml.YAMLError as error:
        raise ValueError(
            f"the card (README.md) of the dataset '{data.dataset}' must begin with YAML between two lines of "
            "---, but the YAML is damaged; correct the card, or choose another `data.dataset_revision`."
        ) from error


def _load_corpora(data: CorpusData, source: PairSource) -> Dataset:
    """Load each entry in the lists of training files as a corpus, and concatenate the corpora. The column
    `corpus` contains the index of each pair's corpus.
    """
    listed = {f"{kind}_file": data.listed(f"train_{kind}") for kind in data.file_kinds}
    given = {name: files for name, files in listed.items() if files}
    corpora = []
    for number, files in enumerate(zip(*given.values(), strict=True)):
        pairs: Any = load_pairs(replace(source, **dict(zip(given, files, strict=True))))
        corpora.append(pairs.add_column(CORPUS_COLUMN, np.full(len(pairs), number, np.int32)))
    return concatenate_datasets(corpora)


def weights_of_corpora(data: CorpusData) -> list[tuple[str, float]]:
    """Return the file name and the weight of each training corpus. If the recipe has no `data.train_weights`,
    return an empty list.
    """
    if not data.train_weights:
        return []
    lists = [data.listed(f"train_{kind}") for kind in data.file_kinds]
    names = next(files for files in lists if files)
    return list(zip(names, data.train_weights, strict=True))
