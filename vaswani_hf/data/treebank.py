"""The trees of files as pairs for training. The source is the sentence, the target its tree on one line."""

import os
from collections.abc import Iterator
from glob import glob, has_magic
from pathlib import Path

import datasets
from datasets import Dataset, Features
from datasets.exceptions import DatasetGenerationError

from ..checkpoint.files import naming_the_folder
from ..version import __version__
from .lines import read_lines
from .reading import CACHE_REMEDY, TEXT_FEATURES
from .trees import Tree, read_trees


def tree_files(names: list[str]) -> list[str]:
    """The files of a treebank.

    A name is a file (plain or .gz), a pattern, or a folder, whose `.mrg` files are taken at any depth. The
    files of a pattern or of a folder are sorted.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    files: list[str] = []
    for name in names:
        is_pattern = has_magic(name) and not os.path.exists(name)
        paths = sorted(glob(name, recursive=True)) if is_pattern else [name]
        found = [file for path in paths for file in _files_of(path)]
        if not found:
            what = "a folder with .mrg files" if os.path.isdir(name) else "an existing file"
            raise FileNotFoundError(f"A treebank must be {what}, but {name} is none.")
        files += found
    return files


def _files_of(path: str) -> list[str]:
    """The files of a folder, or the file itself if it exists."""
    if os.path.isdir(path):
        return sorted(str(file) for file in Path(path).rglob("*") if file.name.endswith((".mrg", ".mrg.gz")))
    return [path] if os.path.isfile(path) else []


def read_treebank(path: str) -> Iterator[Tree]:
    """The trees of one file, plain or .gz. A tree of traces has no words.

    Raises:
        ValueError: If there are no trees, or something is not a tree. The message names file and line.
    """
    is_empty = True
    for tree in read_trees(read_lines(path), path):
        is_empty = False
        yield tree
    if is_empty:
        raise ValueError(f"{path} must hold trees in brackets, but there are none.")


def load_treebank(names: list[str]) -> Dataset:
    """The trees of files, which `tree_files` describes, as the columns `source` and `target`.

    Both are empty for a tree of traces. The files are read once, into the cache of `datasets`.

    Raises:
        ValueError: If a file is not a treebank.
        OSError: If a file does not exist, or the disk of the cache is full.
    """
    files = tree_files(names)
    stamps = [(os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    # `datasets` splits lists into shards, but not tuples.
    arguments = {"files": tuple(files), "cache_key": (__version__, *stamps)}
    try:
        with naming_the_folder(Path(datasets.config.HF_DATASETS_CACHE), CACHE_REMEDY):
            return Dataset.from_generator(_tree_pairs, gen_kwargs=arguments, features=Features(TEXT_FEATURES))
    except DatasetGenerationError as error:
        # The cause names the file and the line, the error of `datasets` does not.
        raise (error.__cause__ if isinstance(error.__cause__, ValueError | OSError) else error) from None


def _tree_pairs(files: tuple[str, ...], cache_key: tuple) -> Iterator[dict[str, str]]:
    """The pairs of files. The hash that `datasets` computes of the arguments changes with `cache_key`."""
    for file in files:
        for tree in read_treebank(file):
            yield {"source": tree.sentence, "target": str(tree)}
