"""Scores of a translation from its log-probabilities: score, confidences, word alignment.

The log-probabilities come from a backend; BLEU and chrF are in `evaluation.metric`. Log-probabilities are in nats. `</s>`
is a token like others; forced tokens (a target prefix) are not the translation's own and do not count.

Letters of shapes: S source length, T target length, N decoder layers.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..model.beam_search_vaswani import coverage_score, length_penalty
from ..model.options_vaswani import SCORE_SETTINGS, validate_search_fields
from ..model.translator_vaswani import Hypothesis, setting_of
from .alignment import align_words, shift_alignment, target_word_indices, to_pharaoh
from .sentences import join_sentences

# Alignments are those of the mean of the last two decoder layers, at the position that predicts the target token. Garg et
# al. 2019 (arXiv 1909.02074, Section 4.1) find the last but one of six layers the best; on Multi30k (4 layers, against
# intersected word translation models, lower is better) the error rate was 0.22 for the mean of the last two, 0.23 for
# the last, 0.34 for the last but one and 0.24 for the mean of all. At the position that reads the target token (Chen et
# al. 2020, arXiv 2004.14837) no layer was below 0.82, and copying and reversing models of 1 to 3 layers agree.
ALIGNMENT_LAYERS = 2


@dataclass(frozen=True)
class Word:
    """A word of a translation.

    Attributes:
        word (str): The word.
        confidence (float): The probability of its tokens, one after the other, that is their product; 1 where all are
            forced. On Multi30k it told words of the reference from others better (area under the curve 0.787) than the
            geometric mean (0.782) or the least likely token (0.785).
    """

    word: str
    confidence: float


@dataclass(frozen=True)
class Translation:
    """A translation, with scores where they were asked for.

    Attributes:
        text (str): The translation.
        score (float): The score that beam search reports: the summed log-probability over the length penalty, and the coverage;
            of a text that was translated in parts the sum of their scores.
        log_prob (float): The summed log-probability (nats).
        confidence (float): The geometric mean of the probabilities of the tokens.
        tokens (list): The tokens (str) without forced ones, `</s>` included.
        token_log_probs (list): Their log-probabilities (nats).
        words (list): The words that white space separates, each a `Word`.
        alignment (str): For each word the source word that it attends to most, in Pharaoh format: "0-0 1-2", each pair
            source word - target word, counted from 0.
        alternatives (list): The other translations of the same text, each a `Translation`.
        token_ids (list): The tokens as ids, forced ones and `</s>` included.
        error (str): What is wrong with a text that was skipped, whose translation is empty.
        unmet_phrases (list): The phrases (str) of `must_contain` that the translation lacks, because none with all of them
            was found under the other settings; None if it has all.
    """

    text: str
    score: float | None = None
    log_prob: float | None = None
    confidence: float | None = None
    tokens: list[str] | None = None
    token_log_probs: list[float] | None = None
    words: list[Word] | None = None
    alignment: str | None = None
    alternatives: list["Translation"] | None = None
    token_ids: list[int] | None = None
    error: str | None = None
    unmet_phrases: list[str] | None = None

    def record(self, with_scores: bool, with_alignment: bool) -> dict[str, Any]:
        """What the pipeline gives beside the text.

        Args:
            with_scores (bool): `score`, `confidence` and `words`, each a dict.
            with_alignment (bool): `alignment`.
        """
        words = [asdict(word) for word in self.words or ()]
        scores = {"score": self.score, "confidence": self.confidence, "words": words}
        return (scores if with_scores else {}) | ({"alignment": self.alignment} if with_alignment else {})


def scoring_config(generation_config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """The checkpoint's config with the settings of a call that a score depends on.

    Args:
        generation_config (GenerationConfig): Of the checkpoint.
        settings (Mapping): Arguments of `generate`, a `generation_config` perhaps among them, which come first.

    Returns:
        GenerationConfig: A copy.

    Raises:
        ValueError: If one is impossible.
    """
    config = copy.copy(generation_config)
    for name in SCORE_SETTINGS:
        setattr(config, name, setting_of(name, settings, generation_config))
    if config.length_penalty is None:
        config.length_penalty = 1.0
    if not isinstance(config.length_penalty, (int, float)):
        raise ValueError(f"`length_penalty` must be a number, but is {config.length_penalty!r}.")
    validate_search_fields(config)
    return config


def num_layers_for(config: GenerationConfig, with_alignment: bool) -> int:
    """The number of last decoder layers whose attention is needed.

    Args:
        config (GenerationConfig): From `scoring_config`.
        with_alignment (bool): True if words are aligned.
    """
    return ALIGNMENT_LAYERS if with_alignment else int(bool(config.coverage_penalty))


def scored_translation(
    hypothesis: Hypothesis,
    log_probs: list[float],
    attention: torch.Tensor | None,
    source_words: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase,
    config: GenerationConfig,
) -> Translation:
    """The translation that a hypothesis is, with scores.

    Args:
        hypothesis (Hypothesis): The hypothesis.
        log_probs (list): Of its tokens that were not forced, in nats.
        attention (torch.Tensor, optional): [N, T, S] float, what its tokens attend to; for alignments and the coverage.
        source_words (sequence, optional): For an alignment, [S] the word of each source token, -1 for none.
        tokenizer (PreTrainedTokenizerBase): Of the target language.
        config (GenerationConfig): From `scoring_config`.
    """
    # What the search was forced to is certain, but where it is no target prefix it is a part of the length.
    num_counted, num_ending = (getattr(hypothesis, name, 0) for name in ("num_counted", "num_ending"))
    own_ids = hypothesis.token_ids[hypothesis.num_forced : len(hypothesis.token_ids) - num_ending]
    score = sum(log_probs) / length_penalty(max(1, len(log_probs) + num_counted + num_ending), config)
    if config.coverage_penalty and attention is not None:
        score += config.coverage_penalty * coverage_score(attention[-1].sum(dim=0), None).item()
    words, word_of_token = target_word_indices(hypothesis.token_ids, tokenizer)
    word_log_probs = [0.0] * len(words)
    for word, log_prob in zip(word_of_token[hypothesis.num_forced :], log_probs, strict=not num_ending):
        if word >= 0:
            word_log_probs[word] += log_prob
    alignment = None
    if source_words is not None and attention is not None:
        alignment = to_pharaoh(align_words(attention.mean(dim=0), source_words, word_of_token))
    return Translation(
        hypothesis.text,
        score=score,
        log_prob=sum(log_probs),
        confidence=math.exp(sum(log_probs) / max(1, len(log_probs))),
        tokens=tokenizer.convert_ids_to_tokens(own_ids),
        token_log_probs=log_probs,
        words=[Word(word, math.exp(value)) for word, value in zip(words, word_log_probs, strict=True)],
        alignment=alignment,
        token_ids=hypothesis.token_ids,
    )


def join_translations(parts: Sequence[Translation], separators: list[str]) -> Translation:
    """The translation of a text from those of its parts.

    Args:
        parts: N translations, all of them scored or none; their alignments count source words from the beginning of
            the text.
        separators: N + 1 strings that stand between them.

    Returns:
        One translation; its score is the sum of theirs.
    """
    text = join_sentences([part.text for part in parts], separators)
    ids = [part.token_ids for part in parts]
    token_ids = None if None in ids else [token_id for of_part in ids for token_id in of_part or []]
    unmet = [phrase for part in parts for phrase in part.unmet_phrases or []] or None
    if any(part.score is None for part in parts):
        return Translation(text, token_ids=token_ids, unmet_phrases=unmet)
    log_probs = [log_prob for part in parts for log_prob in part.token_log_probs or []]
    words: list[Word] = []
    alignments = []
    for part in parts:
        alignments.append(None if part.alignment is None else shift_alignment(part.alignment, len(words)))
        words += part.words or []
    return Translation(
        text,
        score=math.fsum(part.score or 0.0 for part in parts),
        log_prob=math.fsum(log_probs),
        confidence=math.exp(math.fsum(log_probs) / max(1, len(log_probs))),
        tokens=[token for part in parts for token in part.tokens or []],
        token_log_probs=log_probs,
        words=words,
        alignment=None if None in alignments else " ".join(filter(None, alignments)),
        token_ids=token_ids,
        unmet_phrases=unmet,
    )


def with_alternatives(translations: Sequence[Translation]) -> Translation:
    """The first of several translations of a text, the others as its alternatives.

    Args:
        translations: At least one.
    """
    first, *others = translations
    return replace(first, alternatives=others) if others else first
