"""The comparison that ends every export: the written model computes what the checkpoint computes, or there is an error.

Letters of shapes: B batch, S source length, T target length.
"""

import math
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from ..model.configuration_vaswani import decoder_start_token_id

# Source and target tokenizer; one object twice for a joint vocabulary.
Tokenizers = tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]

# Float32 sums in another order differ by some 1e-6; a mistake in the weights by more than 1e-2.
TOLERANCE = 1e-4
_SOURCE_LENGTHS = (13, 8, 1)
_TARGET_LENGTHS = (11, 6, 2)


def sample_batch(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Three sentences of random tokens, of different lengths, the same ones at every call.

    Args:
        config (PreTrainedConfig): A VaswaniConfig, for vocabulary sizes and special tokens.

    Returns:
        dict: `input_ids` and `attention_mask` [B, S], `decoder_input_ids` and `decoder_attention_mask` [B, T] int64.
    """
    generator = torch.Generator().manual_seed(0)
    is_learned = config.position_embedding == "learned"
    longest = config.max_position_embeddings if is_learned else max(_SOURCE_LENGTHS)
    source = _rows(config.vocab_size, [min(n, longest) for n in _SOURCE_LENGTHS], config, generator)
    target = _rows(config.decoder_vocab_size, [min(n, longest) for n in _TARGET_LENGTHS], config, generator)
    target["input_ids"][:, 0] = decoder_start_token_id(config) or 0
    return {**source, **{f"decoder_{name}": tensor for name, tensor in target.items()}}


def _rows(
    vocab_size: int, lengths: list[int], config: Any, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Token ids that are no padding, right-padded, and their mask."""
    pad = config.pad_token_id
    ordinary = torch.tensor([i for i in range(vocab_size) if i != pad] or [0])
    drawn = torch.randint(len(ordinary), (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    input_ids = ordinary[drawn].masked_fill(~mask, 0 if pad is None else pad)
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def report(what: str, difference: float, tolerance: float | None = TOLERANCE) -> str:
    """The line that says how far the written model is from the checkpoint."""
    if math.isnan(difference):
        raise ValueError(
            f"The {what} and the checkpoint's must be numbers, but some are not; nothing was written."
        )
    if tolerance is not None and difference > tolerance:
        raise ValueError(
            f"The largest difference between the {what} and the checkpoint's must be at most {tolerance:g}, but is "
            f"{difference:.2g}; nothing was written."
        )
    return f"Largest difference between the {what} and the checkpoint's on sample inputs: {difference:.2g}."
