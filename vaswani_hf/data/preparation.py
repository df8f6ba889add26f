"""Sentence pairs from text to token ids: cleaning, encoding, and the count of the pairs that were dropped.

`prepare_pairs` takes the columns `source` and `target` of reading.py. It drops pairs that are empty, too long
or of too unequal lengths, and encodes the others once, into the cache of `datasets`. columns.py reads the
token ids from there, and batching.py packs them into batches.

Legend of shapes: N pairs of the corpus.
"""

import json
import tempfile
from array import array
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from datasets import Dataset, Features, IterableDataset, List, Value
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import naming_the_folder
from ..version import __version__
from .columns import CORPUS_COLUMN, mapped_files
from .reading import CACHE_REMEDY, TEXT_FEATURES

ID_FEATURES = {
    "input_ids": List(Value("int32")),
    "labels": List(Value("int32")),
    "source_length": Value("int32"),
    "target_length": Value("int32"),
}

# The longest text that can pass the limit in tokens, in characters per token. Text of natural languages has 1
# to 8 characters per token. Without this limit byte-level BPE makes few and very long tokens of a line of
# 100,000 equal characters: the line passes the limit in tokens, and takes entries of the vocabulary from
# words.
CHARACTERS_PER_TOKEN = 16

# The words that a `TextEncoder` remembers, about 40 MB for European text.
_REMEMBERED_WORDS = 200_000


def has_too_many_characters(source: str, target: str, max_length: int) -> bool:
    """Whether a side of a pair has more than `CHARACTERS_PER_TOKEN * max_length` characters.

    Such a pair is used neither to train the tokenizer nor to train the model.
    """
    return max(len(source), len(target)) > CHARACTERS_PER_TOKEN * max_length


@dataclass
class CorpusReport:
    """The number of pairs that were kept, and of those that were dropped for each reason."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    too_many_characters: int = 0

    @property
    def read(self) -> int:
        """The number of pairs before cleaning."""
        return self.kept + self.empty + self.too_long + self.ratio + self.too_many_characters

    def add(self, outcomes: np.ndarray) -> None:
        """Counts [N] pairs by the number of their field, from 0 for `kept` to 4 for `too_many_characters`."""
        counts = np.bincount(outcomes, minlength=len(fields(self)))
        for field, count in zip(fields(self), counts.tolist(), strict=True):
            setattr(self, field.name, getattr(self, field.name) + count)

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, are_texts: bool = False) -> str:
        """The counts as a sentence; with `are_texts` each pair is a text of a language model."""
        counts = f"{self.read:,} {'texts' if are_texts else 'pairs'} read, {self.kept:,} kept; dropped: "
        if are_texts:
            counts += f"{self.empty:,} empty, {self.too_long:,} too long"
        else:
            counts += f"{self.empty:,} with an empty side, {self.too_long:,} too long"
            counts += f", {self.ratio:,} of too unequal lengths"
        if self.too_many_characters:
            limit = f"{CHARACTERS_PER_TOKEN} characters per token of `data.max_length`"
            counts += f", {self.too_many_characters:,} with more than {limit}"
        return counts


def prepare_pairs(
    pairs: Dataset | IterableDataset,
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast | None,
    *,
    max_length: int,
    max_length_ratio: float | None,
    num_proc: int | None = None,
    keep_text: bool = False,
) -> tuple[Dataset | IterableDataset, CorpusReport]:
    """The cleaned pairs as token ids, and the count of what was dropped.

    A dataset is encoded once and found in the cache of `datasets` afterwards. A stream is encoded while it is
    read, and its report fills meanwhile, in the process that reads it.
    """
    are_texts = target_tokenizer is None
    prepare = _Preparation(
        source_tokenizer=serialized(source_tokenizer),
        target_tokenizer=None if target_tokenizer is None else serialized(target_tokenizer),
        max_length=max_length,
        max_length_ratio=max_length_ratio,
        keep_text=keep_text,
    )
    report = CorpusReport()
    if isinstance(pairs, IterableDataset):
        return prepare.stream(pairs, report), report
    corpus = {name: pairs.features[name] for name in pairs.column_names if name == CORPUS_COLUMN}
    # `datasets` keeps what is made of a dataset in its folder.
    folder = (
        Path(pairs.cache_files[0]["filename"]).parent if pairs.cache_files else Path(tempfile.gettempdir())
    )
    with naming_the_folder(folder, CACHE_REMEDY):
        marked = pairs.map(
            prepare,
            batched=True,
            with_indices=True,
            remove_columns=["source", "target"],
            features=Features({**corpus, **prepare.features, "outcome": Value("int8")}),
            num_proc=num_proc,
            desc="Encoding texts" if are_texts else "Encoding sentence pairs",
        )
    outcomes = marked.data.column("outcome").to_numpy()
    report.add(outcomes)
    if report.kept == 0:
        one = "`texts` must hold one" if are_texts else "`pairs` must hold a pair"
        raise ValueError(f"{one} that survives cleaning, but of them: {report.in_words(are_texts)}.")
    prepared = marked.remove_columns("outcome")
    # `select` looks at each of the rows.
    return prepared if report.kept == report.read else prepared.select(np.flatnonzero(outcomes == 0)), report


class SerializedTokenizer(NamedTuple):
    """A tokenizer as JSON, without padding and truncation, and its treatment of special tokens in a text."""

    text: str
    split_special_tokens: bool


def serialized(tokenizer: PreTrainedTokenizerFast) -> SerializedTokenizer:
    """A tokenizer in a form that does not depend on where it was loaded from and what it was used for."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    text = json.dumps({**content, "padding": None, "truncation": None})
    return SerializedTokenizer(text, tokenizer.split_special_tokens)


