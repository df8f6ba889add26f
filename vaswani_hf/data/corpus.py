"""The corpus of a run: its splits, tokenizers and encoded pairs; single files are read in reading.py."""

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from datasets import Dataset, IterableDataset, concatenate_datasets, load_dataset_builder
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import PreTrainedTokenizerFast

from ..checkpoint.hub import HubError, explained, with_retries
from ..checkpoint.tokenizers import direction_tag, load_tokenizers
from ..settings.data import TEXT_TASKS, AnyData, is_on_hub
from ..settings.sections import AnyTokenizer
from .batching import PairCollator
from .bpe_dropout import BpeDropout
from .columns import CORPUS_COLUMN, corpus_digest, pair_corpora, pair_lengths
from .corpus_cache import kept_digest, write_tokenizers
from .directions import in_both_directions
from .language_modeling import text_collator, with_both_ends
from .lines import refuse_blank
from .preparation import CHARACTERS_PER_TOKEN, CorpusReport, has_too_many_characters, prepare_pairs
from .reading import PairSource, distillation_records, is_commit, load_pairs
from .toy_corpora import grammar_trees, number_pairs
from .treebank import load_treebank
from .weights import WeightedPairs

# One of so many held-out numbers is 0.1 % of the score.
NUMBERS_HELD_OUT = 1000
TREES_HELD_OUT = 1000


