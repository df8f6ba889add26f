"""Corpora that several test files of this folder use."""

import random

import datasets
import numpy as np
import pytest
from datasets import Dataset
from factories import tiny_tokenizer

from vaswani_hf.data.encoding import prepare_pairs


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache of `datasets`."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="session")
def lengths() -> tuple[np.ndarray, np.ndarray]:
    """The source and the target lengths of 1,000 pairs."""
    rng = np.random.default_rng(0)
    source = rng.integers(2, 30, 1000)
    return source, np.clip(source + rng.integers(-4, 5, len(source)), 1, 40)


@pytest.fixture(scope="session")
def short_pairs():
    """Sixty prepared pairs with their texts, and their tokenizer."""
    rng = random.Random(0)
    words = ["cat", "house", "lower", "newest", "the", "Maria", "17"]
    sides = [[f"{' '.join(rng.choices(words, k=rng.randrange(1, 9)))}." for _ in range(60)] for _ in range(2)]
    tokenizer = tiny_tokenizer([*sides[0], *sides[1]], 300)
    raw = Dataset.from_dict(dict(zip(("source", "target"), sides, strict=True)))
    pairs, _ = prepare_pairs(raw, tokenizer, tokenizer, max_length=50, max_length_ratio=None, keep_text=True)
    return pairs, tokenizer
