"""Beam search (Section 6.1): several translations of a sentence are extended side by side, the best ones go on.

Logits come from incremental_decoding_vaswani; settings and limits from generation_vaswani. This file travels with every
checkpoint because `generate` searches with it.

The rules are those of transformers: each step looks at twice as many candidates as there are beams, a candidate that
ends enters the finished ones only from among the best as many as there are beams, one that is cut at the limit competes
without `</s>`. Added to them: the penalty and the coverage of Wu et al. 2016 (arXiv 1609.08144, Section 7), which the
paper takes, limits per sentence, and sentences that leave as soon as nothing can change their result.

Letters of shapes: B sentences at the start, N sentences still searched, K beams, C candidates, R results per sentence,
T tokens so far with the prompt, V target vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

from .incremental_decoding_vaswani import gather_beams

# The score of what does not exist, as in transformers; everything real is far above half of it.
NOTHING = -1e9
# Criteria that the search checks itself.
OWN_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


@dataclass
class Candidates:
    """Ways to go on, best first unless they were sampled."""

    scores: torch.Tensor  # [N, C] float32, summed log-probabilities
    parents: torch.Tensor  # [N, C] int64, the beam that is extended
    tokens: torch.Tensor  # [N, C] int64


def length_penalty(length: Any, config: GenerationConfig) -> Any:
    """The divisor of a summed log-probability of so many new tokens (int or torch.Tensor), `</s>` included.

    With alpha the `length_penalty`: ((5 + length) / 6)^alpha for the type "gnmt" (Wu et al. 2016, Eq. 14), else length^alpha.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return ((5 + length) / 6 if is_gnmt else length) ** config.length_penalty


