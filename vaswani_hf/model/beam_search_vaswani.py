"""Beam search (Section 6.1): several translations of a sentence are extended side by side, the best ones go
on.

This file travels with every checkpoint because `generate` searches with it. Logits come from
decoding_vaswani.
The rules are those of transformers: each step looks at twice as many candidates as there are beams, a
candidate that ends enters the finished ones only from among the best as many as there are beams, one that is
cut at the limit competes without `</s>`. Added to them: the penalty and the coverage of Wu et al. 2016 (arXiv
1609.08144, Section 7), which the paper takes, limits per sentence, and sentences that leave as soon as
nothing can change their result.

`BeamSearch` receives what decides about a search: the decoders, the candidate selection, the scorer and the
stopping rule.
`generate(..., search=SearchStrategies(...))` passes others than those that follow from the settings.

Letters of shapes: B sentences at the start, N sentences still searched, K beams, C candidates, R results per
sentence, T tokens so far with the prompt, P prompt length, S source length, V target vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
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

# The score of what does not exist, as in transformers; everything real is far above half of it.
NEG_INF = -1e9
# Criteria that the search checks itself.
OWN_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


@dataclass
class Candidates:
    """Ways to go on, best first unless `do_sample` is set."""

    scores: torch.Tensor  # [N, C] float32, summed log-probabilities
    parents: torch.Tensor  # [N, C] int64, the beam that is extended
    tokens: torch.Tensor  # [N, C] int64


class Decoder(Protocol):
    """What the search asks of a model: the logits of the next token of each beam."""

    # The tree of tokens, if the decoder has one, and [N, K, S] the attention that each source token has had, if asked for.
    tree: TreeKVCache | None
    coverage: Any

    def start(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Read the prompts [B * K, P]; logits [B, 1 or K, V]."""

    def step(self, sequences: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Read the newest token of each beam [N, K, T], which goes on from `parents` [N, K]; logits [N, K, V]."""

    def select(self, sentences: torch.Tensor) -> None:
        """Keep these sentences [N'] only."""


class CandidateSelection(Protocol):
    """Chooses the candidates of each step."""

    def __call__(self, search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
        """The best `search.num_candidates` ways to go on; ways that do not exist have the score `NEG_INF`.

        Args:
            search (BeamSearch): With the beams: `scores` [N, K], `sequences` [N, K, T], and `parents` [N, K],
                the beams of the step before that they go on from. `sentences` [N] are the numbers of the
                sentences in the batch.
            log_probs (torch.Tensor): [N, K, V], or [N, 1, V] before the first token, when all beams are
                alike.
        """


class Scorer(Protocol):
    """Scores translations; the one with the highest score is the best."""

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The scores for summed log-probabilities [...] of `length` new tokens (int or broadcastable), `</s>`
        included.

        `coverage` [...] is the `coverage_score`; None without a coverage penalty, and if the stopping rule
        asks.
        """


class StoppingRule(Protocol):
    """Decides when the search of a sentence ends before its limit."""

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """[N] bool: a longer translation may still change the results.

        `finished` [N, K] are the scores of the finished translations, best first, NEG_INF where there are
        fewer; `best` [N] is the highest summed log-probability of the candidates that go on.
        """

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        """[N] bool: the sentence has as many translations as it may have, whatever could still come."""


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


class PenaltyScorer(Scorer):
    """The scorer of the settings: length penalty and weighted coverage (Wu et al. 2016, Eq. (14))."""

    def __init__(self, config: GenerationConfig):
        self.config = config

    def __call__(
        self, log_probs: torch.Tensor, length: Any, coverage: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = log_probs / length_penalty(length, self.config)
        return scores if coverage is None else scores + self.config.coverage_penalty * coverage


def has_exact_bound(config: GenerationConfig) -> bool:
    """True if `early_stopping` asks for the bound of all possible lengths.

    transformers has this bound for "never" only. For False it compares by the present length, which is exact
    for scores that are not divided by the length; with the penalty of Wu et al. False is exact here too.
    """
    is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
    return config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)


class EarlyStopping(StoppingRule):
    """The stopping rule of the settings, `early_stopping`: a search ends when no longer translation can win.

    `num_counted` is the number of results that must not change. A sentence is full if `num_beams`
    translations have finished.
    """

    def __init__(self, config: GenerationConfig, num_sentences: int, num_counted: int, device: torch.device):
        self.num_counted = num_counted
        self.num_full = config.num_beams
        # [B] bool: the bound is that of all possible lengths; the search ends as soon as the sentence is
        # full.
        self.is_exact = torch.full((num_sentences,), has_exact_bound(config), device=device)
        self.stops_when_full = torch.full((num_sentences,), config.early_stopping is True, device=device)

    def may_improve(self, search: "BeamSearch", finished: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        # NEG_INF while fewer than count have finished: then anything may improve.
        worst = finished[:, self.num_counted - 1]
        length: Any = search.num_new
        if search.config.length_penalty > 0:
            limits = search.limits[search.sentences]
            length = torch.where(self.is_exact[search.sentences], limits, search.num_new)
        return search.scorer(best, length) > worst

    def is_full(self, search: "BeamSearch", finished: torch.Tensor) -> torch.Tensor:
        return self.stops_when_full[search.sentences] & (finished[:, self.num_full - 1] > NEG_INF / 2)


@dataclass(frozen=True)
class SearchStrategies:
    """What decides about a search, for `generate(..., search=SearchStrategies(...))`.

    A strategy that is None follows from the settings of `generate`.

    Args:
        ensemble (Sequence): Further models whose probabilities are averaged with those of the model.
        must_contain (Sequence, optional): For each sentence the phrases that its translation contains, lists
            of token ids. They need a candidate selection and a stopping rule of their own.
        warns_of_unmet (bool): Warn of phrases that a translation lacks.
        candidates (CandidateSelection, optional): By default the best candidates, with `do_sample` drawn
            ones.
        scorer (Scorer, optional): By default `PenaltyScorer`.
        stopping_rule (StoppingRule, optional): By default `EarlyStopping`.
    """

    ensemble: Sequence[Any] = ()
    must_contain: Sequence[Any] | None = None
    warns_of_unmet: bool = True
    candidates: CandidateSelection | None = None
    scorer: Scorer | None = None
    stopping_rule: StoppingRule | None = None

    @property
    def own(self) -> list[str]:
        """The names of the strategies that do not follow from the settings."""
        return [name for name in ("candidates", "scorer", "stopping_rule") if getattr(self, name) is not None]


def best_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """The candidate selection of beam search."""
    return top_candidates(log_probs, search.scores[:, : log_probs.shape[1]], search.num_candidates)


def drawn_candidates(search: "BeamSearch", log_probs: torch.Tensor) -> Candidates:
    """The candidate selection of beam sampling."""
    return sample_candidates(log_probs, search.scores[:, : log_probs.shape[1]], search.num_candidates)


def top_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """The best candidates, by log-probabilities [N, K, V] and scores [N, K] of the beams.

    If there are fewer than `number` candidates, the others have the score NEG_INF. With many classes the search looks at
    the chunks of classes with the highest maxima only. These contain the best candidates, and this takes half the time.
    """
    num_sentences, num_beams, num_classes = log_probs.shape
    size = chunk_size(num_classes)
    if size == 1 or num_beams * num_classes // size < number:
        return _top_of_all(log_probs, scores, number)
    num_chunks = num_classes // size
    # [N, K, V / size, size]
    chunks = log_probs.view(num_sentences, num_beams, num_chunks, size)
    maxima = chunks.amax(dim=-1) + scores.unsqueeze(2)
    # [N, number]: the best chunks, numbered over all beams of a sentence.
    chosen = maxima.flatten(1).topk(number, sorted=False).indices
    # [N, number, size]
    members = chunks.flatten(1, 2).gather(1, chosen.unsqueeze(2).expand(-1, -1, size))
    of_parents = scores.gather(1, chosen // num_chunks).unsqueeze(2)
    best, index = (members + of_parents).flatten(1).topk(number)
    chosen = chosen.gather(1, index // size)
    return Candidates(best, chosen // num_chunks, chosen % num_chunks * size + index % size)


def _top_of_all(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """`top_candidates` without chunks."""
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
    """The divisor of the number of classes that is nearest to its square root, or 1 if no divisor is near."""
    root = math.isqrt(num_classes)
    if root <= 16:
        return 1
    near = [size for size in range(root // 4 + 1, root * 4) if num_classes % size == 0]
    return min(near, key=lambda size: abs(math.log(size / root)), default=1)


def sample_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """Ways to go on, drawn without replacement in proportion to their probability, in the order drawn."""
    num_classes = log_probs.shape[2]
    total = (log_probs + scores.unsqueeze(2)).flatten(1)  # [N, K * V]
    probabilities = torch.softmax(total, dim=-1)
    # What `torch.multinomial` does after it has waited for the device to look at the probabilities.
    index = (probabilities / torch.empty_like(probabilities).exponential_()).topk(number).indices
    return Candidates(total.gather(1, index), index // num_classes, index % num_classes)


class SentenceError(ValueError):
    """A sentence cannot be translated; `sentence` is its number in the batch, `text` its text if that is known."""

    def __init__(self, sentence: int, text: str | None = None):
        super().__init__(sentence, text)
        self.sentence = sentence
        self.text = text

    @property
    def place(self) -> str:
        """The name of the sentence in a message."""
        return (
            f"sentence {self.sentence} of the batch" if self.text is None else f"the text {self.text[:40]!r}"
        )


class NotFiniteError(SentenceError):
    """The logits of a sentence are NaN or infinite."""

    def __str__(self) -> str:
        return (
            f"The model's logits for {self.place} are NaN or infinite: its weights are damaged, or too large for their "
            "dtype; try bfloat16 or float32 if that is float16."
        )


class NoTranslationError(SentenceError):
    """The settings of the search, `settings` in words, forbid every translation of a sentence."""

    def __init__(self, sentence: int, settings: str, text: str | None = None):
        super().__init__(sentence, text)
        self.args = (sentence, settings, text)
        self.settings = settings

    def __str__(self) -> str:
        return (
            f"No translation of {self.place} was found, because at some step every token is forbidden by {self.settings}; "
            "change one of them."
        )


# Settings by which processors of transformers can give tokens the probability 0.
_FORBIDDING = (
    "bad_words_ids suppress_tokens begin_suppress_tokens sequence_bias no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size min_length min_new_tokens forced_bos_token_id forced_eos_token_id"
).split()


def forbidding_settings(config: GenerationConfig) -> str:
    """The settings that forbid tokens, each with its value, in words; those of the caller's own processors if there are none."""
    values = {name: getattr(config, name, None) for name in _FORBIDDING}
    if values["min_new_tokens"]:
        # transformers has made `min_length` from it.
        del values["min_length"]
    given = [
        f"`{name}` = {str(value):.60}" for name, value in values.items() if value not in (None, [], False)
    ]
    return ", ".join(given) or "the given `logits_processor` and `prefix_allowed_tokens_fn`"


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of a step that the search reads from the device, all of them with one copy."""

    # [3 + number of trees] float32: the sum of `log_probs`, whether a candidate has ended, the number of open sentences, and
    # for each tree the largest number of living tokens.
    values: torch.Tensor
    trees: list[TreeKVCache]
    # What names the sentence if the sum is NaN: [N, K or 1] log-probabilities of one class, [N] bool, [N] int64.
    log_probs: torch.Tensor
    is_open: torch.Tensor
    sentences: torch.Tensor


class DeferredReader:
    """Reads the numbers of each step one step later, so that a GPU has work while they are copied to the CPU.

    The search then takes one step more than it needs. This step has no effect.
    """

    def __init__(self) -> None:
        self.event: torch.cuda.Event | None = None
        self.pending: StepNumbers | None = None

    def exchange(self, numbers: StepNumbers | None) -> StepNumbers | None:
        """Hand in the numbers of this step, None at the end; returns those of the step before with `values` on the CPU."""
        before = self.pending
        event = self.event
        self.pending = None
        self.event = None
        if numbers is not None:
            # The copy is made in pinned memory, while the device and this thread go on.
            self.pending = replace(numbers, values=numbers.values.to("cpu", non_blocking=True))
            if numbers.values.is_cuda:
                self.event = torch.cuda.current_stream(numbers.values.device).record_event()
        if event is not None:
            event.synchronize()
        return before


def fill_token(config: GenerationConfig) -> int:
    """The token that fills up rows after the end, as in transformers: with beams `</s>` where `<pad>` is 0."""
    pad = config._pad_token_tensor
    eos = config._eos_token_tensor
    if pad is not None and (config.num_beams == 1 or (int(pad) != 0 and eos is not None)):
        return int(pad)
    return -1 if eos is None else int(eos[0])


def has_foreign_rules(processors: Iterable[Any], criteria: Iterable[Any]) -> bool:
    """True if a rule is the caller's own: it may follow each row by its tokens, and a sentence that left has no row."""
    kinds = {type(rule) for rule in (*processors, *criteria)}
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    own = {"transformers", __name__.partition(".")[0]}
    return bool(packages - own) or PrefixConstrainedLogitsProcessor in kinds


class BeamSearch:
    """The search for the translations of a batch of sentences, all beams of all sentences at once (batched
    beams).

    Args:
        config: The settings; `num_beams` is K and `num_return_sequences` R.
        decoders: Those of one model, or of several models whose probabilities are averaged.
        prompt: [B, P] int64, with which each translation begins.
        limits: [B] int64, new tokens at most.
        candidates: Chooses the candidates of a step.
        scorer: Scores finished translations.
        stopping_rule: Decides when the search of a sentence ends.
        sentences: [N] int64, those of the batch that are searched.
        source_mask: [B, S], for the coverage.
        processors: See and change log-probabilities.
        criteria: See candidates; `</s>` and the limits need none.
        rows_per_sentence: Processors and criteria see as many beams or candidates of a sentence in a call; by
            default all.
        excluded: The class that no translation contains, the padding.
        reader: Defers reading from the device; only for searches in which a step more has no effect.
        transformers_compatible: All sentences stay to the end, and the steps are those of transformers.
    """

    def __init__(
        self,
        config: GenerationConfig,
        decoders: Sequence[Decoder],
        prompt: torch.Tensor,
        limits: torch.Tensor,
        *,
        candidates: CandidateSelection,
        scorer: Scorer,
        stopping_rule: StoppingRule,
        sentences: torch.Tensor,
        source_mask: torch.Tensor | None,
        processors: Sequence[Any],
        criteria: Sequence[Any],
        rows_per_sentence: int | None,
        excluded: int | None,
        reader: DeferredReader | None,
        transformers_compatible: bool,
    ):
        self.config = config
        self.decoders = decoders
        self.limits = limits
        self.candidates = candidates
        self.scorer = scorer
        self.stopping_rule = stopping_rule
        self.sentences = sentences
        self.source_mask = source_mask
        self.processors = LogitsProcessorList(processors)
        self.criteria = StoppingCriteriaList(criteria)
        self.rows_per_sentence = rows_per_sentence
        self.excluded = excluded
        self.reader = reader
        self.transformers_compatible = transformers_compatible
        self.may_leave = not (transformers_compatible or has_foreign_rules(processors, criteria))
        # Nothing closes before something has ended. Reading from a CPU is cheap, so the search asks that first.
        self.asks_first = not (config.do_sample or needs_sync(limits))

        # Tokens and numbers of tokens.
        self.eos = config._eos_token_tensor
        self.fill = fill_token(config)
        self.pad = self.fill if config._pad_token_tensor is None else int(config._pad_token_tensor)
        self.first_limit, self.last_limit = torch.stack(limits.aminmax()).tolist()

        # Numbers of beams and candidates.
        num_ends = 0 if self.eos is None else len(self.eos)
        self.num_beams = config.num_beams
        self.num_candidates = max(2, 1 + num_ends) * config.num_beams

        # The beams. All of them begin alike, so only the first one counts.
        num_searched = len(sentences)
        self.prompt_length = prompt.shape[1]
        self.num_new = 0
        # [B, K, T, 1]: tokens. As in transformers, [B, K, T, 2]: also the row of the beam that each one was added to.
        paths = prompt.view(len(prompt), 1, -1, 1).expand(-1, self.num_beams, -1, -1)
        if transformers_compatible:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        self.paths = paths[sentences]  # [N, K, T, 1 or 2]
        self.scores = torch.full((num_searched, self.num_beams), NEG_INF, device=prompt.device)
        self.scores[:, 0] = 0
        # [N, K] int64: the beams of the step before that these go on from; set by the first step.
        self.parents: torch.Tensor

        # Which sentences go on.
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

        # Outputs of each step, recorded as transformers does.
        self.step_scores: list[torch.Tensor] = []
        self.step_logits: list[torch.Tensor] = []

    @property
    def sequences(self) -> torch.Tensor:
        """[N, K, T] int64, prompts included."""
        return self.paths[..., 0]

    def run(self, logits: Sequence[torch.Tensor], goes_on: Callable[[bool], bool]) -> None:
        """Search until nothing can change the results, from the logits [B, 1 or K, V] of each decoder for the first token.

        `goes_on` gets whether this search is over, and returns whether another step is due: processes that share a model
        take equally many steps.
        """
        while goes_on(self.is_over):
            if self.num_new > 0:
                logits = [decoder.step(self.sequences, self.parents) for decoder in self.decoders]
            if not self.is_over:
                self._take_step(logits)
        if self.reader is not None:
            last = self.reader.exchange(None)
            if last is not None:
                self._evaluate(last)

    def _take_step(self, logits: Sequence[torch.Tensor]) -> None:
        was_open = self.is_open
        log_probs, checked = self._log_probs(logits)
        candidates = self.candidates(self, log_probs)
        self.num_new += 1
        paths = self._extended(candidates)
        ended = self._ended(candidates, paths)
        some_ended = False
        num_open = len(self.sentences)
        if self.asks_first:
            some_ended, _ = self._read(checked, was_open, ended.any(), self.num_searched)
            self.asks_first = not some_ended
        if not self.asks_first:
            finished = self._finish(candidates, ended)
            num_going_on = self._close(candidates, ended)
            some_ended, num_open = self._read(checked, was_open, ended.any(), num_going_on)
            self.is_over = num_open == 0 or self.num_new >= self.last_limit
        # Candidates that were not sampled are in order; where none has ended the first ones are the best.
        if some_ended or self.reader is not None or self.config.do_sample:
            self._keep_finished(finished, paths)
            self.scores, best = (candidates.scores + ended * NEG_INF).topk(self.num_beams)
            self.paths = gather_beams(paths, best)
            self.parents = candidates.parents.gather(1, best)
        else:
            self.scores = candidates.scores[:, : self.num_beams]
            self.paths = paths[:, : self.num_beams]
            self.parents = candidates.parents[:, : self.num_beams]
        # Taking out sentences costs a copy of the others: it pays once an eighth of them is closed.
        if self.may_leave and not self.is_over and 8 * num_open <= 7 * len(self.sentences):
            self._leave(num_open)

    def _read(
        self, checked: torch.Tensor, was_open: torch.Tensor, any_ended: torch.Tensor, num_open: torch.Tensor
    ) -> tuple[bool, int]:
        """Whether a candidate has ended, and the number of open sentences; of the step before if reading is deferred.

        This is the one place where a step waits for the device.
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
            # Nothing is known of the first step yet.
            return True, len(self.sentences)
        return self._evaluate(numbers)

    def _evaluate(self, numbers: StepNumbers) -> tuple[bool, int]:
        """Check the sum for NaN, tell the trees their living tokens, and return the other two numbers."""
        log_prob_sum, any_ended, num_open, *living = numbers.values.tolist()
        if math.isnan(log_prob_sum) and not self.config.remove_invalid_values:
            is_broken = numbers.log_probs.isnan().any(dim=1) & numbers.is_open
            for sentence in numbers.sentences[is_broken].tolist():
                raise NotFiniteError(sentence)
        for tree, num_living in zip(numbers.trees, living, strict=True):
            tree.num_living = int(num_living)
        return bool(any_ended), int(num_open)

    def _log_probs(self, logits: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, K or 1, V], processed, of all beams or, before the first token, of one; and [N, K or 1] of one class before that.

        If one logit of a row is NaN or infinitely high, or all are infinitely low, all log-probabilities of the row are NaN.
        """
        log_probs = torch.log_softmax(logits[0], dim=-1)
        if len(logits) > 1:
            # Some have looked at all beams and some at one, as long as they are alike.
            others = [torch.log_softmax(other, dim=-1) for other in logits[1:]]
            of_models = torch.stack(torch.broadcast_tensors(log_probs, *others))
            log_probs = of_models.logsumexp(dim=0) - math.log(len(logits))
        # Any class but the excluded one, which is overwritten below.
        checked = log_probs[:, :, 1 if self.excluded == 0 else 0]
        if self.processors:
            log_probs = self._processed(log_probs.expand(-1, self.num_beams, -1))
        if self.transformers_compatible and self.config.output_logits:
            self.step_logits.append(logits[0].flatten(0, 1))
        if self.transformers_compatible and self.config.output_scores:
            self.step_scores.append(log_probs.flatten(0, 1).clone())
        if self.excluded is not None:
            log_probs.select(2, self.excluded).fill_(2 * NEG_INF)
        return log_probs, checked

    def _rows(self, values: torch.Tensor) -> torch.Tensor:
        """The values [N, K, ...] as rows [B * K, ...] for processors and criteria.

        Each row has the place in the batch that it had before other sentences left, because rules may keep a state by rows.
        """
        full = values.new_zeros(len(self.limits), *values.shape[1:])
        return full.index_copy_(0, self.sentences, values).flatten(0, 1)

    def _of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The values [N, K, ...] of rows [B * K, ...], the reverse of `_rows`."""
        return rows.unflatten(0, (len(self.limits), -1))[self.sentences]

    def _processed(self, log_probs: torch.Tensor) -> torch.Tensor:
        """The log-probabilities [N, K, V] behind the processors."""
        size = self.rows_per_sentence or self.num_beams
        parts = []
        for start in range(0, self.num_beams, size):
            beams = slice(start, start + size)
            rows = self.processors(self._rows(self.sequences[:, beams]), self._rows(log_probs[:, beams]))
            parts.append(self._of_rows(rows))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _stopped(self, sequences: torch.Tensor) -> torch.Tensor:
        """[N, C] bool: a criterion of the caller ends the candidate [N, C, T + 1]."""
        scores = tuple(self.step_scores) or None
        size = self.rows_per_sentence or sequences.shape[1]
        parts = []
        for start in range(0, sequences.shape[1], size):
            rows = self.criteria(self._rows(sequences[:, start : start + size]), scores)
            parts.append(self._of_rows(rows))
        return torch.cat(parts, dim=1)

    def _extended(self, candidates: Candidates) -> torch.Tensor:
        """The candidates' paths [N, C, T + 1, 1 or 2]."""
        new = candidates.tokens.unsqueeze(2)  # [N, C, 1]
        if self.transformers_compatible:
            rows = candidates.parents + self.sentences.unsqueeze(1) * self.num_beams
            new = torch.stack((candidates.tokens, rows), dim=2)  # [N, C, 2]
        paths = gather_beams(self.paths, candidates.parents)  # [N, C, T, 1 or 2]
        return torch.cat((paths, new.unsqueeze(2)), dim=2)

    def _ended(self, candidates: Candidates, paths: torch.Tensor) -> torch.Tensor:
        """[N, C] bool: `</s>`, the limit or a criterion of the caller's ends the candidate."""
        if self.eos is None:
            ended = torch.zeros_like(candidates.tokens, dtype=torch.bool)
        elif len(self.eos) > 1:
            ended = torch.isin(candidates.tokens, self.eos)
        else:
            ended = candidates.tokens == self.eos
        if self.num_new >= self.first_limit:
            ended |= (self.limits[self.sentences] <= self.num_new).unsqueeze(1)
        if self.criteria:
            ended |= self._stopped(paths[..., 0])
        return ended

    def _finish(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Keep the scores of the best K that have finished.

        Returns [N, K] int64: which of the K that had finished before and, after these, of the first K candidates.
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
        # A lower score than that of finished translations that do not exist.
        entering_scores = scores.masked_fill(~entering, 2 * NEG_INF)
        merged = torch.cat((self.finished_scores[self.sentences], entering_scores), dim=1)
        self.finished_scores[self.sentences], kept = merged.topk(self.num_beams)
        return kept

    def _keep_finished(self, kept: torch.Tensor, paths: torch.Tensor) -> None:
        """Keep the paths and lengths of those whose scores `_finish` has kept."""
        lengths = torch.cat(
            (self.finished_lengths[self.sentences], torch.full_like(kept, self.num_new)), dim=1
        )
        self.finished_lengths[self.sentences] = lengths.gather(1, kept)
        num_tokens = max(paths.shape[2], self.finished_paths.shape[2])
        self.finished_paths = self.filled(self.finished_paths, num_tokens)
        new = self.filled(paths[:, : self.num_beams], num_tokens)
        both = torch.cat((self.finished_paths[self.sentences], new), dim=1)
        self.finished_paths[self.sentences] = gather_beams(both, kept)

    def filled(self, paths: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Paths of so many tokens, with the padding of what has ended after them."""
        missing = num_tokens - paths.shape[2]
        if missing == 0:
            return paths
        return torch.cat((paths, self.after_end.expand(*paths.shape[:2], missing, -1)), dim=2)

    def _close(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Close the sentences whose results cannot change any more; how many go on, or 0 if the search is over."""
        finished = self.finished_scores[self.sentences]
        best = (candidates.scores + ended * NEG_INF).amax(dim=1)
        self.is_improvable = self.is_improvable & self.stopping_rule.may_improve(self, finished, best)
        is_full = self.stopping_rule.is_full(self, finished)
        goes_on = ~ended.all(dim=1)
        self.is_open = self.is_improvable & ~is_full
        if self.transformers_compatible:
            # transformers asks these of the batch as a whole.
            return self.is_improvable.any() & ~is_full.all() & goes_on.any()
        self.is_improvable = self.is_improvable & goes_on
        self.is_open = self.is_open & goes_on
        return self.is_open.sum()

    def _leave(self, num_staying: int) -> None:
        """Take out closed sentences; fewer than `num_staying` may be open if reading is deferred."""
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
        """The best R of each sentence: tokens [B * R, T], scores [B * R] and, as transformers has them, beam indices.

        The beam indices [B * R, T - P] are the row that each token was added to, -1 after the end; None without
        `transformers_compatible`. If a sentence has fewer than R translations, the others are nothing but padding and have
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
        """The sentences for which the search has found nothing."""
        return (self.finished_lengths[:, 0] == 0).nonzero().flatten().tolist()


@dataclass
class SearchTask:
    """A batch to be searched: what `generate` has prepared, and the strategies."""

    # The model that generates and those of its ensemble, and for each its arguments for all B sentences.
    models: list[Any]
    inputs: list[dict[str, Any]]
    # [B, P] int64, and [B] int64 new tokens at most.
    prompt: torch.Tensor
    limits: torch.Tensor
    # [B, S], for the coverage.
    source_mask: torch.Tensor | None
    processors: LogitsProcessorList
    # Those of the caller: the search checks `</s>` and limits by itself.
    criteria: list[Any]
    strategies: SearchStrategies
    # All sentences stay to the end, and the steps are those of transformers.
    transformers_compatible: bool
    # Gets whether this search is over, and returns whether another step is due.
    goes_on: Callable[[bool], bool]

    def run(
        self,
        config: GenerationConfig,
        *,
        candidates: CandidateSelection | None = None,
        stopping_rule: StoppingRule | None = None,
        sentences: torch.Tensor | None = None,
        rows_per_sentence: int | None = None,
    ) -> BeamSearch:
        """The search, when it is over, of `sentences` [N] int64, or of all.

        See `BeamSearch` for the other arguments.
        """
        device = self.prompt.device
        if sentences is None:
            sentences = torch.arange(len(self.prompt), device=device)
        if candidates is None:
            candidates = drawn_candidates if config.do_sample else best_candidates
        if stopping_rule is None:
            # A processor may raise scores, against which no bound holds; then as many results count as in
            # transformers.
            is_exact = has_exact_bound(config) and not (self.transformers_compatible or self.processors)
            num_counted = config.num_return_sequences if is_exact else config.num_beams
            stopping_rule = EarlyStopping(config, len(self.prompt), num_counted, device)
        decoders = [
            self._decoder(model, inputs, config)
            for model, inputs in zip(self.models, self.inputs, strict=True)
        ]
        # Reading may be deferred if a step more has no effect: without draws, outputs, and rules or
        # strategies of others.
        has_foreign_parts = bool(self.processors or self.criteria or self.strategies.own)
        has_effects = self.transformers_compatible or config.do_sample or has_foreign_parts
        search = BeamSearch(
            config,
            decoders,
            self.prompt,
            self.limits,
            candidates=self.strategies.candidates or candidates,
            scorer=self.strategies.scorer or PenaltyScorer(config),
            stopping_rule=self.strategies.stopping_rule or stopping_rule,
            sentences=sentences,
            source_mask=self.source_mask,
            processors=self.processors,
            criteria=self.criteria,
            rows_per_sentence=rows_per_sentence,
            excluded=self.models[0].excluded_class(0.0, None),
            reader=DeferredReader() if needs_sync(self.limits) and not has_effects else None,
            transformers_compatible=self.transformers_compatible,
        )
        input_ids = self.prompt[sentences].repeat_interleave(config.num_beams, dim=0)  # [N * K, P]
        # Parts that others have put into the model or the search could need the bookkeeping of autograd; ours
        # does not.
        is_direct = not (self.processors or self.strategies.own) and all(
            decoder.is_direct for decoder in decoders
        )
        with torch.inference_mode() if is_direct else nullcontext():
            search.run([decoder.start(input_ids) for decoder in decoders], self.goes_on)
        return search

    def _decoder(self, model: Any, inputs: dict[str, Any], config: GenerationConfig) -> Any:
        """The fast decoder if the model permits it and nothing else is asked for, else the general one."""
        in_rows = (model is self.models[0] and self.transformers_compatible) or not config.use_cache
        # Models of other classes have no such attribute.
        if in_rows or not getattr(model, "supports_fast_path", False):
            return RowDecoder(model, config, inputs)
        return TreeAttentionDecoder(model, config, inputs)
