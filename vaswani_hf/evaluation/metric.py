"""Defines a metric of the library `evaluate`. No other file of the package imports this file, because the
import of `evaluate` is slow.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from ..model.errors_vaswani import InvalidValueError
from .bleu import as_reference_lists, check_tokenizer, score_translations


class TranslationMetric(evaluate.Metric):
    """Makes `score_translations` available as a metric of the library `evaluate`. Call the constructor
    instead of `evaluate.load`, because the metric is not on the Hub.

    Values of `tokenize` and `lowercase` in a call of `compute` override the values of the constructor. The
    metric keeps all sentences in memory. In a distributed run, gather the sentences of all processes before
    the call of `compute`, as `Seq2SeqTrainer` does, because the metric of a process scores only the sentences
    that the process passes to the metric.
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False):
        check_tokenizer(tokenize)
        self.tokenize = tokenize
        self.lowercase = lowercase
        super().__init__(keep_in_memory=True)

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """Add one translation with one reference or a list of references."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[str], references: Sequence[str | Sequence[str]]) -> None:
        """Add several translations. Each translation has one reference or a list of references."""
        super().add_batch(predictions=predictions, references=as_reference_lists(predictions, references))

    def compute(self, **inputs: Any) -> dict[str, float | str]:
        """Score the given translations and all translations that were added since the last `compute`."""
        if self.writer is None and inputs.get("predictions") is None:
            raise InvalidValueError(
                "`predictions` must be given to `compute`, or added with `add` first, but there are none."
            )
        return super().compute(**inputs)

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="BLEU, chrF and exact match, computed by sacrebleu.",
            citation="Papineni et al. (2002); Popović (2015); Post (2018)",
            inputs_description=(
                "predictions: list of strings. references: a string or a list of strings for each prediction."
            ),
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
            reference_urls=["https://aclanthology.org/P02-1040", "https://aclanthology.org/W18-6319"],
        )

    def _build_data_dir(self) -> str:
        # Create no folder. The base class creates a folder in the cache of `evaluate`, but this metric writes
        # no files, and the cache folder can be read-only.
        return self._data_dir_root

    def _compute(
        self,
        *,
        predictions: list[str],
        references: list[list[str]],
        tokenize: str | None = None,
        lowercase: bool | None = None,
    ) -> dict[str, float | str]:
        return score_translations(
            predictions,
            references,
            tokenize=self.tokenize if tokenize is None else tokenize,
            lowercase=self.lowercase if lowercase is None else lowercase,
        )
