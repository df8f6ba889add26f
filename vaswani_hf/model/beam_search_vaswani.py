"""Beam search (Section 6.1) for a batch of sentences. Each step extends all beams of all sentences by one
token.

`BeamSearch` runs the search. `Beams` contains the beams of the current step, `FinishedTranslations` the
translations that have ended, and `StepReader` reads values from the device. Each step of the search has five
parts:

1. A decoder of the file decoding_vaswani reads the last token of each beam and returns the logits of the next
   token. The fast decoder is `TreeAttentionDecoder`.
2. The candidate selection chooses the best continuations of the beams, called candidates. There are at least
   twice as many candidates as beams.
3. If one of the K best candidates ends with `</s>` or reaches its length limit, it becomes a finished
   translation.
4. The stopping rule decides for each sentence whether its search ends. A sentence is open during its search,
   and closed after its search.
5. The best candidates that have not ended become the beams of the next step. Unless `may_remove_sentences` is
   False, `BeamSearch` removes closed sentences (sentences whose search has ended) from the batch.

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
from dataclasses import dataclass
from functools import lru_cache, partial
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

# The score of an empty place in a list of candidates or finished translations. transformers uses the same
# score. Scores of existing candidates are far above NEG_INF / 2, so a lower score marks an empty place.
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


# Interfaces of the replaceable parts of a search: candidate selection, scorer and stopping rule


class CandidateSelection(Protocol):
    """Chooses the candidates of each step of a search."""

    def __call__(self, search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
        """Choose `search.num_candidates` candidates. If there are fewer candidates, fill the result with
        candidates of the score `NEG_INF`.

        `search.beams` contains the beams, see `Beams`. `log_probs` [N, K, V] are the log-probabilities of the
        next token. In the first step `log_probs` may be [N, 1, V], because all beams of a sentence are equal
        at the start.
        """


class Scorer(Protocol):
    """Computes the scores by which the search ranks translations. A higher score is better."""

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the scores of translations, a tensor with the shape of `log_probs`. `log_probs` [...], with
        any shape, are the summed log-probabilities of the translations (nats).

        `length` is the number of new tokens, including `</s>`. `coverage` [...] is the result of
        `coverage_score`, or None without a coverage penalty.
        """


class StoppingRule(Protocol):
    """Decides whether the search ends for a sentence before the length limit."""

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N]. A value is True if a longer translation could still become one of the
        results of the sentence.

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
    def given(self) -> list[str]:
        """The names of the given arguments that only the search of this package supports, for error
        messages.
        """
        names = ["`ensemble`"] if self.ensemble else []
        if self.must_contain is not None:
            names.append("`must_contain`")
        return names + [f"`{name}` of `search`" for name in self.replaced]

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
    # The attention mask [B, S] of the source. Only the coverage penalty uses `source_mask`.
    source_mask: torch.Tensor | None
    processors: LogitsProcessorList
    # The stopping criteria without those for `</s>` and length limits, because the search checks `</s>` and
    # length limits itself.
    criteria: StoppingCriteriaList
    strategies: SearchStrategies
    # If True, all sentences stay in the batch until the whole search ends, and the search records the outputs
    # that `generate` of transformers returns.
    transformers_compatible: bool
    # The search calls `goes_on(is_over)` before each step, and stops if the result is False. With several
    # processes, the result is True until the searches of all processes are over.
    goes_on: Callable[[bool], bool]

    @property
    def has_user_code(self) -> bool:
        """True if the search calls logits processors, stopping criteria or strategies of the user."""
        return bool(self.processors or self.criteria or self.strategies.replaced)


