"""Encoding of many texts into token ids: each distinct word once.

A tokenizer takes some 0.1 ms for a sentence, and most of it to find the words. Most words of a corpus are few, so that
looking them up is several times as fast. The ids are those of the tokenizer.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

# The words that are remembered, about 40 MB for European text.
_REMEMBERED_WORDS = 200_000


class SerializedTokenizer(NamedTuple):
    """A tokenizer as JSON, without its last padding and truncation, and its treatment of special tokens in a text."""

    text: str
    split_special_tokens: bool


def serialized(tokenizer: PreTrainedTokenizerFast) -> SerializedTokenizer:
    """A tokenizer in a form that is the same wherever it was loaded from and whatever it was used for.

    Args:
        tokenizer: Any tokenizer of `tokenizers`.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    text = json.dumps({**content, "padding": None, "truncation": None})
    return SerializedTokenizer(text, tokenizer.split_special_tokens)


# Each worker process keeps the two tokenizers of a run, with their words.
@lru_cache(maxsize=2)
def text_encoder(tokenizer: SerializedTokenizer) -> "TextEncoder":
    """The encoder of a tokenizer, which a process makes once.

    Args:
        tokenizer: The tokenizer.
    """
    return TextEncoder(tokenizer)


class TextEncoder:
    """Encodes texts as a tokenizer does, `</s>` included."""

    def __init__(self, tokenizer: SerializedTokenizer):
        """Builds the tokenizer.

        Args:
            tokenizer: The tokenizer.
        """
        self._tokenizer = Tokenizer.from_str(tokenizer.text)
        self._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
        whole, bare = (self._tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
        self._end = whole[len(bare) :]
        parts = json.loads(tokenizer.text)
        self._goes_by_words = (
            tokenizer.split_special_tokens
            and _begins_with_a_space(parts["normalizer"])
            and _splits_before_spaces(parts["pre_tokenizer"])
            and whole[: len(bare)] == bare
            # Those that are not special are found in any text, across words too.
            and all(token["special"] for token in parts["added_tokens"])
        )
        self._ids_of: dict[str, list[int]] = {}

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """The token ids of texts.

        Args:
            texts: Stripped texts.
        """
        # A space between two words begins a piece whatever stands around it. Other spaces are left to the tokenizer.
        words_of = [text.split(" ") if self._goes_by_words else [] for text in texts]
        others = [row for row, words in enumerate(words_of) if not words or words != texts[row].split()]
        for row in others:
            words_of[row] = []
        self._learn(chain.from_iterable(words_of))
        ids_of = self._ids_of.__getitem__
        encoded = [[*chain.from_iterable(map(ids_of, words)), *self._end] for words in words_of]
        for row, whole in zip(others, self._encode([texts[row] for row in others], special=True), strict=True):
            encoded[row] = whole
        return encoded

    def _learn(self, words: Iterable[str]) -> None:
        if len(self._ids_of) >= _REMEMBERED_WORDS:
            self._ids_of.clear()
        new = list(set(words) - self._ids_of.keys())
        self._ids_of.update(zip(new, self._encode(new, special=False), strict=True))

    def _encode(self, texts: list[str], *, special: bool) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)]


def _begins_with_a_space(normalizer: dict[str, Any] | None) -> bool:
    """True if a normalizer puts a space before the text, and changes nothing else across a space."""
    steps = (normalizer or {}).get("normalizers", [])
    return (
        bool(steps)
        and steps[-1] == {"type": "Prepend", "prepend": " "}
        and all(step["type"] in ("NFC", "NFKC", "Lowercase") for step in steps[:-1])
    )


def _splits_before_spaces(pre_tokenizer: dict[str, Any] | None) -> bool:
    """True if a pre-tokenizer is that of `train_tokenizer`."""
    parts = pre_tokenizer or {}
    return parts.get("type") == "ByteLevel" and not parts["add_prefix_space"] and parts["use_regex"]
