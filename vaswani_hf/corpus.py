"""The corpus of a run: the splits that a recipe names, its tokenizers, and its pairs as token ids."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerFast

from .data import CorpusReport, PairSource, load_pairs, prepare_pairs
from .number_words import number_pairs
from .recipe import Recipe
from .tokenization import load_tokenizers, save_tokenizers, train_tokenizer

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


def load_split(recipe: Recipe, split: str) -> Dataset | IterableDataset | None:
    """The sentence pairs of a split, as text.

    Args:
        recipe (Recipe): Names the sources.
        split (str): "train", "validation" or "test".

    Returns:
        Dataset: The columns `source` and `target`; None where the recipe names no such split.
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
    return load_pairs(
        PairSource(
            dataset=data.dataset,
            dataset_config=data.dataset_config,
            dataset_revision=data.dataset_revision,
            split=name,
            streaming=streaming,
            **languages,
        )
    )


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