@dataclass(frozen=True)
class _Preparation:
    """Turns batches of text into ids and says which of the pairs to keep.

    `datasets` finds encoded pairs in its cache by a hash of the fields. The fields therefore decide the
    result.
    """

    source_tokenizer: SerializedTokenizer
    target_tokenizer: SerializedTokenizer | None
    max_length: int
    max_length_ratio: float | None
    keep_text: bool
    version: str = __version__
    characters_per_token: int = CHARACTERS_PER_TOKEN

    @property
    def features(self) -> dict[str, Any]:
        return {**ID_FEATURES, **TEXT_FEATURES, "index": Value("int64")} if self.keep_text else ID_FEATURES

    def __call__(self, batch: dict[str, list], indices: list[int]) -> pyarrow.Table:
        mapped_files.release()
        sources = [text.strip() for text in batch["source"]]
        targets = [text.strip() for text in batch["target"]]
        empty = np.array([not (source and target) for source, target in zip(sources, targets, strict=True)])
        too_many_characters = np.array(
            [
                has_too_many_characters(source, target, self.max_length)
                for source, target in zip(batch["source"], batch["target"], strict=True)
            ]
        )
        for row in np.flatnonzero(too_many_characters):
            # Encoding such a text takes long, and its pair is dropped.
            sources[row] = targets[row] = ""
        source_ids = text_encoder(self.source_tokenizer)(sources)
        target_ids = text_encoder(self.target_tokenizer)(targets) if self.target_tokenizer else source_ids
        source_lengths = source_ids.value_lengths().to_numpy()
        target_lengths = target_ids.value_lengths().to_numpy()
        longer = np.maximum(source_lengths, target_lengths)
        unequal = longer > (self.max_length_ratio or np.inf) * np.minimum(source_lengths, target_lengths)
        # Each number stands for a field of CorpusReport.
        outcome = np.select([empty, too_many_characters, longer > self.max_length, unequal], [1, 4, 2, 3], 0)
        columns: dict[str, Any] = {
            "input_ids": source_ids,
            "labels": target_ids,
            "source_length": source_lengths,
            "target_length": target_lengths,
            "outcome": outcome.astype(np.int8),
        }
        if CORPUS_COLUMN in batch:
            columns[CORPUS_COLUMN] = np.array(batch[CORPUS_COLUMN], np.int32)
        if self.keep_text:
            columns |= {"source": sources, "target": targets, "index": indices}
        return pyarrow.table(columns)

    def stream(self, pairs: IterableDataset, report: CorpusReport) -> IterableDataset:
        def kept(batch: dict[str, list], indices: list[int]) -> dict[str, Any]:
            columns = self(batch, indices)
            outcomes = columns["outcome"].to_numpy()
            report.add(outcomes)
            return columns.drop_columns("outcome").filter(pyarrow.array(outcomes == 0)).to_pydict()

        return pairs.map(
            kept,
            batched=True,
            with_indices=True,
            remove_columns=["source", "target"],
            features=Features(self.features),
        )


