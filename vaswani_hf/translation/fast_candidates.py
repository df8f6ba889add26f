"""The best candidates of a step among many classes, found in half the time that looking at one by one takes.

This does not travel: without it the search finds the same.

Letters of shapes: N sentences, K beams, V target vocabulary.
"""

import math
from functools import lru_cache

import torch

from ..model import beam_search_vaswani
from ..model.beam_search_vaswani import Candidates


def top_candidates(log_probs: torch.Tensor, scores: torch.Tensor, number: int) -> Candidates:
    """The best ways to go on; nothing where there are fewer.

    The best classes lie in the chunks with the highest maxima, and those are looked for first.

    Args:
        log_probs (torch.Tensor): [N, K, V] float, of each beam.
        scores (torch.Tensor): [N, K] float, of the beams.
        number (int): How many are looked for.
    """
    num_sentences, num_beams, num_classes = log_probs.shape
    chunk = chunk_size(num_classes)
    if chunk == 1 or num_beams * num_classes // chunk < number:
        return beam_search_vaswani.top_candidates(log_probs, scores, number)
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
    """The divisor that is nearest to the root of a number of classes, or 1 if none is near.

    Args:
        num_classes (int): V.
    """
    root = math.isqrt(num_classes)
    near = [size for size in range(root // 4 + 1, root * 4) if num_classes % size == 0]
    return min(near, key=lambda size: abs(math.log(size / root)), default=1) if root > 16 else 1
