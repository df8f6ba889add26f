"""`vaswani translate --engine ctranslate2`: the options and the output of `Translator`, searched for by CTranslate2."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ctranslate2 import set_random_seed

from ..model.scoring_vaswani import Hypothesis, Scorer, Translation, scoring_config
from ..translation.translator import Request, Segment, TranslationOptions, Translator
from .ctranslate2_translator import CTranslate2Translator, first_end


@dataclass(frozen=True)
class AttendedHypothesis(Hypothesis):
    """A hypothesis with what its tokens attend to.

    Attributes:
        attention (list, optional): [T][S] floats: the mean over the heads of the decoder's last layer.
    """

    attention: list[list[float]] | None = None


class CTranslate2Engine(Translator):
    """A folder that `vaswani export --format ctranslate2` wrote, as a `Translator`.

    Words are aligned by the last decoder layer, which is what CTranslate2 reports.

    Args:
        folder (str or Path): The folder.
        device (str, optional): Where to run; a GPU where CTranslate2 finds one by default.
    """

    def __init__(self, folder: str | Path, device: str | None = None):
        self.folder, self.device = folder, device
        self.engine = CTranslate2Translator.from_pretrained(folder, device)
        self.source_tokenizer = self.engine.source_tokenizer
        self.target_tokenizer = self.engine.target_tokenizer
        self.max_length = self.engine.max_length
        self.ensemble = []
        self.with_attention = False

    @classmethod
    def from_pretrained(
        cls, name_or_path: str, device: str | None = None, *, ensemble: Any = (), **hub_kwargs: Any
    ) -> "CTranslate2Engine":
        """The engine of a folder.

        Args:
            name_or_path (str): The folder.
            device (str, optional): Where to run; a GPU where CTranslate2 finds one by default.
            ensemble (sequence): Must be empty: CTranslate2 has no ensembles.
            **hub_kwargs: Not needed.

        Returns:
            CTranslate2Engine: Ready to translate.

        Raises:
            ValueError: If an ensemble is asked for.
        """
        if ensemble:
            raise ValueError("`ensemble` must be left out with the engine ctranslate2, which has none.")
        return cls(name_or_path, device)

    def translate_requests(
        self, requests: Iterable[Request], options: TranslationOptions, first_line: int = 1
    ) -> Iterator[Any]:
        """Translations in the order of the requests.

        Args:
            requests (Iterable): Texts with what is asked of their translations.
            options (TranslationOptions): How to translate.
            first_line (int): The number of the first one, for warnings and for the seed.

        Returns:
            Iterator: A str or a `Translation` for each.
        """
        self.with_attention = options.wants_records
        if options.seed is not None:
            # CTranslate2 seeds what is made afterwards.
            set_random_seed(options.seed + first_line)
            self.engine = CTranslate2Translator.from_pretrained(self.folder, self.device)
        return super().translate_requests(requests, options, first_line)

    def generate_batch(self, segments: list[Segment], **generate_kwargs: Any) -> list[list[Hypothesis]]:
        """What CTranslate2 finds for a batch.

        Args:
            segments (list): B of them.
            **generate_kwargs: The settings that CTranslate2 can express.

        Returns:
            list: For each segment `num_return_sequences` hypotheses, best first.

        Raises:
            ValueError: If phrases are asked for.
        """
        if any(segment.phrases for segment in segments):
            raise ValueError(
                "`must_contain` must be left out with the engine ctranslate2, which cannot search for it."
            )
        found = self.engine.generate_batch(
            [segment.token_ids for segment in segments],
            target_prefix=[segment.prefix for segment in segments],
            return_attention=self.with_attention,
            **generate_kwargs,
        )
        end = first_end(self.engine.generation_config.eos_token_id)
        hypotheses: list[list[Hypothesis]] = []
        for segment, of_segment in zip(segments, found, strict=True):
            hypotheses.append([])
            for one in of_segment:
                token_ids = one.token_ids + [end] * one.is_complete
                text = self.target_tokenizer.decode(one.token_ids, skip_special_tokens=True)
                text = " ".join(text.split("\n"))
                hypotheses[-1].append(AttendedHypothesis(token_ids, len(segment.prefix), text, one.attention))
        return hypotheses

    def score_batch(
        self, segments: list[Segment], hypotheses: list[Hypothesis], options: TranslationOptions
    ) -> list[Translation]:
        """The scored translations of a batch.

        Args:
            segments (list): B of them.
            hypotheses (list): One for each.
            options (TranslationOptions): Whether to align words, and the penalties.

        Returns:
            list: B translations.
        """
        config = scoring_config(self.engine.generation_config, **options.generate)
        scorer = Scorer([], self.target_tokenizer, config)
        end = first_end(self.engine.generation_config.eos_token_id)
        # What was cut off has no `</s>`, which CTranslate2 scores all the same.
        targets = [[token for token in hypothesis.token_ids if token != end] for hypothesis in hypotheses]
        scores = self.engine.score_batch([segment.token_ids for segment in segments], targets)
        translations = []
        for segment, hypothesis, log_probs in zip(segments, hypotheses, scores, strict=True):
            own = log_probs[hypothesis.num_forced : len(hypothesis.token_ids)]
            attention = getattr(hypothesis, "attention", None)
            weights = None if attention is None else torch.tensor(attention)[None, : len(hypothesis.token_ids)]
            words = segment.words if options.return_alignments else None
            translations.append(scorer.describe(hypothesis, own, weights, words))
        return translations
