"""Reading sentence pairs from files and datasets, as text; preparation.py cleans and encodes them."""

import csv
import glob
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import datasets
import pyarrow
import pyarrow.parquet
from datasets import (
    Dataset,
    Features,
    IterableDataset,
    Value,
    get_dataset_config_names,
    get_dataset_default_config_name,
    get_dataset_split_names,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError

from ..checkpoint.files import naming_the_folder
from ..version import __version__
from .lines import parse_json, read_lines, refuse_half_characters

# `datasets` would count downloads by sending the name of each dataset, also of private ones, to a fixed address of
# Amazon's, and wait for an answer behind a firewall.
if "HF_UPDATE_DOWNLOAD_COUNTS" not in os.environ:
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False

CACHE_REMEDY = "make room, or set HF_DATASETS_CACHE to a folder with more"

# The columns of pairs as text.
TEXT_FEATURES = {"source": Value("string"), "target": Value("string")}


_Files: TypeAlias = str | os.PathLike | Sequence[str | os.PathLike]


@dataclass(frozen=True)
class PairSource:
    """The source of sentence pairs: two text files, one file of pairs, or a dataset; or of texts, which are both sides.

    For a file there may be a list of files, of which none may be empty, or a pattern of the shell; what is given for
    `source_file` and `target_file` must come to equally many, which are aligned one by one.

    Attributes:
        source_file: UTF-8 text, one sentence a line, plain or `.gz`; needs `target_file`.
        target_file: The translations, line by line.
        pairs_file: A `.jsonl`, `.json`, `.csv` or `.parquet` file with a column `translation` that maps languages to
            sentences (in CSV: JSON text), or else with one column for each language.
        dataset: The name of a dataset on the Hub, a local folder, or a dataset or list of examples in memory, with the
            columns of `pairs_file`.
        dataset_config: The configuration of the dataset, such as "de-en" of wmt14.
        dataset_revision: The branch, tag or commit of the dataset on the Hub.
        split: The split of the dataset.
        source_language: The language, or the column, to translate from.
        target_language: The language, or the column, to translate to.
        streaming: Pairs are read while they are used, instead of into the cache of `datasets` beforehand.
        text_file: UTF-8 text, one text a line, plain or `.gz`: each is its own translation, for a language model.
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

    def __post_init__(self):
        origins = ("source_file", "target_file", "text_file", "pairs_file", "dataset")
        given = [name for name in origins if getattr(self, name) is not None]
        if given not in (["source_file", "target_file"], ["text_file"], ["pairs_file"], ["dataset"]):
            raise ValueError(
                "Sentence pairs must come from `source_file` and `target_file`, from `text_file`, from `pairs_file` or from `dataset`,"
                f" but given are: {', '.join(given) or 'none of them'}."
            )


def load_pairs(pair_source: PairSource) -> Dataset | IterableDataset:
    """The sentence pairs as a dataset with exactly the two text columns `source` and `target`.

    Files are read once into the cache of `datasets` and memory-mapped from there; a changed file is read again. Lines
    end at a line feed only, never at the other characters that Unicode calls line separators.

    Args:
        pair_source: The files or the dataset.

    Raises:
        FileNotFoundError: If a file does not exist.
        OSError: If the disk of the cache is full.
        ValueError: If a file cannot be read as what it should be, two files are not aligned, or a language is missing;
            when streaming, as soon as the iteration gets there.
    """
    with naming_the_folder(Path(datasets.config.HF_DATASETS_CACHE), CACHE_REMEDY):
        return _pairs_of_files(pair_source) if pair_source.dataset is None else _pairs_of_dataset(pair_source)


def _pairs_of_files(pair_source: PairSource) -> Dataset | IterableDataset:
    # `datasets` takes the items of a list for the shards of a stream.
    arguments = {"shards": [(shard, __version__, _stamps(shard)) for shard in _shards(pair_source)]}
    features = Features(TEXT_FEATURES)
    if pair_source.streaming:
        return IterableDataset.from_generator(_read_pairs, gen_kwargs=arguments, features=features)
    try:
        return Dataset.from_generator(_read_pairs, gen_kwargs=arguments, features=features)
    except DatasetGenerationError as error:
        # `datasets` wraps the sentence of the readers below into one of its own.
        raise (error.__cause__ if isinstance(error.__cause__, ValueError | OSError) else error) from None


def _shards(pair_source: PairSource) -> list[PairSource]:
    """The sources of single files that a source of several stands for.

    Raises:
        ValueError: If source and target have not equally many files.
    """
    for name in ("pairs_file", "text_file"):
        if getattr(pair_source, name) is not None:
            return [replace(pair_source, **cast(Any, {name: path})) for path in _paths(pair_source, name)]
    sources, targets = (_paths(pair_source, name) for name in ("source_file", "target_file"))
    if len(sources) != len(targets):
        raise ValueError(
            f"`source_file` and `target_file` must have equally many files, but have {len(sources):,} and"
            f" {len(targets):,}."
        )
    return [
        replace(pair_source, source_file=source, target_file=target)
        for source, target in zip(sources, targets, strict=True)
    ]


def _paths(pair_source: PairSource, name: str) -> list[str | os.PathLike]:
    """The files that a field of a source names, those of a pattern in the order of their names.

    Raises:
        FileNotFoundError: If there is no file like a pattern.
        ValueError: If the list is empty.
    """
    value = getattr(pair_source, name)
    paths: list[str | os.PathLike] = []
    for given in [value] if isinstance(value, str | os.PathLike) else value:
        found: list[Any] = [given]
        if glob.has_magic(os.fspath(given)) and not os.path.exists(given):
            found = sorted(path for path in glob.glob(os.fspath(given), recursive=True) if os.path.isfile(path))
        if not found:
            raise FileNotFoundError(f"`{name}` must be an existing file, but there is none like {given}.")
        paths += found
    if not paths:
        raise ValueError(f"`{name}` must name a file, but is an empty list.")
    return paths


def distillation_records(files: list[str]) -> list[dict[str, Any]]:
    """What `vaswani distill` has recorded in the first line of each of these files of pairs; nothing in those of others.

    Args:
        files: Files and patterns; what cannot be read has no record here, and a sentence when it is read as pairs.
    """
    records = []
    try:
        for path in _paths(PairSource(pairs_file=files), "pairs_file") if files else ():
            row = next(_read_json(Path(path)), {}) if Path(path).suffix == ".jsonl" else {}
            records.append(row.get("distillation"))
    except (OSError, ValueError):
        return []
    return [record if isinstance(record, dict) else {} for record in records]


def _stamps(pair_source: PairSource) -> tuple[tuple[int, int], ...]:
    """The size in bytes and the time of change in nanoseconds of each file.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the file of pairs is of an unknown kind.
    """
    stamps = []
    for name in ("source_file", "target_file", "text_file", "pairs_file"):
        path = getattr(pair_source, name)
        if path is None:
            continue
        if not os.path.isfile(path):
            raise FileNotFoundError(f"`{name}` must be an existing file, but is {path}.")
        if name == "pairs_file" and Path(path).suffix not in _ROW_READERS:
            raise ValueError(f"`pairs_file` must end in {', '.join(_ROW_READERS)}, but is {path}.")
        stamps.append((os.stat(path).st_size, os.stat(path).st_mtime_ns))
    return tuple(stamps)


def _pairs_of_dataset(pair_source: PairSource) -> Dataset | IterableDataset:
    dataset: Any = pair_source.dataset
    if isinstance(dataset, str):
        dataset = _open_dataset(pair_source, dataset)
    elif isinstance(dataset, list):
        if not dataset:
            raise ValueError("`dataset` must hold sentence pairs, but is an empty list.")
        dataset = _dataset_of_rows(dataset)
    if pair_source.streaming and isinstance(dataset, Dataset):
        dataset = dataset.to_iterable_dataset()
    return dataset.map(
        _select_languages,
        batched=True,
        remove_columns=dataset.column_names or list(next(iter(dataset))),
        features=Features(TEXT_FEATURES),
        fn_kwargs={"languages": (pair_source.source_language, pair_source.target_language)},
    )


def _dataset_of_rows(rows: list[dict]) -> Dataset:
    try:
        return Dataset.from_list(rows)
    except UnicodeEncodeError:
        for number, row in enumerate(rows, 1):
            refuse_half_characters(json.dumps(row, ensure_ascii=False, default=str), f"`dataset`, row {number:,},")
        raise


def _open_dataset(pair_source: PairSource, name: str) -> Dataset | IterableDataset:
    revision = pair_source.dataset_revision
    try:
        dataset = load_dataset(
            name,
            pair_source.dataset_config,
            split=pair_source.split,
            revision=revision,
            streaming=pair_source.streaming,
        )
    except ValueError:
        if missing := _what_is_missing(pair_source, name):
            raise ValueError(missing) from None
        raise
    files = getattr(dataset, "cache_files", [])
    # In the cache of `datasets` the folder of a dataset of the Hub is named after its commit.
    commit = Path(files[0]["filename"]).parent.name if files else None
    if is_commit(revision) and is_commit(commit) and commit != revision:
        # `datasets` takes another commit from the cache where the Hub does not answer.
        raise ValueError(
            f"`dataset_revision` {revision} of '{name}' could not be fetched, and the cache holds only {commit}; try again "
            "when the Hub can be reached."
        )
    return dataset


def is_commit(revision: str | None) -> bool:
    """True if a revision is the whole hash of a commit.

    Args:
        revision: A branch, a tag or a commit.
    """
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None


def _what_is_missing(pair_source: PairSource, name: str) -> str | None:
    """The sentence that says that a dataset has no such configuration or split; None if it has both."""
    config, revision = pair_source.dataset_config, pair_source.dataset_revision
    configs = get_dataset_config_names(name, revision=revision)
    if config not in configs and (config or get_dataset_default_config_name(name, revision=revision) is None):
        return f"`dataset_config` must be one of {', '.join(configs)}, which '{name}' has, but is {config!r}."
    splits = get_dataset_split_names(name, config, revision=revision)
    # "train[:10%]" is a part of a split, "train+test" a sum.
    if re.split(r"[\[+]", pair_source.split)[0] not in splits:
        return (
            f"`split` must be one of {', '.join(splits)}, which '{name}' has, but is {pair_source.split!r}; name one of them, "
            "or null for none."
        )
    return None


def _select_languages(batch: dict[str, list], languages: tuple[str, str]) -> dict[str, list[str]]:
    rows = (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
    pairs = [_pair_of_row(row, languages) for row in rows]
    return {side: [pair[side] for pair in pairs] for side in TEXT_FEATURES}


def _read_pairs(shards: list[tuple]) -> Iterator[dict[str, str]]:
    """The pairs of files, each with the version of this package and its stamps, which serve the hash of the cache alone.

    Raises:
        ValueError: If a file holds no pairs.
    """
    for shard, *_ in shards:
        is_empty = True
        for pair in _read_shard(shard):
            is_empty = False
            yield pair
        if is_empty:
            names = [name for name in (shard.pairs_file, shard.source_file, shard.target_file) if name]
            if shard.text_file is not None:
                raise ValueError(f"{shard.text_file} must hold texts, one a line, but is empty.")
            raise ValueError(f"{' and '.join(map(str, names))} must hold sentence pairs, but there are none.")


def _read_shard(pair_source: PairSource) -> Iterator[dict[str, str]]:
    """The pairs of one file or two.

    Raises:
        ValueError: If a row is no pair.
    """
    if pair_source.text_file is not None:
        yield from ({"source": line, "target": line} for line in read_lines(pair_source.text_file))
        return
    if pair_source.pairs_file is None:
        yield from _read_aligned(pair_source.source_file, pair_source.target_file)
        return
    path = Path(str(pair_source.pairs_file))
    for number, row in enumerate(_ROW_READERS[path.suffix](path), 1):
        try:
            yield _pair_of_row(row, (pair_source.source_language, pair_source.target_language))
        except ValueError as error:
            raise ValueError(f"{path}, row {number:,}: {error}") from None


def _read_aligned(source_file: Any, target_file: Any) -> Iterator[dict[str, str]]:
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


def _read_json(path: Path) -> Iterator[dict]:
    lines, is_first = read_lines(path), True
    for number, line in enumerate(lines, 1):
        if is_first and line.lstrip().startswith("["):
            # With the blank lines before it, so that errors count lines as the file does.
            yield from parse_json("\n" * (number - 1) + "\n".join([line, *lines]), list, str(path))
        elif line.strip():
            is_first = False
            yield parse_json(line, dict, f"Line {number:,} of {path}")


def _read_csv(path: Path) -> Iterator[dict]:
    records = _read_csv_records(path)
    header = next(records, None)
    if header is None:
        return
    if not header:
        raise ValueError(f"{path} must have the names of its columns in the first line, but that line is blank.")
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise ValueError(f"{path} must have each column once, but its first line names `{twice}` twice.")
    # Blank lines are no rows.
    for number, fields in enumerate(filter(None, records), 1):
        if len(fields) != len(header):
            raise ValueError(
                f"{path}, row {number:,}: A row must have as many fields as the header ({len(header):,}), but has "
                f"{len(fields):,}; put fields that hold commas or line breaks in quotes."
            )
        yield dict(zip(header, fields, strict=True))


def _read_csv_records(path: Path) -> Iterator[list[str]]:
    # The last record, by which an open quote is found: it would have swallowed all records behind it.
    lines = itertools.chain((line + "\n" for line in read_lines(path)), [_END_OF_CSV])
    records, place = csv.reader(lines), "in the header"
    try:
        while (fields := _next_record(records)) != [_END_OF_CSV]:
            if fields and fields[-1].endswith(_END_OF_CSV):
                raise csv.Error("quote that is never closed")
            place = f"after line {records.line_num:,}"
            yield fields
    except csv.Error as error:
        fault = _LONE_CARRIAGE_RETURN if "new-line character" in str(error) else error
        raise ValueError(f"{path} must be a CSV file, but {place} there is a {fault}.") from None


def _next_record(records: Any) -> list[str]:
    """The next record, whatever the length of its fields; the limit is one for all of Python, and comes back at once."""
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        return next(records)
    finally:
        csv.field_size_limit(limit)


def _read_parquet(path: Path) -> Iterator[dict]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except PermissionError:
        raise
    except (pyarrow.ArrowInvalid, OSError):
        raise ValueError(f"{path} must be a Parquet file, but is damaged or something else.") from None


# No text file has such a line, and Python no longer field.
_END_OF_CSV = "\0end of file\0"
_LONGEST_FIELD = 2**31 - 1
_LONE_CARRIAGE_RETURN = "carriage return without a line feed; end each line with a line feed"

_ROW_READERS = {".jsonl": _read_json, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}


def _pair_of_row(row: dict[str, Any], languages: tuple[str, str]) -> dict[str, str]:
    """The two sentences of one example; a missing value is an empty sentence, which cleaning drops and counts.

    Raises:
        ValueError: If a language is missing or its value is not text.
    """
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
            raise ValueError(f"`{side}_language` must be one of the languages or columns {there}, but is {language}.")
        text = texts[language] if texts[language] is not None else ""
        if not isinstance(text, str):
            raise ValueError(f"The column `{language}` must hold text, but holds {text!r}.")
        refuse_half_characters(text, f"The column `{language}`")
        pair[side] = text
    return pair
