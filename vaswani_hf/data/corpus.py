"""The corpus of a run: text -> sentence pairs -> token ids.

1. loading.py reads files or a dataset of the Hub. The result is a dataset or a stream with the columns
   `source` and `target`. `Task` in tasks/base.py loads the splits of a run.
2. encoding.py removes sentence pairs that are empty, too long or of very unequal lengths, and encodes the
   other pairs.
3. `encode_corpus` returns a `Corpus`, which holds the encoded splits. batching.py cuts the splits into
   batches.

A task creates its `Corpus` in `make_corpus` (see tasks/translation.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerFast

from ..checkpoint.tokenizers import Tokenizers
from ..settings.data import DataSettings
from .batching import PairCollator
from .columns import pair_corpora, pair_lengths
from .corpus_cache import CorpusDigest, cached_digest, corpus_digest, hash_of_texts
from .encoding import CorpusReport, prepare_pairs
from .splits import explain_split_errors
from .weighted_corpora import WeightedPairs


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The texts, the tokenizers and the encoded pairs of a run."""

    # Maps "train", "validation" and "test" to a dataset with the columns `source` and `target`, or to None if
    # the split is missing.
    texts: dict[str, Any]
    source_tokenizer: PreTrainedTokenizerFast
    # The same object as `source_tokenizer` if source and target share a vocabulary.
    target_tokenizer: PreTrainedTokenizerFast
    # True if source and target of each pair are the same text, as in language modelling.
    has_equal_sides: bool
    # The largest allowed length of training and validation sentences in tokens.
    max_length: int
    # The collators pad the sentence pairs of a batch into tensors. `train_collator` also applies BPE-dropout
    # and `data.augment`. The collators of a masked language model also choose the masked tokens.
    train_collator: PairCollator
    validation_collator: PairCollator
    # The encoded pairs of the training split and the validation split.
    train: Dataset | IterableDataset
    validation: Dataset | None
    # Maps the name of each split to a report that counts kept and removed sentence pairs. For a stream, the
    # numbers in the report grow while the stream is read.
    reports: dict[str, CorpusReport]
    # Chooses the training pairs of each epoch; None if the training corpora have no weights.
    weighted: WeightedPairs | None

    def count_train_tokens(self) -> int:
        """Return the number of tokens in the training split, which must not be a stream."""
        source_lengths, target_lengths = pair_lengths(self.train)
        if self.has_equal_sides:
            return int(target_lengths.sum())
        return int(source_lengths.sum() + target_lengths.sum())

    @property
    def hash_of_test(self) -> str | None:
        """The hash of the texts in the test split, or None if there is no test split."""
        test = self.texts["test"]
        return None if test is None else hash_of_texts(test)

    @cached_property
    def digest(self) -> CorpusDigest:
        """The digest of the training data."""
        if isinstance(self.train, Dataset):
            return cached_digest(self.train)
        # Hash the texts of a stream, not the token ids. To hash the token ids, this method
        # would encode the first pairs of the stream twice, and `reports` would count the first pairs twice.
        return corpus_digest(self.texts["train"])


def encode_corpus(
    texts: dict[str, Any],
    tokenizers: Tokenizers,
    data: DataSettings,
    *,
    train_collator: PairCollator,
    validation_collator: PairCollator,
    text_tokenizer: PreTrainedTokenizerFast | None = None,
    max_length_ratio: float | None = None,
    keep_text: bool = False,
    weights: Sequence[float] = (),
    seed: int = 1,
) -> Corpus:
    """Clean and encode the pairs of the training split and the validation split.

    If source and target of each pair are the same text, `text_tokenizer` encodes each text once. For a causal
    language model, `text_tokenizer` also ends each text with `</s>`, and the two tokenizers in `tokenizers`
    do not. Training pairs whose length ratio (the number of tokens of the longer side divided by the number
    of tokens of the shorter side) is above `max_length_ratio` are removed. `keep_text` keeps the text of the
    training pairs, because BPE-dropout and augmentation encode the text again in each epoch. `weights` has
    one weight for each training corpus, or is empty. `seed` determines the pairs that the weights choose for
    each epoch.
    """
    source_tokenizer, target_tokenizer = tokenizers
    encoding_tokenizers = tokenizers if text_tokenizer is None else (text_tokenizer, None)
    reports: dict[str, CorpusReport] = {}

    def encode(split: str, **options: Any) -> Any:
        with explain_split_errors(split):
            encoded, reports[split] = prepare_pairs(
                texts[split],
                *encoding_tokenizers,
                max_length=data.max_length,
                num_proc=data.num_proc if data.num_proc > 1 else None,
                **options,
            )
        return encoded

    train = encode("train", max_length_ratio=max_length_ratio, keep_text=keep_text)
    validation = None if texts["validation"] is None else encode("validation", max_length_ratio=None)
    weighted = None
    if weights:
        weighted = WeightedPairs(*pair_lengths(train), pair_corpora(train), list(weights), seed)
    return Corpus(
        texts=texts,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        has_equal_sides=text_tokenizer is not None,
        max_length=data.max_length,
        train_collator=train_collator,
        validation_collator=validation_collator,
        train=train,
        validation=validation,
        reports=reports,
        weighted=weighted,
    )
