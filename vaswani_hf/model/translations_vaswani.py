"""The translation of a text: the record `Translation`, its scores, and the joining of the translations of
several parts of a text.

This file is saved with every checkpoint because the translator returns `Translation` objects.

In tensor shapes, S is the source length and T the target length (both in tokens). N is the number of decoder
layers that return attention weights.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from .backend_vaswani import Hypothesis
from .search_strategies_vaswani import coverage_score, penalized_score
from .text_rules_vaswani import (
    align_words,
    join_sentences,
    separator_after,
    shift_alignment,
    target_word_indices,
    to_pharaoh,
    token_texts,
    words_at,
)

T = TypeVar("T")

# Word alignments use the mean attention of the last two decoder layers, at the position that predicts the
# target token. Garg et al. 2019 (arXiv 1909.02074, Section 4.1) recommend the attention of the fifth of six
# decoder layers for word alignments. Measured on Multi30k with a model of 4 layers, the alignment error rate
# is 0.22 for the mean of the last two layers, 0.23 for the last layer, 0.34 for the third layer and 0.24 for
# the mean of all layers. The gold alignment for Multi30k contains the word pairs that several statistical
# word alignment models agree on. Chen et al. 2020 (arXiv 2004.14837) use the attention at the next position,
# where the target token is the input of the decoder. At the position whose input is the target token, the
# attention of every layer has an alignment error rate of at least 0.82.
ALIGNMENT_LAYERS = 2


@dataclass(frozen=True)
class Word:
    """A word of a translation, with its confidence: the product of the probabilities of the word's tokens. In
    the product of the probabilities, a token that the search did not choose (a forced token) has the
    probability 1.

    On Multi30k, three functions of the token probabilities were tested as predictors of whether the reference
    contains the word. The AUC is 0.787 for the product, 0.785 for the minimum, and 0.782 for the geometric
    mean.
    """

    word: str
    confidence: float


@dataclass(frozen=True)
class Translation:
    """The translation of a text. Fields with scores are None if no option asks for scores. `alignment` is
    None without `return_alignments`.

    Attributes:
        text (str): The translation.
        score (float): The score of beam search: the summed log-probability divided by the length penalty,
            plus the coverage term times `coverage_penalty`. If a text is translated in parts, the score is
            the sum of the scores of the parts.
        log_prob (float): The sum of `token_log_probs` (nats).
        confidence (float): The geometric mean of the token probabilities.
        tokens (list): The texts (str) of the tokens that the search chose, including `</s>`, but without
            forced tokens. For a byte-level tokenizer, the text of a token differs from its vocabulary entry:
            the text of the entry "ĠlÃ¤uft" is " läuft". If a token contains only some bytes of a character,
            its text has an escape such as "\\xc3" for each byte. For the vocabulary entries, call
            `tokenizer.convert_ids_to_tokens(translation.token_ids)`.
        token_log_probs (list): The log-probabilities of `tokens` (nats).
        words (list): The words of the translation, each a `Word`. White space separates words.
        alignment (str): The word alignment in Pharaoh format, such as "0-0 1-2". A pair "i-j" aligns source
            word i with target word j, counted from 0. Each target word is aligned with the source word that
            receives the most attention from the target word. If no white space separates two translated
            sentences, a target word can belong to both sentences. A target word that belongs to two sentences
            can have two pairs in the alignment, one pair for each sentence.
        alternatives (list): The other translations of the same text, each a `Translation`.
        token_ids (list): The ids of all tokens, including forced tokens and `</s>`.
        error (str): The reason why there is no translation: the text is invalid, or the confidence is below
            `min_confidence`. If `error` is set, `text` is empty.
        unmet_phrases (list): The phrases (str) of `must_contain` and of the glossary that the translation
            lacks, or None if the translation contains all phrases.
        calibrated_confidence (float): The probability that the translation is good (chrF of at least 60),
            estimated with calibration.json of the checkpoint. None if the checkpoint has no calibration.json.
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
    calibrated_confidence: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON, without `token_ids` and fields that are None. Floats are
        rounded to six decimals, because float32 is not more precise.
        """
        return _rounded(asdict(self))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        fields = {name: entry for name, entry in value.items() if entry is not None and name != "token_ids"}
        return {name: _rounded(entry) for name, entry in fields.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def scored_translation(
    hypothesis: Hypothesis,
    log_probs: list[float],
    attention: torch.Tensor | None,
    source_words: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase,
    config: GenerationConfig,
) -> Translation:
    """Compute the scores of a hypothesis from the log-probabilities (nats) of the tokens that the search
    chose.

    `attention` [N, T, S] is needed for the word alignment and the coverage penalty. `source_words` [S], the
    word index of each source token or -1, is needed for the word alignment.
    """
    own_ids = hypothesis.token_ids[hypothesis.num_forced : len(hypothesis.token_ids) - hypothesis.num_ending]
    # Count a forced language token and a forced `</s>` in the length, as the search does. A forced token has
    # log-probability 0 in the search, so a forced token changes the length penalty but not the summed
    # log-probability.
    length = len(log_probs) + hypothesis.num_counted + hypothesis.num_ending
    coverage = None
    if config.coverage_penalty and attention is not None:
        coverage = coverage_score(attention[-1].sum(dim=0), None).item()
    score = penalized_score(sum(log_probs), max(1, length), coverage, config)
    words, word_of_token = target_word_indices(hypothesis.token_ids, tokenizer)
    alignment = None
    if source_words is not None and attention is not None:
        alignment = to_pharaoh(align_words(attention.mean(dim=0), source_words, word_of_token))
    log_prob_sum = math.fsum(log_probs)
    return Translation(
        hypothesis.text,
        score=score,
        log_prob=log_prob_sum,
        confidence=math.exp(log_prob_sum / max(1, len(log_probs))),
        tokens=token_texts(own_ids, tokenizer),
        token_log_probs=log_probs,
        words=_with_confidence(words, word_of_token[hypothesis.num_forced :], log_probs),
        alignment=alignment,
        token_ids=hypothesis.token_ids,
        unmet_phrases=hypothesis.unmet_phrases,
    )


def _with_confidence(
    words: Sequence[str], word_of_token: Sequence[int], log_probs: Sequence[float]
) -> list[Word]:
    """Return the words with their confidence. `word_of_token` contains -1 for tokens without a word."""
    of_words = [0.0] * len(words)
    for word, log_prob in zip(word_of_token, log_probs, strict=False):
        if word >= 0:
            of_words[word] += log_prob
    return [Word(word, math.exp(log_prob)) for word, log_prob in zip(words, of_words, strict=True)]


def join_translations(parts: Sequence[Translation], separators: list[str]) -> Translation:
    """Join the translations of N parts of a text. `separators` contains N + 1 texts: the text before the
    first part, between two parts, and after the last part.

    The result has scores only if each part has scores. In the alignments, the source words must be numbered
    from the beginning of the whole text. The target words must be numbered from the beginning of the
    translation of each part. A word in a separator, such as an emoji, is copied and has the confidence 1.
    """
    if len(parts) == 1 and not any(separators):
        return parts[0]
    joined = Translation(
        join_sentences([part.text for part in parts], separators),
        token_ids=_concatenated(part.token_ids for part in parts),
        unmet_phrases=_concatenated(part.unmet_phrases for part in parts) or None,
    )
    if any(part.score is None for part in parts):
        return joined
    log_probs = _concatenated(part.token_log_probs for part in parts)
    words, first_words = _joined_words(parts, separators)
    return replace(
        joined,
        score=math.fsum(part.score or 0.0 for part in parts),
        log_prob=math.fsum(log_probs),
        confidence=math.exp(math.fsum(log_probs) / max(1, len(log_probs))),
        tokens=_concatenated(part.tokens for part in parts),
        token_log_probs=log_probs,
        words=words,
        alignment=_joined_alignment(parts, first_words),
    )


def _concatenated(lists: Iterable[list[T] | None]) -> list[T]:
    return list(chain.from_iterable(one or [] for one in lists))


def _joined_words(parts: Sequence[Translation], separators: list[str]) -> tuple[list[Word], list[int]]:
    """Return the words of the joined text, and for each part the index of its first word. Without white space
    between two parts, the last word of the first part and the first word of the second part become one word.
    The confidence of the joined word is the product of the confidences of the words that were joined.
    """
    text = separators[0]
    starts = []
    for number, part in enumerate(parts):
        starts.append(len(text))
        of_part = " ".join(word.word for word in part.words or [])
        text += of_part + separator_after(number, of_part, separators)
    first_words = words_at(text, starts)
    words = text.split()
    confidences = [1.0] * len(words)
    for part, first_word in zip(parts, first_words, strict=True):
        for number, word in enumerate(part.words or [], first_word):
            confidences[number] *= word.confidence
    return list(map(Word, words, confidences)), first_words


def _joined_alignment(parts: Sequence[Translation], first_words: Sequence[int]) -> str | None:
    """Return the alignment of a text that was translated in parts, or None if a part has no alignment."""
    pairs: list[str] = []
    for part, first_word in zip(parts, first_words, strict=True):
        if part.alignment is None:
            return None
        pairs += shift_alignment(part.alignment, first_word).split()
    # If no white space separates two sentences, their alignments can contain the same word pair. Remove the
    # duplicates.
    return " ".join(dict.fromkeys(pairs))


def with_alternatives(translations: Sequence[Translation]) -> Translation:
    """Return the first translation of a text, with the other translations in the field `alternatives`."""
    first, *others = translations
    return replace(first, alternatives=others) if others else first