# Each worker process keeps the two tokenizers of a run, with their words.
@lru_cache(maxsize=2)
def text_encoder(tokenizer: SerializedTokenizer) -> "TextEncoder":
    """The encoder of a tokenizer, which a process makes once."""
    return TextEncoder(tokenizer)


class TextEncoder:
    """Encodes texts into exactly the ids of a tokenizer, with `</s>` or `<s>`, but each distinct word once.

    A tokenizer spends most of its time on words that it has encoded before. Looking words up takes
    a third of the time (scripts/benchmarks/encoding.md).
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
        # The ids of each word as bytes, because bytes are joined faster than lists.
        self._ids_of: dict[str, bytes] = {}

    def __call__(self, texts: list[str]) -> pyarrow.ListArray:
        """The token ids of stripped texts, lists of int32."""
        words_of = []
        others = []
        for row, text in enumerate(texts):
            words = text.split(" ")
            # A single space between two words is part of the second word. The tokenizer encodes texts with
            # other spaces as a whole.
            if not (self._encodes_words_alone and words == text.split()):
                words = []
                others.append(row)
            words_of.append(words)
        ids_of = self._remember(set(chain.from_iterable(words_of)))
        encoded = [b"".join([self._begin, *map(ids_of.__getitem__, words), self._end]) for words in words_of]
        whole_texts = self._encode([texts[row] for row in others], special=True)
        for row, ids in zip(others, whole_texts, strict=True):
            encoded[row] = ids
        offsets = np.cumsum([0, *map(len, encoded)]) // np.dtype(np.int32).itemsize
        return pyarrow.ListArray.from_arrays(
            offsets.astype(np.int32), np.frombuffer(b"".join(encoded), np.int32)
        )

    def _remember(self, words: set[str]) -> dict[str, bytes]:
        # Threads that stream share the encoder: a thread replaces a full dictionary, and never takes a word
        # out of one.
        ids_of = self._ids_of if len(self._ids_of) < _REMEMBERED_WORDS else {}
        new = [word for word in words if word not in ids_of]
        ids_of.update(zip(new, self._encode(new, special=False), strict=True))
        self._ids_of = ids_of
        return ids_of

    def _encode(self, texts: list[str], *, special: bool) -> list[bytes]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return [_as_bytes(encoding.ids) for encoding in encodings]


def _as_bytes(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def begins_with_a_space(normalizer: dict[str, Any] | None) -> bool:
    """True if a normalizer (as JSON) puts a space before the text and changes nothing else across spaces."""
    steps = (normalizer or {}).get("normalizers", [])
    return (
        bool(steps)
        and steps[-1] == {"type": "Prepend", "prepend": " "}
        and all(step["type"] in ("NFC", "NFKC", "Lowercase") for step in steps[:-1])
    )


def _separates_words(token: dict[str, Any]) -> bool:
    """True if an added token takes the spaces around it and has none inside.

    The texts before and after such a token are encoded by themselves, a space before each, and words
    likewise.
    """
    takes_spaces = (
        token["lstrip"] and token["rstrip"] and not token["normalized"] and not token["single_word"]
    )
    return takes_spaces and token["content"].split() == [token["content"]]


def _splits_before_spaces(pre_tokenizer: dict[str, Any] | None) -> bool:
    """True if a pre-tokenizer, given as JSON, is that of `train_tokenizer`."""
    parts = pre_tokenizer or {}
    return parts.get("type") == "ByteLevel" and not parts["add_prefix_space"] and parts["use_regex"]
