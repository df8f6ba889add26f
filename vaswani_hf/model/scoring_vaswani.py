"""Scoring translations: the log-probability of each token where the earlier ones are given, and what follows from it.

Log-probabilities are in nats. `</s>` is a token like others; tokens that were forced (a target prefix) are none of the
translation's own and do not count.

Letters of shapes: B batch, S source length, T target length, N decoder layers that are watched.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from .alignment_vaswani import align_words, shift_alignment, target_word_indices, to_pharaoh
from .attention_vaswani import AttentionWatch
from .beam_search_vaswani import coverage_score, length_penalty
from .constraints_vaswani import decoder_start_of
from .generation_vaswani import validate_search_fields
from .sentences_vaswani import join_sentences

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
    """A translation and, where it was asked for, what the model thinks of it.

    Attributes:
        text (str): The translation.
        score (float): What beam search reports: the summed log-probability over the length penalty, and the coverage;
            of a text that was translated in parts the sum of their scores.
        log_prob (float): The summed log-probability (nats).
        confidence (float): The geometric mean of the probabilities of the tokens.
        tokens (list): The tokens (str) without forced ones, `</s>` included.
        token_log_probs (list): Their log-probabilities (nats).
        words (list): The words that white space separates, each a `Word`.
        alignment (str): For each word the source word that it attends to most, in Pharaoh format: "0-0 1-2", each pair
            source word - target word, counted from 0.
        alternatives (list): The other translations of the same text, each a `Translation`.
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


@dataclass(frozen=True)
class Hypothesis:
    """What a search gives back.

    Attributes:
        token_ids (list): Behind the decoder's start token, forced ones first; `</s>` last, unless it was cut off.
        num_forced (int): Tokens of the target prefix.
        text (str): The decoded tokens.
    """

    token_ids: list[int]
    num_forced: int
    text: str


def scoring_config(generation_config: GenerationConfig, **settings: Any) -> GenerationConfig:
    """The settings that a score depends on: `length_penalty`, `length_penalty_type` and `coverage_penalty`.

    Args:
        generation_config (GenerationConfig): Of the model.
        **settings: Arguments of `generate`; those that are not None come before the model's.

    Returns:
        GenerationConfig: A copy.

    Raises:
        ValueError: If one is impossible.
    """
    config = copy.copy(generation_config)
    for name in ("length_penalty", "length_penalty_type", "coverage_penalty"):
        given = settings.get(name)
        setattr(config, name, getattr(config, name, None) if given is None else given)
    if config.length_penalty is None:
        config.length_penalty = 1.0
    if not isinstance(config.length_penalty, (int, float)):
        raise ValueError(f"`length_penalty` must be a number, but is {config.length_penalty!r}.")
    validate_search_fields(config)
    return config


