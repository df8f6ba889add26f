"""The tokenizers and the digest of a corpus, made once and kept in the cache of `datasets`."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from ..checkpoint.files import MANIFEST_FILE, naming_the_folder, write_whole
from ..checkpoint.manifest import verify_manifest, write_manifest
from ..checkpoint.tokenizers import save_tokenizers
from ..settings.sections import TokenizerSettings
from ..version import __version__
from .columns import corpus_digest, kept_rows, return_free_memory
from .preparation import CHARACTERS_PER_TOKEN
from .reading import CACHE_REMEDY


def write_tokenizers(
    train_on: Callable[[TokenizerSettings, Dataset | IterableDataset, int], tuple[Any, Any]],
    section: TokenizerSettings,
    pairs: Dataset | IterableDataset,
    model_max_length: int,
    folder: Path,
    **kind: Any,
) -> None:
    """Write the tokenizers of a corpus into the folder of a run.

    They are trained only if no other run has trained them on these files. A stream, or pairs in memory, have no cache.
    `train_on` gives the source and the target tokenizer for the next three arguments. `kind` is everything else that
    the tokenizers depend on; it becomes part of the name in the cache.
    """

    def train(place: Path) -> None:
        save_tokenizers(*train_on(section, pairs, model_max_length), place)
        return_free_memory()

    cache = _cache_folder(pairs)
    if cache is None:
        train(folder)
        return
    options = {
        **section.model_dump(),
        "bpe_dropout": None,
        "max_length": model_max_length,
        "characters_per_token": CHARACTERS_PER_TOKEN,
        **kind,
    }
    kept = cache / f"tokenizers-{_key(pairs, options)}"
    if verify_manifest(kept) is not None:
        if not os.access(cache, os.W_OK):
            train(folder)
            return
        with naming_the_folder(cache, CACHE_REMEDY):
            # The folder is damaged, if it is there.
            shutil.rmtree(kept, ignore_errors=True)
            unfinished = cache / f"{kept.name}.{os.getpid()}"
            try:
                unfinished.mkdir()
                train(unfinished)
                write_manifest(unfinished, {})
                unfinished.rename(kept)
            except OSError:
                # Another run may have been faster. Its tokenizers are the same.
                if not kept.is_dir():
                    raise
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    # `copytree` would give the run's folder the mode of this one.
    for path in sorted(path for path in kept.rglob("*") if path.is_file() and path.name != MANIFEST_FILE):
        place = folder / path.relative_to(kept)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def kept_digest(pairs: Dataset) -> dict[str, Any]:
    """The `corpus_digest` of prepared pairs, computed once for their files."""
    cache = _cache_folder(pairs)
    if cache is None:
        return corpus_digest(pairs)
    path = cache / f"digest-{_key(pairs, hashlib.sha256(kept_rows(pairs)).hexdigest())}.json"
    # The file may be missing or damaged.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        digest = json.loads(path.read_text(encoding="utf-8"))
        if {"count": len(pairs), "sha256": str(digest["sha256"])} == digest:
            return digest
    digest = corpus_digest(pairs)
    # A cache that is full, or may only be read, costs time.
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(digest))
    return digest


def _cache_folder(pairs: Dataset | IterableDataset) -> Path | None:
    """The folder in which `datasets` keeps a dataset; None for a stream or pairs in memory."""
    files = getattr(pairs, "cache_files", [])
    return Path(files[0]["filename"]).parent if files else None


def _key(pairs: Dataset, options: Any) -> str:
    """A hash of the files of a dataset, known by size and time of change, and of what is asked of them."""
    files = [file["filename"] for file in pairs.cache_files]
    stamps = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    text = json.dumps([__version__, len(pairs), stamps, options], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
