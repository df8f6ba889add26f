"""The corpus of a run: its splits as text, its tokenizers, and its pairs as token ids.

A task reads its splits, trains its tokenizers and calls `encode_corpus` (see tasks/translation.py).
"""

import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import yaml
from datasets import Dataset, IterableDataset, concatenate_datasets, load_dataset_builder
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import PreTrainedTokenizerFast

from ..checkpoint.hub import HubError, explained, with_retries
from ..settings.data import SPLITS, CorpusData, DataSettings, is_on_hub
from .batching import PairCollator
from .columns import CORPUS_COLUMN, corpus_digest, pair_corpora, pair_lengths
from .corpus_cache import kept_digest
from .endless import WeightedPairs
from .preparation import CHARACTERS_PER_TOKEN, CorpusReport, has_too_many_characters, prepare_pairs
from .reading import PairSource, is_commit, load_pairs

_Data = TypeVar("_Data", bound=CorpusData)


@dataclass
class Corpus:
    """The data that a run trains, validates and tests on.

    Attributes:
        source_tokenizer: The tokenizer of the source language.
        target_tokenizer: The tokenizer of the target language; the same object for a joint vocabulary.
        max_length: The length of the longest sentence that training and validation may have (tokens).
        train: Prepared pairs.
        train_text: The columns `source` and `target`.
        train_collator: Pads training pairs; BPE-dropout and the choice of hidden tokens happen here.
        validation_collator: Pads validation pairs.
        validation: Prepared pairs, or None.
        validation_text: The columns `source` and `target`, or None.
        test_text: The columns `source` and `target`, or None.
        reports: The CorpusReport of the training and of the validation split. The report of a stream fills
            while the stream is read.
        are_texts: Each pair is one text and itself, for a language model.
        both_directions: The training split has each pair a second time, turned round.
        corpora: The name and the weight of each training corpus, if they have weights.
        weighted: The training pairs of each epoch, if the corpora have weights.
    """

    source_tokenizer: PreTrainedTokenizerFast
    target_tokenizer: PreTrainedTokenizerFast
    max_length: int
    train: Dataset | IterableDataset
    train_text: Dataset | IterableDataset
    train_collator: PairCollator
    validation_collator: PairCollator
    validation: Dataset | None
    validation_text: Dataset | None
    test_text: Dataset | None
    reports: dict[str, CorpusReport]
    are_texts: bool = False
    both_directions: bool = False
    corpora: Sequence[tuple[str, float]] = ()
    weighted: WeightedPairs | None = None

    @cached_property
    def digest(self) -> dict[str, Any]:
        """The number of training pairs (None for a stream) and their SHA-256, which identify the data."""
        # The tokenizers decide nothing about the first pairs of a stream, and reading prepared pairs would
        # count them.
        return kept_digest(self.train) if isinstance(self.train, Dataset) else corpus_digest(self.train_text)


def pin_dataset(data: _Data, earlier: _Data | None) -> _Data:
    """The sources with one commit of their dataset, and with the licence of its card if the recipe has none.

    The commit that the run to be resumed has recorded (`earlier`) stays, unless the recipe names another one.
    All splits, and all processes of a run, are then read from the same commit.
    """
    if data.dataset is None:
        return data
    if os.path.isdir(data.dataset):
        # Without the dot the name would mean a repository of the Hub on a machine that lacks the folder.
        relative = data.dataset if data.dataset.startswith(("/", ".")) else os.path.join(".", data.dataset)
        return data.replace(dataset=relative)
    recorded = earlier if earlier and earlier.dataset == data.dataset else None
    if recorded and not _is_another_commit(data.dataset_revision, recorded.dataset_revision):
        revision, license = recorded.dataset_revision, recorded.license
    else:
        revision, license = _resolve(data.dataset, data.dataset_config, data.dataset_revision)
    return data.replace(dataset_revision=revision, license=data.license or license)


def _is_another_commit(revision: str | None, recorded: str | None) -> bool:
    shortened = re.fullmatch("[0-9a-f]{7,40}", revision or "")
    return bool(shortened) and not (recorded or "").startswith(revision or "")


def _resolve(dataset: str, config: str | None, revision: str | None) -> tuple[str | None, str | None]:
    """The commit of a dataset of the Hub and the licence that its card states; None for what is not known."""
    if not is_on_hub(dataset):
        raise ValueError(
            f"`data.dataset` must be a local folder or a dataset of the Hub, but '{dataset}' is neither."
        )
    try:
        with explained():
            info = with_retries(HfApi().dataset_info, dataset, revision=revision)
            if info.gated:
                # `dataset_info` succeeds for a gated dataset that the user must not read.
                with_retries(HfApi().auth_check, dataset, repo_type="dataset")
    except HubError as error:
        if isinstance(error.__cause__, OfflineModeIsEnabled):
            return _cached_commit(dataset, config, revision), None
        raise HubError(f"`data.dataset` '{dataset}' cannot be read: {error}") from error
    stated = info.card_data.get("license") if info.card_data else None
    # If a card lists several licences, it does not say which part of the data has which one.
    listed = stated if isinstance(stated, list) else [stated]
    return info.sha, listed[0] if len(listed) == 1 else None


