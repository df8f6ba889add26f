"""Beam search (Section 6.1) for a batch of sentences: all beams of all sentences take a step together.

`SearchTask.run` prepares a search, and `BeamSearch.run` runs the search. Each step of the search has four
parts:

1. A decoder of the file decoding_vaswani reads the last token of each beam and returns the logits of the next
   token. The fast decoder is `TreeAttentionDecoder`.
2. The candidate selection chooses the best continuations of the beams: at least twice as many continuations
   as beams.
3. If one of the K best candidates ends with `</s>` or reaches its length limit, it becomes a finished
translation. The best candidates that have not ended become the beams of the next step.
4. If the stopping rule ends the search for a sentence, the sentence is closed (removed from the batch).

The search selects and ends beams by the same rules as beam search in transformers. This package adds the
length penalty that the paper uses (Wu et al. 2016, arXiv 1609.08144, Section 7), the coverage penalty of Wu
et al., a length limit for each sentence, and the removal of closed sentences.

`generate(..., search=SearchStrategies(...))` replaces the candidate selection, the scorer or the stopping
rule.

This file is saved with every checkpoint because `generate` searches with the code of this file.

In tensor shapes, B is the number of sentences at the start, N the number of open sentences (not closed yet),
K the number of beams, C the number of candidates, R the number of results per sentence, and T the number of
tokens so far, including the prompt. P is the prompt length, S the source length and V the size of the target
vocabulary.
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

from .attention_vaswani import needs_sync
from .decoding_vaswani import RowDecoder, TreeAttentionDecoder, TreeKVCache, gather_beams

# The score of a missing candidate or translation. transformers uses the same number. A score below NEG_INF /
# 2 belongs to a missing candidate, because the scores of real candidates are far above NEG_INF / 2.
NEG_INF = -1e9

# The stopping criteria of transformers that `BeamSearch` does not call, because `BeamSearch` itself checks
# `</s>` and the length limits.
OWN_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


@dataclass
class Candidates:
    """The candidates of one step of beam search. A candidate is a continuation of a beam that the candidate
    selection has chosen. Unless `do_sample` is set, the candidates are sorted by score, best first. `scores`
    [N, C] float32 are summed log-probabilities, `parents` [N, C] int64 are the indices of the beams that the
    candidates extend, and `tokens` [N, C] int64 are the new tokens.
    """

    scores: torch.Tensor
    parents: torch.Tensor
    tokens: torch.Tensor


class Decoder(Protocol):
    """The interface that the search uses to run a model. A decoder computes the logits of the next token of
    each beam.
    """

    # The key-value cache in which all beams of a sentence share one tree of tokens. None for decoders without
    # such a cache.
    tree: TreeKVCache | None
    # The attention [N, K, S] that each source token has received from all target tokens; None if the search
    # has no coverage penalty.
    coverage: Any

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Read the prompts [B * K, P]. Return the logits [B, 1 or K, V] of the next token."""

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Read the last token of each beam in `sequences` [N, K, T]. Return the logits [N, K, V] of the next
        token.

        For each beam, `parents` [N, K] contains the index of the beam of the previous step that it extends.
        """

    def select(self, sentences: torch.Tensor) -> None:
        """Keep only the sentences with the indices `sentences` [N']."""


class CandidateSelection(Protocol):
    """Chooses the candidates of each step of a search."""

    def __call__(self, search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
        """Choose `search.num_candidates` candidates. If fewer candidates exist, the missing candidates have
        the score `NEG_INF`.

        `search` contains the beams: their `scores` [N, K], their `sequences` [N, K, T], and their `parents`
        [N, K], the indices of the beams of the previous step that the beams extend. `log_probs` [N, K, V] are
        the log-probabilities of the next token. Before the first new token `log_probs` may be [N, 1, V],
        because all beams of a sentence are equal at the start.
        """


class Scorer(Protocol):
    """Computes the scores of translations. A higher score is better."""

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the scores [...] of translations, from their summed log-probabilities [...] (nats).

        `length` is the number of new tokens of a translation, including `</s>`. `coverage` [...] is the
        result of `coverage_score`, or None without a coverage penalty.
        """


class StoppingRule(Protocol):
    """Decides whether the search ends for a sentence before the length limit of the sentence is reached."""

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N] that is True if a longer translation could still change the results of the
        sentence.

        `finished` [N, K] are the scores of the finished translations, best first. A missing translation has
        the score NEG_INF. `best` [N] is the highest summed log-probability of the candidates that have not
        ended.
        """

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N] that is True if the search ends for a sentence because the sentence has
        enough translations. The search then ends even if longer translations could have better scores.
        """


@dataclass(frozen=True)
class SearchStrategies:
    """Replaces parts of a search, for example with `generate(..., search=SearchStrategies(scorer=...))`.

    Args:
        ensemble (Sequence): Other models. The search averages the token probabilities of all models.
        must_contain (Sequence, optional): For each sentence the phrases (lists of token ids) that its
            translation must contain. `must_contain` cannot be combined with `candidates` or `stopping_rule`.
        warns_of_unmet (bool): If True, the search warns about phrases of `must_contain` that are missing in a
            translation.
        candidates (CandidateSelection, optional): Chooses the candidates of each step; by default
            `best_candidates`, or `drawn_candidates` if `do_sample` is set.
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
        """The names of the parts of the search that this object replaces."""
        return [name for name in ("candidates", "scorer", "stopping_rule") if getattr(self, name) is not None]


@dataclass
class SearchTask:
    """Contains the inputs of a search, which `generate` has prepared for a batch of sentences, and the
    strategies of the search.
    """

    # `models` contains the model that generates, followed by the other models of the ensemble. `inputs`
    # contains one dict for each model: the inputs of the model for B sentences.
    models: list[Any]
    inputs: list[dict[str, Any]]
    # `prompt` [B, P] int64 contains the beginnings of the translations. `limits` [B] int64 contains the
    # maximum number of new tokens of the translation of each sentence.
    prompt: torch.Tensor
    limits: torch.Tensor
    # The attention mask [B, S] of the source. Only the coverage penalty uses this mask.
    source_mask: torch.Tensor | None
    processors: LogitsProcessorList
    # The stopping criteria of the call. The criteria for `</s>` and for length limits are left out, because
    # the search itself checks `</s>` and length limits.
    criteria: list[Any]
    strategies: SearchStrategies
    # If True, no sentence is removed before the end of the search, and each step records the outputs that
    # `generate` of transformers returns.
    transformers_compatible: bool
    # The search calls `goes_on(is_over)` before each step, where `is_over` is True if this search is over.
    # `goes_on` returns True if another step is necessary.
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
        """Search translations of the sentences with the indices `sentences` [N] (by default all). Returns the
        finished search.
        """
        device = self.prompt.device
        if sentences is None:
            sentences = torch.arange(len(self.prompt), device=device)
        if candidates is None:
            candidates = drawn_candidates if config.do_sample else best_candidates
        if stopping_rule is None:
            # The stopping rule computes the highest score that a longer translation can reach. A logits
            # processor may change log-probabilities so that a longer translation reaches a higher score.
            # Therefore, with logits processors, the search continues while any of the `num_beams` best
            # translations may improve. transformers uses the same rule.
            is_exact = considers_all_lengths(config) and not (self.transformers_compatible or self.processors)
            num_counted = config.num_return_sequences if is_exact else config.num_beams
            stopping_rule = EarlyStopping(config, len(self.prompt), num_counted, device)
        decoders = [
            self._decoder(model, inputs, config)
            for model, inputs in zip(self.models, self.inputs, strict=True)
        ]
        # If values are read from the GPU one step late, the search takes an additional step. Do not read
        # values late if the additional step would have side effects, such as recorded outputs, drawn random
        # numbers, or calls of the user's code.
        has_custom_parts = bool(self.processors or self.criteria or self.strategies.replaced)
        has_effects = self.transformers_compatible or config.do_sample or has_custom_parts
        search = BeamSearch(
            config=config,
            decoders=decoders,
            prompt=self.prompt,
            limits=self.limits,
            candidates=self.strategies.candidates or candidates,
            scorer=self.strategies.scorer or PenaltyScorer(config),
            stopping_rule=self.strategies.stopping_rule or stopping_rule,
            sentences=sentences,
            source_mask=self.source_mask,
            processors=self.processors,
            criteria=StoppingCriteriaList(self.criteria),
            rows_per_sentence=rows_per_sentence,
            excluded=self.models[0].excluded_class(0.0, None),
            reader=DeferredReader() if needs_sync(self.limits) and not has_effects else None,
            transformers_compatible=self.transformers_compatible,
        )
        input_ids = self.prompt[sentences].repeat_interleave(config.num_beams, dim=0)  # [N * K, P]
        # Use inference mode only if the search has no logits processors and no custom parts, because both
        # could need autograd.
        is_direct = not (self.processors or self.strategies.replaced) and all(
            decoder.is_direct for decoder in decoders
        )
        with torch.inference_mode() if is_direct else nullcontext():
            search.run([decoder.start(input_ids) for decoder in decoders], self.goes_on)
        return search

    def _decoder(self, model: Any, inputs: dict[str, Any], config: GenerationConfig) -> Any:
        """Return a `TreeAttentionDecoder` (fast) if the model and the settings permit a
        `TreeAttentionDecoder`, else a `RowDecoder`.
        """
        in_rows = (model is self.models[0] and self.transformers_compatible) or not config.use_cache
        # Use `getattr`, because models of classes outside this package lack the attribute
        # `supports_fast_path`.
        if in_rows or not getattr(model, "supports_fast_path", False):
            return RowDecoder(model, config, inputs)
        return TreeAttentionDecoder(model, config, inputs)


@dataclass(eq=False, kw_only=True)
class BeamSearch:
    """Searches the translations of all sentences of a batch at the same time.

    Args:
        config: The settings. `num_beams` is K and `num_return_sequences` is R.
        decoders: One `Decoder` for each model. The search averages the token probabilities of the models.
        prompt: [B, P] int64, the beginning of each translation.
        limits: [B] int64, the maximum number of new tokens of the translation of each sentence.
        candidates: Chooses the candidates of each step.
        scorer: Computes the scores of finished translations.
        stopping_rule: Decides when the search ends for a sentence.
        sentences: [N] int64, the indices of the sentences to search.
        source_mask: The attention mask [B, S] of the source. Only the coverage penalty uses this mask.
        processors: The logits processors, which change log-probabilities.
        criteria: The stopping criteria, which can end a candidate in addition to `</s>` and the length
            limits.
        rows_per_sentence: The number of beams of a sentence that logits processors and stopping criteria
            receive in one call; by default all beams.
        excluded: The id of a token that the search never chooses: the padding token. None if the search may
            choose every token.
        reader: Reads the values of each step from the GPU one step late, so the search takes one additional
            step. None on a CPU, or if the additional step would have side effects.
        transformers_compatible: If True, remove no sentence before the end of the search, and record the
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
        # On a CPU without sampling, each step first checks whether a candidate has ended. Until the first
        # candidate ends, the steps do not update the finished translations. The check is cheap on a CPU, but
        # on a GPU the program would have to wait for the result.
        self.checks_ends_first = not (self.config.do_sample or needs_sync(self.limits))

        self.eos = self.config._eos_token_tensor
        self.fill = padding_token(self.config)
        self.pad = self.fill if self.config._pad_token_tensor is None else int(self.config._pad_token_tensor)
        self.first_limit, self.last_limit = torch.stack(self.limits.aminmax()).tolist()

        num_ends = 0 if self.eos is None else len(self.eos)
        self.num_beams = self.config.num_beams
        self.num_candidates = max(2, 1 + num_ends) * self.config.num_beams

        # The beams. Give the score NEG_INF to all beams except the first beam, because all beams of a
        # sentence are equal at the start.
        num_searched = len(self.sentences)
        self.prompt_length = prompt.shape[1]
        self.num_new = 0
        # A path contains the tokens of a beam: [B, K, T, 1]. If `transformers_compatible` is True, a path [B,
        # K, T, 2] contains two numbers for each token: the token id, and the row index that the beam had
        # before the token was added.
        paths = prompt.view(len(prompt), 1, -1, 1).expand(-1, self.num_beams, -1, -1)
        if self.transformers_compatible:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        self.paths = paths[self.sentences]  # [N, K, T, 1 or 2]
        self.scores = torch.full((num_searched, self.num_beams), NEG_INF, device=prompt.device)
        self.scores[:, 0] = 0
        # For each beam, the index of the beam of the previous step that it extends, [N, K] int64. The first
        # step of the search sets this attribute.
        self.parents: torch.Tensor

        self.is_over = False
        self.is_open = torch.ones(num_searched, dtype=torch.bool, device=prompt.device)
        self.is_improvable = self.is_open
        self.num_searched = self.is_open.sum()

        # Finished translations of all sentences, best first.
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

        `logits` contains for each decoder the logits [B, 1 or K, V] of the first new token.
        `goes_on(is_over)` returns True if this search, or the search of another process that shares the
        model, needs another step. Processes that share one model must take the same number of steps.
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
        """Complete one step after the decoders have computed their logits (parts 2 to 4 of a step in the
        docstring of this file).
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
            self.scores, best = (candidates.scores + ended * NEG_INF).topk(self.num_beams)
            self.paths = gather_beams(paths, best)
            self.parents = candidates.parents.gather(1, best)
        else:
            self._continue_with_first_candidates(candidates, paths)
        # Remove closed sentences only if at least an eighth of the sentences is closed, because each removal
        # copies all open sentences.
        if self.may_remove_sentences and not self.is_over and 8 * num_open <= 7 * len(self.sentences):
            self._remove_closed_sentences(num_open)

    def _continue_with_first_candidates(self, candidates: Candidates, paths: torch.Tensor) -> None:
        """Make the first K candidates the new beams. The candidates must be sorted, and no candidate may have
        ended.
        """
        self.scores = candidates.scores[:, : self.num_beams]
        self.paths = paths[:, : self.num_beams]
        self.parents = candidates.parents[:, : self.num_beams]

    def _read_step_numbers(
        self, checked: torch.Tensor, was_open: torch.Tensor, any_ended: torch.Tensor, num_open: torch.Tensor
    ) -> tuple[bool, int]:
        """Read two values from the device: whether a candidate has ended, and the number of open sentences.

        This method waits for the GPU. No other method of a step waits for the GPU. If the search has a
        `reader`, both values belong to the previous step.
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
            # Return default values at the first step, because the values of a step are read one step later.
            return True, len(self.sentences)
        return self._use_step_numbers(numbers)

    def _use_step_numbers(self, numbers: "StepNumbers") -> tuple[bool, int]:
        """Raise an error if a log-probability is NaN. Store in each key-value tree the number of tokens that
        belong to a beam. Return whether a candidate has ended, and the number of open sentences.
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
        """Return two tensors. The first tensor contains the log-probabilities [N, K or 1, V] that the logits
        processors return. The second tensor contains the log-probabilities [N, K or 1] of one token of the
        vocabulary. The caller checks the second tensor for NaN. One token is enough for this check, because
        all log-probabilities of a row are NaN if one logit is NaN or +inf, or if all logits of the row are
        -inf.
        """
        log_probs = torch.log_softmax(logits[0], dim=-1)
        if len(logits) > 1:
            # Broadcast the log-probabilities, because before the first new token some decoders return K rows
            # per sentence, and other decoders return one row.
            others = [torch.log_softmax(other, dim=-1) for other in logits[1:]]
            of_models = torch.stack(torch.broadcast_tensors(log_probs, *others))
            log_probs = of_models.logsumexp(dim=0) - math.log(len(logits))
        # Check the log-probability of an arbitrary token, but not of the excluded token, because the code
        # below overwrites the log-probability of the excluded token.
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
        """Convert the values [N, K, ...] of the N open sentences to rows [B * K, ...] of all B sentences. The
        rows of closed sentences are zeros, so that the row index of a beam never changes.
        """
        full = values.new_zeros(len(self.limits), *values.shape[1:])
        return full.index_copy_(0, self.sentences, values).flatten(0, 1)

    def _from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Convert the rows [B * K, ...] of all sentences to the values [N, K, ...] of the open sentences (the
        inverse of `_to_rows`).
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
        """Return a bool tensor [N, C] that is True where one of `criteria` ends a candidate in `sequences`
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
        """Return a bool tensor [N, C] that is True where `</s>`, the length limit or one of `criteria` ends a
        candidate.
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

        Returns [N, K] int64, the indices of the K best translations. An index below K refers to a translation
        that finished at an earlier step. An index K + i refers to candidate i.
        """
        scores = candidates.scores[:, : self.num_beams]
        entering = ended[:, : self.num_beams] & self.is_open.unsqueeze(1) & (scores > NEG_INF / 2)
        coverage = None
        if self.decoders[0].coverage is not None:
            attention = sum(decoder.coverage for decoder in self.decoders) / len(self.decoders)  # [N, K, S]
            mask = None if self.source_mask is None else self.source_mask[self.sentences].unsqueeze(1)
            coverage = coverage_score(attention, mask).gather(
                1, candidates.parents[:, : self.num_beams]
            )  # [N, K]
        scores = self.scorer(scores, self.num_new, coverage)
        # Give candidates that do not become finished translations the score 2 * NEG_INF. This score must be
        # lower than the score of a missing translation, NEG_INF.
        entering_scores = scores.masked_fill(~entering, 2 * NEG_INF)
        merged = torch.cat((self.finished_scores[self.sentences], entering_scores), dim=1)
        self.finished_scores[self.sentences], kept = merged.topk(self.num_beams)
        return kept

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
        """Pad paths (the tokens of beams or translations) to `num_tokens` tokens."""
        missing = num_tokens - paths.shape[2]
        if missing == 0:
            return paths
        return torch.cat((paths, self.after_end.expand(*paths.shape[:2], missing, -1)), dim=2)

    def _close_sentences(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """End the search for the sentences whose results are final. Return the number of open sentences."""
        finished = self.finished_scores[self.sentences]
        best = (candidates.scores + ended * NEG_INF).amax(dim=1)
        self.is_improvable = self.is_improvable & self.stopping_rule.may_improve(self, finished, best)
        is_full = self.stopping_rule.is_full(self, finished)
        goes_on = ~ended.all(dim=1)
        self.is_open = self.is_improvable & ~is_full
        if self.transformers_compatible:
            # Continue or end the search for all sentences of the batch together, as transformers does.
            return self.is_improvable.any() & ~is_full.all() & goes_on.any()
        self.is_improvable = self.is_improvable & goes_on
        self.is_open = self.is_open & goes_on
        return self.is_open.sum()

    def _remove_closed_sentences(self, num_staying: int) -> None:
        """Remove closed sentences (the search has ended for them) from the batch, and keep `num_staying`
        sentences.

        If the search has a `reader`, `num_staying` was counted in the previous step, so some kept sentences
        may already be closed.
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
        """Return the tokens [B * R, T] and the scores [B * R] of the best R translations of each sentence,
        and the beam indices or None.

        The beam indices [B * R, T - P] are the `beam_indices` of transformers. If a translation is missing,
        padding follows the prompt, and the score is -inf.
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
    """Return True if a logits processor or a stopping criterion contains code of the user. This code may need
    the rows of all sentences, including the sentences for which the search has ended.
    """
    kinds = {type(rule) for rule in (*processors, *criteria)}
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    own = {"transformers", __name__.partition(".")[0]}
    return bool(packages - own) or PrefixConstrainedLogitsProcessor in kinds


def padding_token(config: GenerationConfig) -> int:
    """Return the id of the token that fills a row after the end of its translation. transformers fills rows
    with the same token.
    """
    pad = config._pad_token_tensor
    eos = config._eos_token_tensor
    if pad is not None and (config.num_beams == 1 or (int(pad) != 0 and eos is not None)):
        return int(pad)
    return -1 if eos is None else int(eos[0])


@dataclass(frozen=True)
class StepNumbers:
    """The values that the search copies from the device to the CPU in one transfer after each step."""

    # [3 + number of trees] float32. The first three values are the sum of `log_probs`, 1 if a candidate has
    # ended (else 0), and the number of open sentences. For each key-value tree, one more value follows: the
    # number of tokens that belong to a beam (the maximum over the sentences).
    values: torch.Tensor
    trees: list[TreeKVCache]
    # If `log_probs` contain NaN, the search finds the affected sentence with `is_open` and `sentences`.
    # `log_probs` [N, K or 1] are the log-probabilities of one token of the vocabulary. `is_open` [N] is True
    # for open sentences. `sentences` [N] int64 are the indices of the sentences.
    log_probs: torch.Tensor
    is_open: torch.Tensor
    sentences: torch.Tensor


class DeferredReader:
    """Reads the values of a step from the GPU while the GPU computes the next step.

    The search learns one step late that it is over, so it takes one step more than necessary. The results of
    the additional step are discarded.
    """

    def __init__(self) -> None:
        self.event: torch.cuda.Event | None = None
        self.pending: StepNumbers | None = None

    def exchange(self, numbers: StepNumbers | None) -> StepNumbers | None:
        """Store `numbers`, the values of this step (None after the last step), and return the values of the
        previous step.
        """
        before = self.pending
        event = self.event
        self.pending = None
        self.event = None
        if numbers is not None:
            # Pass `non_blocking=True`, so that the GPU and this thread continue during the copy to pinned
            # memory.
            self.pending = replace(numbers, values=numbers.values.to("cpu", non_blocking=True))
            if numbers.values.is_cuda:
                self.event = torch.cuda.current_stream(numbers.values.device).record_event()
        if event is not None:
            event.synchronize()
        return before


def length_penalty(length: Any, config: GenerationConfig) -> Any:
    """Return ((5 + length) / 6)^alpha for "gnmt" (Wu et al. 2016, Equation 14), otherwise length^alpha."""
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return ((5 + length) / 6 if is_gnmt else length) ** config.length_penalty


def coverage_score(coverage: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
    """Return the coverage penalty without its weight: the sum of log(min(coverage, 1)) over the source tokens
    (Wu et al. 2016, Equation 14).

    `coverage` [..., S] is the attention that each source token receives, summed over all target tokens.
    """
    # Clamp the coverage at the smallest positive number, because log(0) would be -inf for a source token
    # without attention.
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return (logs if source_mask is None else logs * source_mask.bool()).sum(dim=-1)


class PenaltyScorer(Scorer):
    """The default scorer (Wu et al. 2016, Equation 14). The score is the log-probability divided by the
    length penalty, plus the weighted coverage penalty.
    """

    def __init__(self, config: GenerationConfig):
        self.config = config

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = log_probs / length_penalty(length, self.config)
        return scores if coverage is None else scores + self.config.coverage_penalty * coverage


class EarlyStopping(StoppingRule):
    """The default stopping rule, which implements the setting `early_stopping`.

    The search continues for a sentence while an unfinished translation could still become one of the
    `num_counted` best results. A sentence is full if `num_beams` translations are finished and
    `early_stopping` is True.
    """

    def __init__(self, config: GenerationConfig, num_sentences: int, num_counted: int, device: torch.device):
        self.num_counted = num_counted
        self.num_full = config.num_beams
        # [B] bool: True if `may_improve` considers all possible lengths of an unfinished translation.
        self.considers_all_lengths = torch.full(
            (num_sentences,), considers_all_lengths(config), device=device
        )
        # [B] bool: True if the search ends for a sentence as soon as the sentence is full.
        self.stops_when_full = torch.full((num_sentences,), config.early_stopping is True, device=device)

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        # `worst` is the lowest score of the `num_counted` best finished translations. If fewer translations
        # are finished, `worst` is NEG_INF, so that every additional translation improves the results.
        worst = finished[:, self.num_counted - 1]
        limits = search.limits[search.sentences]
        longest = torch.where(self.considers_all_lengths[search.sentences], limits, search.num_new)
        return highest_reachable_score(best, search.num_new, longest, search.scorer, search.config) > worst

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        return self.stops_when_full[search.sentences] & (finished[:, self.num_full - 1] > NEG_INF / 2)


def highest_reachable_score(
    log_prob: Any, length: Any, longest: Any, scorer: Scorer, config: GenerationConfig
) -> Any:
    """Return the highest score that an unfinished translation can reach if it ends with `length` to `longest`
    tokens. `log_prob` is its summed log-probability, which additional tokens cannot increase.

    With a positive length penalty, a longer translation has a higher score if the log-probability is equal.
    """
    return scorer(log_prob, longest if config.length_penalty > 0 else length)


def considers_all_lengths(config: GenerationConfig) -> bool:
    """Return True if the stopping rule must compute the best score over all possible lengths of an unfinished
    translation.

    transformers considers all possible lengths only for `early_stopping="never"`. For `early_stopping=False`,
    transformers compares scores at the current length. A comparison at the current length is exact only if
    scores are not divided by a length penalty. This package also considers all possible lengths for
    `early_stopping=False` if the length penalty is the penalty of Wu et al.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)


