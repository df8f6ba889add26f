"""Weighted training corpora: which pairs of each corpus an epoch has.

Legend of shapes: N pairs of all corpora, P places of an epoch.
"""

import numpy as np

from .batching import order_by_length


class WeightedPairs:
    """The pairs of each epoch if corpora have weights.

    A corpus of n pairs with the weight w has m = round(w * n) places in every epoch. Its pairs stand in the
    order of their lengths, and place j is taken by pair floor((j * n + r) / m), where each epoch draws r from
    0 to n - 1. So each pair has floor(m / n) or ceil(m / n) places in an epoch, and m / n on the average. A
    place is as long as the longest pair that may take it, so that batches that are cut by the places serve
    every epoch.

    Attributes:
        source_lengths (ndarray): [P] int64 source tokens of the places of all corpora.
        target_lengths (ndarray): [P] int64 target tokens of the places of all corpora.
        num_pairs (list): The number of pairs of each corpus.
        num_places (list): The number of places of each corpus in an epoch.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        corpora: np.ndarray,
        weights: list[float],
        seed: int,
    ):
        """Puts the pairs of each corpus in the order of their lengths.

        `corpora` has the number of the corpus of each of [N] pairs, and `weights` says how often each pair of a
        corpus is seen in an epoch, on the average. `seed` decides, with the epoch, which pairs are seen.
        """
        self._seed = seed
        # Pairs of equal lengths stand in a random order.
        mixed = np.random.default_rng(seed).permutation(len(corpora))
        order = mixed[order_by_length(source_lengths[mixed], target_lengths[mixed])]
        self._pairs = [order[corpora[order] == number] for number in range(len(weights))]
        self.num_pairs = [len(pairs) for pairs in self._pairs]
        self.num_places = []
        source_parts = []
        target_parts = []
        for pairs, weight in zip(self._pairs, weights, strict=True):
            # The smallest corpus has a place, however small its weight is.
            least = int(weight > 0 and len(pairs) > 0)
            num_places = max(least, round(weight * len(pairs)))
            self.num_places.append(num_places)
            if num_places > 0:
                source_parts.append(_longest_in_places(source_lengths[pairs], num_places))
                target_parts.append(_longest_in_places(target_lengths[pairs], num_places))
        if not source_parts:
            raise ValueError(
                f"`data.train_weights` must leave pairs to train on, but is {weights} where the corpora have"
                f" {self.num_pairs} pairs after cleaning; give one with pairs a weight above 0."
            )
        self.source_lengths = np.concatenate(source_parts)
        self.target_lengths = np.concatenate(target_parts)

    def of_epoch(self, epoch: int) -> np.ndarray:
        """The number of the pair in each place, [P] int64.

        The second time in an epoch the number of a pair is higher by N, the third time by 2 N.
        """
        # The sampler of the batches has the generator of [seed, epoch].
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
    """The length of the longest pair that may take each place, [num_places]."""
    places = np.arange(num_places)
    first = places * len(lengths) // num_places
    last = ((places + 1) * len(lengths) - 1) // num_places
    # `reduceat` takes the pairs before the first pair of the next place. The last pair may be that one.
    return np.maximum(np.maximum.reduceat(lengths, first), lengths[last])
