"""The corpus of a run: the splits that a recipe names, its tokenizers, and its pairs as token ids."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from accelerate.utils import broadcast_object_list
from datasets import Dataset, IterableDataset, load_dataset_builder
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import PreTrainedTokenizerFast

from ..checkpoint.hub import HubError, explained, with_retries
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers, train_tokenizer
from ..recipe.licenses import check_allowed, strictest
from ..recipe.schema import Recipe, is_on_hub
from .number_words import number_pairs
from .reading import CorpusReport, PairSource, is_commit, load_pairs, prepare_pairs

# Held-out numbers: enough that one of them is 0.1 %.
NUMBERS_HELD_OUT = 1000


@dataclass
class Corpus:
    """What a run trains, validates and tests on.

    Attributes:
        source_tokenizer (PreTrainedTokenizerFast): Of the source language.
        target_tokenizer (PreTrainedTokenizerFast): Of the target language; the same object for a joint vocabulary.
        train (Dataset or IterableDataset): Prepared pairs.
        validation (Dataset, optional): Prepared pairs.
        validation_text (Dataset, optional): The columns `source` and `target`.
        test_text (Dataset, optional): The columns `source` and `target`.
        reports (dict): A CorpusReport by split; that of a stream fills while it is read.
    """

    source_tokenizer: PreTrainedTokenizerFast
    target_tokenizer: PreTrainedTokenizerFast
    train: Dataset | IterableDataset
    validation: Dataset | None
    validation_text: Dataset | None
    test_text: Dataset | None
    reports: dict[str, CorpusReport]


def pin_dataset(recipe: Recipe, earlier: Recipe | None) -> Recipe:
    """The recipe with one commit of its dataset, and with the licence that the dataset's card states if it has none itself.

    Args:
        recipe (Recipe): The run; `data.dataset_revision` may be a branch or a tag, or null for the main branch.
        earlier (Recipe, optional): What the run that is to be resumed has recorded; its commit stays, unless the recipe
            names another one.

    Returns:
        Recipe: All its splits are read from the same commit, in all processes. The same recipe without such a dataset.

    Raises:
        HubError: If there is no such dataset or revision that one may read.
        ValueError: If its licence does not allow that of the recipe's `publishing`.
    """
    data = recipe.data
    if data.dataset is None:
        return recipe
    if os.path.isdir(data.dataset):
        # Written so that it cannot be taken for a repository of the Hub where the folder is not at hand.
        relative = data.dataset if data.dataset.startswith(("/", ".")) else os.path.join(".", data.dataset)
        return replace(recipe, data=replace(data, dataset=relative))
    recorded = earlier.data if earlier and earlier.data.dataset == data.dataset else None
    if recorded and not _is_another_commit(data.dataset_revision, recorded.dataset_revision):
        revision, license = recorded.dataset_revision, recorded.license
    else:
        # A branch may move on between the processes.
        revision, license = broadcast_object_list(
            list(_resolve(data.dataset, data.dataset_config, data.dataset_revision))
        )
    data = replace(data, dataset_revision=revision, license=data.license or license)
    check_allowed(recipe.publishing.license, data.license)
    return replace(recipe, data=data)


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
                # Everybody may see what there is.
                with_retries(HfApi().auth_check, dataset, repo_type="dataset")
    except HubError as error:
        if isinstance(error.__cause__, OfflineModeIsEnabled):
            return _cached_commit(dataset, config, revision), None
        raise HubError(f"`data.dataset` '{dataset}' cannot be read: {error}") from error
    stated = info.card_data.get("license") if info.card_data else None
    # Of several it is not said which is whose: the strictest is that of all.
    return info.sha, strictest(stated if isinstance(stated, list) else [stated])


def _cached_commit(dataset: str, config: str | None, revision: str | None) -> str | None:
    try:
        # The hash of a builder is the commit, in the cache as on the Hub.
        commit = load_dataset_builder(dataset, config, revision=revision).hash
    except (OSError, ValueError) as error:
        raise HubError(
            f"`data.dataset` '{dataset}' must be in the cache while HF_HUB_OFFLINE is set, but is not; run once without it."
        ) from error
    return commit if is_commit(commit) and not is_commit(revision) else revision


def load_split(recipe: Recipe, split: str) -> Dataset | IterableDataset | None:
    """The sentence pairs of a split, as text.

    Args:
        recipe (Recipe): Names the sources.
        split (str): "train", "validation" or "test".

    Returns:
        Dataset: The columns `source` and `target`; None where the recipe names no such split.

    Raises:
        ValueError: If the sources are not as they must be.
    """
    data = recipe.data
    if data.corpus == "numbers":
        size = data.numbers_train_size if split == "train" else NUMBERS_HELD_OUT
        return load_pairs(
            PairSource(dataset=number_pairs(size, recipe.seed, split), streaming=data.streaming and split == "train")
        )
    languages = {"source_language": data.source_language, "target_language": data.target_language}
    streaming = data.streaming and split == "train"
    source_file, pairs_file = getattr(data, f"{split}_source"), getattr(data, f"{split}_pairs")
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


def load_corpus(recipe: Recipe, folder: Path, *, new_tokenizers: bool) -> Corpus:
    """The whole corpus, with the tokenizers of the run.

    Args:
        recipe (Recipe): Names the sources and the tokenizer.
        folder (Path): Where the tokenizers of the run are kept.
        new_tokenizers (bool): Train them and write them there; else they are read from there.

    Returns:
        Corpus: Ready to train on.
    """
    train_text, validation_text, test_text = (
        _naming_the_split(split, load_split, recipe, split) for split in ("train", "validation", "test")
    )
    if new_tokenizers:
        save_tokenizers(*train_tokenizers(recipe, train_text), folder)
    source_tokenizer, target_tokenizer = load_tokenizers(folder)
    prepared: dict[str, Any] = {}
    reports: dict[str, CorpusReport] = {}
    for split, pairs in (("train", train_text), ("validation", validation_text)):
        prepared[split] = None
        if pairs is not None:
            prepared[split], reports[split] = _naming_the_split(
                split,
                prepare_pairs,
                pairs,
                source_tokenizer,
                target_tokenizer,
                max_length=recipe.data.max_length,
                max_length_ratio=recipe.data.max_length_ratio if split == "train" else None,
                num_proc=recipe.data.num_proc if recipe.data.num_proc > 1 else None,
                keep_text=split == "train" and recipe.tokenizer.bpe_dropout > 0,
            )
    return Corpus(
        source_tokenizer,
        target_tokenizer,
        prepared["train"],
        prepared["validation"],
        validation_text,
        test_text,
        reports,
    )


def _naming_the_split(split: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(f"`data`, {split} split: {error}") from error


def train_tokenizers(
    recipe: Recipe, pairs: Dataset | IterableDataset
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Train the joint tokenizer, or the source's and the target's.

    Args:
        recipe (Recipe): Says which, and of what size.
        pairs (Dataset or IterableDataset): The columns `source` and `target`.

    Returns:
        tuple: The source and the target tokenizer, the same object for a joint vocabulary.
    """
    section = recipe.tokenizer
    options: dict[str, Any] = {
        "lowercase": section.lowercase,
        "normalization": section.normalization,
        "model_max_length": recipe.data.max_length,
    }
    if section.shared_vocabulary:
        joint = train_tokenizer(_texts(pairs, ("source", "target")), section.vocab_size, **options)
        return joint, joint
    source = train_tokenizer(_texts(pairs, ("source",)), section.vocab_size, **options)
    target_size = section.target_vocab_size or section.vocab_size
    return source, train_tokenizer(_texts(pairs, ("target",)), target_size, **options)


def _texts(pairs: Dataset | IterableDataset, sides: tuple[str, ...]) -> Iterator[str]:
    for batch in pairs.iter(batch_size=1000):
        for side in sides:
            yield from batch[side]
