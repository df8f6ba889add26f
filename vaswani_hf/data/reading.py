"""Sentence pairs as text, from files and datasets.

`load_pairs` gives a dataset with the columns `source` and `target`: memory-mapped files, or a stream. Then
preparation.py cleans the texts and encodes them into token ids, and batching.py packs the token ids into
batches.
"""

import csv
import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import pyarrow
import pyarrow.parquet
from datasets import Dataset, Features, IterableDataset, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..checkpoint.files import naming_the_folder
from ..version import __version__
from .lines import parse_json, read_lines, refuse_half_characters

# `datasets` would count downloads: it would send the name of each dataset, also of private ones, to a fixed
# address.
if "HF_UPDATE_DOWNLOAD_COUNTS" not in os.environ:
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
# A longer field is one more pair that preparation.py drops and counts. Python's limit would end the run.
csv.field_size_limit(2**31 - 1)

CACHE_REMEDY = "make room, or set HF_DATASETS_CACHE to a folder with more"

# The columns of pairs as text.
TEXT_FEATURES = {"source": Value("string"), "target": Value("string")}

_Files: TypeAlias = str | os.PathLike | Sequence[str | os.PathLike]
_FILE_FIELDS = ("source_file", "target_file", "text_file", "pairs_file")


@dataclass(frozen=True)
class PairSource:
    """The origin of pairs: `source_file` and `target_file`, or `text_file`, or `pairs_file`, or `dataset`.

    A field of files takes a path, a shell pattern, or a list of both. `source_file` and `target_file` must
    come to equally many files, which are aligned one by one.

    Attributes:
        source_file: UTF-8 text, one sentence a line, plain or `.gz`.
        target_file: The translations, line by line.
        pairs_file: A `.jsonl`, `.json`, `.csv` or `.parquet` file with a column `translation` that maps
            languages to sentences (in CSV: JSON text), or with one column for each language.
        dataset: The name of a dataset on the Hub, a local folder, or a dataset or list of examples in memory,
            with the columns of `pairs_file`.
        dataset_config: The configuration of the dataset, such as "de-en" of wmt14.
        dataset_revision: The branch, tag or commit of the dataset on the Hub.
        split: The split of the dataset.
        source_language: The language, or the column, to translate from.
        target_language: The language, or the column, to translate to.
        streaming: Pairs are read while they are used, instead of into the cache of `datasets` beforehand.
        text_file: UTF-8 text, one text a line, plain or `.gz`, for a language model: each text is both sides
            of a pair.
    """

    source_file: _Files | None = None
    target_file: _Files | None = None
    pairs_file: _Files | None = None
    dataset: str | Dataset | IterableDataset | list[dict] | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    split: str = "train"
    source_language: str = "source"
    target_language: str = "target"
    streaming: bool = False
    text_file: _Files | None = None


def load_pairs(pair_source: PairSource) -> Dataset | IterableDataset:
    """The sentence pairs as a dataset with exactly the two text columns `source` and `target`.

    Files are read once, into the cache of `datasets`, and again if they have changed. Bad content of a stream
    is found when the iteration gets there.
    """
    with naming_the_folder(Path(datasets.config.HF_DATASETS_CACHE), CACHE_REMEDY):
        if pair_source.dataset is not None:
            return _pairs_of_dataset(pair_source, pair_source.dataset)
        return _pairs_of_files(pair_source)