def _cached_commit(dataset: str, config: str | None, revision: str | None) -> str | None:
    try:
        # The hash of a builder is the commit, in the cache as on the Hub.
        commit = load_dataset_builder(dataset, config, revision=revision).hash
    except (OSError, ValueError) as error:
        raise HubError(
            f"`data.dataset` '{dataset}' must be in the cache while HF_HUB_OFFLINE is set, but is not; run "
            "once without it."
        ) from error
    return commit if is_commit(commit) and not is_commit(revision) else revision


def load_splits(
    load_split: Callable[[Any, str, int], Dataset | IterableDataset | None],
    check_split: Callable[[Dataset, Any, str], None],
    data: DataSettings,
    seed: int,
) -> dict[str, Any]:
    """The text of each split, None without one. `check_split` checks each of them that is not a stream."""

    def checked(split: str) -> Dataset | IterableDataset | None:
        pairs = load_split(data, split, seed)
        if isinstance(pairs, Dataset):
            check_split(pairs, data, split)
        return pairs

    return {split: naming_the_split(split, checked, split) for split in SPLITS}


def naming_the_split(split: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call a function that reads or prepares a split. Errors about files and text name the split."""
    try:
        return function(*args, **kwargs)
    except (ValueError, FileNotFoundError) as error:
        # The reader names the field `source_file`, the recipe names the key `train_source`.
        words = re.sub(r"`(source|target|text|pairs)_file`", rf"`{split}_\1`", str(error))
        raise ValueError(f"`data`, {split} split: {words}") from error


def load_dataset_split(
    data: CorpusData, split: str, source_column: str, target_column: str
) -> Dataset | IterableDataset | None:
    """These columns of a split of `data.dataset`; None if the recipe names no dataset or no such split."""
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
            "---, but that is damaged; correct it, or take another `data.dataset_revision`."
        ) from error


def join_corpora(sources: Sequence[PairSource]) -> Dataset:
    """The pairs of several training corpora, one corpus after the other, with the number of their corpus."""
    corpora = []
    for number, source in enumerate(sources):
        pairs: Any = load_pairs(source)
        corpora.append(pairs.add_column(CORPUS_COLUMN, np.full(len(pairs), number, np.int32)))
    return concatenate_datasets(corpora)


def split_name(data: CorpusData, split: str) -> str:
    """The files of a split, or the dataset and the key of the split, for messages."""
    return (
        " and ".join(data.files(split))
        or f"'{data.dataset}', `{split}_split` {getattr(data, f'{split}_split')},"
    )


def refuse_unusable(pairs: Dataset, name: str, max_length: int | None, fault: str) -> None:
    """Refuse a split that has no pair with text on both sides, or none that is short enough for training.

    `fault` says what the split lacks if each pair has an empty side. Without `max_length` the length does not
    matter.
    """
    with_text = (pair for pair in pairs if pair["source"].strip() and pair["target"].strip())
    first = next(with_text, None)
    if first is None:
        raise ValueError(f"{name} {fault}")
    if max_length is None:
        return
    for pair in itertools.chain([first], with_text):
        if not has_too_many_characters(pair["source"], pair["target"], max_length):
            return
    raise ValueError(
        f"{name} must hold a line of at most {CHARACTERS_PER_TOKEN * max_length:,} characters, "
        f"{CHARACTERS_PER_TOKEN} per token of `data.max_length`, but each of {len(pairs):,} is longer or "
        "empty; split the lines, or raise `data.max_length`."
    )


def encode_corpus(
    texts: dict[str, Any],
    tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast],
    collators: tuple[PairCollator, PairCollator],
    *,
    max_length: int,
    num_proc: int,
    seed: int,
    text_encoder: PreTrainedTokenizerFast | None = None,
    max_length_ratio: float | None = None,
    keep_text: bool = False,
    both_directions: bool = False,
    corpora: Sequence[tuple[str, float]] = (),
) -> Corpus:
    """The corpus of a run: the training and the validation split are cleaned and encoded.

    `collators` are the collator of the training and the collator of the validation. `text_encoder` encodes
    texts that are their own target; pairs are encoded by the tokenizers. `seed` decides which pairs of
    weighted corpora an epoch has. `keep_text` keeps the text of the training pairs, for BPE-dropout.
    """
    encoders = tokenizers if text_encoder is None else (text_encoder, None)
    prepared: dict[str, Any] = {"train": None, "validation": None}
    reports = {}
    for split in prepared:
        if texts[split] is None:
            continue
        is_train = split == "train"
        prepared[split], reports[split] = naming_the_split(
            split,
            prepare_pairs,
            texts[split],
            *encoders,
            max_length=max_length,
            max_length_ratio=max_length_ratio if is_train else None,
            num_proc=num_proc if num_proc > 1 else None,
            keep_text=keep_text and is_train,
        )
    train = prepared["train"]
    weighted = None
    if corpora:
        weights = [weight for _, weight in corpora]
        weighted = WeightedPairs(*pair_lengths(train), pair_corpora(train), weights, seed)
    return Corpus(
        *tokenizers,
        max_length=max_length,
        train=train,
        train_text=texts["train"],
        train_collator=collators[0],
        validation_collator=collators[1],
        validation=prepared["validation"],
        validation_text=texts["validation"],
        test_text=texts["test"],
        reports=reports,
        are_texts=text_encoder is not None,
        both_directions=both_directions,
        corpora=corpora,
        weighted=weighted,
    )
