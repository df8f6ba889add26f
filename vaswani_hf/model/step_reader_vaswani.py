"""Copies a few numbers from the GPU to the CPU in each step of a search.

In each step, the CPU needs the number of sentences whose search continues, the sizes of the key-value caches,
and the sum of the log-probabilities. The sum is NaN if any log-probability is NaN. On a GPU, reading a number
makes the CPU wait for the GPU. Therefore `StepReader` copies all numbers of a step together. If `is_late` is
True, the CPU uses the numbers of a search step only in the next search step.

This file is saved with every checkpoint because the search uses `StepReader`.

The docstring of the file beam_search_vaswani explains the letters in tensor shapes, such as N and K.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig

from .decoding_vaswani import Decoder, TreeKVCache
from .search_errors_vaswani import NotFiniteError


@dataclass(frozen=True)
class StepValues:
    """The numbers that the CPU needs after a search step. One transfer copies `values` to the CPU."""

    # [2 + len(trees)] float32: the sum of `log_probs`, the number of sentences whose search continues, and
    # `num_living` for each key-value cache in `trees`.
    values: torch.Tensor
    trees: list[TreeKVCache]
    # The log-probability of one fixed token of the vocabulary, [N, K] (in the first step [N, 1]).
    log_probs: torch.Tensor
    sentences: torch.Tensor  # [N] int64, the indices of the sentences
    is_open: torch.Tensor  # [N] bool, True if the sentence accepted finished translations before the step
    # On a GPU, the CUDA event that completes when `values` have been copied to the CPU. On a CPU, None.
    copied: torch.cuda.Event | None


class StepReader:
    """Copies the `StepValues` of each search step to the CPU. In a step of the default search, only
    `StepReader` makes the CPU wait for a GPU.

    If `is_late` is True, the CPU uses the values one step later, so that the GPU does not wait for the CPU.
    The search can then run one additional step, whose results are discarded.
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
        values = torch.stack((log_probs.sum(), continues.sum(), *living))
        if not self.is_late:
            return self._use(StepValues(values, trees, log_probs, sentences, is_open, copied=None))
        # Pass `non_blocking=True`, so that the GPU and the CPU continue during the copy to pinned memory.
        on_cpu = values.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None
        previous = self.pending
        self.pending = StepValues(on_cpu, trees, log_probs, sentences, is_open, copied)
        return len(sentences) if previous is None else self._use(previous)

    def finish(self) -> None:
        """Check the log-probabilities of the final search step for NaN. If `is_late` is False, do nothing,
        because `read` checks each step immediately, and so also the final step.
        """
        if self.pending is not None:
            self._use(self.pending)

    def _use(self, step: StepValues) -> int:
        """Check for NaN, set `num_living` of each key-value cache, and return the number of sentences whose
        search continues.
        """
        if step.copied is not None:
            step.copied.synchronize()
        log_prob_sum, num_continuing, *living = step.values.tolist()
        if math.isnan(log_prob_sum) and self.refuses_nan:
            is_broken = step.log_probs.isnan().any(dim=1) & step.is_open
            broken = step.sentences[is_broken].tolist()
            if broken:
                raise NotFiniteError(broken[0])
        for tree, num_living in zip(step.trees, living, strict=True):
            tree.num_living = int(num_living)
        return int(num_continuing)
