"""Beam search (Section 6.1) for a batch of sentences. Each step extends all beams of all sentences by one
token.

`SearchTask.run` prepares a search, and `BeamSearch.run` runs the steps. Each step of the search has four
parts:

1. A decoder of the file decoding_vaswani reads the last token of each beam and returns the logits of the next
   token. The fast decoder is `TreeAttentionDecoder`.
2. The candidate selection chooses the best continuations of the beams, called candidates. There are at least
   twice as many candidates as beams.
3. If one of the K best candidates ends with `</s>` or reaches its length limit, it becomes a finished
   translation. The best candidates that have not ended become the beams of the next step.
4. The stopping rule decides for each sentence whether its search ends. A sentence is open during its search,
   and closed after its search. Closed sentences are removed from the batch.

The search follows the rules of beam search in transformers. In addition to the search of transformers, this
search has the length penalty and the coverage penalty of Wu et al. 2016 (arXiv 1609.08144, Section 7), has a
length limit for each sentence, and removes a sentence from the batch if the search for the sentence has
ended. "Attention Is All You Need" uses this length penalty (Section 6.1).

`generate(..., search=SearchStrategies(...))` replaces the candidate selection, the scorer or the stopping
rule.

This file is saved with every checkpoint because `generate` runs `BeamSearch`.

In tensor shapes, B is the number of sentences at the start, N the number of sentences that are still in the
batch, K the number of beams, C the number of candidates, R the number of results per sentence, and T the
number of tokens so far, including the prompt. P is the prompt length, S the source length and V the size of
the target vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PrefixConstrainedLogitsProcessor
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .decoding_vaswani import Decoder, RowDecoder, TreeAttentionDecoder, TreeKVCache, gather_beams
from .fast_path_vaswani import needs_sync
from .search_errors_vaswani import NotFiniteError

# The score of a missing candidate or translation, as in transformers. Scores of existing candidates are far
# above NEG_INF / 2, so a lower score means that a candidate is missing.
NEG_INF = -1e9

# The stopping criteria of transformers that `BeamSearch` ignores, because `BeamSearch` checks `</s>` and the
# length limits itself.
OWN_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


@dataclass
class Candidates:
    """The candidates of one step of beam search. A candidate is a beam plus one new token. `scores` [N, C]
    float32 are summed log-probabilities, `parents` [N, C] int64 are the indices of the extended beams, and
    `tokens` [N, C] int64 are the new tokens. Without `do_sample`, the candidates are sorted by score, best
    first.
    """

    scores: torch.Tensor
    parents: torch.Tensor
    tokens: torch.Tensor


# The interfaces of the strategies of a search


class CandidateSelection(Protocol):
    """Chooses the candidates of each step of a search."""

    def __call__(self, search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
        """Choose `search.num_candidates` candidates. If there are fewer candidates, fill the result with
        candidates of the score `NEG_INF`.

        `search.scores` [N, K] and `search.sequences` [N, K, T] describe the beams. `search.parents` [N, K]
        contains the index of the beam of the previous step that each beam extends. `log_probs` [N, K, V] are
        the log-probabilities of the next token. In the first step `log_probs` may be [N, 1, V], because all
        beams of a sentence are equal at the start.
        """


class Scorer(Protocol):
    """Computes the scores by which the search ranks translations. A higher score is better."""

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the scores [...] of translations. `log_probs` [...] are the summed log-probabilities of the
        translations (nats).

        `length` is the number of new tokens, including `</s>`. `coverage` [...] is the result of
        `coverage_score`, or None without a coverage penalty.
        """


class StoppingRule(Protocol):
    """Decides whether the search ends for a sentence before the length limit."""

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N] that is True for a sentence whose results a longer translation could still
        change.

        `finished` [N, K] are the scores of the finished translations, best first, or NEG_INF for missing
        translations. `best` [N] is the highest summed log-probability of a candidate that has not ended.
        """

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N] that is True for a sentence with enough finished translations. The search
        ends for this sentence, even if longer translations could have better scores.
        """