@torch.inference_mode()
def token_log_probs(
    models: Sequence[PreTrainedModel],
    inputs: dict[str, Any],
    decoder_input_ids: torch.Tensor,
    labels: torch.Tensor,
    num_layers: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The log-probabilities of given tokens, each where those before it are given.

    Args:
        models: One model, or several whose probabilities are averaged; in eval mode.
        inputs: `input_ids` [B, S] int64 and `attention_mask` [B, S].
        decoder_input_ids: [B, T] int64, what the decoder reads: its start token, then the labels without the last.
        labels: [B, T] int64.
        num_layers: N, the number of last decoder layers to watch; only for models of this package.

    Returns:
        [B, T] float32 in nats; and the cross-attention [B, N, T, S] float32, the mean over heads and models, for N > 0.

    Raises:
        ValueError: If layers of another kind of model are to be watched.
    """
    for model in models:
        if num_layers and model.config.model_type != "vaswani":
            raise ValueError(
                "Word alignments and coverage must be left out for a model of type "
                f"{model.config.model_type!r}; they are read from the attention of Vaswani models."
            )
    log_probs, attentions = [], []
    for model in models:
        watched: dict[str, Any] = {}
        if num_layers:
            last = len(model.get_decoder().layers)  # type: ignore[operator]
            watched["attention_watch"] = AttentionWatch(range(max(0, last - num_layers), last))
        logits = model(**inputs, decoder_input_ids=decoder_input_ids, use_cache=False, **watched).logits
        chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1).float()
        # Row by row, so that the probabilities of all classes never stand beside the logits.
        log_probs.append(chosen - torch.stack([row.float().logsumexp(-1) for row in logits]))
        if num_layers:
            weights = watched["attention_watch"].weights
            attentions.append(torch.stack([weights[layer] for layer in sorted(weights)], dim=1))
    averaged = torch.stack(log_probs).logsumexp(dim=0) - math.log(len(models))
    return averaged, sum(attentions) / len(models) if attentions else None  # type: ignore[return-value]


class Scorer:
    """Turns what a search has found, or what somebody else has translated, into scored translations.

    Args:
        models (Sequence): One model, or several whose probabilities are averaged.
        tokenizer (PreTrainedTokenizerBase): Of the target language.
        config (GenerationConfig): From `scoring_config`.
    """

    def __init__(
        self, models: Sequence[PreTrainedModel], tokenizer: PreTrainedTokenizerBase, config: GenerationConfig
    ):
        self.models, self.tokenizer, self.config = list(models), tokenizer, config

    def __call__(
        self,
        inputs: dict[str, torch.Tensor],
        hypotheses: Sequence[Hypothesis],
        source_words: Sequence[Sequence[int]] | None = None,
    ) -> list[Translation]:
        """The scored translations of a batch.

        Args:
            inputs: `input_ids` [B, S] int64 and `attention_mask` [B, S].
            hypotheses: B of them.
            source_words: For alignments, B times [S] the word of each source token, -1 for none.

        Returns:
            B translations.
        """
        device = inputs["input_ids"].device
        labels = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(hypothesis.token_ids, device=device) for hypothesis in hypotheses], batch_first=True
        )
        start = labels.new_full((len(labels), 1), decoder_start_of(self.models[0]))
        decoder_input_ids = torch.cat([start, labels[:, :-1]], dim=1)
        num_layers = ALIGNMENT_LAYERS if source_words is not None else int(bool(self.config.coverage_penalty))
        log_probs, attention = token_log_probs(self.models, inputs, decoder_input_ids, labels, num_layers)
        translations = []
        for row, hypothesis in enumerate(hypotheses):
            num_tokens = len(hypothesis.token_ids)
            own = log_probs[row, hypothesis.num_forced : num_tokens].tolist()
            is_source = inputs["attention_mask"][row].bool()
            weights = None if attention is None else attention[row, :, :num_tokens, is_source]
            words = None if source_words is None else source_words[row]
            translations.append(self.describe(hypothesis, own, weights, words))
        return translations

    def _score(self, log_probs: list[float], attention: torch.Tensor | None) -> float:
        score = sum(log_probs) / length_penalty(len(log_probs), self.config)
        if self.config.coverage_penalty and attention is not None:
            coverage = coverage_score(attention[-1].sum(dim=0), None).item()
            score += self.config.coverage_penalty * coverage
        return score

    def describe(
        self,
        hypothesis: Hypothesis,
        log_probs: list[float],
        attention: torch.Tensor | None,
        source_words: Sequence[int] | None,
    ) -> Translation:
        """The translation that a hypothesis is.

        Args:
            hypothesis: The hypothesis.
            log_probs: Of its tokens that were not forced, in nats.
            attention: [N, T, S] float, what its tokens attend to in N layers; for alignments and the coverage.
            source_words: For an alignment, [S] the word of each source token, -1 for none.

        Returns:
            With scores.
        """
        score = self._score(log_probs, attention)
        words, word_of_token = target_word_indices(hypothesis.token_ids, self.tokenizer)
        word_log_probs = [0.0] * len(words)
        for word, log_prob in zip(word_of_token[hypothesis.num_forced :], log_probs, strict=True):
            if word >= 0:
                word_log_probs[word] += log_prob
        alignment = None
        if source_words is not None and attention is not None:
            alignment = to_pharaoh(align_words(attention.mean(dim=0), source_words, word_of_token))
        return Translation(
            hypothesis.text,
            score=score,
            log_prob=sum(log_probs),
            confidence=math.exp(sum(log_probs) / len(log_probs)),
            tokens=self.tokenizer.convert_ids_to_tokens(hypothesis.token_ids[hypothesis.num_forced :]),
            token_log_probs=log_probs,
            words=[Word(word, math.exp(value)) for word, value in zip(words, word_log_probs, strict=True)],
            alignment=alignment,
        )


def join_translations(
    parts: Sequence[Translation], separators: list[str], source_words: Sequence[int] | None = None
) -> Translation:
    """The translation of a text from those of its parts.

    Args:
        parts: N translations, all of them scored or none.
        separators: N + 1 strings that stand between them.
        source_words: For each part the number of source words before it; by default alignments count from the
            beginning of the text already.

    Returns:
        One translation; its score is the sum of theirs.
    """
    text = join_sentences([part.text for part in parts], separators)
    if any(part.score is None for part in parts):
        return Translation(text)
    log_probs = [log_prob for part in parts for log_prob in part.token_log_probs or []]
    words: list[Word] = []
    alignments = []
    for number, part in enumerate(parts):
        offset = source_words[number] if source_words else 0
        alignments.append(None if part.alignment is None else shift_alignment(part.alignment, offset, len(words)))
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
    )


def with_alternatives(translations: Sequence[Translation]) -> Translation:
    """The first of several translations of a text, the others as its alternatives.

    Args:
        translations: At least one.
    """
    first, *others = translations
    return replace(first, alternatives=others) if others else first


__all__ = [
    "Hypothesis",
    "Scorer",
    "Translation",
    "Word",
    "join_translations",
    "scoring_config",
    "token_log_probs",
    "with_alternatives",
]
