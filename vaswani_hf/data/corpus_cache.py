"""What is computed once for a corpus on disk and kept beside it, in the cache of `datasets`: its tokenizers, its digest."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from ..checkpoint.files import MANIFEST_FILE, naming_the_folder, write_whole
from ..checkpoint.manifest import damage, seal
from ..checkpoint.tokenizers import save_tokenizers
from ..recipe.schema import TokenizerSection
from ..version import __version__
from .columns import corpus_digest, kept_rows
from .memory import return_free_memory
from .preparation import CHARACTERS_PER_TOKEN
from .reading import CACHE_REMEDY


def cache_folder(pairs: Dataset | IterableDataset) -> Path | None:
    """The folder in which `datasets` keeps a dataset, and what is made of it; None if that is in memory or a stream.

    Args:
        pairs: The dataset.
    """
    files = getattr(pairs, "cache_files", [])
    return Path(files[0]["filename"]).parent if files else None


def write_tokenizers(
    train_on: Callable[[Any, Any, int], tuple[Any, Any]],
    section: TokenizerSection,
    pairs: Dataset | IterableDataset,
    model_max_length: int,
    folder: Path,
    **kind: Any,
) -> None:
    """Write the tokenizers of a corpus into the folder of a run.

    They are trained only if no other run has trained them on these files. A stream, or pairs in memory, have no cache.

    Args:
        train_on: Gives the source and the target tokenizer for the next three arguments.
        section: The section `tokenizer` of the recipe.
        pairs: The columns `source` and `target`.
        model_max_length: The length, in tokens, to which `truncation=True` cuts.
        folder: The folder of the run's tokenizers.
        **kind: Everything else that the tokenizers depend on. It becomes part of the name in the cache.
    """

    def train(place: Path) -> None:
        save_tokenizers(*train_on(section, pairs, model_max_length), place)
        return_free_memory()

    cache = cache_folder(pairs)
    if cache is None:
        train(folder)
        return
    options = {
        **asdict(section),
        "bpe_dropout": None,
        "max_length": model_max_length,
        "characters_per_token": CHARACTERS_PER_TOKEN,
        **kind,
    }
    kept = cache / f"tokenizers-{_key(pairs, options)}"
    was_there = kept.is_dir()
    if damage(kept) is not None:
        if not os.access(cache, os.W_OK):
            train(folder)
            return
        with naming_the_folder(cache, CACHE_REMEDY):
            if was_there:
                # Not those that another run has made meanwhile.
                shutil.rmtree(kept, ignore_errors=True)
            _make_folder(kept, train)
    # `copytree` would give the run's folder the mode of this one.
    for path in sorted(path for path in kept.rglob("*") if path.is_file() and path.name != MANIFEST_FILE):
        place = folder / path.relative_to(kept)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _make_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder, which is there with all of its files and their hashes, or not at all.

    Raises:
        OSError: If the disk is full.
    """
    place = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    # The folder of `tempfile` is for nobody else, a cache may be for several users.
    unfinished = place / "unfinished"
    try:
        unfinished.mkdir()
        fill(unfinished)
        seal(unfinished, {})
        unfinished.rename(folder)
    except OSError:
        # Another run may have been faster.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def kept_digest(pairs: Dataset) -> dict[str, Any]:
    """The `corpus_digest` of prepared pairs, computed once for their files.

    Args:
        pairs: The dataset of `prepare_pairs`.
    """
    cache = cache_folder(pairs)
    if cache is None:
        return corpus_digest(pairs)
    path = cache / f"digest-{_key(pairs, hashlib.sha256(kept_rows(pairs)).hexdigest())}.json"
    try:
        digest = json.loads(path.read_text(encoding="utf-8"))
        if {"count": len(pairs), "sha256": str(digest["sha256"])} == digest:
            return digest
    except (OSError, ValueError, KeyError, TypeError):
        # Not there, or damaged.
        pass
    digest = corpus_digest(pairs)
    with contextlib.suppress(OSError):
        # A cache that is full, or may only be read, costs time.
        write_whole(path, json.dumps(digest))
    return digest


def _key(pairs: Dataset, options: Any) -> str:
    """A hash of the files of a dataset, known by size and time of change, and of what is asked of them."""
    files = [file["filename"] for file in pairs.cache_files]
    stamps = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    text = json.dumps([__version__, len(pairs), stamps, options], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
