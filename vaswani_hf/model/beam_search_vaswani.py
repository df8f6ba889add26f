"""Beam search (Section 6.1): several translations of a sentence are extended side by side, the best ones go on.

This file travels with every checkpoint because `generate` searches with it. Logits come from decoding_vaswani.
The rules are those of transformers: each step looks at twice as many candidates as there are beams, a candidate that
ends enters the finished ones only from among the best as many as there are beams, one that is cut at the limit competes
without `</s>`. Added to them: the penalty and the coverage of Wu et al. 2016 (arXiv 1609.08144, Section 7), which the
paper takes, limits per sentence, and sentences that leave as soon as nothing can change their result.
Letters of shapes: B sentences at the start, N sentences still searched, K beams, C candidates, R results per sentence,
T tokens so far with the prompt, V target vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PrefixConstrainedLogitsProcessor
from transformers.generation import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

from .attention_vaswani import needs_sync
from .decoding_vaswani import TreeKVCache, gather_beams

# The score of what does not exist, as in transformers; everything real is far above half of it.
NEG_INF = -1e9
# Criteria that the search checks itself.
OWN_CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


@dataclass
class Candidates:
    """Ways to go on, best first unless they were sampled."""

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


# Log-probabilities [N, K, V], scores [N, K] and the number of candidates to the candidates.
ChooseCandidates = Callable[[torch.Tensor, torch.Tensor, int], Candidates]


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
    num_classes, total = log_probs.shape[2], (log_probs + scores.unsqueeze(2)).flatten(1)
    probabilities = torch.softmax(total, dim=-1)
    # What `torch.multinomial` does after it has waited for the device to look at the probabilities.
    index = (probabilities / torch.empty_like(probabilities).exponential_()).topk(number).indices
    return Candidates(total.gather(1, index), index // num_classes, index % num_classes)


class SentenceError(ValueError):
    """A sentence cannot be translated; `sentence` is its number in the batch, `text` its text if that is known."""

    def __init__(self, sentence: int, text: str | None = None):
        super().__init__(sentence, text)
        self.sentence, self.text = sentence, text

    @property
    def place(self) -> str:
        """The name of the sentence in a message."""
        return f"sentence {self.sentence} of the batch" if self.text is None else f"the text {self.text[:40]!r}"


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
    given = [f"`{name}` = {str(value):.60}" for name, value in values.items() if value not in (None, [], False)]
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


def has_foreign_rules(processors: Iterable[Any], criteria: Iterable[Any]) -> bool:
    """True if a rule is the caller's own: it may follow each row by its tokens, and a sentence that left has no row."""
    kinds = {type(rule) for rule in (*processors, *criteria)}
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    own = {"transformers", __name__.partition(".")[0]}
    return bool(packages - own) or PrefixConstrainedLogitsProcessor in kinds


