"""The trees of files as pairs for training: the sentence as the source, its tree on one line as the target."""

import os
from collections.abc import Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features
from datasets.exceptions import DatasetGenerationError

from ..checkpoint.files import naming_the_folder
from ..version import __version__
from .lines import read_lines
from .reading import CACHE_REMEDY, TEXT_FEATURES
from .trees import Tree, read_trees


def tree_files(names: list[str]) -> list[str]:
    """The files of a treebank; those of a pattern or of a folder in the order of their names.

    Args:
        names: Files (plain or .gz), patterns, and folders, of which all `.mrg` files are taken, however deep.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    files: list[str] = []
    for name in names:
        is_pattern = has_magic(name) and not os.path.exists(name)
        places = sorted(glob(name, recursive=True)) if is_pattern else [name]
        found = [path for place in places for path in (_mrg_files(place) if os.path.isdir(place) else [place])]
        missing = [path for path in found if not os.path.isfile(path)]
        if missing or not found:
            what = "a folder with .mrg files" if os.path.isdir(name) else "an existing file"
            raise FileNotFoundError(f"A treebank must be {what}, but {name} is none.")
        files += found
    return files


def _mrg_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*.mrg*") if path.name.endswith((".mrg", ".mrg.gz")))


def read_treebank(path: str | Path) -> Iterator[Tree]:
    """The trees of one file, plain or .gz; those of traces alone have no words.

    Args:
        path: The file.

    Raises:
        ValueError: If there are none, or something is no tree; file, line and what is wrong are named.
    """
    is_empty = True
    for tree in read_trees(read_lines(path), str(path)):
        is_empty = False
        yield tree
    if is_empty:
        raise ValueError(f"{path} must hold trees in brackets, but there are none.")


def load_treebank(names: list[str]) -> Dataset:
    """The trees of files as a dataset of pairs, which is read once into the cache of `datasets`.

    Args:
        names: As `tree_files` takes them.

    Returns:
        The columns `source`, the sentence, and `target`, its tree; both are empty where there are only traces.

    Raises:
        ValueError: If a file is no treebank.
        OSError: If a file does not exist, or the disk of the cache is full.
    """
    files = [(path, __version__, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in tree_files(names)]
    arguments: dict[str, Any] = {"files": files}
    try:
        with naming_the_folder(Path(datasets.config.HF_DATASETS_CACHE), CACHE_REMEDY):
            return Dataset.from_generator(_tree_pairs, gen_kwargs=arguments, features=Features(TEXT_FEATURES))
    except DatasetGenerationError as error:
        # `datasets` wraps the sentence of the reader into one of its own.
        raise (error.__cause__ if isinstance(error.__cause__, ValueError | OSError) else error) from None


def _tree_pairs(files: list[tuple]) -> Iterator[dict[str, str]]:
    """The pairs of files, each with the version of this package and its stamps, which serve the hash of the cache alone."""
    for path, *_ in files:
        for tree in read_treebank(path):
            yield {"source": tree.sentence, "target": str(tree)}
