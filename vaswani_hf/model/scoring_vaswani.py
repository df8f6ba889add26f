"""The scores of a translation from the log-probabilities of its tokens: score, confidences, word alignment.

The log-probabilities (nats) come from a backend. `</s>` is a token like others. Forced tokens, such as those
of a target prefix, have no probability of their own and do not count.

This file travels with every checkpoint because the pipeline gives scores and alignments.

Letters of shapes: S source length, T target length, both in tokens; N decoder layers.
"""

import copy
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from .backend_vaswani import Hypothesis
from .beam_search_vaswani import coverage_score, length_penalty
from .options_vaswani import SCORE_SETTINGS, setting_of, validate_search_fields
from .text_rules_vaswani import join_sentences

# Alignments come from the mean of the last two decoder layers, at the position that predicts the target
# token. Garg et al. 2019 (arXiv 1909.02074, Section 4.1) find the last but one of six layers the best. On
# Multi30k (4 layers, compared with intersected word translation models) the alignment error rate was 0.22 for
# the mean of the last two layers, 0.23 for the last, 0.34 for the last but one and 0.24 for the mean of all.
# At the position that reads the target token (Chen et al. 2020, arXiv 2004.14837) the error rate of every
# layer was at least 0.82. Copying and reversing models of 1 to 3 layers agree.
ALIGNMENT_LAYERS = 2


@dataclass(frozen=True)
class Word:
    """A word of a translation.

    Attributes:
        word (str): The word.
        confidence (float): The product of the probabilities of its tokens; 1 if all are forced. On Multi30k
            the product separates words of the reference from others better (area under the curve 0.787) than
            the geometric mean (0.782) or the least likely token (0.785).
    """

    word: str
    confidence: float


@dataclass(frozen=True)
class Translation:
    """A translation, with scores if they were asked for.

    Attributes:
        text (str): The translation.
        score (float): The score that beam search reports: the summed log-probability over the length penalty,
            and the coverage; of a text that was translated in parts the sum of their scores.
        log_prob (float): The summed log-probability (nats).
        confidence (float): The geometric mean of the probabilities of the tokens.
        tokens (list): The tokens (str) without forced ones, `</s>` included.
        token_log_probs (list): Their log-probabilities (nats).
        words (list): The words that white space separates, each a `Word`.
        alignment (str): For each word the source word that it attends to most, in Pharaoh format: "0-0 1-2",
            each pair source word - target word, counted from 0.
        alternatives (list): The other translations of the same text, each a `Translation`.
        token_ids (list): The tokens as ids, forced ones and `</s>` included.
        error (str): What is wrong with a text that was skipped, whose translation is empty.
        unmet_phrases (list): The phrases (str) of `must_contain` that the translation lacks, because no
            translation with all of them was found under the other settings; None if it has all.
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
        """What a record of the pipeline has in addition to the text."""
        record: dict[str, Any] = {}
        if with_scores:
            record["score"] = self.score
            record["confidence"] = self.confidence
            record["words"] = [asdict(word) for word in self.words or ()]
        if with_alignment:
            record["alignment"] = self.alignment
        return record


def scoring_config(generation_config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """A copy of the checkpoint's config with the settings of a call that a score depends on."""
    config = copy.copy(generation_config)
    for name in SCORE_SETTINGS:
        setattr(config, name, setting_of(name, settings, generation_config))
    if config.length_penalty is None:
        config.length_penalty = 1.0
    validate_search_fields(config)
    return config


def num_layers_for(config: GenerationConfig, with_alignment: bool) -> int:
    """The number of last decoder layers whose attention is needed."""
    return ALIGNMENT_LAYERS if with_alignment else int(bool(config.coverage_penalty))


def scored_translation(
    hypothesis: Hypothesis,
    log_probs: list[float],
    attention: torch.Tensor | None,
    source_words: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase,
    config: GenerationConfig,
) -> Translation:
    """The translation of a hypothesis, from the log-probabilities (nats) of its tokens that were not forced.

    The attention [N, T, S] is for alignments and the coverage. `source_words` [S], for an alignment, has the
    word of each source token, -1 for none. The config is that of `scoring_config`.
    """
    own_ids = hypothesis.token_ids[hypothesis.num_forced : len(hypothesis.token_ids) - hypothesis.num_ending]
    # To the search a forced language or `</s>` has probability 1, but it is a part of the length.
    length = len(log_probs) + hypothesis.num_counted + hypothesis.num_ending
    score = sum(log_probs) / length_penalty(max(1, length), config)
    if config.coverage_penalty and attention is not None:
        score += config.coverage_penalty * coverage_score(attention[-1].sum(dim=0), None).item()
    words, word_of_token = target_word_indices(hypothesis.token_ids, tokenizer)
    word_log_probs = [0.0] * len(words)
    for word, log_prob in zip(word_of_token[hypothesis.num_forced :], log_probs, strict=False):
        if word >= 0:
            word_log_probs[word] += log_prob
    alignment = None
    if source_words is not None and attention is not None:
        alignment = to_pharaoh(align_words(attention.mean(dim=0), source_words, word_of_token))
    log_prob_sum = math.fsum(log_probs)
    return Translation(
        hypothesis.text,
        score=score,
        log_prob=log_prob_sum,
        confidence=math.exp(log_prob_sum / max(1, len(log_probs))),
        tokens=tokenizer.convert_ids_to_tokens(own_ids),
        token_log_probs=log_probs,
        words=[Word(word, math.exp(value)) for word, value in zip(words, word_log_probs, strict=True)],
        alignment=alignment,
        token_ids=hypothesis.token_ids,
    )


