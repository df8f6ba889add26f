"""Defines `TranslatorEngine`, the base class of the engines that run an exported model in the translator of
this package.

A class derived from `TranslatorEngine` must only define the method `load`. The method returns a translator
for the exported model. The translator splits and tokenizes the texts, and decodes the translations.
"""

from abc import abstractmethod
from pathlib import Path

from ..model.backend_vaswani import Hypothesis, Segment
from ..model.translator_vaswani import BaseTranslator, batches_by_length
from .formats import Engine

# The maximum number of source and target tokens in a batch.
_TOKENS_PER_BATCH = 4096


class TranslatorEngine(Engine):
    """An `Engine` that runs a translator. A derived class defines `load`."""

    def __init__(self, folder: Path):
        self.translator = self.load(folder)

    @abstractmethod
    def load(self, folder: Path) -> BaseTranslator:
        """Return a translator for the exported model in `folder`."""

    def log_probs(self, source_ids: list[list[int]], target_ids: list[list[int]]) -> list[list[float]]:
        """See `Engine.log_probs`."""
        lengths = [[*source, *target] for source, target in zip(source_ids, target_ids, strict=True)]
        rows: list[list[float]] = [[] for _ in lengths]
        for batch in batches_by_length(lengths, _TOKENS_PER_BATCH):
            segments = [Segment("", source_ids[i]) for i in batch]
            hypotheses = [Hypothesis(target_ids[i]) for i in batch]
            scored = self.translator.backend.score(segments, hypotheses, 0)
            for i, (log_probs, _) in zip(batch, scored, strict=True):
                rows[i] = log_probs
        return rows

    def translate(self, texts: list[str], num_beams: int) -> list[str]:
        """See `Engine.translate`."""
        return list(self.translator.translate(texts, num_beams=num_beams, **self.search))