def best_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """Select the continuations with the highest scores, as in beam search."""
    return top_candidates(log_probs, search.scores[:, : log_probs.shape[1]], search.num_candidates)


def top_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Return the best `number` candidates, from the log-probabilities [N, K, V] and the scores [N, K] of the
    beams.

    If fewer than `number` candidates exist, the missing candidates have the score NEG_INF. A large vocabulary
    is divided into chunks, and only the chunks with the highest maxima are sorted. The division into chunks
    halves the time of the selection, and does not change the selected candidates.
    """
    num_sentences, num_beams, num_classes = log_probs.shape
    size = chunk_size(num_classes)
    if size == 1 or num_beams * num_classes // size < number:
        return _top_of_all(log_probs, scores, number)
    num_chunks = num_classes // size
    # [N, K, V / size, size]
    chunks = log_probs.view(num_sentences, num_beams, num_chunks, size)
    maxima = chunks.amax(dim=-1) + scores.unsqueeze(2)
    # [N, number]: for each sentence, the indices of the `number` best chunks. Index k * num_chunks + c means
    # chunk c of beam k.
    chosen = maxima.flatten(1).topk(number, sorted=False).indices
    # [N, number, size]
    members = chunks.flatten(1, 2).gather(1, chosen.unsqueeze(2).expand(-1, -1, size))
    of_parents = scores.gather(1, chosen // num_chunks).unsqueeze(2)
    best, index = (members + of_parents).flatten(1).topk(number)
    chosen = chosen.gather(1, index // size)
    return Candidates(best, chosen // num_chunks, chosen % num_chunks * size + index % size)


def _top_of_all(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Return the best candidates among all tokens of the vocabulary, without dividing the vocabulary into
    chunks.
    """
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
    """Return the number of tokens in a chunk of the vocabulary: the divisor of `num_classes` that is nearest
    to sqrt(num_classes). Return 1 (no chunks) if the vocabulary is small, or if no divisor is near
    sqrt(num_classes).
    """
    root = math.isqrt(num_classes)
    if root <= 16:
        return 1
    near = [size for size in range(root // 4 + 1, root * 4) if num_classes % size == 0]
    return min(near, key=lambda size: abs(math.log(size / root)), default=1)


def drawn_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """Select continuations at random, as in beam sampling."""
    return sample_candidates(log_probs, search.scores[:, : log_probs.shape[1]], search.num_candidates)


def sample_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Draw candidates at random, without replacement and in proportion to their probability. Return the
    candidates in the order of the draws.
    """
    num_classes = log_probs.shape[2]
    total = (log_probs + scores.unsqueeze(2)).flatten(1)  # [N, K * V]
    probabilities = torch.softmax(total, dim=-1)
    # Do not call `torch.multinomial`, because `torch.multinomial` synchronises with the device to check the
    # probabilities.
    index = (probabilities / torch.empty_like(probabilities).exponential_()).topk(number).indices
    return Candidates(total.gather(1, index), index // num_classes, index % num_classes)


class SentenceError(ValueError):
    """Raised if a sentence cannot be translated.

    `sentence` is the index of the sentence in the batch. `text` is the text of the sentence, or None if the
    text is unknown.
    """

    def __init__(self, sentence: int, text: str | None = None):
        super().__init__(sentence, text)
        self.sentence = sentence
        self.text = text

    @property
    def place(self) -> str:
        """The words that name the sentence in an error message."""
        return (
            f"sentence {self.sentence} of the batch" if self.text is None else f"the text {self.text[:40]!r}"
        )


class NotFiniteError(SentenceError):
    """Raised if logits of a sentence are NaN or infinite."""

    def __str__(self) -> str:
        return (
            f"The model's logits for {self.place} are NaN or infinite: the weights of the model are damaged, "
            "or too large for their dtype; if the dtype is float16, try bfloat16 or float32."
        )


class NoTranslationError(SentenceError):
    """Raised if the settings of the search forbid every translation of a sentence. `settings` is a text with
    the names and values of these settings.
    """

    def __init__(self, sentence: int, settings: str, text: str | None = None):
        super().__init__(sentence, text)
        self.args = (sentence, settings, text)
        self.settings = settings

    def __str__(self) -> str:
        return (
            f"No translation of {self.place} was found, because at some step every token is forbidden by "
            f"{self.settings}; change these settings."
        )


# Settings of `generate` for which transformers creates logits processors that can forbid tokens.
_FORBIDDING = (
    "bad_words_ids suppress_tokens begin_suppress_tokens sequence_bias no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size min_length min_new_tokens forced_bos_token_id forced_eos_token_id"
).split()


def forbidding_settings(config: GenerationConfig) -> str:
    """Return the names and values of the settings that can forbid tokens, as a text for an error message."""
    values = {name: getattr(config, name, None) for name in _FORBIDDING}
    if values["min_new_tokens"]:
        # Do not name `min_length` in the error message, because transformers computes `min_length` from
        # `min_new_tokens`.
        del values["min_length"]
    given = [
        f"`{name}` = {str(value):.60}" for name, value in values.items() if value not in (None, [], False)
    ]
    return ", ".join(given) or "the given `logits_processor` and `prefix_allowed_tokens_fn`"
