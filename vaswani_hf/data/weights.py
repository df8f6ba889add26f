"""Weighted corpora: which pairs of each corpus of a run are seen in an epoch, and how often.

A corpus of n pairs with the weight w has m = round(w * n) places in every epoch. Its pairs stand in the order of their lengths,
from 0 to n - 1, and place j of epoch e is taken by

    pair i = floor(((j + 1) * n - 1 - r) / m),    r = e * m mod n,

so that pair i has floor(((i + e + 1) * m) / n) - floor(((i + e) * m) / n) places in epoch e. These add up to m over the pairs of
an epoch, and over epochs to the same number for all pairs, up to one. A place is taken in turn by pairs that are neighbours by
length: it is as long as the longest of them, and batches that are cut by the places serve every epoch.

Legend of shapes: N pairs of all corpora, P places of an epoch, n and m those of one corpus.
"""

from typing import NamedTuple

import numpy as np

from .batching import order_by_length


class _Turns(NamedTuple):
    """The pairs of a corpus, [n] in the order of their lengths, and the number m of their places in an epoch."""

    pairs: np.ndarray
    num_places: int

    def of_epoch(self, epoch: int) -> np.ndarray:
        """The pair that takes each place, [m], by its rank in the order of the lengths; these never fall."""
        n, m = len(self.pairs), self.num_places
        return (np.arange(1, m + 1) * n - 1 - epoch * m % max(n, 1)) // max(m, 1)

    def longest(self, lengths: np.ndarray) -> np.ndarray:
        """The length of each place, [m]: that of the longest pair that ever takes it. The lengths are [n], by rank."""
        n, m = len(self.pairs), self.num_places
        if m == 0:
            return lengths[:0]
        places = np.arange(m)
        # r takes the multiples of the greatest common divisor of n and m that are smaller than n.
        first, behind = places * n // m, ((places + 1) * n - 1) // m + 1
        return np.maximum.reduceat(np.append(lengths, 0), np.stack([first, behind], 1).ravel())[::2]


class WeightedPairs:
    """The pairs of each epoch where corpora have weights.

    Attributes:
        source_lengths (ndarray): [P] int64 source tokens of the places.
        target_lengths (ndarray): [P] int64 target tokens of the places.
        num_pairs (list): The number of pairs of each corpus.
        num_places (list): The number of pairs of each corpus that an epoch has, each as often as it is seen.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        corpora: np.ndarray,
        weights: list[float],
        seed: int,
    ):
        """Puts the pairs of each corpus in their order.

        Args:
            source_lengths: [N] int lengths in tokens.
            target_lengths: [N] int lengths in tokens.
            corpora: [N] int, the corpus that each pair belongs to.
            weights: How often each pair of a corpus is seen in an epoch, on the average.
            seed: It decides the order of pairs of equal lengths, and so which of them are seen in the same epoch.

        Raises:
            ValueError: If no pair is left.
        """
        self._num_pairs = len(corpora)
        mixed = np.random.default_rng(seed).permutation(len(corpora))
        order = mixed[order_by_length(source_lengths[mixed], target_lengths[mixed])]
        self._corpora = []
        for number, weight in enumerate(weights):
            pairs = order[corpora[order] == number]
            # The smallest corpus has a place, however light it is.
            least = int(weight > 0 and len(pairs) > 0)
            self._corpora.append(_Turns(pairs, max(least, round(weight * len(pairs)))))
        self.num_pairs = [len(corpus.pairs) for corpus in self._corpora]
        self.num_places = [corpus.num_places for corpus in self._corpora]
        if not any(self.num_places):
            raise ValueError(
                f"`data.train_weights` must leave pairs to train on, but is {weights} where the corpora have {self.num_pairs} "
                "pairs after cleaning; give one with pairs a weight above 0."
            )
        self.source_lengths, self.target_lengths = (
            np.concatenate([corpus.longest(lengths[corpus.pairs]) for corpus in self._corpora])
            for lengths in (source_lengths, target_lengths)
        )

    def of_epoch(self, epoch: int) -> np.ndarray:
        """The pairs of an epoch.

        Args:
            epoch: Its number.

        Returns:
            [P] int64 the number of the pair in each place; the second time in an epoch it is higher by N, the third time by 2 N.
        """
        found = []
        for corpus in self._corpora:
            ranks = corpus.of_epoch(epoch)
            copies = np.arange(len(ranks)) - np.searchsorted(ranks, ranks)
            found.append(corpus.pairs[ranks] + copies * self._num_pairs)
        return np.concatenate(found)
