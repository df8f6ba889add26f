"""The replaceable parts of a search, called strategies: the candidate selection, the scorer and the stopping
rule.

`generate(..., search=SearchStrategies(...))` replaces strategies. For each kind of strategy, this file
contains an interface and its implementations:

- `CandidateSelection` chooses the candidates of each step. The implementations are `best_candidates` and
  `drawn_candidates`, and `PhraseCandidates` of phrase_search_vaswani.
- `Scorer` computes the scores by which the search ranks translations. The implementation is `PenaltyScorer`,
  with the length penalty and the coverage penalty of Wu et al. 2016 (arXiv 1609.08144, Section 7).
- `StoppingRule` decides whether the search ends for a sentence. The implementation is `EarlyStopping`.

`BeamSearch` of beam_search_vaswani calls the strategies. If a strategy is None in `SearchStrategies`,
`BeamSearch` uses a default. `RunningSearch` lists the attributes of the search that a strategy can read.

This file is saved with every checkpoint because `generate` searches with these strategies.

The docstring of the file beam_search_vaswani explains the letters in tensor shapes, such as N and K.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from transformers import GenerationConfig

from .beams_vaswani import EMPTY_SCORE, Beams, Candidates, exists


@dataclass(frozen=True)
class SearchStrategies:
    """Selects implementations for the replaceable parts of a search, for example in `generate(...,
    search=SearchStrategies(scorer=...))`.

    Args:
        ensemble (Sequence): Other models. The search averages the token probabilities of all models.
        must_contain (Sequence, optional): For each sentence, the phrases (lists of token ids) that the
            translation must contain. `must_contain` cannot be combined with `candidates` or `stopping_rule`.
        warns_of_unmet (bool): If True, the search warns about translations that lack phrases of
            `must_contain`.
        candidates (CandidateSelection, optional): Chooses the candidates of each step; by default
            `best_candidates`, or `drawn_candidates` with `do_sample`.
        scorer (Scorer, optional): Computes the scores of translations; by default `PenaltyScorer`.
        stopping_rule (StoppingRule, optional): Decides when the search ends for a sentence; by default
            `EarlyStopping`.
    """

    ensemble: Sequence[Any] = ()
    must_contain: Sequence[Any] | None = None
    warns_of_unmet: bool = True
    candidates: "CandidateSelection | None" = None
    scorer: "Scorer | None" = None
    stopping_rule: "StoppingRule | None" = None

    @property
    def given(self) -> list[str]:
        """For error messages: the names of the given arguments that only the search of this package
        supports.
        """
        names = ["`ensemble`"] if self.ensemble else []
        if self.must_contain is not None:
            names.append("`must_contain`")
        return names + [f"`{name}` of `search`" for name in self.replaced]

    @property
    def replaced(self) -> list[str]:
        """The names of the given candidate selection, scorer and stopping rule."""
        return [name for name in ("candidates", "scorer", "stopping_rule") if getattr(self, name) is not None]


class RunningSearch(Protocol):
    """The attributes of `BeamSearch` that a strategy can read."""

    config: GenerationConfig
    # The beams before the step, K for each sentence.
    beams: Beams
    num_beams: int
    # The number of candidates that a `CandidateSelection` chooses for each sentence.
    num_candidates: int
    # The number of new tokens in each beam. When the search calls a stopping rule, `num_new` already includes
    # the new token of each candidate.
    num_new: int
    # The ids of the tokens that end a translation, or None.
    eos: torch.Tensor | None
    # The id of the token that fills a row after the end of a translation.
    fill: int
    scorer: "Scorer"

    @property
    def limits(self) -> torch.Tensor:
        """The maximum number of new tokens [N] for each sentence in the batch."""

    def coverage_scores(self) -> torch.Tensor | None:
        """Return the coverage score [N, K] of each beam, or None without a coverage penalty."""


# Candidate selection


class CandidateSelection(Protocol):
    """Chooses the candidates of each step of a search."""

    def __call__(self, search: RunningSearch, log_probs: torch.Tensor) -> Candidates:
        """Choose `search.num_candidates` candidates for each sentence. If fewer candidates exist, add
        candidates with the score `EMPTY_SCORE`. Without `do_sample`, the candidates that have not ended must
        be sorted by score, best first.

        `log_probs` [N, K, V] are the log-probabilities of the next token of `search.beams`. In the first
        step, `log_probs` can have the shape [N, 1, V], because all beams of a sentence are equal at the
        start.
        """


def best_candidates(search: RunningSearch, log_probs: torch.Tensor) -> Candidates:
    """Choose the continuations with the highest scores: the default without `do_sample`.

    A large vocabulary is divided into chunks, and only the chunks with the highest maxima are sorted. The
    division into chunks halves the time of the selection, and does not change the result.
    """
    number = search.num_candidates
    num_sentences, num_beams, num_classes = log_probs.shape
    scores = search.beams.scores[:, :num_beams]
    size = chunk_size(num_classes)
    if size == 1 or num_beams * num_classes // size < number:
        return _top_of_all(log_probs, scores, number)
    num_chunks = num_classes // size
    # `chunks` is [N, K, V / size, size].
    chunks = log_probs.view(num_sentences, num_beams, num_chunks, size)
    maxima = chunks.amax(dim=-1) + scores.unsqueeze(2)
    # For each of the N sentences, `chosen` [N, number] contains the indices of the vocabulary chunks whose
    # best classes have the highest scores. The entry k * num_chunks + c means chunk c of the vocabulary for
    # beam k.
    chosen = maxima.flatten(1).topk(number, sorted=False).indices
    # [N, number, size]
    members = chunks.flatten(1, 2).gather(1, chosen.unsqueeze(2).expand(-1, -1, size))
    of_parents = scores.gather(1, chosen // num_chunks).unsqueeze(2)
    best, index = (members + of_parents).flatten(1).topk(number)
    chosen = chosen.gather(1, index // size)
    return Candidates(best, chosen // num_chunks, chosen % num_chunks * size + index % size)


def _top_of_all(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Return the `number` best candidates for the log-probabilities [N, K, V] of the next token and the
    scores [N, K] of the beams, without dividing the vocabulary into chunks.
    """
    total = (log_probs + scores.unsqueeze(2)).flatten(1)
    return _top_by(total, total, number, log_probs.shape[2])


