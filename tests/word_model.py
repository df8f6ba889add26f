"""A small model that was trained on word-for-word translations: its translations end, and are uncertain."""

import random
from typing import Any

import torch

from vaswani_hf import VaswaniForSeq2SeqLM

WORDS = dict(
    zip(["one", "two", "three", "four", "five"], ["eins", "zwei", "drei", "vier", "fünf"], strict=True)
)


def random_sentences(num_sentences: int, rng: random.Random) -> tuple[list[str], list[str]]:
    """Sentences of one to seven words, and their translations."""
    sentences = [rng.choices(list(WORDS), k=rng.randint(1, 7)) for _ in range(num_sentences)]
    targets = [" ".join(WORDS[word] for word in words) for words in sentences]
    return [" ".join(words) for words in sentences], targets


def trained_on_words(config, tokenizer, steps: int = 60) -> VaswaniForSeq2SeqLM:
    """Train a model with a joint vocabulary for a second."""
    torch.manual_seed(0)
    return train_on_words(VaswaniForSeq2SeqLM(config), tokenizer, steps)


def train_on_words(model: Any, tokenizer, steps: int = 60) -> Any:
    """Train an encoder-decoder model for a second."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rng = random.Random(0)
    for _ in range(steps):
        sources, targets = random_sentences(32, rng)
        inputs = tokenizer(sources, return_tensors="pt", padding=True)
        labels = tokenizer(targets, return_tensors="pt", padding=True)["input_ids"]
        labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()
