"""Compares the outputs of an exported model and its checkpoint, or of an imported model and its original, on
sample inputs.

In shapes, B is the batch size, S the source length, T the target length and V the size of the target
vocabulary.
"""

import math
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..model.configuration_vaswani import decoder_start_token_id
from ..model.loss_vaswani import EXCLUDED_LOGIT

# The tolerance is between two values: another order of float32 sums changes logits by about 1e-6, and a wrong
# weight changes logits by more than 1e-2.
TOLERANCE = 1e-4
_SOURCE_LENGTHS = (13, 8, 1)
_TARGET_LENGTHS = (11, 6, 2)


def sample_batch(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Return three random sentence pairs of different lengths as int64 tensors: `input_ids` and
    `attention_mask` [B, S], `decoder_input_ids` and `decoder_attention_mask` [B, T]. Each call returns the
    same pairs.
    """
    generator = torch.Generator().manual_seed(0)
    source = _rows(
        config.vocab_size, [min(n, config.num_positions) for n in _SOURCE_LENGTHS], config, generator
    )
    target = _rows(
        config.decoder_vocab_size, [min(n, config.num_positions) for n in _TARGET_LENGTHS], config, generator
    )
    target["input_ids"][:, 0] = decoder_start_token_id(config) or 0
    return {**source, **{f"decoder_{name}": tensor for name, tensor in target.items()}}


def _rows(
    vocab_size: int, lengths: list[int], config: Any, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return random token ids [B, L], padded on the right, and the mask. `<pad>` occurs only as padding."""
    pad = config.pad_token_id
    ordinary = torch.tensor([i for i in range(vocab_size) if i != pad] or [0])
    drawn = torch.randint(len(ordinary), (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    input_ids = ordinary[drawn].masked_fill(~mask, 0 if pad is None else pad)
    return {"input_ids": input_ids, "attention_mask": mask.long()}


def sample_ids(config: PreTrainedConfig) -> tuple[list[list[int]], list[list[int]]]:
    """Return the source ids and the target ids of `sample_batch`, without padding and without start
    tokens.
    """
    batch = sample_batch(config)
    source_ids = _without_padding(batch["input_ids"], batch["attention_mask"])
    target_ids = _without_padding(batch["decoder_input_ids"], batch["decoder_attention_mask"])
    return source_ids, [ids[1:] for ids in target_ids]


def _without_padding(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]


@torch.no_grad()
def log_probs_of(
    model: Any, source_ids: list[list[int]], target_ids: list[list[int]], start_token_id: int | None
) -> list[list[float]]:
    """Return the log-probabilities [B][T] (nats) that a model of this package gives the target tokens.
    `target_ids` [B][T] do not contain the start token.
    """
    rows = []
    for source, target in zip(source_ids, target_ids, strict=True):
        logits = model(
            input_ids=torch.tensor([source]),
            attention_mask=torch.ones(1, len(source), dtype=torch.long),
            decoder_input_ids=torch.tensor([[start_token_id, *target[:-1]]]),
            decoder_attention_mask=torch.ones(1, len(target), dtype=torch.long),
        ).logits
        rows.append(logits[0].log_softmax(dim=-1)[range(len(target)), target].tolist())
    return rows


def largest_difference_of_rows(log_probs: list[list[float]], expected: list[list[float]]) -> float:
    """Return the largest difference between two lists [B][T] of log-probabilities of tokens. Ignore tokens
    whose probability in `expected` is 0.
    """
    differences = [torch.zeros(1)]
    for row, expected_row in zip(log_probs, expected, strict=True):
        if len(row) != len(expected_row):
            raise ValueError(
                f"The engine returned {len(row)} log-probabilities for {len(expected_row)} tokens."
            )
        own = torch.tensor(expected_row)
        is_excluded = own < EXCLUDED_LOGIT / 2
        differences.append((torch.tensor(row) - own)[~is_excluded].abs())
    # Use the `max` of torch, because the `max` of Python can ignore a NaN.
    return torch.cat(differences).max().item()


def largest_difference(outputs: torch.Tensor, expected: torch.Tensor, mask: torch.Tensor) -> float:
    """Return the largest difference between two tensors [B, T, V] of logits or log-probabilities, where
    `mask` [B, T] is 1. Values below `EXCLUDED_LOGIT / 2` count as equal, because the probability of the token
    is then 0.
    """
    is_real = mask.bool()
    lowest = EXCLUDED_LOGIT / 2
    difference = outputs[is_real].clamp(min=lowest) - expected[is_real].clamp(min=lowest)
    return difference.abs().max().item()


def report(what: str, difference: float, tolerance: float | None = TOLERANCE) -> str:
    """Describe a difference in one line. Raise a ValueError if `difference` exceeds `tolerance` or is NaN."""
    if math.isnan(difference):
        raise ValueError(f"The {what} must be numbers, but some are NaN; nothing was written.")
    if tolerance is not None and difference > tolerance:
        raise ValueError(
            f"The largest difference between the {what} and those of the checkpoint must be at most {tolerance:g}, "
            f"but is {difference:.2g}; nothing was written."
        )
    return f"Largest difference between the {what} and those of the checkpoint on sample inputs: {difference:.2g}."