class BeamSearch:
    """Runs beam search for all sentences of a batch at the same time. `run` runs the search, and `results`
    returns the translations.

    Args:
        task: The models, their inputs, the length limits and the strategies.
        config: The settings of the search. `num_beams` is K and `num_return_sequences` is R.
        candidates: The candidate selection if `task.strategies` contains no candidate selection; by default
            `best_candidates`, or `drawn_candidates` with `do_sample`.
        stopping_rule: The stopping rule if `task.strategies` contains no stopping rule; by default
            `EarlyStopping`.
        sentences: The indices of the sentences to translate, [N] int64; by default all sentences.
        rows_per_sentence: The number of rows per sentence in each call of a logits processor or a stopping
            criterion. A row is a beam for a logits processor, and a candidate for a stopping criterion. By
            default, each call of a logits processor receives all beams of each sentence, and each call of a
            stopping criterion receives all candidates of each sentence.
    """

    def __init__(
        self,
        task: SearchTask,
        config: GenerationConfig,
        *,
        candidates: CandidateSelection | None = None,
        stopping_rule: StoppingRule | None = None,
        sentences: torch.Tensor | None = None,
        rows_per_sentence: int | None = None,
    ):
        self.task = task
        self.config = config
        self.num_beams = config.num_beams
        self.eos = config._eos_token_tensor
        num_ends = 0 if self.eos is None else len(self.eos)
        self.num_candidates = max(2, 1 + num_ends) * self.num_beams
        self.fill = padding_token(config)
        # The id of the padding token if the search must not choose padding, else None.
        self.excluded = task.models[0].excluded_class(0.0, None)
        self.last_limit = int(task.limits.max())
        self.may_remove_sentences = not (
            task.transformers_compatible or has_custom_rules(task.processors, task.criteria)
        )

        default_candidates = drawn_candidates if config.do_sample else best_candidates
        self.candidates = task.strategies.candidates or candidates or default_candidates
        self.scorer = task.strategies.scorer or PenaltyScorer(config)
        self.stopping_rule = task.strategies.stopping_rule or stopping_rule or self._early_stopping()
        self.decoders = [
            self._make_decoder(model, inputs) for model, inputs in zip(task.models, task.inputs, strict=True)
        ]

        # The state of the search. `num_new` is the number of new tokens in each beam.
        if sentences is None:
            sentences = torch.arange(len(task.prompt), device=task.prompt.device)
        prompts = self._prompt_paths()
        self.beams = Beams(prompts, sentences)
        self.finished = FinishedTranslations(prompts, self.fill)
        self.num_new = 0
        self.is_over = False
        # On a CPU without sampling, a step in which no candidate ends skips the handling of ended candidates.
        # Before the first candidate has ended, each step also skips the stopping rule. On a GPU, the CPU
        # would have to wait for the GPU to know whether a candidate has ended. With sampling, the candidates
        # are not sorted, so each step sorts them.
        self.skips_idle_work = not (config.do_sample or needs_sync(task.limits))
        self.has_finished = not self.skips_idle_work
        # Do not use a late `StepReader` if its additional step would have side effects: recorded outputs,
        # drawn random numbers, or calls of the user's code.
        has_effects = task.transformers_compatible or config.do_sample or task.has_user_code
        self.reader = StepReader(self.decoders, config, is_late=needs_sync(task.limits) and not has_effects)

        self.rows_per_sentence = rows_per_sentence
        # The scores and logits of each step, for the outputs that `generate` of transformers returns.
        self.step_scores: list[torch.Tensor] = []
        self.step_logits: list[torch.Tensor] = []

    def _early_stopping(self) -> "EarlyStopping":
        """Return the default stopping rule. The rule computes the highest score that an unfinished
        translation can still reach. The rule ends the search for a sentence when no unfinished translation
        can become one of the `num_return_sequences` best translations of the sentence. In three cases the
        rule considers `num_beams` instead of `num_return_sequences` translations, as transformers does. The
        cases are: logits processors, `transformers_compatible`, and a rule that considers only the current
        length. With logits processors, or if the rule considers only the current length, the computed highest
        reachable score is perhaps too low.
        """
        task = self.task
        config = self.config
        is_exact = considers_all_lengths(config) and not (task.transformers_compatible or task.processors)
        num_counted = config.num_return_sequences if is_exact else config.num_beams
        return EarlyStopping(config, len(task.prompt), num_counted, task.prompt.device)

    def _make_decoder(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Return the fast `TreeAttentionDecoder` if the model and the settings permit it, else a
        `RowDecoder`.
        """
        records_outputs = model is self.task.models[0] and self.task.transformers_compatible
        in_rows = records_outputs or not self.config.use_cache
        # Use `getattr`, because models of other libraries lack the attribute `supports_fast_path`.
        if in_rows or not getattr(model, "supports_fast_path", False):
            return RowDecoder(model, self.config, inputs)
        return TreeAttentionDecoder(model, self.config, inputs)

    def _prompt_paths(self) -> torch.Tensor:
        """Return the prompt of each beam of all B sentences, [B, K, P, 1 or 2], in the format of
        `Beams.paths`.
        """
        prompt = self.task.prompt
        paths = prompt.view(len(prompt), 1, -1, 1).expand(-1, self.num_beams, -1, -1)
        if self.task.transformers_compatible:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        return paths

    def run(self) -> None:
        """Run steps of the search until `task.goes_on` returns False."""
        prompt = self.task.prompt[self.beams.sentences]
        input_ids = prompt.repeat_interleave(self.num_beams, dim=0)  # [N * K, P]
        # Use inference mode only if the search calls no code of the user, because such code may need autograd.
        is_direct = not self.task.has_user_code and all(decoder.is_direct for decoder in self.decoders)
        with torch.inference_mode() if is_direct else nullcontext():
            logits = [decoder.start(input_ids) for decoder in self.decoders]
            while self.task.goes_on(self.is_over):
                if self.num_new > 0:
                    sequences = self.beams.sequences
                    parents = self.beams.parents
                    logits = [decoder.step(sequences, parents) for decoder in self.decoders]
                if not self.is_over:
                    self._take_step(logits)
            self.reader.finish()

    def _take_step(self, logits: Sequence[torch.Tensor]) -> None:
        """Complete a step after the decoders have computed the logits: parts 2 to 5 in the docstring of this
        file. `logits` contains the logits [N, 1 or K, V] of each decoder.
        """
        beams = self.beams
        was_open = beams.is_open
        # Part 2: choose the candidates.
        log_probs, checked = self._log_probs(logits)
        candidates = self.candidates(self, log_probs)
        paths = beams.extended_paths(candidates)
        self.num_new += 1
        # Part 3: add candidates that have ended to the finished translations.
        ended = self._has_ended(candidates, paths)
        some_ended = not self.skips_idle_work or bool(ended.any())
        if some_ended:
            self._finish(candidates, paths, ended)
        # Part 4: end the search for each sentence whose results are final.
        num_left = self._close_sentences(candidates, ended)
        num_open = self.reader.read(checked, beams.sentences, was_open, num_left)
        self.is_over = num_open == 0 or self.num_new >= self.last_limit
        # Part 5: continue with the best candidates that have not ended.
        beams.replace(candidates, paths, ended if some_ended else None)
        # Remove sentences whose search has ended only if these sentences are at least an eighth of the batch,
        # because a removal copies all other sentences.
        if self.may_remove_sentences and not self.is_over and 8 * num_open <= 7 * len(beams.sentences):
            self._remove_closed_sentences(num_open)

    def _log_probs(self, logits: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tensors `log_probs` and `checked`. `log_probs` [N, K or 1, V] contains the
        log-probabilities of all tokens after the logits processors. `checked` [N, K or 1] contains the
        log-probability of one token (0 or 1) before the logits processors. The caller looks for NaN in
        `checked`. One token is enough for the check, because all log-probabilities of a row are NaN if one
        logit is NaN or +inf, or if all logits of the row are -inf.
        """
        log_probs = torch.log_softmax(logits[0], dim=-1)
        if len(logits) > 1:
            # Broadcast the log-probabilities, because in the first step a `RowDecoder` returns K rows per
            # sentence, and a `TreeAttentionDecoder` returns one row.
            others = [torch.log_softmax(other, dim=-1) for other in logits[1:]]
            of_models = torch.stack(torch.broadcast_tensors(log_probs, *others))
            log_probs = of_models.logsumexp(dim=0) - math.log(len(logits))
        # Choose token 0 for the check for NaN. If token 0 is the excluded token, choose token 1, because
        # `fill_` overwrites the log-probability of the excluded token.
        checked = log_probs[:, :, 1 if self.excluded == 0 else 0]
        if self.task.processors:
            log_probs = self._call_with_rows(
                self.task.processors, self.beams.sequences, log_probs.expand(-1, self.num_beams, -1)
            )
        if self.task.transformers_compatible and self.config.output_logits:
            self.step_logits.append(logits[0].flatten(0, 1))
        if self.task.transformers_compatible and self.config.output_scores:
            self.step_scores.append(log_probs.flatten(0, 1).clone())
        if self.excluded is not None:
            log_probs.select(2, self.excluded).fill_(2 * NEG_INF)
        return log_probs, checked

    def _has_ended(self, candidates: Candidates, paths: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [N, C] that is True where `</s>`, the length limit or a stopping criterion
        ends a candidate.
        """
        limits = self.task.limits[self.beams.sentences]
        ended = (limits <= self.num_new).unsqueeze(1).expand_as(candidates.tokens)
        if self.eos is not None:
            ended = ended | torch.isin(candidates.tokens, self.eos)
        if self.task.criteria:
            scores = tuple(self.step_scores) or None
            ended = ended | self._call_with_rows(partial(self.task.criteria, scores=scores), paths[..., 0])
        return ended

    def _call_with_rows(self, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        """Call `function` (a logits processor or a stopping criterion) for the N sentences in the batch.
        Convert each tensor [N, beams, ...] in `values` to rows [B * beams, ...] for all B sentences. Convert
        the result back to [N, beams, ...].

        The rows of removed sentences are zeros, so that the row index of a beam never changes. If the search
        has `rows_per_sentence`, each call receives this number of beams per sentence.
        """
        num_sentences = len(self.task.prompt)
        size = self.rows_per_sentence or values[0].shape[1]
        parts = []
        for of_beams in zip(*(value.split(size, dim=1) for value in values), strict=True):
            rows = []
            for value in of_beams:
                full = value.new_zeros(num_sentences, *value.shape[1:])
                rows.append(full.index_copy_(0, self.beams.sentences, value).flatten(0, 1))
            parts.append(function(*rows).unflatten(0, (num_sentences, -1))[self.beams.sentences])
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _finish(self, candidates: Candidates, paths: torch.Tensor, ended: torch.Tensor) -> None:
        """If one of the K best candidates of a sentence has ended, add the candidate to the finished
        translations.
        """
        beams = slice(self.num_beams)
        scores = candidates.scores[:, beams]
        entering = ended[:, beams] & self.beams.is_open.unsqueeze(1) & (scores > NEG_INF / 2)
        scores = self.scorer(scores, self.num_new, self._coverage_scores(candidates))
        # Give the score 2 * NEG_INF to candidates that do not become finished translations, because an empty
        # place has the higher score NEG_INF.
        scores = scores.masked_fill(~entering, 2 * NEG_INF)
        self.finished.add(self.beams.sentences, scores, paths[:, beams], self.num_new)
        self.has_finished = True

    def _coverage_scores(self, candidates: Candidates) -> torch.Tensor | None:
        """Return the coverage scores [N, K] of the first K candidates, or None without a coverage penalty."""
        if self.decoders[0].coverage is None:
            return None
        attention = sum(decoder.coverage for decoder in self.decoders) / len(self.decoders)  # [N, K, S]
        mask = self.task.source_mask
        mask = None if mask is None else mask[self.beams.sentences].unsqueeze(1)
        parents = candidates.parents[:, : self.num_beams]
        return coverage_score(attention, mask).gather(1, parents)  # [N, K]

    def _close_sentences(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Close the sentences whose results are final, and return the number of sentences that are still
        open.
        """
        beams = self.beams
        if not self.has_finished:
            return beams.is_open.sum()
        finished = self.finished.scores[beams.sentences]
        best = (candidates.scores + ended * NEG_INF).amax(dim=1)
        beams.is_improvable = beams.is_improvable & self.stopping_rule.may_improve(self, finished, best)
        is_full = self.stopping_rule.is_full(self, finished)
        goes_on = ~ended.all(dim=1)
        beams.is_open = beams.is_improvable & ~is_full
        if self.task.transformers_compatible:
            # End the search for all sentences of the batch at the same step, as transformers does.
            return beams.is_improvable.any() & ~is_full.all() & goes_on.any()
        beams.is_improvable = beams.is_improvable & goes_on
        beams.is_open = beams.is_open & goes_on
        return beams.is_open.sum()

    def _remove_closed_sentences(self, num_staying: int) -> None:
        """Remove sentences whose search has ended from the batch, and keep `num_staying` sentences.

        If `is_late` of `StepReader` is True, `num_staying` is the number of open sentences after the previous
        step. With a late `StepReader`, some kept sentences are perhaps already closed.
        """
        staying = self.beams.is_open.byte().argsort(descending=True, stable=True)[:num_staying]
        self.beams.select(staying)
        for decoder in self.decoders:
            decoder.select(staying)

    def results(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the tokens [B * R, T], the scores [B * R] and the beam indices of the R best translations of
        each sentence.

        With `transformers_compatible`, the beam indices are the tensor `beam_indices` [B * R, T - P] of
        transformers for the T - P new tokens. Otherwise, the beam indices are None. If a sentence has fewer
        than R translations, its remaining rows contain the prompt and padding, and have the score -inf.
        """
        kept = slice(self.config.num_return_sequences)
        prompt_length = self.task.prompt.shape[1]
        lengths = self.finished.lengths[:, kept]
        length = prompt_length + int(lengths.max())
        paths = self.finished.paths[:, kept, :length].flatten(0, 1)
        rows = paths[:, prompt_length:, 1].int() if self.task.transformers_compatible else None
        is_missing = (lengths == 0).flatten()
        is_new = torch.arange(length, device=paths.device) >= prompt_length
        pad = self.fill if self.config._pad_token_tensor is None else int(self.config._pad_token_tensor)
        sequences = paths[..., 0].masked_fill(is_missing.unsqueeze(1) & is_new, pad)
        scores = self.finished.scores[:, kept].flatten().masked_fill(is_missing, -math.inf)
        return sequences, scores, rows

    def without_translation(self) -> list[int]:
        """Return the indices of the sentences for which the search found no translation."""
        return (self.finished.lengths[:, 0] == 0).nonzero().flatten().tolist()


class Beams:
    """The K beams of each of the N sentences in the batch.

    Attributes:
        sentences: The indices of the sentences, [N] int64.
        scores: The summed log-probabilities of the beams, [N, K] float32.
        paths: The tokens of the beams, [N, K, T, 1] int64. If `transformers_compatible` of the task is True,
            the paths [N, K, T, 2] contain two numbers for each token: the token id, and the row index of the
            beam that the token has extended.
        parents: For each beam, the index of the beam of the previous step that the beam extends, [N, K]
            int64. The first step of the search sets `parents`.
        is_improvable: True for each sentence whose results may still change, [N] bool.
        is_open: True for each sentence whose search continues, [N] bool. The search also ends for a sentence
            that has enough finished translations (`StoppingRule.is_full`).
    """

    def __init__(self, prompts: torch.Tensor, sentences: torch.Tensor):
        # `prompts` [B, K, P, 1 or 2] contains the prompt of each beam of all B sentences, in the format of
        # `paths`.
        self.sentences = sentences
        self.paths = prompts[sentences]
        # Give the score NEG_INF to all beams except the first beam of each sentence, because all beams of a
        # sentence are equal at the start.
        self.scores = torch.full(self.paths.shape[:2], NEG_INF, device=prompts.device)
        self.scores[:, 0] = 0
        self.parents: torch.Tensor
        self.is_open = torch.ones(len(sentences), dtype=torch.bool, device=prompts.device)
        self.is_improvable = self.is_open

    @property
    def sequences(self) -> torch.Tensor:
        """The tokens of the beams [N, K, T] int64, including prompts."""
        return self.paths[..., 0]

    def extended_paths(self, candidates: Candidates) -> torch.Tensor:
        """Append the new token of each candidate to the path of its parent beam. Return the extended paths
        [N, C, T + 1, 1 or 2], see `Beams`.
        """
        new = candidates.tokens.unsqueeze(2)  # [N, C, 1]
        if self.paths.shape[3] == 2:
            rows = candidates.parents + self.sentences.unsqueeze(1) * self.paths.shape[1]
            new = torch.stack((candidates.tokens, rows), dim=2)  # [N, C, 2]
        paths = gather_beams(self.paths, candidates.parents)  # [N, C, T, 1 or 2]
        return torch.cat((paths, new.unsqueeze(2)), dim=2)

    def replace(self, candidates: Candidates, paths: torch.Tensor, ended: torch.Tensor | None) -> None:
        """Make the K best candidates that have not ended the new beams. `paths` [N, C, T, 1 or 2] are the
        paths of the candidates, and `ended` [N, C] is True for candidates that have ended. If no candidate
        has ended, and the candidates are sorted by score, `ended` may be None.
        """
        num_beams = self.paths.shape[1]
        if ended is None:
            self.scores = candidates.scores[:, :num_beams]
            self.paths = paths[:, :num_beams]
            self.parents = candidates.parents[:, :num_beams]
        else:
            self.scores, best = (candidates.scores + ended * NEG_INF).topk(num_beams)
            self.paths = gather_beams(paths, best)
            self.parents = candidates.parents.gather(1, best)

    def select(self, staying: torch.Tensor) -> None:
        """Keep only the sentences with the indices `staying` [N'] in the batch."""
        self.sentences = self.sentences.index_select(0, staying)
        self.scores = self.scores.index_select(0, staying)
        self.paths = self.paths.index_select(0, staying)
        self.parents = self.parents.index_select(0, staying)
        self.is_open = self.is_open.index_select(0, staying)
        self.is_improvable = self.is_improvable.index_select(0, staying)


class FinishedTranslations:
    """The K best finished translations of each of the B sentences, best first.

    Attributes:
        scores: The scores, [B, K] float32. If a sentence has fewer than K finished translations, the
            remaining scores are `NEG_INF`.
        lengths: The numbers of new tokens, [B, K] int64. A missing translation has the length 0.
        paths: The tokens, [B, K, T, 1 or 2] int64, see `Beams`. If a sentence has fewer than K finished
            translations, the remaining paths contain only the prompt and padding.
    """

    def __init__(self, prompts: torch.Tensor, fill: int):
        # `prompts` [B, K, P, 1 or 2] contains the prompts of all sentences, in the format of `Beams.paths`.
        # `fill` is the token after the end of a translation.
        self.scores = torch.full(prompts.shape[:2], NEG_INF, device=prompts.device)
        self.lengths = torch.zeros(prompts.shape[:2], dtype=torch.int64, device=prompts.device)
        self.paths = prompts.clone()
        self.after_end = torch.tensor([fill, -1][: prompts.shape[3]], device=prompts.device)

    def add(self, sentences: torch.Tensor, scores: torch.Tensor, paths: torch.Tensor, length: int) -> None:
        """Add translations of the sentences with the indices `sentences` [N], and keep the K best
        translations of each sentence.

        `scores` [N, K] are the scores of the new translations, and `paths` [N, K, T, 1 or 2] are their
        tokens, see `Beams`. Each new translation has `length` new tokens.
        """
        both_scores = torch.cat((self.scores[sentences], scores), dim=1)
        self.scores[sentences], kept = both_scores.topk(scores.shape[1])
        both_lengths = torch.cat((self.lengths[sentences], torch.full_like(kept, length)), dim=1)
        self.lengths[sentences] = both_lengths.gather(1, kept)
        self.paths = self._padded(self.paths, paths.shape[2])
        both_paths = torch.cat((self.paths[sentences], paths), dim=1)
        self.paths[sentences] = gather_beams(both_paths, kept)

    def copy_from(self, earlier: "FinishedTranslations", sentences: torch.Tensor) -> None:
        """Copy the translations of an earlier search for the sentences that are True in `sentences` [B]. The
        earlier search has at most K beams.
        """
        beams = slice(earlier.scores.shape[1])
        length = max(earlier.paths.shape[2], self.paths.shape[2])
        # Clone the tensors, because a tensor from inference mode cannot be changed outside of inference mode.
        self.paths = self._padded(self.paths, length).clone()
        self.paths[sentences, beams] = self._padded(earlier.paths, length)[sentences]
        self.scores = self.scores.clone()
        self.scores[sentences, beams] = earlier.scores[sentences]
        self.lengths = self.lengths.clone()
        self.lengths[sentences, beams] = earlier.lengths[sentences]

    def _padded(self, paths: torch.Tensor, length: int) -> torch.Tensor:
        """Return `paths` (tokens of translations), padded to `length` tokens."""
        missing = length - paths.shape[2]
        if missing == 0:
            return paths
        return torch.cat((paths, self.after_end.expand(*paths.shape[:2], missing, -1)), dim=2)


@dataclass(frozen=True)
class StepValues:
    """Values of one search step. One transfer copies the tensor `values` from the device to the CPU."""

    # `values` [2 + len(trees)] float32 contains the sum of `log_probs`, the number of sentences whose search
    # continues, and `num_living` of each cache in `trees`. `num_living` is the number of cached tokens that
    # belong to a beam, in the sentence with the most such tokens.
    values: torch.Tensor
    trees: list[TreeKVCache]
    # `log_probs` [N, K] (in the first step [N, 1]) has one log-probability of each beam, always of the same
    # token of the vocabulary. `sentences` [N] int64 contains the index of each sentence, and `is_open` [N] is
    # True if the sentence was open before the step. If `log_probs` contains NaN for an open sentence, the
    # error names the sentence.
    log_probs: torch.Tensor
    sentences: torch.Tensor
    is_open: torch.Tensor
    # The CUDA event at the end of an asynchronous copy of `values` from the GPU to the CPU, else None.
    copied: torch.cuda.Event | None


class StepReader:
    """Reads values of a search step from the device. In a step of the default search, only `StepReader` makes
    the CPU wait for a GPU. If `is_late` is True, the CPU uses the values of a step only in the next step, so
    that the GPU does not wait for the CPU. With `is_late`, the search can run one additional step at its end.
    The search discards the results of the additional step.
    """

    def __init__(self, decoders: Sequence[Decoder], config: GenerationConfig, is_late: bool):
        self.trees = [decoder.tree for decoder in decoders if decoder.tree is not None]
        self.refuses_nan = not config.remove_invalid_values
        self.is_late = is_late
        # If `is_late` is True, the `StepValues` of the previous call of `read`; otherwise None.
        self.pending: StepValues | None = None

    def read(
        self, log_probs: torch.Tensor, sentences: torch.Tensor, is_open: torch.Tensor, num_open: torch.Tensor
    ) -> int:
        """Return the number of sentences whose search continues after the step, or after the previous step if
        `is_late` is True. Raise an error if a log-probability of an open sentence is NaN.
        """
        trees = [tree for tree in self.trees if tree.is_nearly_full]
        living = [tree.living().sum(dim=1).max() for tree in trees]
        values = torch.stack((log_probs.sum(), num_open, *living))
        if not self.is_late:
            return self._use(StepValues(values, trees, log_probs, sentences, is_open, copied=None))
        # Pass `non_blocking=True`, so that the GPU and the CPU continue during the copy to pinned memory.
        on_cpu = values.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None
        previous = self.pending
        self.pending = StepValues(on_cpu, trees, log_probs, sentences, is_open, copied)
        return len(sentences) if previous is None else self._use(previous)

    def finish(self) -> None:
        """If `is_late` is True, check the values of the final step, because no later call of `read` checks
        the values.
        """
        if self.pending is not None:
            self._use(self.pending)

    def _use(self, step: StepValues) -> int:
        """Check the log-probabilities for NaN, set `num_living` of each `TreeKVCache`, and return the number
        of sentences whose search continues.
        """
        if step.copied is not None:
            step.copied.synchronize()
        log_prob_sum, num_open, *living = step.values.tolist()
        if math.isnan(log_prob_sum) and self.refuses_nan:
            is_broken = step.log_probs.isnan().any(dim=1) & step.is_open
            broken = step.sentences[is_broken].tolist()
            if broken:
                raise NotFiniteError(broken[0])
        for tree, num_living in zip(step.trees, living, strict=True):
            tree.num_living = int(num_living)
        return int(num_open)


def has_custom_rules(processors: Iterable[Any], criteria: Iterable[Any]) -> bool:
    """Return True if a logits processor or a stopping criterion contains code of the user. User code can
    depend on the rows of all sentences, so the search must not remove sentences from the batch.
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
        # `worst` is the lowest score of the `num_counted` best finished translations. If fewer than
        # `num_counted` translations are finished, `worst` is NEG_INF, so that the search continues.
        worst = finished[:, self.num_counted - 1]
        limits = search.task.limits[search.beams.sentences]
        longest = torch.where(self.considers_all_lengths[search.beams.sentences], limits, search.num_new)
        return highest_reachable_score(best, search.num_new, longest, search.scorer, search.config) > worst

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        return self.stops_when_full[search.beams.sentences] & (finished[:, self.num_full - 1] > NEG_INF / 2)


def highest_reachable_score(
    log_prob: Any, length: Any, longest: Any, scorer: Scorer, config: GenerationConfig
) -> Any:
    """Return the highest score that an unfinished translation can still reach. The complete translation has
    at least `length` and at most `longest` new tokens. `log_prob` is the summed log-probability so far. More
    tokens cannot increase `log_prob`.

    With a positive length penalty, the longer of two translations with equal log-probability has the higher
    score.
    """
    return scorer(log_prob, longest if config.length_penalty > 0 else length)


def considers_all_lengths(config: GenerationConfig) -> bool:
    """Return True if the stopping rule considers all lengths that an unfinished translation can still reach,
    not only the current length.

    transformers considers all possible lengths only for `early_stopping="never"`. For `early_stopping=False`,
    transformers compares scores at the current length, although this comparison is exact only without a
    length penalty. With `length_penalty_type="gnmt"`, this package considers all possible lengths for
    `early_stopping=False`, not only for `early_stopping="never"`.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)


def best_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """Choose the continuations with the highest scores. `best_candidates` is the default candidate selection
    of beam search without `do_sample`.
    """
    return top_candidates(log_probs, search.beams.scores[:, : log_probs.shape[1]], search.num_candidates)


def top_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Return the `number` best candidates for the log-probabilities [N, K, V] of the next token and the
    scores [N, K] of the beams.

    If there are fewer than `number` candidates, the missing candidates have the score NEG_INF. A large
    vocabulary is divided into chunks, and only the chunks with the highest maxima are sorted. The division of
    the vocabulary into chunks halves the time of the selection, and does not change the result.
    """
    num_sentences, num_beams, num_classes = log_probs.shape
    size = chunk_size(num_classes)
    if size == 1 or num_beams * num_classes // size < number:
        return _top_of_all(log_probs, scores, number)
    num_chunks = num_classes // size
    # `chunks` is [N, K, V / size, size].
    chunks = log_probs.view(num_sentences, num_beams, num_chunks, size)
    maxima = chunks.amax(dim=-1) + scores.unsqueeze(2)
    # `chosen` [N, number] contains the best chunks of the vocabulary for each sentence. The number k *
    # num_chunks + c in `chosen` means chunk c for beam k.
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
    """Draw continuations at random. `drawn_candidates` is the default candidate selection of beam search with
    `do_sample`.
    """
    return sample_candidates(log_probs, search.beams.scores[:, : log_probs.shape[1]], search.num_candidates)


def sample_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Draw candidates without replacement, in proportion to their probability. The result is in the order of
    the draws, not sorted by score.
    """
    num_classes = log_probs.shape[2]
    total = (log_probs + scores.unsqueeze(2)).flatten(1)  # [N, K * V]
    probabilities = torch.softmax(total, dim=-1)
    # Do not call `torch.multinomial`, because `torch.multinomial` makes the CPU wait for the GPU to check the
    # probabilities.
    index = (probabilities / torch.empty_like(probabilities).exponential_()).topk(number).indices
    return Candidates(total.gather(1, index), index // num_classes, index % num_classes)
