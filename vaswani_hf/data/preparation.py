"""Preparation of sentence pairs: cleaning, encoding into token ids, and the count of the pairs that were dropped.

Legend of shapes: N pairs of the corpus.
"""

import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerFast

from ..checkpoint.files import naming_the_folder
from ..version import __version__
from .columns import CORPUS_COLUMN
from .memory import mapped_files
from .reading import CACHE_REMEDY, TEXT_FEATURES
from .word_encoding import SerializedTokenizer, serialized, text_encoder

ID_FEATURES = {
    "input_ids": List(Value("int32")),
    "labels": List(Value("int32")),
    "source_length": Value("int32"),
    "target_length": Value("int32"),
}


# The longest text that can pass the limit in tokens, in characters per token. Text of natural languages has 1 to 8
# characters per token. Without this limit byte-level BPE makes few and very long tokens of a line of 100,000 equal
# characters: the line passes the limit in tokens, and takes entries of the vocabulary from words.
CHARACTERS_PER_TOKEN = 16


def has_too_many_characters(source: str, target: str, max_length: int) -> bool:
    """Whether a side of a pair has more than `CHARACTERS_PER_TOKEN * max_length` characters.

    Such a pair is used neither to train the tokenizer nor to train the model.

    Args:
        source: A text, as it was read.
        target: Its other side.
        max_length: The limit for a side in tokens.
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
        """Counts pairs.

        Args:
            outcomes: [N] for each pair the number of its field, 0 for `kept` to 4 for `too_many_characters`.
        """
        counts = np.bincount(outcomes, minlength=len(fields(self)))
        for field, count in zip(fields(self), counts.tolist(), strict=True):
            setattr(self, field.name, getattr(self, field.name) + count)

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, are_texts: bool = False) -> str:
        """The counts as a sentence.

        Args:
            are_texts: Each pair is one text and itself.
        """
        counts = f"{self.read:,} {'texts' if are_texts else 'pairs'} read, {self.kept:,} kept; dropped: "
        if are_texts:
            counts += f"{self.empty:,} empty, {self.too_long:,} too long"
        else:
            counts += (
                f"{self.empty:,} with an empty side, {self.too_long:,} too long, {self.ratio:,} of too unequal lengths"
            )
        if self.too_many_characters:
            counts += (
                f", {self.too_many_characters:,} with more than {CHARACTERS_PER_TOKEN} characters per token of "
                "`data.max_length`"
            )
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

    A dataset is encoded once and found in the cache of `datasets` afterwards. A stream is encoded while it is read, and
    its report fills meanwhile, in the process that reads it.

    Args:
        pairs: The columns `source` and `target`, from `load_pairs`; the column `corpus` of weighted corpora stays as it is.
        source_tokenizer: Encodes the source side.
        target_tokenizer: Encodes the target side, the same object for a joint vocabulary; None where each pair is a text and
            itself, which is encoded once.
        max_length: The length, in tokens with `</s>`, above which a side drops its pair; `CHARACTERS_PER_TOKEN` times as
            many characters drop it before it is encoded.
        max_length_ratio: The ratio of the longer to the shorter side, in tokens with `</s>`, above which a pair is
            dropped; `None` for no limit.
        num_proc: The number of processes that encode a dataset.
        keep_text: Add the columns that BPE-dropout needs: `source` and `target`, stripped, and `index`, the place of
            the pair in `pairs`.

    Returns:
        The columns `input_ids` and `labels`, lists of int32, and `source_length` and `target_length`; and the report.

    Raises:
        OSError: If the disk of the cache is full.
        ValueError: If no pair of a dataset is left.
    """
    source, are_texts = serialized(source_tokenizer), target_tokenizer is None
    target = None if target_tokenizer is None else serialized(target_tokenizer)
    prepare = _Preparation(source, target, max_length, max_length_ratio, keep_text)
    report = CorpusReport()
    if isinstance(pairs, IterableDataset):
        return prepare.stream(pairs, report), report
    corpus = {name: pairs.features[name] for name in pairs.column_names if name == CORPUS_COLUMN}
    # `datasets` keeps what is made of a dataset in its folder.
    folder = Path(pairs.cache_files[0]["filename"]).parent if pairs.cache_files else Path(tempfile.gettempdir())
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


@dataclass(frozen=True)
class _Preparation:
    """Turns batches of text into ids and says which of the pairs to keep.

    `datasets` finds encoded pairs in its cache by a hash of the fields, which therefore decide the result and are the
    same wherever a tokenizer was loaded from and whatever it was used for.
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
        source_lengths, target_lengths = (ids.value_lengths().to_numpy() for ids in (source_ids, target_ids))
        shorter, longer = np.minimum(source_lengths, target_lengths), np.maximum(source_lengths, target_lengths)
        unequal = longer > (self.max_length_ratio or np.inf) * shorter
        columns: dict[str, Any] = {
            "input_ids": source_ids,
            "labels": target_ids,
            "source_length": source_lengths,
            "target_length": target_lengths,
            # Each number stands for a field of CorpusReport.
            "outcome": np.select(
                [empty, too_many_characters, longer > self.max_length, unequal], [1, 4, 2, 3], 0
            ).astype(np.int8),
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