@dataclass(frozen=True)
class SearchStrategies:
    """Selects the replaceable parts of a search, for example in `generate(...,
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
    candidates: CandidateSelection | None = None
    scorer: Scorer | None = None
    stopping_rule: StoppingRule | None = None

    @property
    def replaced(self) -> list[str]:
        """The names of the fields that replace a component of the default search: a candidate selection, a
        scorer or a stopping rule.
        """
        return [name for name in ("candidates", "scorer", "stopping_rule") if getattr(self, name) is not None]


# The search


@dataclass
class SearchTask:
    """Contains everything that a search needs for a batch of sentences: models, inputs, limits, logits
    processors and strategies.
    """

    # The model whose `generate` was called, and then the other models of the ensemble. `inputs` contains the
    # inputs of each model for B sentences.
    models: list[Any]
    inputs: list[dict[str, Any]]
    # `prompt` [B, P] int64 contains the beginnings of the translations. `limits` [B] int64 contains the
    # maximum number of new tokens for each sentence.
    prompt: torch.Tensor
    limits: torch.Tensor
    # The attention mask [B, S] of the source. Only the coverage penalty uses this mask.
    source_mask: torch.Tensor | None
    processors: LogitsProcessorList
    # The stopping criteria without those for `</s>` and length limits, because the search checks `</s>` and
    # length limits itself.
    criteria: list[Any]
    strategies: SearchStrategies
    # If True, the search removes no sentence before its end, and records the outputs that `generate` of
    # transformers returns.
    transformers_compatible: bool
    # The search calls `goes_on(is_over)` before each step, and stops if the result is False. With several
    # processes, the result is True until the searches of all processes are over.
    goes_on: Callable[[bool], bool]

    def run(
        self,
        config: GenerationConfig,
        *,
        candidates: CandidateSelection | None = None,
        stopping_rule: StoppingRule | None = None,
        sentences: torch.Tensor | None = None,
        rows_per_sentence: int | None = None,
    ) -> "BeamSearch":
        """Search translations of the sentences with the indices `sentences` [N], by default all sentences.
        Return the finished search.
        """
        if sentences is None:
            sentences = torch.arange(len(self.prompt), device=self.prompt.device)
        if candidates is None:
            candidates = drawn_candidates if config.do_sample else best_candidates
        decoders = [
            self._decoder(model, inputs, config)
            for model, inputs in zip(self.models, self.inputs, strict=True)
        ]
        search = BeamSearch(
            config=config,
            decoders=decoders,
            prompt=self.prompt,
            limits=self.limits,
            candidates=self.strategies.candidates or candidates,
            scorer=self.strategies.scorer or PenaltyScorer(config),
            stopping_rule=self.strategies.stopping_rule or stopping_rule or self._early_stopping(config),
            sentences=sentences,
            source_mask=self.source_mask,
            processors=self.processors,
            criteria=StoppingCriteriaList(self.criteria),
            rows_per_sentence=rows_per_sentence,
            excluded=self.models[0].excluded_class(0.0, None),
            reader=self._reader(config),
            transformers_compatible=self.transformers_compatible,
        )
        input_ids = self.prompt[sentences].repeat_interleave(config.num_beams, dim=0)  # [N * K, P]
        # Use inference mode only without logits processors and custom parts of the search, because the code
        # of a user may need autograd.
        has_user_code = bool(self.processors or self.strategies.replaced)
        is_direct = not has_user_code and all(decoder.is_direct for decoder in decoders)
        with torch.inference_mode() if is_direct else nullcontext():
            search.run([decoder.start(input_ids) for decoder in decoders], self.goes_on)
        return search

    def _early_stopping(self, config: GenerationConfig) -> "EarlyStopping":
        """Return the default stopping rule. The rule computes the highest score that a longer translation can
        reach. The rule ends the search for a sentence when no longer translation can change its
        `num_return_sequences` best translations. This bound is wrong with logits processors. In this case the
        rule checks the `num_beams` best translations, as transformers does.
        """
        is_exact = considers_all_lengths(config) and not (self.transformers_compatible or self.processors)
        num_counted = config.num_return_sequences if is_exact else config.num_beams
        return EarlyStopping(config, len(self.prompt), num_counted, self.prompt.device)

    def _reader(self, config: GenerationConfig) -> "DeferredReader | None":
        """Return a `DeferredReader` for a search on a GPU. The reader reads values from the GPU one step late,
        so the search takes one additional step. Return None if the additional step would have side effects:
        recorded outputs, drawn random numbers, or calls of the user's code.
        """
        has_user_code = bool(self.processors or self.criteria or self.strategies.replaced)
        has_effects = self.transformers_compatible or config.do_sample or has_user_code
        return DeferredReader() if needs_sync(self.limits) and not has_effects else None

    def _decoder(self, model: Any, inputs: dict[str, Any], config: GenerationConfig) -> Any:
        """Return the fast `TreeAttentionDecoder` if the model and the settings permit it, else a
        `RowDecoder`.
        """
        in_rows = (model is self.models[0] and self.transformers_compatible) or not config.use_cache
        # Use `getattr`, because models of other libraries lack the attribute `supports_fast_path`.
        if in_rows or not getattr(model, "supports_fast_path", False):
            return RowDecoder(model, config, inputs)
        return TreeAttentionDecoder(model, config, inputs)


@dataclass(eq=False, kw_only=True)
class BeamSearch:
    """Runs beam search for all sentences of a batch at the same time.

    Args:
        config: The settings of the search. `num_beams` is K and `num_return_sequences` is R.
        decoders: One `Decoder` for each model. The search averages the token probabilities of the models.
        prompt: The beginnings of the translations, [B, P] int64.
        limits: The maximum number of new tokens for each sentence, [B] int64.
        candidates: Chooses the candidates of each step.
        scorer: Computes the scores of finished translations.
        stopping_rule: Decides when the search ends for a sentence.
        sentences: The indices of the sentences to translate, [N] int64.
        source_mask: The attention mask [B, S] of the source. Only the coverage penalty uses this mask.
        processors: The logits processors, which change the log-probabilities of each step.
        criteria: Additional stopping criteria. `</s>` and the length limits always end a candidate.
        rows_per_sentence: The number of beams per sentence that a call of a logits processor or stopping
            criterion receives; by default all beams.
        excluded: The id of the padding token if the search must not choose padding, else None.
        reader: Reads the values of each step from the GPU one step late. None on a CPU, or if the resulting
            additional step would have side effects.
        transformers_compatible: If True, the search removes no sentence before its end, and records the
            outputs that `generate` of transformers returns.
    """

    config: GenerationConfig
    decoders: Sequence[Decoder]
    prompt: InitVar[torch.Tensor]
    limits: torch.Tensor
    candidates: CandidateSelection
    scorer: Scorer
    stopping_rule: StoppingRule
    sentences: torch.Tensor
    source_mask: torch.Tensor | None
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    rows_per_sentence: int | None
    excluded: int | None
    reader: "DeferredReader | None"
    transformers_compatible: bool

    def __post_init__(self, prompt: torch.Tensor) -> None:
        self.may_remove_sentences = not (
            self.transformers_compatible or has_custom_rules(self.processors, self.criteria)
        )
        # On a CPU without sampling, skip the update of the finished translations until the first candidate
        # has ended. A GPU always updates the finished translations, because the CPU would have to wait for
        # the GPU to know whether a candidate has ended.
        self.checks_ends_first = not (self.config.do_sample or needs_sync(self.limits))

        self.eos = self.config._eos_token_tensor
        self.fill = padding_token(self.config)
        self.pad = self.fill if self.config._pad_token_tensor is None else int(self.config._pad_token_tensor)
        self.first_limit, self.last_limit = torch.stack(self.limits.aminmax()).tolist()

        num_ends = 0 if self.eos is None else len(self.eos)
        self.num_beams = self.config.num_beams
        self.num_candidates = max(2, 1 + num_ends) * self.config.num_beams

        # Give the score NEG_INF to all beams except the first beam of each sentence, because all beams of a
        # sentence are equal at the start.
        num_searched = len(self.sentences)
        self.prompt_length = prompt.shape[1]
        self.num_new = 0
        # Paths [B, K, T, 1] contain the tokens of the beams. If `transformers_compatible` is True, paths [B,
        # K, T, 2] contain two numbers for each token: the token id, and the row index of the beam that the
        # token has extended.
        paths = prompt.view(len(prompt), 1, -1, 1).expand(-1, self.num_beams, -1, -1)
        if self.transformers_compatible:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        self.paths = paths[self.sentences]  # [N, K, T, 1 or 2]
        self.scores = torch.full((num_searched, self.num_beams), NEG_INF, device=prompt.device)
        self.scores[:, 0] = 0
        # For each beam, the index [N, K] int64 of the beam of the previous step that the beam extends. The
        # first step of the search sets `parents`.
        self.parents: torch.Tensor

        self.is_over = False
        self.is_open = torch.ones(num_searched, dtype=torch.bool, device=prompt.device)
        self.is_improvable = self.is_open
        self.num_searched = self.is_open.sum()

        # The finished translations of all sentences, best first.
        self.finished_scores = torch.full((len(prompt), self.num_beams), NEG_INF, device=prompt.device)
        self.finished_lengths = torch.zeros(
            len(prompt), self.num_beams, dtype=torch.int64, device=prompt.device
        )
        self.finished_paths = paths.clone()
        self.after_end = torch.tensor([self.fill, -1][: paths.shape[3]], device=prompt.device)

        # The scores and logits of each step, for the outputs that `generate` of transformers returns.
        self.step_scores: list[torch.Tensor] = []
        self.step_logits: list[torch.Tensor] = []

    @property
    def sequences(self) -> torch.Tensor:
        """The tokens of the beams [N, K, T] int64, including prompts."""
        return self.paths[..., 0]

    def run(self, logits: Sequence[torch.Tensor], goes_on: Callable[[bool], bool]) -> None:
        """Run steps of the search until `goes_on` returns False.

        `logits` contains the logits [B, 1 or K, V] of the first new token from each decoder.
        `goes_on(is_over)` returns True if another step is necessary: for this search, or for the search of
        another process that stores a part of the model.
        """
        while goes_on(self.is_over):
            if self.num_new > 0:
                logits = [decoder.step(self.sequences, self.parents) for decoder in self.decoders]
            if not self.is_over:
                self._take_step(logits)
        if self.reader is not None:
            last = self.reader.exchange(None)
            if last is not None:
                self._use_step_numbers(last)

    def _take_step(self, logits: Sequence[torch.Tensor]) -> None:
        """Complete a step after the decoders have computed the logits: parts 2 to 4 in the docstring of this
        file.
        """
        was_open = self.is_open
        log_probs, checked = self._log_probs(logits)
        candidates = self.candidates(self, log_probs)
        self.num_new += 1
        paths = self._extend_paths(candidates)
        ended = self._has_ended(candidates, paths)
        if self.checks_ends_first:
            some_ended, _ = self._read_step_numbers(checked, was_open, ended.any(), self.num_searched)
            if not some_ended:
                self._continue_with_first_candidates(candidates, paths)
                return
            self.checks_ends_first = False
        finished = self._update_finished_scores(candidates, ended)
        num_going_on = self._close_sentences(candidates, ended)
        some_ended, num_open = self._read_step_numbers(checked, was_open, ended.any(), num_going_on)
        self.is_over = num_open == 0 or self.num_new >= self.last_limit
        if some_ended or self.reader is not None or self.config.do_sample:
            self._update_finished_paths(finished, paths)
            self._continue_with_best_candidates(candidates, paths, ended)
        else:
            self._continue_with_first_candidates(candidates, paths)
        # Remove sentences whose search has ended only if these sentences are at least an eighth of the batch,
        # because a removal copies all other sentences.
        if self.may_remove_sentences and not self.is_over and 8 * num_open <= 7 * len(self.sentences):
            self._remove_closed_sentences(num_open)

    def _continue_with_best_candidates(
        self, candidates: Candidates, paths: torch.Tensor, ended: torch.Tensor
    ) -> None:
        """Use the best K candidates that have not ended as the beams of the next step."""
        self.scores, best = (candidates.scores + ended * NEG_INF).topk(self.num_beams)
        self.paths = gather_beams(paths, best)
        self.parents = candidates.parents.gather(1, best)

    def _continue_with_first_candidates(self, candidates: Candidates, paths: torch.Tensor) -> None:
        """Make the first K candidates the new beams. The candidates must be sorted by score, and no candidate
        may have ended.
        """
        self.scores = candidates.scores[:, : self.num_beams]
        self.paths = paths[:, : self.num_beams]
        self.parents = candidates.parents[:, : self.num_beams]

    def _read_step_numbers(
        self, checked: torch.Tensor, was_open: torch.Tensor, any_ended: torch.Tensor, num_open: torch.Tensor
    ) -> tuple[bool, int]:
        """Read two values from the device: whether a candidate has ended, and the number of open sentences.

        No other part of a step waits for the GPU. If the search has a `reader`, the two values belong to the
        previous step.
        """
        trees = [
            decoder.tree
            for decoder in self.decoders
            if decoder.tree is not None and decoder.tree.is_nearly_full
        ]
        living = [tree.living().sum(dim=1).max() for tree in trees]
        values = torch.stack((checked.sum(), any_ended, num_open, *living))
        numbers: StepNumbers | None = StepNumbers(values, trees, checked, was_open, self.sentences)
        if self.reader is not None:
            numbers = self.reader.exchange(numbers)
        if numbers is None:
            # Return defaults at the first step, because a `reader` returns the values of a step one step
            # later.
            return True, len(self.sentences)
        return self._use_step_numbers(numbers)

    def _use_step_numbers(self, numbers: "StepNumbers") -> tuple[bool, int]:
        """Raise an error if a log-probability is NaN. Store the number of tokens that belong to a beam in
        each key-value tree. Return whether a candidate has ended, and the number of open sentences.
        """
        log_prob_sum, any_ended, num_open, *living = numbers.values.tolist()
        if math.isnan(log_prob_sum) and not self.config.remove_invalid_values:
            is_broken = numbers.log_probs.isnan().any(dim=1) & numbers.is_open
            broken = numbers.sentences[is_broken].tolist()
            if broken:
                raise NotFiniteError(broken[0])
        for tree, num_living in zip(numbers.trees, living, strict=True):
            tree.num_living = int(num_living)
        return bool(any_ended), int(num_open)

    def _log_probs(self, logits: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities [N, K or 1, V] after the logits processors, and the log-probabilities
        [N, K or 1] of one token before the logits processors. The caller checks the second tensor for NaN.
        One token is enough for the check, because all log-probabilities of a row are NaN if one logit is NaN
        or +inf, or if all logits of the row are -inf.
        """
        log_probs = torch.log_softmax(logits[0], dim=-1)
        if len(logits) > 1:
            # Broadcast the log-probabilities, because in the first step a `RowDecoder` returns K rows per
            # sentence, and a `TreeAttentionDecoder` returns one row.
            others = [torch.log_softmax(other, dim=-1) for other in logits[1:]]
            of_models = torch.stack(torch.broadcast_tensors(log_probs, *others))
            log_probs = of_models.logsumexp(dim=0) - math.log(len(logits))
        # Choose any token except the excluded token, because the log-probability of the excluded token is
        # overwritten below.
        checked = log_probs[:, :, 1 if self.excluded == 0 else 0]
        if self.processors:
            log_probs = self._process(log_probs.expand(-1, self.num_beams, -1))
        if self.transformers_compatible and self.config.output_logits:
            self.step_logits.append(logits[0].flatten(0, 1))
        if self.transformers_compatible and self.config.output_scores:
            self.step_scores.append(log_probs.flatten(0, 1).clone())
        if self.excluded is not None:
            log_probs.select(2, self.excluded).fill_(2 * NEG_INF)
        return log_probs, checked

    def _to_rows(self, values: torch.Tensor) -> torch.Tensor:
        """Convert values [N, K, ...] of the N sentences in the batch to rows [B * K, ...] of all B sentences.
        The rows of removed sentences are zeros, so that the row index of a beam never changes.
        """
        full = values.new_zeros(len(self.limits), *values.shape[1:])
        return full.index_copy_(0, self.sentences, values).flatten(0, 1)

    def _from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Convert rows [B * K, ...] of all B sentences to values [N, K, ...] of the N sentences in the batch.
        The inverse of `_to_rows`.
        """
        return rows.unflatten(0, (len(self.limits), -1))[self.sentences]

    def _process(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Apply the logits processors to the log-probabilities [N, K, V]."""
        size = self.rows_per_sentence or self.num_beams
        parts = []
        for start in range(0, self.num_beams, size):
            beams = slice(start, start + size)
            rows = self.processors(
                self._to_rows(self.sequences[:, beams]), self._to_rows(log_probs[:, beams])
            )
            parts.append(self._from_rows(rows))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _ended_by_criteria(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N, C] that is True where a stopping criterion ends a candidate in `sequences`
        [N, C, T + 1].
        """
        scores = tuple(self.step_scores) or None
        size = self.rows_per_sentence or sequences.shape[1]
        parts = []
        for start in range(0, sequences.shape[1], size):
            rows = self.criteria(self._to_rows(sequences[:, start : start + size]), scores)
            parts.append(self._from_rows(rows))
        return torch.cat(parts, dim=1)

    def _extend_paths(self, candidates: Candidates) -> torch.Tensor:
        """Return the paths [N, C, T + 1, 1 or 2] of the candidates, in the format of `self.paths`."""
        new = candidates.tokens.unsqueeze(2)  # [N, C, 1]
        if self.transformers_compatible:
            rows = candidates.parents + self.sentences.unsqueeze(1) * self.num_beams
            new = torch.stack((candidates.tokens, rows), dim=2)  # [N, C, 2]
        paths = gather_beams(self.paths, candidates.parents)  # [N, C, T, 1 or 2]
        return torch.cat((paths, new.unsqueeze(2)), dim=2)

    def _has_ended(self, candidates: Candidates, paths: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N, C] that is True where `</s>`, the length limit or a stopping criterion
        ends a candidate.
        """
        if self.eos is None:
            ended = torch.zeros_like(candidates.tokens, dtype=torch.bool)
        elif len(self.eos) > 1:
            ended = torch.isin(candidates.tokens, self.eos)
        else:
            ended = candidates.tokens == self.eos
        if self.num_new >= self.first_limit:
            ended |= (self.limits[self.sentences] <= self.num_new).unsqueeze(1)
        if self.criteria:
            ended |= self._ended_by_criteria(paths[..., 0])
        return ended

    def _update_finished_scores(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Update the scores of the K best finished translations of each sentence.

        Return the indices [N, K] int64 of the K best translations. An index below K means a translation that
        finished in an earlier step. An index K + i means candidate i.
        """
        scores = candidates.scores[:, : self.num_beams]
        entering = ended[:, : self.num_beams] & self.is_open.unsqueeze(1) & (scores > NEG_INF / 2)
        scores = self.scorer(scores, self.num_new, self._coverage_scores(candidates))
        # Give the score 2 * NEG_INF to candidates that do not become finished translations. The score must be
        # lower than NEG_INF, the score of a missing translation.
        entering_scores = scores.masked_fill(~entering, 2 * NEG_INF)
        merged = torch.cat((self.finished_scores[self.sentences], entering_scores), dim=1)
        self.finished_scores[self.sentences], kept = merged.topk(self.num_beams)
        return kept

    def _coverage_scores(self, candidates: Candidates) -> torch.Tensor | None:
        """Return the coverage scores [N, K] of the first K candidates, or None without a coverage penalty."""
        if self.decoders[0].coverage is None:
            return None
        attention = sum(decoder.coverage for decoder in self.decoders) / len(self.decoders)  # [N, K, S]
        mask = None if self.source_mask is None else self.source_mask[self.sentences].unsqueeze(1)
        parents = candidates.parents[:, : self.num_beams]
        return coverage_score(attention, mask).gather(1, parents)  # [N, K]

    def _update_finished_paths(self, kept: torch.Tensor, paths: torch.Tensor) -> None:
        """Update the tokens and lengths of the finished translations. `kept` is the result of
        `_update_finished_scores`.
        """
        lengths = torch.cat(
            (self.finished_lengths[self.sentences], torch.full_like(kept, self.num_new)), dim=1
        )
        self.finished_lengths[self.sentences] = lengths.gather(1, kept)
        num_tokens = max(paths.shape[2], self.finished_paths.shape[2])
        self.finished_paths = self.pad_paths(self.finished_paths, num_tokens)
        new = self.pad_paths(paths[:, : self.num_beams], num_tokens)
        both = torch.cat((self.finished_paths[self.sentences], new), dim=1)
        self.finished_paths[self.sentences] = gather_beams(both, kept)

    def pad_paths(self, paths: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Pad `paths`, the tokens of beams or translations, to `num_tokens` tokens."""
        missing = num_tokens - paths.shape[2]
        if missing == 0:
            return paths
        return torch.cat((paths, self.after_end.expand(*paths.shape[:2], missing, -1)), dim=2)

    def _close_sentences(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Close the sentences whose results are final, and return the number of sentences that are still open."""
        finished = self.finished_scores[self.sentences]
        best = (candidates.scores + ended * NEG_INF).amax(dim=1)
        self.is_improvable = self.is_improvable & self.stopping_rule.may_improve(self, finished, best)
        is_full = self.stopping_rule.is_full(self, finished)
        goes_on = ~ended.all(dim=1)
        self.is_open = self.is_improvable & ~is_full
        if self.transformers_compatible:
            # End the search for all sentences of the batch at the same step, as transformers does.
            return self.is_improvable.any() & ~is_full.all() & goes_on.any()
        self.is_improvable = self.is_improvable & goes_on
        self.is_open = self.is_open & goes_on
        return self.is_open.sum()

    def _remove_closed_sentences(self, num_staying: int) -> None:
        """Remove sentences whose search has ended from the batch, and keep `num_staying` sentences.

        If the search has a `reader`, `num_staying` is the number of open sentences one step earlier. For
        some of the kept sentences, the search may therefore have ended.
        """
        staying = self.is_open.byte().argsort(descending=True, stable=True)[:num_staying]
        for decoder in self.decoders:
            decoder.select(staying)
        self.sentences = self.sentences.index_select(0, staying)
        self.paths = self.paths.index_select(0, staying)
        self.scores = self.scores.index_select(0, staying)
        self.parents = self.parents.index_select(0, staying)
        self.is_open = self.is_open.index_select(0, staying)
        self.is_improvable = self.is_improvable.index_select(0, staying)

    def results(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the tokens [B * R, T], the scores [B * R] and the beam indices of the R best translations of
        each sentence.

        The beam indices [B * R, T - P] are the `beam_indices` of transformers, or None unless
        `transformers_compatible` is True. A missing translation consists of the prompt and padding, and has
        the score -inf.
        """
        kept = slice(self.config.num_return_sequences)
        length = self.prompt_length + int(self.finished_lengths[:, kept].max())
        paths = self.finished_paths[:, kept, :length].flatten(0, 1)
        rows = paths[:, self.prompt_length :, 1].int() if self.transformers_compatible else None
        is_missing = (self.finished_lengths[:, kept] == 0).flatten()
        is_new = torch.arange(length, device=paths.device) >= self.prompt_length
        sequences = paths[..., 0].masked_fill(is_missing.unsqueeze(1) & is_new, self.pad)
        return sequences, self.finished_scores[:, kept].flatten().masked_fill(is_missing, -math.inf), rows

    def without_translation(self) -> list[int]:
        """Return the indices of the sentences for which the search found no translation."""
        return (self.finished_lengths[:, 0] == 0).nonzero().flatten().tolist()


def has_custom_rules(processors: Iterable[Any], criteria: Iterable[Any]) -> bool:
    """Return True if a logits processor or a stopping criterion contains code of the user. Such code may need
    the rows of all sentences, so the search must not remove sentences.
    """
    kinds = {type(rule) for rule in (*processors, *criteria)}
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    own = {"transformers", __name__.partition(".")[0]}
    return bool(packages - own) or PrefixConstrainedLogitsProcessor in kinds


def padding_token(config: GenerationConfig) -> int:
    """Return the id of the token that fills a row after the end of a translation. transformers fills rows
    with the same token.
    """
    pad = config._pad_token_tensor
    eos = config._eos_token_tensor
    if pad is not None and (config.num_beams == 1 or (int(pad) != 0 and eos is not None)):
        return int(pad)
    return -1 if eos is None else int(eos[0])


@dataclass(frozen=True)
class StepNumbers:
    """The values of a step that the search copies from the device to the CPU in one transfer."""

    # `values` [3 + number of trees] float32 contains the sum of `log_probs`, then 1 if a candidate has ended
    # (else 0), then the number of open sentences. One more value follows for each key-value tree in `trees`:
    # the largest number of tokens of a sentence that belong to a beam.
    values: torch.Tensor
    trees: list[TreeKVCache]
    # `log_probs` [N, K] (in the first step [N, 1]) has one log-probability of each beam, always of the same
    # token of the vocabulary. If `log_probs` contains NaN, `is_open` [N] and the indices `sentences` [N] int64 tell which open sentence is affected.
    log_probs: torch.Tensor
    is_open: torch.Tensor
    sentences: torch.Tensor


class DeferredReader:
    """Reads the values of a step from the GPU while the GPU computes the next step.

    The search therefore learns its end one step late, and takes one additional step. The search discards the
    results of the additional step.
    """

    def __init__(self) -> None:
        self.event: torch.cuda.Event | None = None
        self.pending: StepNumbers | None = None

    def exchange(self, numbers: StepNumbers | None) -> StepNumbers | None:
        """Store the values `numbers` of a step, or None after the last step. Return the values of the
        previous step.
        """
        before = self.pending
        event = self.event
        self.pending = None
        self.event = None
        if numbers is not None:
            # Pass `non_blocking=True`, so that the GPU and the CPU continue during the copy to pinned memory.
            self.pending = replace(numbers, values=numbers.values.to("cpu", non_blocking=True))
            if numbers.values.is_cuda:
                self.event = torch.cuda.current_stream(numbers.values.device).record_event()
        if event is not None:
            event.synchronize()
        return before


# The default strategies: the scorer, the stopping rule and the candidate selections


def length_penalty(length: Any, config: GenerationConfig) -> Any:
    """Return the divisor of scores: ((5 + length) / 6)^alpha for `length_penalty_type="gnmt"` (Wu et al.
    2016, Equation 14), otherwise length^alpha.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return ((5 + length) / 6 if is_gnmt else length) ** config.length_penalty


def coverage_score(coverage: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
    """Return the coverage penalty before the multiplication by its weight: the sum of log(min(coverage, 1))
    over the source tokens (Wu et al. 2016, Equation 14).

    `coverage` [..., S] is the sum of the attention weights that all target tokens give to each source token.
    """
    # Clamp the coverage to positive numbers, because log(0) would be -inf for a source token without
    # attention.
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return (logs if source_mask is None else logs * source_mask.bool()).sum(dim=-1)


class PenaltyScorer(Scorer):
    """The default scorer (Wu et al. 2016, Equation 14). The score is the log-probability divided by the
    length penalty, plus the coverage penalty times its weight.
    """

    def __init__(self, config: GenerationConfig):
        self.config = config

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = log_probs / length_penalty(length, self.config)
        return scores if coverage is None else scores + self.config.coverage_penalty * coverage


class EarlyStopping(StoppingRule):
    """The default stopping rule. `EarlyStopping` implements the setting `early_stopping`.

    The search continues for a sentence while an unfinished translation could become one of the `num_counted`
    best results. If `early_stopping` is True, the search also ends as soon as a sentence has `num_beams`
    finished translations.
    """

    def __init__(self, config: GenerationConfig, num_sentences: int, num_counted: int, device: torch.device):
        self.num_counted = num_counted
        self.num_full = config.num_beams
        # True if `may_improve` considers all possible lengths of an unfinished translation, [B] bool.
        self.considers_all_lengths = torch.full(
            (num_sentences,), considers_all_lengths(config), device=device
        )
        # True if the search ends as soon as `num_beams` translations of the sentence are finished, [B] bool.
        self.stops_when_full = torch.full((num_sentences,), config.early_stopping is True, device=device)

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        # `worst` is the lowest score of the `num_counted` best finished translations. `worst` is NEG_INF if
        # fewer translations are finished, so that the search continues.
        worst = finished[:, self.num_counted - 1]
        limits = search.limits[search.sentences]
        longest = torch.where(self.considers_all_lengths[search.sentences], limits, search.num_new)
        return highest_reachable_score(best, search.num_new, longest, search.scorer, search.config) > worst

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        return self.stops_when_full[search.sentences] & (finished[:, self.num_full - 1] > NEG_INF / 2)


def highest_reachable_score(
    log_prob: Any, length: Any, longest: Any, scorer: Scorer, config: GenerationConfig
) -> Any:
    """Return the highest score that an unfinished translation can reach if the finished translation has
    `length` to `longest` tokens. `log_prob` is the summed log-probability so far. More tokens cannot increase
    `log_prob`.

    With a positive length penalty, the longer of two translations with equal log-probability has the higher
    score.
    """
    return scorer(log_prob, longest if config.length_penalty > 0 else length)


def considers_all_lengths(config: GenerationConfig) -> bool:
    """Return True if the stopping rule must consider all possible lengths of an unfinished translation.

    transformers considers all possible lengths only for `early_stopping="never"`. For `early_stopping=False`,
    transformers compares scores at the current length, although this comparison is exact only without a
    length penalty. For `length_penalty_type="gnmt"`, this package also considers all possible lengths for
    `early_stopping=False`.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)


def best_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """Choose the continuations with the highest scores. The default of beam search."""
    return top_candidates(log_probs, search.scores[:, : log_probs.shape[1]], search.num_candidates)


def top_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Return the `number` best candidates for the log-probabilities [N, K, V] of the next token and the
    scores [N, K] of the beams.

    If there are fewer than `number` candidates, the missing candidates have the score NEG_INF. A large
    vocabulary is divided into chunks, and only the chunks with the highest maxima are sorted. Chunks halve
    the time of the selection, and do not change the result.
    """
    num_sentences, num_beams, num_classes = log_probs.shape
    size = chunk_size(num_classes)
    if size == 1 or num_beams * num_classes // size < number:
        return _top_of_all(log_probs, scores, number)
    num_chunks = num_classes // size
    # [N, K, V / size, size]
    chunks = log_probs.view(num_sentences, num_beams, num_chunks, size)
    maxima = chunks.amax(dim=-1) + scores.unsqueeze(2)
    # `chosen` [N, number] are the indices of the best chunks of each sentence. Index k * num_chunks + c means
    # chunk c of beam k.
    chosen = maxima.flatten(1).topk(number, sorted=False).indices
    # [N, number, size]
    members = chunks.flatten(1, 2).gather(1, chosen.unsqueeze(2).expand(-1, -1, size))
    of_parents = scores.gather(1, chosen // num_chunks).unsqueeze(2)
    best, index = (members + of_parents).flatten(1).topk(number)
    chosen = chosen.gather(1, index // size)
    return Candidates(best, chosen // num_chunks, chosen % num_chunks * size + index % size)


def _top_of_all(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Return the best candidates without dividing the vocabulary into chunks."""
    num_classes = log_probs.shape[2]
    total = (log_probs + scores.unsqueeze(2)).flatten(1)
    best, index = total.topk(min(number, total.shape[1]))
    missing = number - total.shape[1]
    if missing > 0:
        best = torch.nn.functional.pad(best, (0, missing), value=NEG_INF)
        index = torch.nn.functional.pad(index, (0, missing))
    return Candidates(best, index // num_classes, index % num_classes)


@lru_cache
def chunk_size(num_classes: int) -> int:
    """Return the number of tokens in a chunk of a vocabulary: the divisor of `num_classes` that is nearest to
    sqrt(num_classes). If the vocabulary is small, or no divisor is near sqrt(num_classes), return 1, so that
    the vocabulary is not divided.
    """
    root = math.isqrt(num_classes)
    if root <= 16:
        return 1
    near = [size for size in range(root // 4 + 1, root * 4) if num_classes % size == 0]
    return min(near, key=lambda size: abs(math.log(size / root)), default=1)


def drawn_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """Draw continuations at random. The default of beam search with `do_sample`."""
    return sample_candidates(log_probs, search.scores[:, : log_probs.shape[1]], search.num_candidates)


def sample_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Draw candidates without replacement, in proportion to their probability. The candidates are in the
    order of the draws.
    """
    num_classes = log_probs.shape[2]
    total = (log_probs + scores.unsqueeze(2)).flatten(1)  # [N, K * V]
    probabilities = torch.softmax(total, dim=-1)
    # Do not call `torch.multinomial`, because it waits for the device to check the probabilities.
    index = (probabilities / torch.empty_like(probabilities).exponential_()).topk(number).indices
    return Candidates(total.gather(1, index), index // num_classes, index % num_classes)
