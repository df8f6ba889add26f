"""Encodes sentence pairs to token ids, and removes pairs that are empty, too long or of very unequal lengths.

The library `datasets` stores the token ids in its cache. text_encoder.py encodes the texts.

In array shapes, N is the number of sentence pairs that are encoded at once.
"""

import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pyarrow.compute
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerFast

from ..model.errors_vaswani import InvalidValueError
from ..version import __version__
from .columns import CORPUS_COLUMN
from .corpus_cache import cache_folder, explain_cache_errors
from .loading import TEXT_FEATURES
from .memory import mapped_files
from .pair_files import SIDES
from .text_encoder import SerializedTokenizer, serialize_tokenizer, text_encoder

ID_FEATURES = {
    "input_ids": List(Value("int32")),
    "labels": List(Value("int32")),
    "source_length": Value("int32"),
    "target_length": Value("int32"),
}

# A source or target can have at most `CHARACTERS_PER_TOKEN * max_length` characters. Natural language has 1
# to 8 characters per token. For example, the character limit removes a line that repeats one character
# 100,000 times. A tokenizer would learn very long tokens from a line that repeats one character. With very
# long tokens, a line of 100,000 equal characters could have fewer than `max_length` tokens and stay in the
# corpus.
CHARACTERS_PER_TOKEN = 16

# The encoder encodes `_ENCODED_AT_ONCE` pairs in one batch, and looks up each distinct word of the batch only
# once. With larger batches, the encoder looks up words less often, but needs more memory.
_ENCODED_AT_ONCE = 10_000


def character_limit(max_length: int) -> int:
    """Return the maximum number of characters in the source and in the target of a sentence pair. A pair
    whose source or target exceeds the limit trains neither the tokenizer nor the model.
    """
    return CHARACTERS_PER_TOKEN * max_length


def has_too_many_characters(source: str, target: str, max_length: int) -> bool:
    """Return True if the source or the target of a pair has more characters than `character_limit` allows."""
    return max(len(source), len(target)) > character_limit(max_length)


@dataclass
class CorpusReport:
    """Counts the sentence pairs that were kept, and the removed pairs for each reason."""

    # The noun for one training example in messages: "pair" or "text".
    example: ClassVar[str] = "pair"

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    too_many_characters: int = 0

    @property
    def read(self) -> int:
        """The number of sentence pairs that were read: the sum of kept and removed pairs."""
        return self.kept + self.empty + self.too_long + self.ratio + self.too_many_characters

    def add(self, outcomes: np.ndarray) -> None:
        """Count N pairs. `outcomes` [N] contains a number for each pair: the index of the `CorpusReport`
        field that counts the pair, such as 0 for `kept`.
        """
        counts = np.bincount(outcomes, minlength=len(fields(self)))
        for counter, count in zip(fields(self), counts.tolist(), strict=True):
            setattr(self, counter.name, getattr(self, counter.name) + count)

    def __str__(self) -> str:
        counts = f"{self.read:,} {self.example}s read, {self.kept:,} kept; dropped: {self._reasons()}"
        if self.too_many_characters:
            limit = f"{CHARACTERS_PER_TOKEN} characters per token of `data.max_length`"
            counts += f", {self.too_many_characters:,} with more than {limit}"
        return counts

    def _reasons(self) -> str:
        return (
            f"{self.empty:,} with an empty side, {self.too_long:,} too long, "
            f"{self.ratio:,} of too unequal lengths"
        )


class TextReport(CorpusReport):
    """Counts texts instead of sentence pairs, for a corpus whose source and target are the same text."""

    example = "text"

    def _reasons(self) -> str:
        return f"{self.empty:,} empty, {self.too_long:,} too long"


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
    """Encode the usable sentence pairs. Return the encoded pairs, and a report of kept and removed pairs.

    If `target_tokenizer` is None, source and target of each pair are the same text, and each text is encoded
    once. A stream is encoded while the training reads the stream. The report of a stream contains only the
    pairs that the training has read so far.
    """
    if target_tokenizer is None:
        target = None
        report: CorpusReport = TextReport()
    else:
        target = serialize_tokenizer(target_tokenizer)
        report = CorpusReport()
    encoder = PairEncoder(
        source_tokenizer=serialize_tokenizer(source_tokenizer),
        target_tokenizer=target,
        max_characters=character_limit(max_length),
        max_length=max_length,
        max_length_ratio=max_length_ratio,
        keep_text=keep_text,
    )
    if isinstance(pairs, IterableDataset):
        return encoder.encode_stream(pairs, report), report
    corpus_column = {name: pairs.features[name] for name in pairs.column_names if name == CORPUS_COLUMN}
    # The error message about a full disk names the folder into which `datasets` writes the encoded pairs.
    folder = cache_folder(pairs) or Path(tempfile.gettempdir())
    with explain_cache_errors(folder):
        marked = pairs.with_format("arrow").map(
            encoder,
            batched=True,
            batch_size=_ENCODED_AT_ONCE,
            with_indices=True,
            remove_columns=list(SIDES),
            features=Features({**corpus_column, **encoder.features, "outcome": Value("int8")}),
            num_proc=num_proc,
            desc=f"Encoding {report.example}s",
        )
    outcomes = marked.data.column("outcome").to_numpy()
    report.add(outcomes)
    if report.kept == 0:
        raise InvalidValueError(
            f"`{report.example}s` must contain a {report.example} that the cleaning keeps, but has none: {report}."
        )
    prepared = marked.with_format(None).remove_columns("outcome")
    if report.kept < report.read:
        # Call `select` only if the cleaning has removed a pair, because `select` is slow for many rows.
        prepared = prepared.select(np.flatnonzero(outcomes == 0))
    return prepared, report


