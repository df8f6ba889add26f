"""Beam search (Section 6.1) for a batch of sentences. Each step extends all beams of all sentences by one
token.

Each step of the search has five parts:

1. A decoder (see decoding_vaswani.py) reads the last token of each beam and returns the logits of the next
   token. The fast decoder is `TreeAttentionDecoder`.
2. The candidate selection chooses the best continuations of the beams, called candidates. There are at least
   twice as many candidates as beams.
3. If one of the K best candidates has ended (by `</s>`, its length limit or a stopping criterion), the
   candidate becomes a finished translation.
4. The stopping rule decides for each sentence whether its search ends. A sentence is open during its search,
   and closed after its search.
5. The best candidates that have not ended become the beams of the next step. `BeamSearch` can remove
   sentences from the batch when their search has ended.

The file beams_vaswani contains the beams, the candidates and the finished translations. The file
search_strategies_vaswani contains the candidate selections, the stopping rule, and the scorer that ranks
translations. `generate(..., search=SearchStrategies(...))` can replace the candidate selection, the stopping
rule and the scorer.

The search follows the rules of beam search in transformers. In addition, the search has the length penalty
(used in Section 6.1 of the paper) and the coverage penalty of Wu et al. 2016 (arXiv 1609.08144, Section 7).
Each sentence has its own length limit, and can leave the batch when its search has ended.

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
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, PrefixConstrainedLogitsProcessor
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .beams_vaswani import EXCLUDED_SCORE, Beams, Candidates, FinishedTranslations, exists, rank_ended_last
from .decoding_vaswani import Decoder, RowDecoder, TreeAttentionDecoder, TreeKVCache
from .fast_path_vaswani import DelayedValues, needs_sync
from .search_errors_vaswani import NotFiniteError
from .search_strategies_vaswani import (
    EarlyStopping,
    PenaltyScorer,
    Scorer,
    SearchStrategies,
    best_candidates,
    considers_all_lengths,
    coverage_score,
    drawn_candidates,
)

# The stopping criteria of transformers that `BeamSearch` ignores, because `BeamSearch` checks `</s>` and the
# length limits itself.
OWN_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


@dataclass
class SearchTask:
    """Contains everything that a search needs for a batch of sentences."""

    # The first model is the model whose `generate` was called. The other models belong to the ensemble.
    models: list[Any]
    inputs: list[dict[str, Any]]
    # [N] int64, the indices of the sentences to translate. `inputs` contains only the sentences with the
    # indices in `sentences`.
    sentences: torch.Tensor
    prompt: torch.Tensor  # [B, P] int64, the beginnings of the translations
    limits: torch.Tensor  # [B] int64, the maximum numbers of new tokens
    source_mask: torch.Tensor | None  # [B, S], used by the coverage penalty
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList  # without `OWN_CRITERIA`
    strategies: SearchStrategies
    # True if the search calls strategies of the user, logits processors (also those of transformers), or
    # stopping criteria.
    has_user_code: bool
    # If True, the search takes the same steps as beam search of transformers: all sentences stay in the batch
    # until the whole search ends, and each step calls `forward` of the first model.
    transformers_compatible: bool
    # The search calls `goes_on(is_over)` before each step, and stops if the result is False. With
    # `synced_gpus`, `goes_on` returns True until the searches of all processes are over.
    goes_on: Callable[[bool], bool]
    # Each call of a logits processor receives `rows_per_sentence` beams of each sentence. Each call of a
    # stopping criterion receives `rows_per_sentence` candidates of each sentence. If `rows_per_sentence` is
    # None, each call of a logits processor receives all beams, and each call of a stopping criterion receives
    # all candidates.
    rows_per_sentence: int | None = None


class BeamSearch:
    """Runs beam search for all sentences of a batch at the same time. `results` returns the translations.

    `config.num_beams` is K, and `config.num_return_sequences` is R.
    """

    def __init__(self, task: SearchTask, config: GenerationConfig):
        self.task = task
        self.config = config
        self.num_beams = config.num_beams
        eos = config._eos_token_tensor
        self.eos = task.prompt.new_empty(0) if eos is None else eos
        self.num_candidates = max(2, 1 + len(self.eos)) * self.num_beams
        self.fill = padding_token(config)
        # `excluded` is the id of the padding token if the search must never choose this token. If the search
        # can choose the padding token, `excluded` is None.
        self.excluded = task.models[0].excluded_class()
        self.last_limit = int(task.limits.max())
        self.may_remove_sentences = not (
            task.transformers_compatible or has_custom_rules(task.processors, task.criteria)
        )

        default_candidates = drawn_candidates if config.do_sample else best_candidates
        self.candidates = task.strategies.candidates or default_candidates
        self.scorer: Scorer = task.strategies.scorer or PenaltyScorer(config)
        self.stopping_rule = task.strategies.stopping_rule or self._early_stopping()
        self.decoders = [
            self._make_decoder(model, inputs) for model, inputs in zip(task.models, task.inputs, strict=True)
        ]

        prompts = self._prompt_paths()
        self.beams = Beams(prompts, task.sentences)
        self.finished = FinishedTranslations(prompts, self.fill)
        self.num_new = 0  # The number of new tokens in each beam.
        # Skip the handling of ended candidates in steps without ended candidates. Skip the stopping rule
        # until the first candidate has ended. On a GPU, skip no part of a step: to know whether a candidate
        # has ended, the CPU would wait for the GPU. With sampling, skip no part of a step, because
        # `Beams.replace` must sort the drawn candidates in each step.
        self.skips_idle_work = not (config.do_sample or needs_sync(task.limits))
        self.has_finished = not self.skips_idle_work
        # If `is_late` is True, the search can run one additional step, whose results are discarded. Set
        # `is_late` to False if this additional step would have side effects: recorded outputs, drawn random
        # numbers, or calls of the user's code.
        has_effects = task.transformers_compatible or config.do_sample or task.has_user_code
        self.reader = StepReader(self.decoders, config, is_late=needs_sync(task.limits) and not has_effects)
        # The scores and logits of each step, for the outputs that `generate` of transformers returns.
        self.step_scores: list[torch.Tensor] = []
        self.step_logits: list[torch.Tensor] = []

    @property
    def limits(self) -> torch.Tensor:
        """The maximum number of new tokens [N] for each sentence in the batch."""
        return self.task.limits[self.beams.sentences]

    def coverage_scores(self) -> torch.Tensor | None:
        """Return the coverage score [N, K] of each beam, or None without a coverage penalty."""
        if self.decoders[0].coverage is None:
            return None
        attention = sum(decoder.coverage for decoder in self.decoders) / len(self.decoders)  # [N, K, S]
        mask = self.task.source_mask
        mask = None if mask is None else mask[self.beams.sentences].unsqueeze(1)
        return coverage_score(attention, mask)

    def _early_stopping(self) -> EarlyStopping:
        """Return the default stopping rule.

        The default stopping rule compares an upper bound for the score of an unfinished translation with the
        scores of finished translations. Usually, the stopping rule compares the upper bound with the
        `num_return_sequences` best finished translations. If the upper bound is unreliable, or with
        `transformers_compatible`, the rule compares the bound with the `num_beams` best finished
        translations, as transformers does. The upper bound is unreliable with logits processors, or if the
        stopping rule ignores the lengths that a translation can still reach.
        """
        task = self.task
        config = self.config
        is_exact = considers_all_lengths(config) and not (task.transformers_compatible or task.processors)
        num_counted = config.num_return_sequences if is_exact else config.num_beams
        return EarlyStopping(config, len(task.prompt), num_counted, task.prompt.device)

    def _make_decoder(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Return a `TreeAttentionDecoder` if the model and the settings permit it, else a `RowDecoder`."""
        calls_forward = model is self.task.models[0] and self.task.transformers_compatible
        in_rows = calls_forward or not self.config.use_cache
        # Use `getattr`, because models of other libraries lack the attribute `supports_fast_path`.
        if in_rows or not getattr(model, "supports_fast_path", False):
            return RowDecoder(model, self.config, inputs)
        return TreeAttentionDecoder(model, self.config, inputs)

    def _prompt_paths(self) -> torch.Tensor:
        """Return the prompts of all B sentences in the format of `Beams.paths`: [B, K, P, 1], or [B, K, P, 2]
        with `return_dict_in_generate`.
        """
        prompt = self.task.prompt
        paths = prompt.view(len(prompt), 1, -1, 1).expand(-1, self.num_beams, -1, -1)
        if self.config.return_dict_in_generate:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        return paths

    def run(self) -> None:
        """Run steps of the search until `task.goes_on` returns False."""
        prompt = self.task.prompt[self.beams.sentences]
        input_ids = prompt.repeat_interleave(self.num_beams, dim=0)  # [N * K, P]
        # Use inference mode only if the search calls no user code, because user code perhaps needs autograd.
        is_direct = not self.task.has_user_code and all(decoder.is_direct for decoder in self.decoders)
        with torch.inference_mode() if is_direct else nullcontext():
            logits = [decoder.start(input_ids) for decoder in self.decoders]
            is_over = False
            while self.task.goes_on(is_over):
                if self.num_new > 0:
                    sequences = self.beams.sequences
                    parents = self.beams.parents
                    logits = [decoder.step(sequences, parents) for decoder in self.decoders]
                if not is_over:
                    is_over = self._take_step(logits)
            self.reader.finish()

    def _take_step(self, logits: Sequence[torch.Tensor]) -> bool:
        """Run parts 2 to 5 of a step (see the top of this file). Return True if the search is over. `logits`
        contains a tensor for each model: [N, K, V], or [N, 1, V] if one row applies to all beams of a
        sentence.
        """
        beams = self.beams
        was_open = beams.is_open
        # Part 2: choose the candidates.
        log_probs, checked = self._log_probs(logits)
        candidates = self.candidates(self, log_probs)
        paths = beams.extended_paths(candidates)
        self.num_new += 1
        # Part 3: store ended candidates as finished translations.
        ended = self._has_ended(candidates, paths)
        some_ended = not self.skips_idle_work or bool(ended.any())
        if some_ended:
            self._finish(candidates, paths, ended)
        # Part 4: end the search for each sentence whose results are final.
        continues = self._close_sentences(candidates, ended)
        num_open = self.reader.read(checked, beams.sentences, was_open, continues)
        is_over = num_open == 0 or self.num_new >= self.last_limit
        # Part 5: continue with the best candidates that have not ended.
        beams.replace(candidates, paths, ended if some_ended else None)
        # Do not remove the sentences whose search has ended until they are at least an eighth of the batch,
        # because a removal copies all other sentences.
        if self.may_remove_sentences and not is_over and 8 * num_open <= 7 * len(beams.sentences):
            self._remove_closed_sentences(num_open)
        return is_over

    def _log_probs(self, logits: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the logits processors, and return the log-probabilities: [N, K, V], or [N, 1, V] with one row
        for all beams of a sentence. Also return, for each row, the log-probability of a single token
        before the logits processors, [N, K] or [N, 1]. The caller checks the returned log-probabilities of
        single tokens for NaN.

        The log-probability of one token is enough to find NaN. All log-probabilities of a row are NaN if one
        logit is NaN or +inf, or if all logits of the row are -inf.
        """
        log_probs = _averaged_log_probs(logits)
        # For the NaN check, choose a token other than the excluded token, because `fill_` below overwrites
        # the log-probability of the excluded token.
        checked = log_probs[:, :, 1 if self.excluded == 0 else 0]
        if self.task.processors:
            log_probs = self._call_with_rows(
                self.task.processors, self.beams.sequences, log_probs.expand(-1, self.num_beams, -1)
            )
        if self.config.return_dict_in_generate and self.config.output_logits:
            self.step_logits.append(logits[0].flatten(0, 1))
        if self.config.return_dict_in_generate and self.config.output_scores:
            self.step_scores.append(log_probs.flatten(0, 1).clone())
        if self.excluded is not None:
            log_probs.select(2, self.excluded).fill_(EXCLUDED_SCORE)
        return log_probs, checked

    def _has_ended(self, candidates: Candidates, paths: torch.Tensor) -> torch.Tensor:
        """Return True where `</s>`, the length limit or a criterion ends a candidate, [N, C] bool."""
        ended = (self.limits <= self.num_new).unsqueeze(1).expand_as(candidates.tokens)
        ended = ended | torch.isin(candidates.tokens, self.eos)
        if self.task.criteria:
            scores = tuple(self.step_scores) or None
            ended = ended | self._call_with_rows(partial(self.task.criteria, scores=scores), paths[..., 0])
        return ended

    def _call_with_rows(self, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        """Convert each tensor in `values` from [N, beams, ...] to [B * beams, ...], with zeros for the B - N
        sentences that are not in the batch. Call a logits processor or a stopping criterion with the
        converted tensors.

        Sentences that were removed from the batch keep their rows, filled with zeros, so that the row index
        of a beam never changes. See also `SearchTask.rows_per_sentence`.
        """
        num_sentences = len(self.task.prompt)
        size = self.task.rows_per_sentence or values[0].shape[1]
        parts = []
        for of_beams in zip(*(value.split(size, dim=1) for value in values), strict=True):
            rows = []
            for value in of_beams:
                full = value.new_zeros(num_sentences, *value.shape[1:])
                rows.append(full.index_copy_(0, self.beams.sentences, value).flatten(0, 1))
            parts.append(function(*rows).unflatten(0, (num_sentences, -1))[self.beams.sentences])
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _finish(self, candidates: Candidates, paths: torch.Tensor, ended: torch.Tensor) -> None:
        """Add the ended candidates among the K best candidates to the finished translations."""
        beams = slice(self.num_beams)
        scores = candidates.scores[:, beams]
        entering = ended[:, beams] & self.beams.is_open.unsqueeze(1) & exists(scores)
        coverage = self.coverage_scores()
        if coverage is not None:
            coverage = coverage.gather(1, candidates.parents[:, beams])
        scores = self.scorer(scores, self.num_new, coverage)
        scores = scores.masked_fill(~entering, EXCLUDED_SCORE)
        self.finished.add(self.beams.sentences, scores, paths[:, beams], self.num_new)
        self.has_finished = True

    def _close_sentences(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """End the search for each sentence whose results are final. Return a bool tensor [N] that is True for
        each sentence whose search continues.
        """
        beams = self.beams
        if not self.has_finished:
            return beams.is_open
        finished = self.finished.scores[beams.sentences]
        best = rank_ended_last(candidates.scores, ended).amax(dim=1)
        may_improve = self.stopping_rule.may_improve(self, finished, best)
        is_full = self.stopping_rule.is_full(self, finished)
        beams.is_open = beams.is_open & may_improve & ~is_full
        has_beams = ~ended.all(dim=1)
        if self.task.transformers_compatible:
            # End the search for all sentences of the batch at the same step, as transformers does.
            return (beams.is_open.any() & has_beams.any()).expand_as(has_beams)
        beams.is_open = beams.is_open & has_beams
        return beams.is_open

    def _remove_closed_sentences(self, num_staying: int) -> None:
        """Reduce the batch to `num_staying` sentences. All removed sentences are sentences whose search has
        ended. If `StepReader.is_late` is True, `num_staying` is a number from the previous step: the number
        of sentences whose search continued after the previous step. Therefore the batch can still contain
        some sentences whose search has ended.
        """
        staying = self.beams.is_open.byte().argsort(descending=True, stable=True)[:num_staying]
        self.beams.select(staying)
        for decoder in self.decoders:
            decoder.select(staying)

    def results(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the tokens [B * R, T], the scores [B * R] and the beam indices of the R best translations.

        The beam indices are the tensor `beam_indices` [B * R, T - P] of transformers. Without
        `return_dict_in_generate`, the beam indices are None. If the search found fewer than R translations of
        a sentence, the other rows contain the prompt and padding, and their scores are -inf.
        """
        kept = slice(self.config.num_return_sequences)
        prompt_length = self.task.prompt.shape[1]
        lengths = self.finished.lengths[:, kept]
        length = prompt_length + int(lengths.max())
        paths = self.finished.paths[:, kept, :length].flatten(0, 1)
        beam_indices = paths[:, prompt_length:, 1].int() if self.config.return_dict_in_generate else None
        lengths = prompt_length + lengths.flatten().unsqueeze(1)  # [B * R, 1]
        is_missing = lengths == prompt_length
        sequences = paths[..., 0]
        # `fill` can be `</s>`, as in transformers. Fill the rows without `</s>` with padding, because `</s>`
        # would look like a token of the translation.
        has_end = torch.isin(sequences.gather(1, lengths - 1), self.eos) & ~is_missing
        is_after_end = torch.arange(length, device=paths.device) >= lengths
        pad = self.fill if self.config._pad_token_tensor is None else int(self.config._pad_token_tensor)
        sequences = sequences.masked_fill(is_after_end & ~has_end, pad)
        scores = self.finished.scores[:, kept].flatten().masked_fill(is_missing.flatten(), -math.inf)
        return sequences, scores, beam_indices

    def without_translation(self) -> list[int]:
        """Return the indices of the sentences for which the search found no translation."""
        return (self.finished.lengths[:, 0] == 0).nonzero().flatten().tolist()


@dataclass(frozen=True)
class StepValues:
    """The numbers that the CPU needs after a search step."""

    # [2 + len(trees)] float32: the sum of `log_probs`, the number of sentences whose search continues, and
    # `num_living` for each key-value cache in `trees`.
    values: DelayedValues
    trees: list[TreeKVCache]
    # The log-probability of one fixed token of the vocabulary, [N, K] (in the first step [N, 1]).
    log_probs: torch.Tensor
    sentences: torch.Tensor  # [N] int64, the indices of the sentences
    is_open: torch.Tensor  # [N] bool, True if the sentence accepted finished translations before the step


class StepReader:
    """Copies the `StepValues` of each search step to the CPU. In a step of the default search, only
    `StepReader` makes the CPU wait for a GPU.

    In each step, the CPU needs the number of sentences whose search continues, the sizes of the key-value
    caches, and the sum of the log-probabilities. The sum is NaN if any log-probability is NaN. On a GPU,
    reading a number makes the CPU wait for the GPU. Therefore `StepReader` copies all numbers of a step
    together.

    If `is_late` is True, the CPU uses the values one step later, so that the GPU does not wait for the CPU.
    With `is_late`, the search can run one additional step, whose results are discarded.
    """

    def __init__(self, decoders: Sequence[Decoder], config: GenerationConfig, is_late: bool):
        self.trees = [decoder.tree for decoder in decoders if decoder.tree is not None]
        self.refuses_nan = not config.remove_invalid_values
        self.is_late = is_late
        # If `is_late` is True, `pending` contains the `StepValues` of the previous call of `read`. If
        # `is_late` is False, `pending` is None.
        self.pending: StepValues | None = None

    def read(
        self, log_probs: torch.Tensor, sentences: torch.Tensor, is_open: torch.Tensor, continues: torch.Tensor
    ) -> int:
        """Return the number of sentences whose search continues after the step, or, if `is_late` is True,
        after the previous step. Raise an error if a log-probability is NaN for a sentence with `is_open`
        True.

        `continues` [N] is True for sentences whose search continues. See `StepValues` for the other
        arguments.
        """
        trees = [tree for tree in self.trees if tree.is_nearly_full]
        living = [tree.living().sum(dim=1).max() for tree in trees]
        values = DelayedValues(torch.stack((log_probs.sum(), continues.sum(), *living)))
        step = StepValues(values, trees, log_probs, sentences, is_open)
        if not self.is_late:
            return self._use(step)
        previous = self.pending
        self.pending = step
        return len(sentences) if previous is None else self._use(previous)

    def finish(self) -> None:
        """Check the log-probabilities of the final search step for NaN. If `is_late` is False, do nothing,
        because `read` has already checked the final step.
        """
        if self.pending is not None:
            self._use(self.pending)

    def _use(self, step: StepValues) -> int:
        """Check for NaN, set `num_living` of each key-value cache, and return the number of sentences whose
        search continues.
        """
        log_prob_sum, num_continuing, *living = step.values.tolist()
        if math.isnan(log_prob_sum) and self.refuses_nan:
            is_broken = step.log_probs.isnan().any(dim=1) & step.is_open
            broken = step.sentences[is_broken].tolist()
            if broken:
                raise NotFiniteError(broken[0])
        for tree, num_living in zip(step.trees, living, strict=True):
            tree.num_living = int(num_living)
        return int(num_continuing)


def _averaged_log_probs(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Average the probabilities of the models, and return the logarithm of the mean. `logits` contains one
    tensor [N, 1 or K, V] for each model.
    """
    of_models = [torch.log_softmax(of_model, dim=-1) for of_model in logits]
    if len(of_models) == 1:
        return of_models[0]
    # Broadcast the log-probabilities, because in the first step a `RowDecoder` returns K rows per sentence,
    # and a `TreeAttentionDecoder` returns one row.
    stacked = torch.stack(torch.broadcast_tensors(*of_models))
    return stacked.logsumexp(dim=0) - math.log(len(of_models))


def has_custom_rules(processors: Iterable[Any], criteria: Iterable[Any]) -> bool:
    """Return True if the search uses a logits processor, a stopping criterion or a `prefix_allowed_tokens_fn`
    that a user has written. User code can expect the rows of all sentences, so the search must not remove
    sentences from the batch.
    """
    kinds = {type(rule) for rule in (*processors, *criteria)}
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    own = {"transformers", __name__.partition(".")[0]}
    return bool(packages - own) or PrefixConstrainedLogitsProcessor in kinds


def padding_token(config: GenerationConfig) -> int:
    """Return the id of the token that fills a row after the end of a translation, as in transformers."""
    pad = config._pad_token_tensor
    eos = config._eos_token_tensor
    if pad is not None and (config.num_beams == 1 or (int(pad) != 0 and eos is not None)):
        return int(pad)
    return -1 if eos is None else int(eos[0])
