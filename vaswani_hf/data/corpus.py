"""The corpus of a run: text -> sentence pairs -> token ids.

1. loading.py reads files or a dataset of the Hub. The result is a dataset or a stream with the columns
   `source` and `target`. splits.py loads the splits of a run.
2. encoding.py removes sentence pairs that are empty, too long or of very unequal lengths, and encodes the
   other pairs.
3. `Corpus` holds the encoded splits. batching.py cuts the splits into batches.

A task creates its `Corpus` in `make_corpus` (see tasks/translation.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerFast

from .batching import PairCollator
from .columns import pair_corpora, pair_lengths
from .corpus_cache import CorpusDigest, cached_digest, corpus_digest, hash_of_texts
from .encoding import CorpusReport, prepare_pairs
from .splits import explain_split_errors
from .weighted_corpora import WeightedPairs


@dataclass(kw_only=True)
class Corpus:
    """The texts, the tokenizers and the pairs of a run. The constructor cleans and encodes the pairs."""

    # Maps "train", "validation" and "test" to a dataset with the columns `source` and `target`, or to None if
    # the split is missing.
    texts: dict[str, Any]
    source_tokenizer: PreTrainedTokenizerFast
    # The same object as `source_tokenizer` if source and target share a vocabulary.
    target_tokenizer: PreTrainedTokenizerFast
    # The collators pad the sentence pairs of a batch into tensors. `train_collator` also applies BPE-dropout
    # and `data.augment`. The collators of a masked language model also choose the masked tokens.
    train_collator: PairCollator
    validation_collator: PairCollator
    # The largest allowed length of training and validation sentences in tokens.
    max_length: int
    # The number of processes that encode the pairs.
    num_proc: int
    # The seed of `WeightedPairs`, which chooses the pairs of each epoch.
    seed: int
    # The maximum ratio between the lengths (in tokens) of the longer side and the shorter side of a training
    # pair. Training pairs whose length ratio is above `max_length_ratio` are removed.
    max_length_ratio: float | None = None
    # If True, keep the text of the training pairs, because BPE-dropout and augmentation encode the text again
    # in each epoch.
    keep_text: bool = False
    # If True, the training split contains each sentence pair a second time with source and target exchanged.
    both_directions: bool = False
    # The name and the weight of each training corpus. If the corpora have no weights, `corpora` is empty.
    corpora: Sequence[tuple[str, float]] = ()

    # The encoded pairs of the training split and the validation split.
    train: Dataset | IterableDataset = field(init=False)
    validation: Dataset | None = field(init=False, default=None)
    # Maps the name of each split to a report that counts kept and removed sentence pairs. For a stream, the
    # numbers in the report grow while the stream is read.
    reports: dict[str, CorpusReport] = field(init=False, default_factory=dict)
    # Chooses the training pairs of each epoch; None if the training corpora have no weights.
    weighted: WeightedPairs | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.train = self._encode("train", max_length_ratio=self.max_length_ratio, keep_text=self.keep_text)
        if self.texts["validation"] is not None:
            self.validation = self._encode("validation", max_length_ratio=None)
        if self.corpora:
            weights = [weight for _, weight in self.corpora]
            lengths = pair_lengths(self.train)
            self.weighted = WeightedPairs(*lengths, pair_corpora(self.train), weights, self.seed)

    def _encode(self, split: str, **options: Any) -> Any:
        with explain_split_errors(split):
            encoded, self.reports[split] = prepare_pairs(
                self.texts[split],
                *self.encoding_tokenizers,
                max_length=self.max_length,
                num_proc=self.num_proc if self.num_proc > 1 else None,
                **options,
            )
        return encoded

    @property
    def encoding_tokenizers(self) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast | None]:
        """The source and the target tokenizer. For a language model, the target tokenizer is None, because
        the source text is also the target text.
        """
        return self.source_tokenizer, self.target_tokenizer

    def count_train_tokens(self) -> int:
        """Return the number of tokens in the training split, which must not be a stream."""
        source_lengths, target_lengths = pair_lengths(self.train)
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
        # Hash the texts of a stream, not the token ids. To hash the token ids, the first pairs of the
        # stream would be encoded twice, and `reports` would count the first pairs twice.
        return corpus_digest(self.texts["train"])