def join_translations(parts: Sequence[Translation], separators: list[str]) -> Translation:
    """The translation of a text from N translations of its parts, all scored or none, and N + 1 separators.

    The alignments of the parts count source words from the beginning of the text. The score is the sum of
    their scores.
    """
    if len(parts) == 1 and not any(separators):
        return parts[0]
    text = join_sentences([part.text for part in parts], separators)
    token_ids: list[int] = []
    unmet: list[str] = []
    for part in parts:
        token_ids += part.token_ids or []
        unmet += part.unmet_phrases or []
    if any(part.score is None for part in parts):
        return Translation(text, token_ids=token_ids, unmet_phrases=unmet or None)
    log_probs: list[float] = []
    tokens: list[str] = []
    words: list[Word] = []
    alignments: list[str] = []
    for part in parts:
        log_probs += part.token_log_probs or []
        tokens += part.tokens or []
        alignments.append(shift_alignment(part.alignment or "", len(words)))
        words += part.words or []
    is_aligned = all(part.alignment is not None for part in parts)
    return Translation(
        text,
        score=math.fsum(part.score or 0.0 for part in parts),
        log_prob=math.fsum(log_probs),
        confidence=math.exp(math.fsum(log_probs) / max(1, len(log_probs))),
        tokens=tokens,
        token_log_probs=log_probs,
        words=words,
        alignment=" ".join(filter(None, alignments)) if is_aligned else None,
        token_ids=token_ids,
        unmet_phrases=unmet or None,
    )


def with_alternatives(translations: Sequence[Translation]) -> Translation:
    """The first of several translations of a text, with the others as its alternatives."""
    first, *others = translations
    return replace(first, alternatives=others) if others else first


def words_at(text: str, starts: Sequence[int]) -> list[int]:
    """The index of the word at or after each position in a text; -1 if there is none, or for position -1."""
    # For each character, and for the end, the number of words that end before it.
    ended = [0]
    for character, following in zip(text, (text + " ")[1:], strict=True):
        ended.append(ended[-1] + (not character.isspace() and following.isspace()))
    return [ended[start] if start >= 0 and ended[start] < ended[-1] else -1 for start in starts]


def target_word_indices(
    token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[str], list[int]]:
    """The words of a translation, which white space separates, and [T] for each token the index of its word.

    The index of a special token is -1. A token may be a part of a character only.
    """
    special = set(tokenizer.all_special_ids)
    text = _decode(token_ids, tokenizer)
    starts: list[int] = []
    # Each step decodes only the tokens of the last step and those after it, so that the work grows linearly
    # with the length. `known` characters of the text come from the tokens before `read`; `before` is the text
    # of the tokens from `window` to `read`.
    window, read, known, before = 0, 0, 0, ""
    for i, token_id in enumerate(token_ids):
        begun = _decode(token_ids[window:i], tokenizer)[len(before) :]
        # The decoded text ends in a replacement character if the last token is the first part of a character.
        common = os.path.commonprefix([begun, text[known : known + len(begun)]])
        starts.append(-1 if token_id in special else known + len(common))
        if begun and begun == common:
            window, read, known = read, i, known + len(begun)
            before = _decode(token_ids[window:read], tokenizer)
    return text.split(), words_at(text, starts)


def _decode(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def align_words(
    attention: torch.Tensor, source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """For each target word the source word that it attends to most, as pairs (source word, target word).

    The attention [T, S] has in row t that of the position that predicts target token t. The words [S] and [T]
    of tokens are -1 for none. A source word counts with its most attended token, a target word with the sum
    over its tokens. There are no pairs if the source has no words.
    """
    num_source = max(source_words, default=-1) + 1
    num_target = max(target_words, default=-1) + 1
    if not num_source:
        return []
    columns, words = _tokens_with_words(source_words, attention.device)
    by_source_word = attention.new_zeros(len(attention), num_source)  # [T, source words]
    by_source_word.scatter_reduce_(1, words.expand(len(attention), -1), attention[:, columns], "amax")
    rows, words = _tokens_with_words(target_words, attention.device)
    by_word = attention.new_zeros(num_target, num_source).index_add_(0, words, by_source_word[rows])
    return [(source, target) for target, source in enumerate(by_word.argmax(dim=1).tolist())]


def _tokens_with_words(words: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that belong to a word, and the words that they belong to, both int64."""
    tokens = [token for token, word in enumerate(words) if word >= 0]
    indices = [words[token] for token in tokens]
    return (
        torch.tensor(tokens, device=device, dtype=torch.int64),
        torch.tensor(indices, device=device, dtype=torch.int64),
    )


def to_pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """The Pharaoh format of an alignment, "0-0 1-2 2-1": pairs source word - target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


def shift_alignment(alignment: str, num_target: int) -> str:
    """The alignment, in Pharaoh format, of a translation after `num_target` other words."""
    pairs = [pair.split("-") for pair in alignment.split()]
    return to_pharaoh([(int(source), int(target) + num_target) for source, target in pairs])