def _pairs_of_files(pair_source: PairSource) -> Dataset | IterableDataset:
    given = {name: getattr(pair_source, name) for name in _FILE_FIELDS}
    files = {name: _paths(value, name) for name, value in given.items() if value is not None}
    counts = [f"{len(paths):,}" for paths in files.values()]
    if len(set(counts)) > 1:
        raise ValueError(
            f"`source_file` and `target_file` must have equally many files, but have {' and '.join(counts)}."
        )
    shards = [dict(zip(files, paths, strict=True)) for paths in zip(*files.values(), strict=True)]
    stats = [os.stat(path) for paths in files.values() for path in paths]
    arguments = {
        # `datasets` takes the items of a list for the shards of a stream, but not those of a tuple.
        "shards": shards,
        "languages": (pair_source.source_language, pair_source.target_language),
        "cache_key": (__version__, *((stat.st_size, stat.st_mtime_ns) for stat in stats)),
    }
    features = Features(TEXT_FEATURES)
    if pair_source.streaming:
        return IterableDataset.from_generator(_read_pairs, gen_kwargs=arguments, features=features)
    try:
        return Dataset.from_generator(_read_pairs, gen_kwargs=arguments, features=features)
    except DatasetGenerationError as error:
        # The cause names the file and the line, the error of `datasets` does not.
        raise (error.__cause__ if isinstance(error.__cause__, ValueError | OSError) else error) from None


def _paths(given: _Files, name: str) -> list[str]:
    """The existing files that a field names; the files of a pattern are sorted by name."""
    paths = []
    for item in [given] if isinstance(given, str | os.PathLike) else given:
        path = os.fspath(item)
        if glob.has_magic(path) and not os.path.exists(path):
            found = sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))
            if not found:
                raise FileNotFoundError(f"`{name}` must match an existing file, but no file matches {path}.")
            paths += found
            continue
        if not os.path.isfile(path):
            raise FileNotFoundError(f"`{name}` must be an existing file, but is {path}.")
        paths.append(path)
    if not paths:
        raise ValueError(f"`{name}` must name a file, but is an empty list.")
    for path in paths if name == "pairs_file" else []:
        if Path(path).suffix not in _ROW_READERS:
            raise ValueError(f"`pairs_file` must end in {', '.join(_ROW_READERS)}, but is {path}.")
    return paths


def distillation_records(files: list[str]) -> list[dict[str, Any]]:
    """The record of `vaswani distill` in the first line of each file of pairs; empty for other files."""
    records = []
    try:
        for path in _paths(files, "pairs_file") if files else []:
            first_row = next(_read_json(path), {}) if path.endswith(".jsonl") else {}
            record = first_row.get("distillation")
            records.append(record if isinstance(record, dict) else {})
    except (OSError, ValueError):
        # Reading the pairs reports this error.
        return []
    return records


def _pairs_of_dataset(pair_source: PairSource, dataset: Any) -> Dataset | IterableDataset:
    if isinstance(dataset, str):
        dataset = _open_dataset(pair_source, dataset)
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


def _open_dataset(pair_source: PairSource, name: str) -> Dataset | IterableDataset:
    revision = pair_source.dataset_revision
    dataset = load_dataset(
        name,
        pair_source.dataset_config,
        split=pair_source.split,
        revision=revision,
        streaming=pair_source.streaming,
    )
    files = getattr(dataset, "cache_files", [])
    # In the cache of `datasets` the folder of a dataset of the Hub is named after its commit.
    commit = Path(files[0]["filename"]).parent.name if files else None
    if is_commit(revision) and is_commit(commit) and commit != revision:
        # `datasets` takes another commit from the cache if the Hub does not answer.
        raise ValueError(
            f"`dataset_revision` {revision} of '{name}' could not be fetched, and the cache holds only"
            f" {commit}; try again when the Hub can be reached."
        )
    return dataset


def is_commit(revision: str | None) -> bool:
    """True if a revision is the whole hash of a commit, not a branch or a tag."""
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None


def _select_languages(batch: dict[str, list], languages: tuple[str, str]) -> dict[str, list[str]]:
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    pairs = [_pair_of_row(row, languages) for row in rows]
    return {side: [pair[side] for pair in pairs] for side in TEXT_FEATURES}


def _read_pairs(
    shards: list[dict[str, str]], languages: tuple[str, str], cache_key: tuple
) -> Iterator[dict[str, str]]:
    """The pairs of files, one shard after the other.

    The hash that `datasets` computes of the arguments changes with `cache_key`.
    """
    for files in shards:
        is_empty = True
        for pair in _read_shard(files, languages):
            is_empty = False
            yield pair
        if is_empty:
            content = "texts, one a line" if "text_file" in files else "sentence pairs"
            raise ValueError(f"{' and '.join(files.values())} must hold {content}, but there are none.")


