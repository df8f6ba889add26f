"""Chooses the sentence pairs of each epoch from several training corpora with weights (`data.train_weights`).

A place is a position in the list of the sentence pairs of an epoch. The list of an epoch can contain the same
sentence pair several times. In array shapes, N is the number of sentence pairs in all corpora, and P is the
number of sentence pairs in an epoch, counted with repetitions.
"""

import numpy as np

from ..model.errors_vaswani import InvalidValueError
from .batching import order_by_length


class WeightedPairs:
    """Chooses the sentence pairs of each epoch if the training corpora have weights.

    Each epoch has a list of pairs. In the list of an epoch, a corpus with `n` pairs and weight `w` has `m =
    round(w * n)` places (at least one if `w > 0`). For each epoch and each corpus of `n` pairs, `of_epoch`
    draws a random integer `r` from 0 to `n - 1`. The `n` pairs of the corpus are sorted by length. For each
    `j` from 0 to `m - 1`, the place `j` of the corpus contains the pair with the index `floor((j * n + r) /
    m)` in the sorted corpus. Therefore each pair of the corpus occurs `floor(m / n)` or `ceil(m / n)` times
    in an epoch. For each place in an epoch's list, the sampler assumes the largest source length and target
    length of all pairs that can fill the place. Therefore the batch sizes (in pairs) do not change from epoch
    to epoch.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        corpora: np.ndarray,
        weights: list[float],
        seed: int,
    ):
        """`corpora` [N] contains the index of each pair's corpus. `weights` has one weight per corpus."""
        self._seed = seed
        # Put pairs that have the same source length and the same target length into a random order.
        mixed = np.random.default_rng(seed).permutation(len(corpora))
        order = mixed[order_by_length(source_lengths[mixed], target_lengths[mixed])]
        self._pairs = [order[corpora[order] == number] for number in range(len(weights))]
        self.num_pairs = [len(pairs) for pairs in self._pairs]
        # The number of sentence pairs of each corpus in an epoch, counted with repetitions.
        self.num_places = []
        source_parts = []
        target_parts = []
        for pairs, weight in zip(self._pairs, weights, strict=True):
            # Each non-empty corpus with a weight above 0 provides at least one pair of each epoch.
            least = int(weight > 0 and len(pairs) > 0)
            num_places = max(least, round(weight * len(pairs)))
            self.num_places.append(num_places)
            if num_places > 0:
                source_parts.append(_longest_in_places(source_lengths[pairs], num_places))
                target_parts.append(_longest_in_places(target_lengths[pairs], num_places))
        if not source_parts:
            raise InvalidValueError(
                "`data.train_weights` must give a weight above 0 to at least one corpus with pairs, but the "
                f"weights are {weights}, and after cleaning the corpora have {self.num_pairs} pairs; raise "
                "the weight of a corpus that has pairs."
            )
        # An epoch has P sentence pairs. Element `i` of `source_lengths` and of `target_lengths` is the length
        # (in tokens) of the longest sentence that pair `i` of an epoch can have.
        self.source_lengths = np.concatenate(source_parts)  # [P]
        self.target_lengths = np.concatenate(target_parts)  # [P]

    def of_epoch(self, epoch: int) -> np.ndarray:
        """Return the pair indices [P] int64 of an epoch. Repetition `k` of pair `n` has the index `n + k *
        N`, where N is the number of all pairs.
        """
        # Use a seed of three numbers, [seed, epoch, 1], because `TokenBudgetSampler` draws its random numbers
        # with the seed [seed, epoch].
        generator = np.random.default_rng([self._seed, epoch, 1])
        total = sum(self.num_pairs)
        numbers = []
        for pairs, num_places in zip(self._pairs, self.num_places, strict=True):
            if num_places > 0:
                start = generator.integers(len(pairs))
                ranks = (np.arange(num_places) * len(pairs) + start) // num_places
                copies = np.arange(num_places) - np.searchsorted(ranks, ranks)
                numbers.append(pairs[ranks] + copies * total)
        return np.concatenate(numbers)


def _longest_in_places(lengths: np.ndarray, num_places: int) -> np.ndarray:
    """Return an array [num_places]. In each epoch, `of_epoch` draws the pairs 0 to `num_places - 1`
    of the epoch from the corpus. Element `i` is the maximum length (in tokens) of the sentences that
    `of_epoch` can draw as pair `i`.
    """
    places = np.arange(num_places)
    first = places * len(lengths) // num_places
    last = ((places + 1) * len(lengths) - 1) // num_places
    # In each epoch, `of_epoch` draws for place `i` one of the pairs `first[i]` to `last[i]` (inclusive). For
    # each `i`, `np.maximum.reduceat` returns the maximum of `lengths[first[i] : first[i + 1]]`. The slice
    # `lengths[first[i] : first[i + 1]]` does not always contain `lengths[last[i]]`, because `last[i]` can be
    # equal to `first[i + 1]`. Therefore compute the element-wise maximum of two arrays: the result of
    # `reduceat`, and `lengths[last]`.
    return np.maximum(np.maximum.reduceat(lengths, first), lengths[last])
