"""The search of the paper in slow loops, and the search over all sequences, with which the tests compare
`generate`.

One sentence and one hypothesis at a time, over lists of token ids and Python floats; the model is a function
from (source ids, target ids so far, the decoder's start first) to the log-probabilities of the next token,
one per class. The slow search shares no code with the package or with transformers.

A hypothesis ends with an end token, at a stopping criterion, or at the limit. Only the best `num_beams`
candidates of a step may finish. The search looks at as many further candidates as it needs to keep
`num_beams` hypotheses that can continue.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Ids = list[int]
LogProbs = Callable[[Ids, Ids], list[float]]


class Hypothesis(NamedTuple):
    """The new tokens of a translation, without the prompt, and their score."""

    score: float
    tokens: Ids


@dataclass
class SlowSearch:
    """How to search.

    Attributes:
        log_probs: the model.
        limit: the greatest number of new tokens.
        num_beams: hypotheses that are kept.
        length_penalty: alpha.
        length_penalty_type: "power" divides by n^alpha, "gnmt" by ((5 + n) / 6)^alpha (Wu et al. 2016).
        early_stopping: None stops at the limit only. True stops as soon as there are `num_beams` finished
            hypotheses. False stops if the best open hypothesis, scored by its present length, is no better
            than the worst finished hypothesis. "never" stops if the best open hypothesis cannot become better
            than the worst finished hypothesis at any length up to the limit.
        end_ids: the end tokens.
        stops: whether a hypothesis (all target ids, the start first) ends here for another reason.
        bonus: a function of the source and of all target ids (the start first). Its value is added to the
            score of a finished hypothesis.
        num_steps: the number of steps of the latest search.
    """

    log_probs: LogProbs
    limit: int
    num_beams: int = 4
    length_penalty: float = 1.0
    length_penalty_type: str = "power"
    early_stopping: bool | str | None = None
    end_ids: tuple[int, ...] = (2,)
    stops: Callable[[Ids], bool] = lambda target: False
    bonus: Callable[[Ids, Ids], float] = lambda source, target: 0.0
    num_steps: int = 0

    def normalized(self, total: float, length: int) -> float:
        """The sum of the log-probabilities, divided by the length penalty for this number of new tokens."""
        base = length if self.length_penalty_type == "power" else (5 + length) / 6
        return total / base**self.length_penalty

    def ends(self, prefix: Ids, tokens: Ids) -> bool:
        """True if nothing can follow these new tokens."""
        return tokens[-1] in self.end_ids or len(tokens) == self.limit or self.stops(prefix + tokens)

    def finished(self, source: Ids, prefix: Ids, total: float, tokens: Ids) -> Hypothesis:
        """A hypothesis that has ended, with its score."""
        return Hypothesis(self.normalized(total, len(tokens)) + self.bonus(source, prefix + tokens), tokens)

    def best(self, source: Ids, prefix: Ids) -> list[Hypothesis]:
        """The finished hypotheses of beam search, best first, at most `num_beams`."""
        num_candidates = max(2, 1 + len(self.end_ids)) * self.num_beams
        running: list[tuple[float, Ids]] = [(0.0, [])]
        pool: list[Hypothesis] = []
        self.num_steps = 0
        while running and not self.is_over(running, pool):
            self.num_steps += 1
            candidates = [
                pair for total, tokens in running for pair in self.extended(source, prefix, total, tokens)
            ]
            candidates = sorted(candidates, key=lambda pair: -pair[0])[:num_candidates]
            running = [(total, tokens) for total, tokens in candidates if not self.ends(prefix, tokens)]
            running = running[: self.num_beams]
            for total, tokens in candidates[: self.num_beams]:
                if self.ends(prefix, tokens):
                    pool.append(self.finished(source, prefix, total, tokens))
            pool = sorted(pool, key=lambda hypothesis: -hypothesis.score)[: self.num_beams]
        return pool

    def is_over(self, running: list[tuple[float, Ids]], pool: list[Hypothesis]) -> bool:
        """True if the search stops before the limit."""
        if self.early_stopping is None or len(pool) < self.num_beams:
            return False
        total, tokens = running[0]
        to_the_limit = self.early_stopping == "never" and self.length_penalty > 0
        best = self.normalized(total, self.limit if to_the_limit else len(tokens))
        return self.early_stopping is True or best <= pool[-1].score

    def extended(self, source: Ids, prefix: Ids, total: float, tokens: Ids) -> Iterator[tuple[float, Ids]]:
        """A hypothesis with each possible next token."""
        for token, log_prob in enumerate(self.log_probs(source, prefix + tokens)):
            if log_prob > -math.inf:
                yield total + log_prob, [*tokens, token]

    def all_hypotheses(self, source: Ids, prefix: Ids) -> list[Hypothesis]:
        """All possible sequences, best first."""
        running: list[tuple[float, Ids]] = [(0.0, [])]
        found = []
        while running:
            extended = itertools.chain.from_iterable(self.extended(source, prefix, *pair) for pair in running)
            running = []
            for total, tokens in extended:
                if self.ends(prefix, tokens):
                    found.append(self.finished(source, prefix, total, tokens))
                else:
                    running.append((total, tokens))
        return sorted(found, key=lambda hypothesis: -hypothesis.score)


def averaged(models: list[LogProbs]) -> LogProbs:
    """The logarithm of the mean of the models' probabilities."""

    def log_probs(source: Ids, target: Ids) -> list[float]:
        rows = [model(source, target) for model in models]
        means = [sum(map(math.exp, column)) / len(rows) for column in zip(*rows, strict=True)]
        return [math.log(mean) if mean > 0 else -math.inf for mean in means]

    return log_probs


def without(log_probs: LogProbs, banned: Callable[[Ids, Ids], set[int]]) -> LogProbs:
    """A model that gives the tokens `banned(source, target)` the probability 0."""

    def masked(source: Ids, target: Ids) -> list[float]:
        out = banned(source, target)
        return [-math.inf if token in out else value for token, value in enumerate(log_probs(source, target))]

    return masked


def repeated_ngrams(size: int) -> Callable[[Ids, Ids], set[int]]:
    """For `without`: the tokens that would complete an n-gram a second time."""

    def banned(source: Ids, target: Ids) -> set[int]:
        begun = target[len(target) - size + 1 :]
        starts = range(len(target) - size + 1)
        return {target[start + size - 1] for start in starts if target[start : start + size - 1] == begun}

    return banned


def coverage(attention: list[list[float]], beta: float) -> float:
    """Wu et al. 2016: beta times the sum of log(min(attention that a source token got in all steps, 1)).

    Args:
        attention: one row per target token, one column per source token.
        beta: the weight.
    """
    return beta * sum(math.log(min(sum(column), 1.0)) for column in zip(*attention, strict=True))


def limit_of(source: Ids, a: float, b: int) -> int:
    """The largest number of new tokens for a source with `a` and `b`, at least 1."""
    return max(1, math.floor(a * len(source) + b))
