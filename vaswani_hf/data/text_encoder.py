"""Encodes texts into the same token ids as a tokenizer does, but faster, because each distinct word is
encoded only once.
"""

import json
from array import array
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

# The maximum number of words in the cache of a `TextEncoder`. A full cache needs about 100 MB for European
# text.
_MAX_WORDS = 500_000


class SerializedTokenizer(NamedTuple):
    """A tokenizer in a form that can be pickled. `text` is the tokenizer as JSON, without settings for
    padding and truncation.
    """

    text: str
    split_special_tokens: bool


def serialize_tokenizer(tokenizer: PreTrainedTokenizerFast) -> SerializedTokenizer:
    """Serialize a tokenizer. Equal tokenizers have equal serializations, even if one of the tokenizers has
    already encoded texts.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    text = json.dumps({**content, "padding": None, "truncation": None})
    return SerializedTokenizer(text, tokenizer.split_special_tokens)


# Cache two objects of `TextEncoder`, because a run has a source tokenizer and a target tokenizer.
@lru_cache(maxsize=2)
def text_encoder(tokenizer: SerializedTokenizer) -> "TextEncoder":
    """Return the `TextEncoder` of a tokenizer from the cache of this process."""
    return TextEncoder(tokenizer)


class TextEncoder:
    """Encodes texts into the same token ids as a tokenizer, including `<s>` or `</s>`, but faster.

    `TextEncoder` splits texts into words with functions of Arrow, and calls the tokenizer only for new words
    (scripts/benchmarks/encoding.md).
    """

    def __init__(self, tokenizer: SerializedTokenizer):
        self._tokenizer = Tokenizer.from_str(tokenizer.text)
        self._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
        whole = self._tokenizer.encode("a").ids
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        first = next(start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
        self._begin = _as_bytes(whole[:first])
        self._end = _as_bytes(whole[first + len(bare) :])
        parts = json.loads(tokenizer.text)
        self._encodes_words_alone = (
            tokenizer.split_special_tokens
            and begins_with_a_space(parts["normalizer"])
            and _splits_before_spaces(parts["pre_tokenizer"])
            and all(token["special"] or _separates_words(token) for token in parts["added_tokens"])
        )
        # Store the token ids of each word as bytes, because Python joins bytes faster than lists.
        self._ids_of: dict[str, bytes] = {}

    def __call__(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        """Return the int32 token ids of each text. The texts must not begin or end with white space."""
        if not self._encodes_words_alone:
            return _as_lists(self._encode(texts.to_pylist(), special=True))
        # Split the texts at single spaces. A single word gets the same token ids as inside a text: inside a
        # text, the tokenizer counts a space as a part of the following word, and the tokenizer adds a space
        # before a single word.
        words_of_texts = pyarrow.compute.split_pattern(texts, " ")
        offsets = words_of_texts.offsets.to_numpy()  # [N + 1]
        words = words_of_texts.values.dictionary_encode()
        distinct = words.dictionary.to_pylist()
        # Insert the special tokens before and after the words of each text, as two additional words.
        numbers = np.insert(words.indices.to_numpy(), offsets[1:], len(distinct) + 1)
        numbers = np.insert(numbers, offsets[:-1] + np.arange(len(texts)), len(distinct))
        ids = _as_lists([*self._ids_of_words(distinct), self._begin, self._end]).take(pyarrow.array(numbers))
        starts = ids.offsets.to_numpy()[offsets + 2 * np.arange(len(offsets))]
        encoded = pyarrow.ListArray.from_arrays(starts, ids.values)
        # Encode a text as a whole, not word by word, if the text contains white space other than single
        # spaces.
        is_other = np.array([word.split() != [word] for word in distinct], bool)
        places = np.flatnonzero(is_other[words.indices.to_numpy()])
        others = np.unique(np.searchsorted(offsets, places, side="right") - 1)
        whole_texts = self._encode(texts.take(pyarrow.array(others)).to_pylist(), special=True)
        order = np.arange(len(texts))
        order[others] = len(texts) + np.arange(len(others))
        return pyarrow.concat_arrays([encoded, _as_lists(whole_texts)]).take(pyarrow.array(order))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of one text."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _ids_of_words(self, words: list[str]) -> list[bytes]:
        # Replace a full dictionary by a new dictionary instead of clearing the full one, because another
        # thread may be reading the full dictionary.
        ids_of = self._ids_of if len(self._ids_of) < _MAX_WORDS else {}
        new = [word for word in words if word not in ids_of]
        ids_of.update(zip(new, self._encode(new, special=False), strict=True))
        self._ids_of = ids_of
        return [ids_of[word] for word in words]

    def _encode(self, texts: list[str], *, special: bool) -> list[bytes]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return [_as_bytes(encoding.ids) for encoding in encodings]


def _as_bytes(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def _as_lists(rows: list[bytes]) -> pyarrow.ListArray:
    """Convert `bytes` objects that contain int32 token ids to lists of token ids."""
    ends = np.cumsum([0, *map(len, rows)]) // np.dtype(np.int32).itemsize
    return pyarrow.ListArray.from_arrays(ends.astype(np.int32), np.frombuffer(b"".join(rows), np.int32))


def begins_with_a_space(normalizer: dict[str, Any] | None) -> bool:
    """Return True if a normalizer (a dict from tokenizer.json) adds a space before a text, and normalizes
    each word independently of the other words.
    """
    steps = (normalizer or {}).get("normalizers", [])
    return (
        bool(steps)
        and steps[-1] == {"type": "Prepend", "prepend": " "}
        and all(step["type"] in ("NFC", "NFKC", "Lowercase") for step in steps[:-1])
    )


def _separates_words(token: dict[str, Any]) -> bool:
    """Return True if an added token also matches the spaces around the token, but contains no space.

    An added token that also matches the spaces around the token does not change the token ids of the
    neighbouring words.
    """
    includes_spaces = (
        token["lstrip"] and token["rstrip"] and not token["normalized"] and not token["single_word"]
    )
    return includes_spaces and token["content"].split() == [token["content"]]


def _splits_before_spaces(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Return True if a pre-tokenizer (a dict from tokenizer.json) splits texts as the tokenizers of
    `train_tokenizer` do.
    """
    parts = pre_tokenizer or {}
    return parts.get("type") == "ByteLevel" and not parts["add_prefix_space"] and parts["use_regex"]