def _read_shard(files: dict[str, str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    """The pairs of one file, or of a source and a target file. The keys are the fields of `PairSource`."""
    if "text_file" in files:
        for line in read_lines(files["text_file"]):
            yield {"source": line, "target": line}
    elif "source_file" in files:
        yield from _read_aligned(files["source_file"], files["target_file"])
    else:
        path = files["pairs_file"]
        for number, row in enumerate(_ROW_READERS[Path(path).suffix](path), 1):
            try:
                yield _pair_of_row(row, languages)
            except ValueError as error:
                raise ValueError(f"{path}, row {number:,}: {error}") from None


def _read_aligned(source_file: str, target_file: str) -> Iterator[dict[str, str]]:
    source_count = target_count = 0
    for source, target in itertools.zip_longest(read_lines(source_file), read_lines(target_file)):
        source_count += source is not None
        target_count += target is not None
        if source_count == target_count:
            yield {"source": source, "target": target}
    if source_count != target_count:
        raise ValueError(
            f"{source_file} and {target_file} must have equally many lines, but have {source_count:,} and"
            f" {target_count:,}."
        )


def _read_json(path: str) -> Iterator[dict]:
    """The objects of JSON lines, or of one JSON array."""
    lines = read_lines(path)
    is_first = True
    for number, line in enumerate(lines, 1):
        if is_first and line.lstrip().startswith("["):
            # With the blank lines before it, so that errors count lines as the file does.
            yield from parse_json("\n" * (number - 1) + "\n".join([line, *lines]), list, path)
        elif line.strip():
            is_first = False
            yield parse_json(line, dict, f"Line {number:,} of {path}")


def _read_csv(path: str) -> Iterator[dict]:
    rows = csv.DictReader((line + "\n" for line in read_lines(path)), strict=True)
    last_line = 0
    try:
        # The first line has the names of the columns.
        if rows.fieldnames is not None:
            last_line = rows.line_num
        for row in rows:
            # `DictReader` gives surplus fields the key None, and missing fields the value None.
            if None in row or None in row.values():
                raise csv.Error("another number of fields than in the first line")
            yield row
            last_line = rows.line_num
    except csv.Error as error:
        raise ValueError(
            f"{path} must be a CSV file, but the row that begins in line {last_line + 1:,} is damaged"
            f" ({error}); put fields that hold commas or line breaks in quotes, and end each line with a line feed."
        ) from None


def _read_parquet(path: str) -> Iterator[dict]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} must be a Parquet file that can be read, but: {error}") from None


_ROW_READERS = {".jsonl": _read_json, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}


def _pair_of_row(row: dict[str, Any], languages: tuple[str, str]) -> dict[str, str]:
    """The two sentences of one example. A missing value is an empty sentence, which preparation.py drops."""
    if not isinstance(row, dict):
        raise ValueError(f"A pair must be a JSON object, but is {row!r:.40}.")
    # A language may be called so.
    texts = row if "translation" in languages else row.get("translation", row)
    if isinstance(texts, str):
        texts = parse_json(texts, dict, "The column `translation`")
    if not isinstance(texts, dict):
        raise ValueError(f"The column `translation` must map languages to sentences, but holds {texts!r}.")
    pair = {}
    for side, language in zip(TEXT_FEATURES, languages, strict=True):
        if language not in texts:
            there = ", ".join(map(str, texts))
            raise ValueError(
                f"`{side}_language` must be one of the languages or columns {there}, but is {language}."
            )
        text = texts[language] if texts[language] is not None else ""
        if not isinstance(text, str):
            raise ValueError(f"The column `{language}` must hold text, but holds {text!r}.")
        refuse_half_characters(text, f"The column `{language}`")
        pair[side] = text
    return pair