def _top_by(keys: torch.Tensor, total: torch.Tensor, number: int, num_classes: int) -> Candidates:
    """Return the `number` candidates with the largest `keys` [N, K * V]. The scores of all continuations are
    `total` [N, K * V].
    """
    index = keys.topk(min(number, keys.shape[1])).indices
    best = total.gather(1, index)
    missing = number - keys.shape[1]
    if missing > 0:
        best = torch.nn.functional.pad(best, (0, missing), value=EMPTY_SCORE)
        index = torch.nn.functional.pad(index, (0, missing))
    return Candidates(best, index // num_classes, index % num_classes)


@lru_cache
def chunk_size(num_classes: int) -> int:
    """Return the divisor of `num_classes` that is nearest to the square root of `num_classes`. Return 1 if
    `num_classes` is small, or if each divisor of `num_classes` differs from the square root by a factor of
    about 4 or more.
    """
    root = math.isqrt(num_classes)
    if root <= 16:
        return 1
    near = [size for size in range(root // 4 + 1, root * 4) if num_classes % size == 0]
    return min(near, key=lambda size: abs(math.log(size / root)), default=1)


def drawn_candidates(search: RunningSearch, log_probs: torch.Tensor) -> Candidates:
    """Draw continuations without replacement, in proportion to their probability: the default with
    `do_sample`. The result is not sorted.
    """
    _, num_beams, num_classes = log_probs.shape
    total = (log_probs + search.beams.scores[:, :num_beams].unsqueeze(2)).flatten(1)  # [N, K * V]
    probabilities = torch.softmax(total, dim=-1)
    # Do not call `torch.multinomial`, because `torch.multinomial` makes the CPU wait for the GPU to check the
    # probabilities.
    draws = probabilities / torch.empty_like(probabilities).exponential_()
    return _top_by(draws, total, search.num_candidates, num_classes)


# Scorer


class Scorer(Protocol):
    """Computes the scores by which the search ranks translations. A higher score is better."""

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scores with the shape of the summed log-probabilities `log_probs` [...] (nats).

        `length` is the number of new tokens, including `</s>`. `coverage` [...] is the result of
        `coverage_score`, or None without a coverage penalty.
        """


class PenaltyScorer(Scorer):
    """The default scorer, see `penalized_score`."""

    def __init__(self, config: GenerationConfig):
        self.config = config

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        return penalized_score(log_probs, length, coverage, self.config)


def penalized_score(log_prob: Any, length: Any, coverage: Any, config: Any) -> Any:
    """Return the score of a translation (Wu et al. 2016, Equation 14). The score is the summed
    log-probability divided by the length penalty, plus the coverage term times `coverage_penalty`. The
    arguments `log_prob`, `length` and `coverage` are tensors or numbers; see `Scorer`.
    """
    score = log_prob / length_penalty(length, config)
    return score if coverage is None else score + config.coverage_penalty * coverage


def length_penalty(length: Any, config: Any) -> Any:
    """Return the divisor of scores: ((5 + length) / 6)^alpha for `length_penalty_type="gnmt"` (Wu et al.
    2016, Equation 14), otherwise length^alpha.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return ((5 + length) / 6 if is_gnmt else length) ** config.length_penalty


def coverage_score(
    coverage: torch.Tensor,  # [..., S], the sum of the attention weights of all target tokens
    source_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return the sum of log(min(coverage, 1)) over the source tokens (Wu et al. 2016, Equation 14)."""
    # Clamp the coverage to positive numbers, because log(0) would be -inf for a source token without
    # attention.
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return (logs if source_mask is None else logs * source_mask.bool()).sum(dim=-1)


# Stopping rule


class StoppingRule(Protocol):
    """Decides whether the search ends for a sentence before the length limit."""

    def may_improve(self, search: RunningSearch, finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Return True for each sentence for which an unfinished translation could still become a result, [N]
        bool.

        `finished` [N, K] are the scores of the finished translations, best first, or `EMPTY_SCORE` for
        missing translations. `best` [N] is the highest summed log-probability of a candidate that has not
        ended.
        """

    def is_full(self, search: RunningSearch, finished: torch.Tensor) -> torch.Tensor:
        """Return True for each sentence with enough finished translations, [N] bool. The search ends for a
        sentence with enough finished translations, even if longer translations could have better scores.
        """


class EarlyStopping(StoppingRule):
    """The default stopping rule, with the setting `early_stopping`.

    The search continues for a sentence while an unfinished translation could become one of the `num_counted`
    best translations. `num_counted` is `num_return_sequences` or `num_beams`. If `early_stopping` is True,
    the search also ends as soon as the sentence has `num_beams` finished translations.
    """

    def __init__(self, config: GenerationConfig, num_sentences: int, num_counted: int, device: torch.device):
        self.num_counted = num_counted
        self.num_full = config.num_beams
        # Store one bool per sentence, [B], because grid beam search changes the stopping rule for some
        # sentences.
        self.considers_all_lengths = torch.full(
            (num_sentences,), considers_all_lengths(config), device=device
        )
        self.stops_when_full = torch.full((num_sentences,), config.early_stopping is True, device=device)

    def may_improve(self, search: RunningSearch, finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        # For each sentence, `worst` is the lowest score among its `num_counted` best finished translations.
        # If fewer than `num_counted` translations are finished, `worst` is `EMPTY_SCORE`, so that the search
        # continues.
        worst = finished[:, self.num_counted - 1]
        considers_all = self.considers_all_lengths[search.beams.sentences]
        longest = torch.where(considers_all, search.limits, search.num_new)
        return highest_reachable_score(best, search.num_new, longest, search.scorer, search.config) > worst

    def is_full(self, search: RunningSearch, finished: torch.Tensor) -> torch.Tensor:
        return self.stops_when_full[search.beams.sentences] & exists(finished[:, self.num_full - 1])


def highest_reachable_score(
    log_prob: Any, length: Any, longest: Any, scorer: Scorer, config: GenerationConfig
) -> Any:
    """Return the highest score that an unfinished translation can reach. The translation has `length` new
    tokens now, and at most `longest` new tokens when it is finished. More tokens cannot increase `log_prob`.

    If `length_penalty` is positive, compute the score for the length `longest`, because the longer of two
    translations with equal log-probability has the higher score.
    """
    return scorer(log_prob, longest if config.length_penalty > 0 else length)


def considers_all_lengths(config: GenerationConfig) -> bool:
    """Return True if the stopping rule of beam search considers all lengths that an unfinished translation
    can still reach.

    In transformers, the stopping rule considers all possible lengths only for `early_stopping="never"`. For
    `early_stopping=False`, transformers compares scores at the current length, although this comparison is
    exact only if `length_penalty` is 0 or negative. With `length_penalty_type="gnmt"`, the stopping rule of
    this package considers all possible lengths for `early_stopping=False` and for `early_stopping="never"`.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)
