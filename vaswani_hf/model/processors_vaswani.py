"""Logits processors and a stopping criterion that `generate` adds if transformers runs the decoding, for
example for sampling. `BeamSearch` uses no class of this file, because `BeamSearch` has its own code for the
length limits and for the check of the logits.

This file is saved with every checkpoint because `generate` uses the classes of this file.

In tensor shapes, B is the number of sentences and R the number of translations of a sentence.
"""

import math
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor
from transformers.generation import StoppingCriteria

from .configuration_vaswani import eos_token_ids
from .search_errors_vaswani import NotFiniteError, NoTranslationError, forbidding_settings


class SentenceLimitCriteria(StoppingCriteria):
    """Ends each translation at its length limit. The length limits `lengths` [B] int64 include the
    prompts.
    """

    # transformers pads finished rows only if a stopping criterion has the attribute `eos_token_id`.
    eos_token_id = None

    def __init__(self, lengths: torch.Tensor, config: GenerationConfig):
        self.lengths = lengths.repeat_interleave(max(config.num_beams, config.num_return_sequences))

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs) -> torch.Tensor:
        return self.lengths <= input_ids.shape[1]


class RowCheck(LogitsProcessor):
    """Base class of logits processors that mark rows for which sampling cannot choose a token.

    The scores of a marked row become 0, so that sampling chooses an arbitrary token. After the search,
    `raise_for_marked_row` raises the error for a marked row. A check at each step would make the CPU wait for
    the GPU. If `at_once` is True, the processor raises the error during the search, in the step that marks a
    row.
    """

    def __init__(self, at_once: bool = False):
        self.at_once = at_once
        # A bool tensor [B * R]: True for each row for which an error must be raised. `is_marked` is None
        # before the first step.
        self.is_marked: torch.Tensor | None = None

    def find_failed_rows(
        self, input_ids: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two bool tensors [B * R]: the rows without a possible token, and the rows for which an error
        must be raised.
        """
        raise NotImplementedError

    def error(self, sentence: int) -> Exception:
        """Return the error for a sentence for which sampling could choose no token."""
        raise NotImplementedError

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        has_failed, is_new = self.find_failed_rows(input_ids, scores)
        self.is_marked = is_new if self.is_marked is None else self.is_marked | is_new
        if self.at_once:
            self.raise_for_marked_row(len(scores))
        return scores.masked_fill(has_failed.unsqueeze(1), 0.0)

    def raise_for_marked_row(self, num_sentences: int) -> None:
        """If rows are marked in `is_marked`, raise the error for the sentence of the first marked row. Each
        sentence has the same number of rows.
        """
        rows = [] if self.is_marked is None else self.is_marked.tolist()
        if any(rows):
            raise self.error(rows.index(True) * num_sentences // len(rows))


class FiniteLogits(RowCheck):
    """Marks rows with a logit that is NaN or +inf, and rows whose logits are all -inf."""

    def find_failed_rows(self, input_ids, scores):
        is_broken = ~scores.amax(dim=-1).isfinite()
        return is_broken, is_broken

    def error(self, sentence):
        return NotFiniteError(sentence)


class TokensLeft(RowCheck):
    """Marks unfinished rows in which every token is forbidden. If the padding token is forbidden, `excluded`
    is the id of the padding token, otherwise None.
    """

    def __init__(self, config: GenerationConfig, prompt_length: int, excluded: int | None, at_once: bool):
        super().__init__(at_once)
        self.config = config
        self.prompt_length = prompt_length
        self.excluded = excluded
        self.ends = eos_token_ids(config)
        if config.pad_token_id is not None:
            self.ends.append(config.pad_token_id)

    def find_failed_rows(self, input_ids, scores):
        if self.excluded is not None:
            scores = scores.clone()
            scores[:, self.excluded] = -math.inf
        is_blocked = scores.amax(dim=1) == -math.inf
        new_tokens = input_ids[:, self.prompt_length :]
        has_ended = torch.zeros_like(is_blocked)
        for end in self.ends:
            has_ended |= (new_tokens == end).any(dim=1)
        return is_blocked, is_blocked & ~has_ended

    def error(self, sentence):
        return NoTranslationError(sentence, forbidding_settings(self.config))