@dataclass
class Corpus:
    """The data that a run trains, validates and tests on.

    Attributes:
        source_tokenizer (PreTrainedTokenizerFast): The tokenizer of the source language.
        target_tokenizer (PreTrainedTokenizerFast): The tokenizer of the target language; the same object for a joint
            vocabulary.
        max_length (int): The length of the longest sentence that training and validation may have (tokens).
        train (Dataset or IterableDataset): Prepared pairs.
        train_text (Dataset or IterableDataset): The columns `source` and `target`.
        train_collator (PairCollator): Pads training pairs, with the BPE-dropout of the recipe; it hides tokens of texts.
        validation_collator (PairCollator): That of the validation.
        validation (Dataset, optional): Prepared pairs.
        validation_text (Dataset, optional): The columns `source` and `target`.
        test_text (Dataset, optional): The columns `source` and `target`.
        reports (dict): A CorpusReport by split; the report of a stream fills while it is read.
        weighted (WeightedPairs, optional): The training pairs of each epoch, where corpora have weights.
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
    weighted: WeightedPairs | None = None

    @cached_property
    def digest(self) -> dict[str, Any]:
        """The number of training pairs and a hash of them, by which a run knows them again; see `corpus_digest`.

        Returns:
            dict: `count` (int, None for a stream) and `sha256` (str).
        """
        # The tokenizers decide nothing about a stream's first pairs, and reading prepared ones would count them.
        return kept_digest(self.train) if isinstance(self.train, Dataset) else corpus_digest(self.train_text)


def pin_dataset(data: AnyData, earlier: AnyData | None) -> AnyData:
    """The sources with one commit of their dataset, and with the licence of the dataset's card if the recipe has none.

    Files that `vaswani distill` wrote name their teacher, which is credited too.

    Args:
        data (AnyData): The sources; `dataset_revision` may be a branch or a tag, or None for the main branch.
        earlier (AnyData, optional): The sources that the run to be resumed has recorded; their commit stays, unless
            `data` names another one.

    Returns:
        AnyData: All splits are read from the same commit, if one process asks for all. It is `data` itself without
        such a dataset.

    Raises:
        HubError: If there is no such dataset or revision that one may read.
    """
    if data.dataset is None:
        return _with_credit_for_teachers(data)
    if os.path.isdir(data.dataset):
        # A name with a dot cannot be taken for a repository of the Hub where the folder is not at hand.
        relative = data.dataset if data.dataset.startswith(("/", ".")) else os.path.join(".", data.dataset)
        return data.replace(dataset=relative)
    recorded = earlier if earlier and earlier.dataset == data.dataset else None
    if recorded and not _is_another_commit(data.dataset_revision, recorded.dataset_revision):
        revision, license = recorded.dataset_revision, recorded.license
    else:
        revision, license = _resolve(data.dataset, data.dataset_config, data.dataset_revision)
    return data.replace(dataset_revision=revision, license=data.license or license)


def _with_credit_for_teachers(data: AnyData) -> AnyData:
    records = distillation_records(data.listed("train_pairs"))
    if not any(records):
        return data
    teachers = [record.get("teachers") or [] for record in records]
    names = dict.fromkeys(str(name).split(" sha256:")[0] for of_one in teachers for name in of_one)
    credit = f"translations by the model {' and '.join(names)}, made with `vaswani distill`"
    credits = [data.attribution] if data.attribution else []
    credits += [] if credit in (data.attribution or "") else [credit]
    return data.replace(attribution="; ".join(credits))


def _is_another_commit(revision: str | None, recorded: str | None) -> bool:
    shortened = re.fullmatch("[0-9a-f]{7,40}", revision or "")
    return bool(shortened) and not (recorded or "").startswith(revision or "")


def _resolve(dataset: str, config: str | None, revision: str | None) -> tuple[str | None, str | None]:
    """The commit of a dataset of the Hub and the licence that its card states, as far as they are known.

    Raises:
        HubError: If there is no such dataset or revision that one may read.
        ValueError: If the name cannot be that of a dataset.
    """
    if not is_on_hub(dataset):
        raise ValueError(f"`data.dataset` must be a local folder or a dataset of the Hub, but '{dataset}' is neither.")
    try:
        with explained():
            info = with_retries(HfApi().dataset_info, dataset, revision=revision)
            if info.gated:
                # Everybody may see that a gated dataset exists.
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
            f"`data.dataset` '{dataset}' must be in the cache while HF_HUB_OFFLINE is set, but is not; run once without it."
        ) from error
    return commit if is_commit(commit) and not is_commit(revision) else revision


def load_split(data: Any, split: str, seed: int) -> Dataset | IterableDataset | None:
    """The sentence pairs of a split, as text.

    Args:
        data (AnyData): The sources.
        split (str): "train", "validation" or "test".
        seed (int): The choice of numbers or trees, for a corpus that the package makes itself.

    Returns:
        Dataset: The columns `source` and `target`, for training corpora with weights also `corpus`, the number of the weight;
        None where `data` names no such split.

    Raises:
        ValueError: If the sources are not as they must be.
    """
    streaming = data.streaming and split == "train"
    if data.corpus:
        return load_pairs(PairSource(dataset=_own_pairs(data, split, seed), streaming=streaming))
    if data.is_treebank:
        return load_treebank(data.listed(f"{split}_trees")) if data.listed(f"{split}_trees") else None
    if split == "train" and data.train_weights:
        return _numbered_corpora(data)
    columns = (data.text_column, data.text_column) if data.is_text else (data.source_language, data.target_language)
    languages = dict(zip(("source_language", "target_language"), columns, strict=True))
    source_file, pairs_file = getattr(data, f"{split}_source", None), getattr(data, f"{split}_pairs", None)
    if (text_file := getattr(data, f"{split}_text", None)) is not None:
        return load_pairs(PairSource(text_file=text_file, streaming=streaming))
    if source_file is not None:
        target_file = getattr(data, f"{split}_target")
        return load_pairs(PairSource(source_file, target_file, streaming=streaming))
    if pairs_file is not None:
        return load_pairs(PairSource(pairs_file=pairs_file, streaming=streaming, **languages))
    name = getattr(data, f"{split}_split")
    if data.dataset is None or name is None:
        return None
    pairs = PairSource(
        dataset=data.dataset,
        dataset_config=data.dataset_config,
        dataset_revision=data.dataset_revision,
        split=name,
        streaming=streaming,
        **languages,
    )
    try:
        return load_pairs(pairs)
    except yaml.YAMLError as error:
        raise ValueError(
            f"the card (README.md) of the dataset '{data.dataset}' must begin with YAML between two lines of ---, but that is "
            "damaged; correct it, or take another `data.dataset_revision`."
        ) from error


def _own_pairs(data: Any, split: str, seed: int) -> list[dict]:
    """The pairs of a corpus that the package makes itself."""
    if data.corpus == "trees":
        trees = grammar_trees(data.trees_train_size if split == "train" else TREES_HELD_OUT, seed, split)
        return [{"source": tree.sentence, "target": str(tree)} for tree in trees]
    numbers = number_pairs(data.numbers_train_size if split == "train" else NUMBERS_HELD_OUT, seed, split)
    if not data.is_text:
        return numbers
    texts = (f"{pair['source']} = {pair['target']}" for pair in numbers)
    return [{"source": text, "target": text} for text in texts]


def _numbered_corpora(data: AnyData) -> Dataset:
    """The pairs of all training corpora, one after the other, each with the number of its corpus."""
    corpora = []
    kinds = ("source", "target", "text", "pairs")
    files = itertools.zip_longest(*(data.listed(f"train_{kind}") for kind in kinds))
    for number, of_corpus in enumerate(files):
        pair_source = PairSource(
            **{f"{kind}_file": path for kind, path in zip(kinds, of_corpus, strict=True)},  # type: ignore[arg-type]
            source_language=data.source_language,
            target_language=data.target_language,
        )
        pairs: Any = load_pairs(pair_source)
        corpora.append(pairs.add_column(CORPUS_COLUMN, np.full(len(pairs), number, np.int32)))
    return concatenate_datasets(corpora)


def _load_usable_split(data: AnyData, split: str, seed: int) -> Dataset | IterableDataset | None:
    """A split of `load_split` that can be used; a stream is not looked through.

    Training and validation need a pair with text on both sides that is not dropped for its characters. A test set is scored line by line, so that text on each
    side is enough, even if no pair has it on both.

    Raises:
        ValueError: If there is no such text.
    """
    pairs = load_split(data, split, seed)
    if not isinstance(pairs, Dataset):
        return pairs
    name = " and ".join(data.files(split)) or f"'{data.dataset}', `{split}_split` {getattr(data, f'{split}_split')},"
    if split == "test" and not data.is_text and not data.is_treebank:
        for side in ("source", "target"):
            refuse_blank(pairs[side], f"the {side} side", " and ".join(data.listed(f"test_{side}")) or name)
        return pairs
    has_text = False
    for pair in pairs:
        if not (pair["source"].strip() and pair["target"].strip()):
            continue
        has_text = True
        if split == "test" or not has_too_many_characters(pair["source"], pair["target"], data.max_length):
            return pairs
    if has_text:
        raise ValueError(
            f"{name} must hold a line of at most {CHARACTERS_PER_TOKEN * data.max_length:,} characters, {CHARACTERS_PER_TOKEN} "
            f"per token of `data.max_length`, but each of {len(pairs):,} is longer or empty; split the lines, or raise "
            "`data.max_length`."
        )
    if data.is_text:
        raise ValueError(f"{name} must hold text, but each of {len(pairs):,} is empty.")
    if data.is_treebank:
        raise ValueError(f"{name} must hold a tree with words, but none of its {len(pairs):,} has any.")
    raise ValueError(
        f"{name} must hold a pair with text on both sides, but a side of each of {len(pairs):,} is empty."
    )


def load_corpus(
    data: AnyData,
    tokenizer: AnyTokenizer,
    seed: int,
    folder: Path,
    *,
    new_tokenizers: bool,
    task: str = "translation",
) -> Corpus:
    """The whole corpus, with the tokenizers of the run.

    Args:
        data (AnyData): The sources.
        tokenizer (AnyTokenizer): The vocabularies, and the rate of BPE-dropout.
        seed (int): The seed of the run, which decides BPE-dropout and the turns of weighted corpora.
        folder (Path): The folder of the run's tokenizers.
        new_tokenizers (bool): Train the tokenizers and write them there; else they are read from there.
        task (str): That of the recipe.

    Returns:
        Corpus: Ready to train on.
    """
    train_text, validation_text, test_text = (
        naming_the_split(split, _load_usable_split, data, split, seed) for split in ("train", "validation", "test")
    )
    tags = (direction_tag(data.source_language),) if data.both_directions else ()
    if new_tokenizers:
        write_tokenizers(tokenizer, train_text, data.max_length, folder, tags, task)
    source_tokenizer, target_tokenizer = load_tokenizers(folder)
    for tag in tags:
        train_text = in_both_directions(train_text, tag, data.num_proc if data.num_proc > 1 else None)
    prepared, reports = _prepared({"train": train_text, "validation": validation_text}, data, tokenizer, task, folder)
    collate = partial(_collator, task, (source_tokenizer, target_tokenizer), max_length=data.max_length)
    return Corpus(
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        max_length=data.max_length,
        train=prepared["train"],
        train_text=train_text,
        train_collator=collate(rate=tokenizer.bpe_dropout, seed=seed),
        validation_collator=collate(rate=0.0, seed=0),
        validation=prepared["validation"],
        validation_text=validation_text,
        test_text=test_text,
        reports=reports,
        weighted=_weighted(prepared["train"], data.train_weights, seed) if data.train_weights else None,
    )


def _prepared(
    texts: dict[str, Any], data: AnyData, tokenizer: AnyTokenizer, task: str, folder: Path
) -> tuple[dict[str, Any], dict[str, CorpusReport]]:
    """The encoded pairs of each split, None where it has none, and what was dropped of them."""
    encoders: tuple[Any, Any] = load_tokenizers(folder)
    if data.is_text:
        encoders = (with_both_ends(encoders[0]) if task == "causal_lm" else encoders[0], None)
    prepared: dict[str, Any] = dict.fromkeys(texts)
    reports = {}
    for split, pairs in texts.items():
        if pairs is not None:
            is_train = split == "train"
            options: dict[str, Any] = {"max_length": data.max_length}
            options["max_length_ratio"] = data.max_length_ratio if is_train else None
            options["num_proc"] = data.num_proc if data.num_proc > 1 else None
            options["keep_text"] = is_train and tokenizer.bpe_dropout > 0
            prepared[split], reports[split] = naming_the_split(split, prepare_pairs, pairs, *encoders, **options)
    return prepared, reports


def _collator(
    task: str,
    tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast],
    rate: float,
    seed: int,
    max_length: int,
) -> PairCollator:
    source, target = tokenizers
    if task in TEXT_TASKS:
        return text_collator(task, source, seed)
    bpe_dropout = (BpeDropout(source, rate), BpeDropout(target, rate)) if rate else None
    return PairCollator(source.pad_token_id, bpe_dropout=bpe_dropout, seed=seed, max_length=max_length)


def _weighted(pairs: Dataset, weights: list[float], seed: int) -> WeightedPairs:
    return WeightedPairs(*pair_lengths(pairs), pair_corpora(pairs), weights, seed)


def naming_the_split(split: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
    """What a call gives; its error names the split.

    Args:
        split (str): "train", "validation" or "test".
        function (Callable): It reads or prepares the split.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Raises:
        ValueError: In place of what it raises for missing files and bad text.
    """
    try:
        return function(*args, **kwargs)
    except (ValueError, FileNotFoundError) as error:
        # By the key of the recipe that named it.
        words = re.sub(r"`(source|target|text|pairs)_file`", rf"`{split}_\1`", str(error))
        raise ValueError(f"`data`, {split} split: {words}") from error
