"""Batches for language models: each text is its own label, or what is hidden of it is.

Legend of shapes: B texts of a batch, L length of a text in tokens.
"""

import copy
import zlib
from typing import Any

import numpy as np
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from ..model.loss_vaswani import IGNORED_LABEL
from .batching import PairCollator

# Devlin et al. 2019, Section 3.1: 15 % of the tokens are to be found; 80 % of them are hidden, 10 % replaced at random.
FOUND_RATE = 0.15
HIDDEN_RATE = 0.8
REPLACED_RATE = 0.1


def text_collator(task: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> PairCollator:
    """The collator of a task.

    Args:
        task: "causal_lm" or "masked_lm".
        tokenizer: That of the text.
        seed: It decides what is hidden, together with the epoch and the text.
    """
    return CausalCollator(tokenizer.pad_token_id) if task == "causal_lm" else MaskingCollator(tokenizer, seed)


def with_both_ends(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy of the tokenizer of a causal model that also ends a text, with `</s>`: what the model is trained on.

    Args:
        tokenizer: It begins a text with `<s>` and leaves its end open.
    """
    closed = copy.deepcopy(tokenizer)
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    ids = [(begin, tokenizer.bos_token_id), (end, tokenizer.eos_token_id)]
    closed.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=ids
    )
    return closed


class CausalCollator(PairCollator):
    """Pads texts whose every token but the first, `<s>`, is to be predicted from those before it."""

    def _encode(self, example: dict[str, Any]) -> tuple[Any, Any]:
        ids = np.array(example["labels"])
        # The number of labels is that of the predicted tokens.
        return ids, np.concatenate([[IGNORED_LABEL], ids[1:]])


class MaskingCollator(PairCollator):
    """Pads texts and hides tokens of them, which are to be found (Devlin et al. 2019, Section 3.1).

    At least one token of a text is. Which ones, and what stands in their place, follows from seed, epoch and text, so that a
    resumed run sees the same batches and the number of workers does not matter; without an epoch, in validation, they are always
    the same.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int):
        """Keeps what is needed of a tokenizer.

        Args:
            tokenizer: It has a `mask_token`.
            seed: It decides what is hidden.
        """
        super().__init__(tokenizer.pad_token_id, seed=seed)
        self._mask_token_id = tokenizer.mask_token_id
        special = set(tokenizer.all_special_ids)
        self._special_ids = np.array(sorted(special))
        self._other_ids = np.array([token_id for token_id in range(len(tokenizer)) if token_id not in special])

    def _encode(self, example: dict[str, Any]) -> tuple[Any, Any]:
        ids = np.array(example["input_ids"])
        content = zlib.crc32(np.ascontiguousarray(ids, "<i4"))
        rng = np.random.default_rng([self._seed, example.get("epoch", 0), example.get("copy", 0), content])
        places = np.flatnonzero(~np.isin(ids, self._special_ids))
        labels = np.full(len(ids), IGNORED_LABEL)
        if len(places):
            found = rng.permutation(places)[: max(1, round(FOUND_RATE * len(places)))]
            labels[found] = ids[found]
            draw = rng.random(len(found))
            ids[found[draw < HIDDEN_RATE]] = self._mask_token_id
            replaced = found[(draw >= HIDDEN_RATE) & (draw < HIDDEN_RATE + REPLACED_RATE)]
            ids[replaced] = rng.choice(self._other_ids, len(replaced))
        return ids, labels
