"""A loss that explodes: seen from the losses of the steps alone, which all processes know alike."""

import math
from collections import deque

# The mean of so many steps counts as reached, and as many in a row are no accident.
NUM_STEPS = 10
# A loss that is only higher than it was has longer to come down again: a tenth of the run, but no more than this.
MOST_STEPS = 100
# A model that has learned something is so much better than a uniform guess (nats per token).
LEARNED = 1.0


class DivergenceDetector:
    """Judges the losses of a run, step by step.

    A uniform guess has log V nats per token, smoothed or not. A run has exploded when its loss was, for a tenth of its steps
    in a row, above the middle between the lowest that it had come down to and a uniform guess; or for 10 steps in a row above
    twice a uniform guess and twice its first loss, which may be a bad initialization's. Warmup, small batches, single spikes
    and other text than before do neither.

    Attributes:
        lowest (float): The lowest mean of the losses of 10 steps in a row.
        since (int or None): The first step in a row of too high losses, None where the last one was not too high.

    Args:
        uniform (float): The loss of a uniform guess, log V (nats per token).
        max_steps (int): The steps of the run.
        earlier (list): Mean losses that the run has logged before it was resumed, oldest first.
    """

    def __init__(self, uniform: float, max_steps: int, earlier: list[float]):
        self.uniform = uniform
        self.patience = min(max(max_steps // 10, NUM_STEPS), MOST_STEPS)
        self.first = earlier[0] if earlier else None
        self.lowest = min(earlier, default=math.inf)
        self.since: int | None = None
        self._recent: deque[float] = deque(maxlen=NUM_STEPS)

    def update(self, step: int, loss: float) -> bool:
        """Take in the loss of the next step, and give True if the run has exploded.

        Args:
            step (int): The step, each in turn.
            loss (float): Its loss (nats per token).
        """
        self.first = loss if self.first is None else self.first
        self._recent.append(loss)
        if len(self._recent) == NUM_STEPS:
            self.lowest = min(self.lowest, sum(self._recent) / NUM_STEPS)
        beyond = 2 * max(self.uniform, self.first)
        has_learned = self.lowest < self.uniform - LEARNED
        limit = (self.lowest + self.uniform) / 2 if has_learned else beyond
        if loss <= limit:
            self.since = None
            return False
        self.since = step if self.since is None else self.since
        is_beyond = len(self._recent) == NUM_STEPS and min(self._recent) > beyond
        return is_beyond or step - self.since + 1 >= (self.patience if has_learned else NUM_STEPS)

    def described(self, step: int) -> str:
        """The explosion in words.

        Args:
            step (int): The last step.
        """
        before = f", after {self.lowest:.2f} before" if math.isfinite(self.lowest) else ""
        return (
            f"The loss has exploded: it is too high since step {self.since:,}, and {self._recent[-1]:.2f} nats per token at step "
            f"{step:,}{before}"
        )
