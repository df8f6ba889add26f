"""Encoding of many texts into token ids: each distinct word once.

A tokenizer takes some 0.1 ms for a sentence, and most of it to find the words. Most words of a corpus are few, so that
looking them up is several times as fast. The ids are those of the tokenizer, and become a column of Arrow without a Python
number for each.
"""

import json
from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow
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
    """Encodes texts as a tokenizer does, `</s>` or `<s>` included."""

    def __init__(self, tokenizer: SerializedTokenizer):
        """Builds the tokenizer.

        Args:
            tokenizer: The tokenizer.
        """
        self._tokenizer = Tokenizer.from_str(tokenizer.text)
        self._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
        whole, bare = (self._tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
        first = next(start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
        self._begin, self._end = whole[:first], whole[first + len(bare) :]
        parts = json.loads(tokenizer.text)
        self._goes_by_words = (
            tokenizer.split_special_tokens
            and begins_with_a_space(parts["normalizer"])
            and _splits_before_spaces(parts["pre_tokenizer"])
            and all(token["special"] or _separates_words(token) for token in parts["added_tokens"])
        )
        self._forget()
        # Threads that stream share the encoder, and its pieces are numbered as they come.
        self._turn = Lock()

    def _forget(self) -> None:
        # The piece 0 is the end of a text and 1 its beginning, for which stand words that no text has. The ids of a piece lie
        # between its bound and the next one.
        self._piece_of = {"": 0, " ": 1}
        self._ids, self._bounds = array("i"), array("q", [0])
        self._add([self._end, self._begin])

    def __call__(self, texts: list[str]) -> pyarrow.ListArray:
        """The token ids of texts, lists of int32.

        Args:
            texts: Stripped texts.
        """
        # A space between two words begins a piece whatever stands around it. Other spaces are left to the tokenizer.
        words_of = [text.split(" ") if self._goes_by_words else [] for text in texts]
        others = [row for row, words in enumerate(words_of) if not words or words != texts[row].split()]
        for row in others:
            words_of[row] = []
        with self._turn:
            try:
                return self._encode_words(words_of, {row: texts[row] for row in others})
            except BaseException:
                # Half of what an interrupted call has learned would be taken for other words.
                self._forget()
                raise

    def _encode_words(self, words_of: list[list[str]], others: dict[int, str]) -> pyarrow.ListArray:
        self._learn(chain.from_iterable(words_of))
        piece_of, known = self._piece_of.__getitem__, len(self._piece_of)
        begin = [1] * bool(self._begin)
        pieces_of = [[*begin, *map(piece_of, words), 0] for words in words_of]
        for place, row in enumerate(others):
            pieces_of[row] = [known + place]
        # Whole texts are pieces until they are in the column.
        ids, bounds = len(self._ids), len(self._bounds)
        self._add(self._encode([*others.values()], special=True))
        column = self._column(pieces_of)
        del self._ids[ids:], self._bounds[bounds:]
        return column

    def _learn(self, words: Iterable[str]) -> None:
        if len(self._piece_of) >= _REMEMBERED_WORDS:
            self._forget()
        new = list(set(words) - self._piece_of.keys())
        self._piece_of.update(zip(new, range(len(self._piece_of), len(self._piece_of) + len(new)), strict=True))
        self._add(self._encode(new, special=False))

    def _add(self, pieces: list[list[int]]) -> None:
        for ids in pieces:
            self._ids.extend(ids)
            self._bounds.append(len(self._ids))

    def _column(self, pieces_of: list[list[int]]) -> pyarrow.ListArray:
        """The ids of texts that are given by their pieces."""
        counts = np.fromiter(map(len, pieces_of), np.int64, len(pieces_of))
        pieces = np.fromiter(chain.from_iterable(pieces_of), np.int64, counts.sum())
        bounds = np.frombuffer(self._bounds, np.int64)
        lengths = bounds[pieces + 1] - bounds[pieces]
        ends = np.cumsum(lengths)
        places = np.arange(lengths.sum()) + np.repeat(bounds[pieces] - (ends - lengths), lengths)
        offsets = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
        return pyarrow.ListArray.from_arrays(offsets.astype(np.int32), np.frombuffer(self._ids, np.int32)[places])

    def _encode(self, texts: list[str], *, special: bool) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)]


def begins_with_a_space(normalizer: dict[str, Any] | None) -> bool:
    """True if a normalizer puts a space before the text, and changes nothing else across a space.

    Args:
        normalizer: As the tokenizer's JSON has it.
    """
    steps = (normalizer or {}).get("normalizers", [])
    return (
        bool(steps)
        and steps[-1] == {"type": "Prepend", "prepend": " "}
        and all(step["type"] in ("NFC", "NFKC", "Lowercase") for step in steps[:-1])
    )


def _separates_words(token: dict[str, Any]) -> bool:
    """True if a token that is found in any text takes the spaces around it, and has none inside.

    The texts before and behind it are encoded by themselves, a space before each, and words likewise.
    """
    takes_spaces = token["lstrip"] and token["rstrip"] and not token["normalized"] and not token["single_word"]
    return takes_spaces and token["content"].split() == [token["content"]]


def _splits_before_spaces(pre_tokenizer: dict[str, Any] | None) -> bool:
    """True if a pre-tokenizer is that of `train_tokenizer`."""
    parts = pre_tokenizer or {}
    return parts.get("type") == "ByteLevel" and not parts["add_prefix_space"] and parts["use_regex"]