def coverage_score(coverage: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
    """The coverage of Wu et al. 2016, Eq. 14, without its weight: sum over the source of log(min(attention, 1)).

    `coverage` [..., S] is the attention that each source token has had over all target tokens.
    """
    # A token that nothing has attended to would cost infinitely much.
    logs = coverage.clamp(min=torch.finfo(coverage.dtype).tiny, max=1).log()
    return (logs if source_mask is None else logs * source_mask.bool()).sum(dim=-1)


def top_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """The best ways to go on, by log-probabilities [N, K, V] and scores [N, K] of the beams; nothing where there are fewer."""
    num_sentences, num_beams, num_classes = log_probs.shape
    chunk = chunk_size(num_classes)
    if chunk == 1 or num_beams * num_classes // chunk < number:
        found = min(number, num_beams * num_classes)
        best, index = (log_probs + scores.unsqueeze(2)).flatten(1).topk(found)
        if found < number:
            best = torch.nn.functional.pad(best, (0, number - found), value=NOTHING)
            index = torch.nn.functional.pad(index, (0, number - found))
        return Candidates(best, index // num_classes, index % num_classes)
    # The best classes lie in the chunks with the highest maxima; looking for those first is twice as fast.
    chunks = log_probs.view(num_sentences, num_beams, -1, chunk)
    maxima = chunks.amax(dim=-1) + scores.unsqueeze(2)
    chosen = maxima.flatten(1).topk(number, sorted=False).indices
    parents = chosen // chunks.shape[2]
    members = chunks.flatten(1, 2).gather(1, chosen.unsqueeze(2).expand(-1, -1, chunk))
    best, index = (members + scores.gather(1, parents).unsqueeze(2)).flatten(1).topk(number)
    chosen = chosen.gather(1, index // chunk)
    return Candidates(best, chosen // chunks.shape[2], chosen % chunks.shape[2] * chunk + index % chunk)


@lru_cache
def chunk_size(num_classes: int) -> int:
    """The divisor of the number of classes that is nearest to its root, or 1 if none is near."""
    root = math.isqrt(num_classes)
    near = [size for size in range(root // 4 + 1, root * 4) if num_classes % size == 0]
    return min(near, key=lambda size: abs(math.log(size / root)), default=1) if root > 16 else 1


def sample_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Ways to go on, drawn without replacement in proportion to their probability, in the order drawn."""
    num_classes = log_probs.shape[2]
    total = (log_probs + scores.unsqueeze(2)).flatten(1)
    index = torch.multinomial(torch.softmax(total, dim=-1), num_samples=number)
    return Candidates(total.gather(1, index), index // num_classes, index % num_classes)


class BeamSearch:
    """The search for the translations of a batch of sentences, all beams of all sentences at once (batched beams).

    Args:
        decoders (list): Decoders of one model, or of several whose probabilities are averaged.
        prompt (torch.Tensor): [B, P] int64.
        sentences (torch.Tensor): [N] int64, those of the batch that are searched.
        config (GenerationConfig): The settings; `num_beams` is K, `num_return_sequences` R.
        limits (torch.Tensor): [B] int64, new tokens at most.
        processors (LogitsProcessorList): Applied to log-probabilities.
        criteria (StoppingCriteriaList): Applied to candidates.
        source_mask (torch.Tensor, optional): [B, S], nonzero for real tokens; for the coverage.
        in_lock_step (bool): All sentences stay to the end, and the steps are those of transformers.
    """

    def __init__(
        self,
        decoders: list[Any],
        prompt: torch.Tensor,
        sentences: torch.Tensor,
        config: GenerationConfig,
        limits: torch.Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        source_mask: torch.Tensor | None = None,
        in_lock_step: bool = False,
    ):
        self.decoders, self.config, self.processors, self.in_lock_step = decoders, config, processors, in_lock_step
        self.criteria = StoppingCriteriaList(
            [criterion for criterion in criteria if not isinstance(criterion, OWN_CRITERIA)]
        )
        self.source_mask = source_mask
        self.limits, self.first_limit = limits, int(limits.min())
        self.eos = config._eos_token_tensor
        self.fill = self._fill_value()
        self.num_beams = config.num_beams
        self.num_candidates = max(2, 1 + (0 if self.eos is None else len(self.eos))) * self.num_beams
        # The search ends when nothing longer can win. transformers has that bound for "never" only, and otherwise a
        # guess that is right where scores are not divided by the length.
        is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
        is_exact = config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)
        self.is_exact = torch.full_like(limits, is_exact, dtype=torch.bool)
        self.stops_when_full = torch.full_like(self.is_exact, config.early_stopping is True)
        self.num_full = config.num_beams
        # A processor may raise scores, against which no bound holds; then as many count as in transformers.
        knows_all = is_exact and not in_lock_step and not processors
        self.num_counted = config.num_return_sequences if knows_all else config.num_beams
        self.sentences = sentences
        self._begin(prompt)

    def _fill_value(self) -> int:
        """The id that fills up after the end, as in transformers: with beams, `</s>` where `<pad>` is 0."""
        pad, is_greedy = self.config._pad_token_tensor, self.config.num_beams == 1
        if pad is not None and (is_greedy or (int(pad) and self.eos is not None)):
            return int(pad)
        return -1 if self.eos is None else int(self.eos[0])

    def _begin(self, prompt: torch.Tensor) -> None:
        (batch, self.prompt_length), device = prompt.shape, prompt.device
        num_beams, num_sentences = self.num_beams, len(self.sentences)
        # [N, K, T, 1]: tokens. In lock step [N, K, T, 2]: also the row of the beam that each one was added to.
        paths = prompt.view(batch, 1, -1, 1).expand(-1, num_beams, -1, -1)
        if self.in_lock_step:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        self.paths = paths[self.sentences]
        # All beams begin alike: only the first one counts.
        self.scores = torch.full((num_sentences, num_beams), NOTHING, device=device)
        self.scores[:, 0] = 0
        self.parents = torch.zeros(num_sentences, num_beams, dtype=torch.int64, device=device)
        self.is_open = torch.ones(num_sentences, dtype=torch.bool, device=device)
        self.is_improvable = self.is_open.clone()
        self.is_over = self.some_finished = False
        self.num_new = 0
        self.finished_scores = torch.full((batch, num_beams), NOTHING, device=device)
        self.finished_lengths = torch.zeros(batch, num_beams, dtype=torch.int64, device=device)
        self.finished_paths = paths.clone()
        self.step_scores: list[torch.Tensor] = []
        self.step_logits: list[torch.Tensor] = []

    @property
    def sequences(self) -> torch.Tensor:
        """[N, K, T] int64, prompts included."""
        return self.paths[..., 0]

    def run(self, logits: list[torch.Tensor], others_go_on: Callable[[bool], bool]) -> None:
        """Search until nothing can change the results, from the logits [B, 1 or K, V] of each decoder for the first token.

        `others_go_on` says whether to take another step, told whether this search is over: processes that share a model
        take equally many.
        """
        while others_go_on(self.is_over):
            if self.num_new > 0:
                logits = [decoder.step(self.sequences, self.parents) for decoder in self.decoders]
            if not self.is_over:
                self._take_step(logits)

    def _take_step(self, logits: list[torch.Tensor]) -> None:
        candidates = self._candidates(self._log_probs(logits))
        self.num_new += 1
        paths = self._extended(candidates)
        ended = self._ended(candidates, paths)
        some_ended = bool(ended.any())
        if some_ended:
            self._finish(candidates, paths, ended)
        # Candidates that were not sampled are in order; where none has ended the first ones are the best.
        if some_ended or self.config.do_sample:
            self.scores, best = (candidates.scores + ended * NOTHING).topk(self.num_beams)
            self.paths, self.parents = gather_beams(paths, best), candidates.parents.gather(1, best)
        else:
            self.paths = paths[:, : self.num_beams]
            self.scores, self.parents = candidates.scores[:, : self.num_beams], candidates.parents[:, : self.num_beams]
        self.some_finished |= some_ended
        # Anything may improve as long as nothing has finished.
        if self.some_finished:
            self._close(ended)
            if not self.in_lock_step:
                self._leave()

    def _log_probs(self, logits: list[torch.Tensor]) -> torch.Tensor:
        """[N, K or 1, V]: processed, of all beams or, before the first token, of one."""
        log_probs = torch.log_softmax(logits[0], dim=-1)
        if len(logits) > 1:
            # Some have looked at all beams and some at one, as long as they are alike.
            others = [torch.log_softmax(other, dim=-1).expand_as(log_probs) for other in logits[1:]]
            log_probs = torch.stack([log_probs, *others]).logsumexp(dim=0) - math.log(len(logits))
        if self.processors:
            log_probs = log_probs.expand(-1, self.num_beams, -1)
            log_probs = self._in_full_batch(self.processors, self.sequences, log_probs)
        if self.in_lock_step and self.config.output_logits:
            self.step_logits.append(logits[0].flatten(0, 1))
        if self.in_lock_step and self.config.output_scores:
            self.step_scores.append(log_probs.flatten(0, 1))
        return log_probs

    def _in_full_batch(self, function: Callable, *arguments: torch.Tensor) -> torch.Tensor:
        """The result of a processor or criterion for these [N, K, ...]; rows stay where it has seen them before."""
        rows = []
        for values in arguments:
            full = values.new_zeros(len(self.limits), *values.shape[1:])
            full[self.sentences] = values
            rows.append(full.flatten(0, 1))
        return function(*rows).unflatten(0, (len(self.limits), -1))[self.sentences]

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        choose = sample_candidates if self.config.do_sample else top_candidates
        return choose(log_probs, self.scores[:, : log_probs.shape[1]], self.num_candidates)

    def _extended(self, candidates: Candidates) -> torch.Tensor:
        """The candidates' paths [N, C, T + 1, 1 or 2]."""
        new = candidates.tokens.unsqueeze(2)
        if self.in_lock_step:
            rows = candidates.parents + self.sentences.unsqueeze(1) * self.num_beams
            new = torch.stack((candidates.tokens, rows), dim=2)
        return torch.cat((gather_beams(self.paths, candidates.parents), new.view(*new.shape[:2], 1, -1)), dim=2)

    def _ended(self, candidates: Candidates, paths: torch.Tensor) -> torch.Tensor:
        """[N, C] bool: `</s>`, the limit or a criterion of the caller's ends the candidate."""
        if self.eos is None:
            ended = torch.zeros_like(candidates.tokens, dtype=torch.bool)
        else:
            ended = torch.isin(candidates.tokens, self.eos) if len(self.eos) > 1 else candidates.tokens == self.eos
        if self.num_new >= self.first_limit:
            ended |= (self.limits[self.sentences] <= self.num_new).unsqueeze(1)
        if self.criteria:
            scores = tuple(self.step_scores) or None
            ended |= self._in_full_batch(lambda sequences: self.criteria(sequences, scores), paths[..., 0])
        return ended

    def _finish(self, candidates: Candidates, paths: torch.Tensor, ended: torch.Tensor) -> None:
        """Put the best candidates that have ended among the finished ones of their sentence, K of which are kept."""
        entering = ended & self.is_open.unsqueeze(1) & (candidates.scores > NOTHING / 2)
        entering[:, self.num_beams :] = False
        scores = candidates.scores / length_penalty(self.num_new, self.config)
        if self.decoders[0].coverage is not None:
            scores = scores + self._coverage_scores(candidates.parents)
        old = self.sentences
        # Below what does not exist, so that it stays where not as many as beams have finished.
        merged = torch.cat((self.finished_scores[old], scores.masked_fill(~entering, 2 * NOTHING)), dim=1)
        self.finished_scores[old], best = merged.topk(self.num_beams)
        lengths = torch.full_like(candidates.tokens, self.num_new).masked_fill(~entering, 0)
        self.finished_lengths[old] = torch.cat((self.finished_lengths[old], lengths), dim=1).gather(1, best)
        grow = paths.shape[2] - self.finished_paths.shape[2]
        if grow > 0:
            self.finished_paths = self._filled(self.finished_paths, grow)
        paths = self._filled(paths, -grow) if grow < 0 else paths
        self.finished_paths[old] = gather_beams(torch.cat((self.finished_paths[old], paths), dim=1), best)

    def _filled(self, paths: torch.Tensor, steps: int) -> torch.Tensor:
        """Paths with as many steps of nothing after them."""
        nothing = torch.tensor([self.fill, -1][: paths.shape[3]], device=paths.device)
        return torch.cat((paths, nothing.expand(*paths.shape[:2], steps, -1)), dim=2)

    def _coverage_scores(self, parents: torch.Tensor) -> torch.Tensor:
        coverage = sum(decoder.coverage for decoder in self.decoders) / len(self.decoders)
        mask = None if self.source_mask is None else self.source_mask[self.sentences].unsqueeze(1)
        scores = self.config.coverage_penalty * coverage_score(coverage, mask)
        return scores.gather(1, parents)

    def _close(self, ended: torch.Tensor) -> None:
        """Close the sentences whose results cannot change any more."""
        finished = self.finished_scores[self.sentences]
        # The score of nothing, while fewer than count have finished.
        worst = finished[:, self.num_counted - 1]
        length: Any = self.num_new
        if self.config.length_penalty > 0:
            length = torch.where(self.is_exact[self.sentences], self.limits[self.sentences], self.num_new)
        self.is_improvable &= self.scores[:, 0] / length_penalty(length, self.config) > worst
        is_full = self.stops_when_full[self.sentences] & (finished[:, self.num_full - 1] > NOTHING / 2)
        goes_on = ~ended.all(dim=1)
        self.is_open = self.is_improvable & ~is_full
        if self.in_lock_step:
            # transformers asks these of the batch as a whole.
            self.is_over = not bool(self.is_improvable.any() & ~is_full.all() & goes_on.any())
        else:
            self.is_improvable &= goes_on
            self.is_open &= goes_on
            self.is_over = not bool(self.is_open.any())

    def _leave(self) -> None:
        """Take out closed sentences, once they are an eighth of all: it costs a copy of the others."""
        staying = self.is_open.nonzero().squeeze(1)
        if self.is_over or 8 * len(staying) > 7 * len(self.sentences):
            return
        for decoder in self.decoders:
            decoder.select(staying)
        for name in ("sentences", "paths", "scores", "parents", "is_open", "is_improvable"):
            setattr(self, name, getattr(self, name).index_select(0, staying))

    def results(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The best R translations of each sentence: sequences [B * R, T] with their prompts, and their scores [B * R].

        In lock step also the rows [B * R, T - P] int32 that each token was added to, -1 after the end.
        """
        num_results = self.config.num_return_sequences
        length = self.prompt_length + int(self.finished_lengths[:, :num_results].max())
        paths = self.finished_paths[:, :num_results, :length].flatten(0, 1)
        rows = paths[:, self.prompt_length :, 1].int() if self.in_lock_step else None
        return paths[..., 0].contiguous(), self.finished_scores[:, :num_results].flatten(), rows
