"""Reads sentence pairs from text, JSON, CSV and Parquet files, and texts of language models from text files.

`read_pairs` yields the pairs of files one by one. loading.py converts the pairs to datasets.
"""

import csv
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
import pyarrow.parquet

from ..model.errors_vaswani import InvalidValueError
from ..model.requests_vaswani import check_text
from .lines import MissingFileError, check_equally_many, matching_paths, parse_json, read_lines

Files: TypeAlias = str | os.PathLike | Sequence[str | os.PathLike]
SIDES = ("source", "target")

# Increase Python's limit for the size of a CSV field, because a larger field would stop the run. Later,
# encoding.py removes sentence pairs that are too long.
csv.field_size_limit(2**31 - 1)


def existing_files(given: Files, key: str) -> list[str]:
    """Return the files that a field of `PairSource` names. The files that match a shell pattern are sorted by
    name.
    """
    paths = []
    for item in [given] if isinstance(given, str | os.PathLike) else given:
        path = os.fspath(item)
        matching = matching_paths(path)
        found = list(filter(os.path.isfile, matching))
        if not found and matching == [path]:
            raise MissingFileError(f"`{key}` must be an existing file, but is {path}.")
        if not found:
            raise MissingFileError(f"`{key}` must match an existing file, but no file matches {path}.")
        paths += found
    if not paths:
        raise InvalidValueError(f"`{key}` must name a file, but is an empty list.")
    return paths


def existing_pair_files(given: Files, key: str) -> list[str]:
    """Return the files that the field `pairs_file` of `PairSource` names. Error messages contain `key`, the
    name of the field or of the recipe key.
    """
    paths = existing_files(given, key)
    for path in paths:
        if Path(path).suffix not in _ROW_READERS:
            raise InvalidValueError(f"`{key}` must end in {', '.join(_ROW_READERS)}, but is {path}.")
    return paths


def distillation_metadata(files: list[str]) -> list[dict[str, Any]]:
    """Return the metadata that `vaswani distill` has written into the first line of each file. Return an
    empty dict for a file without metadata of `vaswani distill`.
    """
    found = []
    try:
        for path in existing_pair_files(files, "pairs_file") if files else []:
            first_row = next(_read_json(path), {}) if path.endswith(".jsonl") else {}
            metadata = first_row.get("distillation") if isinstance(first_row, dict) else None
            found.append(metadata if isinstance(metadata, dict) else {})
    except (OSError, ValueError):
        # If a file cannot be read, return no metadata. `load_pairs` raises the error for the file later.
        return []
    return found


def read_pairs(
    shards: list[dict[str, str]], languages: tuple[str, str], cache_key: tuple
) -> Iterator[dict[str, str]]:
    """Yield the sentence pairs of files. Each shard is a dict from names of `PairSource` fields to files.

    The library `datasets` caches the pairs under a hash of the arguments of `read_pairs`. Therefore
    `cache_key` contains the sizes and modification times of the files.
    """
    for files in shards:
        is_empty = True
        for pair in _read_shard(files, languages):
            is_empty = False
            yield pair
        if is_empty:
            content = "texts, one per line" if "text_file" in files else "sentence pairs"
            raise ValueError(f"{' and '.join(files.values())} must hold {content}, but there are none.")


def _read_shard(files: dict[str, str], languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Yield the sentence pairs of one shard."""
    if "text_file" in files:
        for line in read_lines(files["text_file"]):
            yield {"source": line, "target": line}
    elif "source_file" in files:
        yield from _read_aligned(files["source_file"], files["target_file"])
    else:
        path = files["pairs_file"]
        for number, row in enumerate(_ROW_READERS[Path(path).suffix](path), 1):
            try:
                yield pair_of_row(row, languages)
            except ValueError as error:
                raise ValueError(f"{path}, row {number:,}: {error}") from None


def _read_aligned(source_file: str, target_file: str) -> Iterator[dict[str, str]]:
    source_count = target_count = 0
    for source, target in itertools.zip_longest(read_lines(source_file), read_lines(target_file)):
        source_count += source is not None
        target_count += target is not None
        if source_count == target_count:
            yield {"source": source, "target": target}
    check_equally_many("lines", source_file, source_count, target_file, target_count)


def _read_json(path: str) -> Iterator[dict]:
    """Yield the objects of a file with JSON lines, or with one JSON array."""
    lines = read_lines(path)
    is_first = True
    for number, line in enumerate(lines, 1):
        if is_first and line.lstrip().startswith("["):
            # Keep blank lines before the JSON array, so that error messages contain the right line numbers.
            yield from parse_json("\n" * (number - 1) + "\n".join([line, *lines]), list, path)
        elif line.strip():
            is_first = False
            yield parse_json(line, dict, f"Line {number:,} of {path}")


def _read_csv(path: str) -> Iterator[dict]:
    rows = csv.DictReader((line + "\n" for line in read_lines(path)), strict=True)
    last_line = 0
    try:
        if rows.fieldnames is not None:
            last_line = rows.line_num
        for row in rows:
            # Raise an error for a row with too many or too few fields. `DictReader` gives additional fields
            # the key None, and missing fields the value None.
            if None in row or None in row.values():
                raise csv.Error("another number of fields than in the first line")
            yield row
            last_line = rows.line_num
    except csv.Error as error:
        raise ValueError(
            f"{path} must be a CSV file, but the row that begins in line {last_line + 1:,} is damaged "
            f"({error}); put fields that hold commas or line breaks in quotes, and end each line with a line "
            "feed."
        ) from None


def _read_parquet(path: str) -> Iterator[dict]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} must be a readable Parquet file, but reading failed: {error}") from None


_ROW_READERS = {".jsonl": _read_json, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}


def pair_of_row(row: dict[str, Any], languages: tuple[str, str]) -> dict[str, str]:
    """Return the two sentences of a row in the languages `languages`. A missing value becomes an empty
    sentence.
    """
    if not isinstance(row, dict):
        raise ValueError(f"A pair must be a JSON object, but is {row!r:.40}.")
    # Usually, the column `translation` maps each language to a sentence. If the source or target language is
    # named "translation", the column `translation` contains the sentences in this language.
    texts = row if "translation" in languages else row.get("translation", row)
    if isinstance(texts, str):
        texts = parse_json(texts, dict, "The column `translation`")
    if isinstance(texts, list) and all(isinstance(entry, tuple) for entry in texts):
        # pyarrow converts a value of Arrow's map type to a list of pairs.
        texts = dict(texts)
    if not isinstance(texts, dict):
        raise ValueError(f"The column `translation` must map languages to sentences, but holds {texts!r}.")
    pair = {}
    for side, language in zip(SIDES, languages, strict=True):
        if language not in texts:
            there = ", ".join(map(str, texts))
            raise InvalidValueError(
                f"`{side}_language` must be one of the languages or columns {there}, but is {language}."
            )
        text = texts[language] if texts[language] is not None else ""
        if not isinstance(text, str):
            raise ValueError(f"The column `{language}` must hold text, but holds {text!r}.")
        check_text(text, f"The column `{language}`")
        pair[side] = text
    return pair