@dataclass(frozen=True)
class PairEncoder:
    """Encodes batches of sentence pairs, and decides which pairs to keep.

    The library `datasets` finds encoded pairs in its cache by a hash of the fields of `PairEncoder`.
    Therefore every value that changes the token ids must be a field of `PairEncoder`.
    """

    source_tokenizer: SerializedTokenizer
    target_tokenizer: SerializedTokenizer | None
    max_characters: int
    max_length: int
    max_length_ratio: float | None
    keep_text: bool
    version: str = __version__

    @property
    def features(self) -> dict[str, Any]:
        return {**ID_FEATURES, **TEXT_FEATURES, "index": Value("int64")} if self.keep_text else ID_FEATURES

    def __call__(self, batch: pyarrow.Table, indices: list[int]) -> pyarrow.Table:
        mapped_files.release()
        given = [batch[side].combine_chunks() for side in SIDES]
        too_many_characters = np.maximum(*map(_num_characters, given)) > self.max_characters
        texts = [pyarrow.compute.utf8_trim_whitespace(side) for side in given]
        empty = np.minimum(*map(_num_characters, texts)) == 0
        # Replace pairs with too many characters by empty texts: the encoding of the long texts would take
        # long, and the pairs are removed afterwards.
        sources, targets = (pyarrow.compute.if_else(too_many_characters, "", side) for side in texts)
        source_ids = text_encoder(self.source_tokenizer)(sources)
        target_ids = text_encoder(self.target_tokenizer)(targets) if self.target_tokenizer else source_ids
        source_lengths = source_ids.value_lengths().to_numpy()  # [N]
        target_lengths = target_ids.value_lengths().to_numpy()  # [N]
        longer = np.maximum(source_lengths, target_lengths)
        unequal = longer > (self.max_length_ratio or np.inf) * np.minimum(source_lengths, target_lengths)
        # The outcome of a sentence pair is the index of the `CorpusReport` field that counts the pair. If
        # there are several reasons to remove a pair, only the first reason is counted.
        position = {field.name: number for number, field in enumerate(fields(CorpusReport))}
        reasons = {
            "empty": empty,
            "too_many_characters": too_many_characters,
            "too_long": longer > self.max_length,
            "ratio": unequal,
        }
        outcome = np.select(list(reasons.values()), [position[name] for name in reasons], position["kept"])
        columns: dict[str, Any] = {
            "input_ids": source_ids,
            "labels": target_ids,
            "source_length": source_lengths,
            "target_length": target_lengths,
            "outcome": outcome.astype(np.int8),
        }
        if CORPUS_COLUMN in batch.column_names:
            columns[CORPUS_COLUMN] = batch[CORPUS_COLUMN]
        if self.keep_text:
            columns |= {"source": sources, "target": targets, "index": indices}
        return pyarrow.table(columns)

    def encode_stream(self, pairs: IterableDataset, report: CorpusReport) -> IterableDataset:
        """Return a stream of the encoded pairs, without the pairs that the cleaning drops. `report` counts
        the pairs while the stream is read.
        """

        def kept(batch: dict[str, list], indices: list[int]) -> dict[str, Any]:
            columns = self(pyarrow.table(batch), indices)
            outcomes = columns["outcome"].to_numpy()
            report.add(outcomes)
            return columns.drop_columns("outcome").filter(pyarrow.array(outcomes == 0)).to_pydict()

        return pairs.map(
            kept,
            batched=True,
            with_indices=True,
            remove_columns=list(SIDES),
            features=Features(self.features),
        )


def _num_characters(texts: pyarrow.StringArray) -> np.ndarray:
    """Return the number of characters of each text, [N]."""
    return np.asarray(pyarrow.compute.utf8_length(texts))
