"""The constraint of the search: only trees, over exactly the words of the sentence, each within its limit of tokens.

A processor of the search forbids each symbol after which no tree over the sentence could be completed any more: it counts what a
beam has, and so needs no grammar and no state of its own.

Letters of shapes: B sentences, K beams, T tokens of a beam so far, V target vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from ..data.trees import CLOSE, OPEN

# A tree over one word has a bracket, its word and its end: two symbols, and `</s>`, more than words.
LEAST_MORE = 3


class WellFormedTrees(LogitsProcessor):
    """Forbids what leads to no tree.

    Args:
        tokenizer (PreTrainedTokenizerFast): The tokenizer of trees.
        num_words (sequence): The number of words of each of the B sentences.
        limits (sequence): The most new tokens of each, `</s>` included; at least as many as words and `LEAST_MORE`.
        prompt_length (int): The tokens of a beam before the first symbol.
    """

    def __init__(self, tokenizer: Any, num_words: Sequence[int], limits: Sequence[int], prompt_length: int = 1):
        vocabulary = {symbol: i for symbol, i in tokenizer.get_vocab().items() if i not in tokenizer.all_special_ids}
        self.close, self.end = vocabulary.pop(CLOSE), tokenizer.eos_token_id
        self.opening = torch.tensor(sorted(i for symbol, i in vocabulary.items() if symbol.startswith(OPEN)))
        # The tags, each of which stands for a word.
        self.tags = torch.tensor(sorted(i for symbol, i in vocabulary.items() if not symbol.startswith(OPEN)))
        self.num_words, self.limits = torch.tensor(num_words), torch.tensor(limits)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores, of which those of forbidden symbols are -inf.

        Args:
            input_ids (torch.Tensor): [B * K, T] int64.
            scores (torch.Tensor): [B * K, V] float.

        Returns:
            torch.Tensor: [B * K, V].
        """
        self._move_to(scores.device)
        rows = len(scores) // len(self.num_words)
        num_words, limits = (values.repeat_interleave(rows) for values in (self.num_words, self.limits))
        written = input_ids[:, self.prompt_length :]
        is_opening = torch.isin(written, self.opening)
        words = num_words - torch.isin(written, self.tags).sum(dim=1)
        depth = is_opening.sum(dim=1) - (written == self.close).sum(dim=1)
        # What a tree needs at least after one more bracket: the words, that bracket, those that are open, and `</s>`.
        has_room = written.shape[1] + 1 + words + depth + 2 <= limits
        is_begun = is_opening.any(dim=1)
        is_inside = depth > 0
        is_empty = is_opening[:, -1:].any(dim=1)
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        allowed[:, self.opening] = ((is_inside | ~is_begun) & (words > 0) & has_room).unsqueeze(1)
        allowed[:, self.tags] = (is_inside & (words > 0)).unsqueeze(1)
        # The last bracket closes when all words are there.
        allowed[:, self.close] = is_inside & ~is_empty & ((depth > 1) | (words == 0))
        allowed[:, self.end] = is_begun & ~is_inside
        return scores.masked_fill(~allowed, -torch.inf)

    def _move_to(self, device: torch.device) -> None:
        for name in ("opening", "tags", "num_words", "limits"):
            setattr(self, name, getattr(self, name).to(device))