class BeamSearch:
    """The search for the translations of a batch of sentences, all beams of all sentences at once (batched beams).

    Args:
        config: The settings; `num_beams` is K and `num_return_sequences` R.
        decoders: Those of one model, or of several models whose probabilities are averaged.
        prompt: [B, P] int64, with which each translation begins.
        limits: [B] int64, new tokens at most.
        sentences: [N] int64, those of the batch that are searched; all of them by default.
        source_mask: [B, S], for the coverage.
        processors: See and change log-probabilities.
        criteria: See candidates; `</s>` and the limits need none.
        excluded: The class that no translation contains, the padding.
        choose: Chooses the candidates of a step.
        reader: Defers reading from the device; only for searches in which a step more has no effect.
        transformers_compatible: All sentences stay to the end, and the steps are those of transformers.
    """

    # Attributes with a row for each sentence that is still searched.
    per_sentence: tuple[str, ...] = ("sentences", "paths", "scores", "parents", "is_open", "is_improvable")

    def __init__(
        self,
        config: GenerationConfig,
        decoders: Sequence[Decoder],
        prompt: torch.Tensor,
        limits: torch.Tensor,
        *,
        sentences: torch.Tensor | None = None,
        source_mask: torch.Tensor | None = None,
        processors: Sequence[Any] = (),
        criteria: Sequence[Any] = (),
        excluded: int | None = None,
        choose: ChooseCandidates = top_candidates,
        reader: DeferredReader | None = None,
        transformers_compatible: bool = False,
    ):
        self.config = config
        self.decoders = decoders
        self.limits = limits
        self.source_mask = source_mask
        self.processors = LogitsProcessorList(processors)
        self.criteria = StoppingCriteriaList(criteria)
        self.excluded = excluded
        self.choose = choose
        self.reader = reader
        self.transformers_compatible = transformers_compatible
        device = prompt.device
        self.sentences = torch.arange(len(prompt), device=device) if sentences is None else sentences
        self.first_limit, self.last_limit = torch.stack(limits.aminmax()).tolist()
        self.may_leave = not (transformers_compatible or has_foreign_rules(processors, criteria))

        # Special tokens.
        self.eos = config._eos_token_tensor
        num_ends = 0 if self.eos is None else len(self.eos)
        pad = config._pad_token_tensor
        # What fills up after the end, as in transformers: with beams, `</s>` where `<pad>` is 0.
        if pad is not None and (config.num_beams == 1 or (int(pad) != 0 and self.eos is not None)):
            self.fill = int(pad)
        elif self.eos is not None:
            self.fill = int(self.eos[0])
        else:
            self.fill = -1
        self.pad = self.fill if pad is None else int(pad)

        # Numbers of beams and candidates.
        self.num_beams = config.num_beams
        # A sentence is full if so many have finished.
        self.num_full = config.num_beams
        self.num_candidates = max(2, 1 + num_ends) * config.num_beams

        # The stopping rule. The search of a sentence ends when nothing longer can win. transformers has that bound for
        # "never" only, and otherwise a guess that is right where scores are not divided by the length.
        is_gnmt = getattr(config, "length_penalty_type", None) == "gnmt"
        is_exact = config.early_stopping == "never" or (is_gnmt and config.early_stopping is False)
        self.is_exact = torch.full_like(limits, is_exact, dtype=torch.bool)
        self.stops_when_full = torch.full_like(self.is_exact, config.early_stopping is True)
        # A processor may raise scores, against which no bound holds; then as many count as in transformers.
        knows_all = is_exact and not transformers_compatible and not processors
        self.num_counted = config.num_return_sequences if knows_all else config.num_beams
        # Nothing closes before something has ended. Reading from a CPU is cheap, so the search asks that first.
        self.asks_first = not (config.do_sample or needs_sync(limits))

        # The state of the search.
        batch, self.prompt_length = prompt.shape
        self.num_new = 0
        self.is_over = False
        # [B, K, T, 1]: tokens. As in transformers, [B, K, T, 2]: also the row of the beam that each one was added to.
        paths = prompt.view(batch, 1, -1, 1).expand(-1, self.num_beams, -1, -1)
        if transformers_compatible:
            paths = torch.cat((paths, torch.full_like(paths, -1)), dim=-1)
        self.paths = paths[self.sentences]
        # All beams begin alike: only the first one counts.
        self.scores = torch.full((len(self.sentences), self.num_beams), NEG_INF, device=device)
        self.scores[:, 0] = 0
        # The beams of the step before that these go on from.
        self.parents: torch.Tensor
        self.is_open = torch.ones(len(self.sentences), dtype=torch.bool, device=device)
        self.is_improvable = self.is_open
        self.num_searched = self.is_open.sum()
        self.finished_scores = torch.full((batch, self.num_beams), NEG_INF, device=device)
        self.finished_lengths = torch.zeros(batch, self.num_beams, dtype=torch.int64, device=device)
        self.finished_paths = paths.clone()
        self.after_end = torch.tensor([self.fill, -1][: paths.shape[3]], device=device)
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
        candidates = self._candidates(log_probs)
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
        trees = [decoder.tree for decoder in self.decoders if decoder.tree is not None and decoder.tree.is_nearly_full]
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
            log_probs = log_probs.expand(-1, self.num_beams, -1)
            log_probs = self._in_full_batch(self.processors, self.sequences, log_probs)
        if self.transformers_compatible and self.config.output_logits:
            self.step_logits.append(logits[0].flatten(0, 1))
        if self.transformers_compatible and self.config.output_scores:
            self.step_scores.append(log_probs.flatten(0, 1).clone())
        if self.excluded is not None:
            log_probs.select(2, self.excluded).fill_(2 * NEG_INF)
        return log_probs, checked

    def _in_full_batch(self, function: Callable, *arguments: torch.Tensor) -> torch.Tensor:
        """The result of a processor or criterion for these [N, K, ...].

        Each row has the place in the batch that it had before other sentences left, because rules may keep a state by rows.
        """
        rows = []
        for values in arguments:
            full = values.new_zeros(len(self.limits), *values.shape[1:])
            rows.append(full.index_copy_(0, self.sentences, values).flatten(0, 1))
        return function(*rows).unflatten(0, (len(self.limits), -1))[self.sentences]

    def _candidates(self, log_probs: torch.Tensor) -> Candidates:
        return self.choose(log_probs, self.scores[:, : log_probs.shape[1]], self.num_candidates)

    def _extended(self, candidates: Candidates) -> torch.Tensor:
        """The candidates' paths [N, C, T + 1, 1 or 2]."""
        new = candidates.tokens.unsqueeze(2)
        if self.transformers_compatible:
            rows = candidates.parents + self.sentences.unsqueeze(1) * self.num_beams
            new = torch.stack((candidates.tokens, rows), dim=2)
        return torch.cat((gather_beams(self.paths, candidates.parents), new.view(*new.shape[:2], 1, -1)), dim=2)

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
            scores = tuple(self.step_scores) or None
            ended |= self._in_full_batch(lambda sequences: self.criteria(sequences, scores), paths[..., 0])
        return ended

    def _finish(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Keep the scores of the best K that have finished.

        Returns [N, K] int64: which of the K that had finished before and, after these, of the first K candidates.
        """
        scores = candidates.scores[:, : self.num_beams]
        entering = ended[:, : self.num_beams] & self.is_open.unsqueeze(1) & (scores > NEG_INF / 2)
        scores = scores / length_penalty(self.num_new, self.config)
        if self.decoders[0].coverage is not None:
            coverage = sum(decoder.coverage for decoder in self.decoders) / len(self.decoders)
            mask = None if self.source_mask is None else self.source_mask[self.sentences].unsqueeze(1)
            of_beams = coverage_score(coverage, mask)
            of_parents = of_beams.gather(1, candidates.parents[:, : self.num_beams])
            scores = scores + self.config.coverage_penalty * of_parents
        # Below what does not exist, so that it stays where not as many as beams have finished.
        entering_scores = scores.masked_fill(~entering, 2 * NEG_INF)
        merged = torch.cat((self.finished_scores[self.sentences], entering_scores), dim=1)
        self.finished_scores[self.sentences], kept = merged.topk(self.num_beams)
        return kept

    def _keep_finished(self, kept: torch.Tensor, paths: torch.Tensor) -> None:
        """Keep the paths and lengths of those whose scores `_finish` has kept."""
        lengths = torch.cat((self.finished_lengths[self.sentences], torch.full_like(kept, self.num_new)), dim=1)
        self.finished_lengths[self.sentences] = lengths.gather(1, kept)
        num_tokens = max(paths.shape[2], self.finished_paths.shape[2])
        self.finished_paths = self._filled(self.finished_paths, num_tokens)
        new = self._filled(paths[:, : self.num_beams], num_tokens)
        both = torch.cat((self.finished_paths[self.sentences], new), dim=1)
        self.finished_paths[self.sentences] = gather_beams(both, kept)

    def _filled(self, paths: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Paths of so many tokens, with the padding of what has ended after them."""
        missing = num_tokens - paths.shape[2]
        if missing == 0:
            return paths
        return torch.cat((paths, self.after_end.expand(*paths.shape[:2], missing, -1)), dim=2)

    def _close(self, candidates: Candidates, ended: torch.Tensor) -> torch.Tensor:
        """Close the sentences whose results cannot change any more; how many go on, or 0 if the search is over."""
        finished = self.finished_scores[self.sentences]
        # NEG_INF while fewer than count have finished: then anything may improve.
        worst = finished[:, self.num_counted - 1]
        length: Any = self.num_new
        if self.config.length_penalty > 0:
            length = torch.where(self.is_exact[self.sentences], self.limits[self.sentences], self.num_new)
        best = (candidates.scores + ended * NEG_INF).amax(dim=1)
        self.is_improvable = self.is_improvable & (best / length_penalty(length, self.config) > worst)
        is_full = self.stops_when_full[self.sentences] & (finished[:, self.num_full - 1] > NEG_INF / 2)
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
        for name in self.per_sentence:
            setattr(self, name, getattr(self, name).index_select(0, staying))

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
