"""What a translation must begin with and what it must contain: from text to what `generate` takes."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def prefix_token_ids(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of the beginning of a translation, without `</s>`; white space around it is left out.

    Args:
        prefix: The text, or nothing.
        tokenizer: Of the target language.

    Raises:
        TypeError: If it is no text.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"A target prefix must be a str, but one is of type {type(prefix).__name__}.")
    return tokenizer(text_target=prefix.strip(), add_special_tokens=False)["input_ids"] if prefix.strip() else []


def phrase_token_ids(phrase: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of a phrase as they are inside a sentence, behind a space.

    Many tokenizers have different tokens for a word behind a space and for the same letters elsewhere.

    Args:
        phrase: The text; white space around it is left out.
        tokenizer: Of the target language.

    Raises:
        TypeError: If it is no text.
        ValueError: If it is empty.
    """
    if not isinstance(phrase, str):
        raise TypeError(f"A phrase of `must_contain` must be a str, but one is of type {type(phrase).__name__}.")
    if not phrase.strip():
        raise ValueError("A phrase of `must_contain` must have at least one character, but one is empty.")
    # Behind some word that is then taken away.
    word, with_word = (
        tokenizer(text_target=text, add_special_tokens=False)["input_ids"] for text in ("a", f"a {phrase.strip()}")
    )
    if with_word[: len(word)] == word:
        return with_word[len(word) :]
    return tokenizer(text_target=phrase.strip(), add_special_tokens=False)["input_ids"]


def assign_phrases(phrases: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
    """For each part of a text the phrases that its translation shall contain.

    Args:
        phrases: Those of the whole text.
        texts: At least one part of it.

    Returns:
        As many lists as parts; a phrase is the first part's that has it in itself, such as a name, else the longest's.
    """
    assigned: list[list[str]] = [[] for _ in texts]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    for phrase in phrases:
        assigned[next((i for i, text in enumerate(texts) if phrase in text), longest)].append(phrase)
    return assigned


def decoder_start_of(model: PreTrainedModel) -> int:
    """The id of the token that the decoder starts from.

    Args:
        model: A sequence-to-sequence model.
    """
    config: Any = model.generation_config
    return config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id


def constraint_arguments(
    model: PreTrainedModel, prefixes: Sequence[Sequence[int]], phrases: Sequence[Sequence[Sequence[int]]]
) -> dict[str, Any]:
    """The arguments of `generate` that these constraints come to, none where there are none.

    Args:
        model: The model that generates.
        prefixes: For each sentence of the batch the tokens that its translation begins with.
        phrases: For each sentence the phrases, as tokens, that its translation contains.

    Returns:
        `decoder_input_ids` [B, longest prefix + 1] int64, padded on the left, with `decoder_attention_mask`, and
        `must_contain`.
    """
    arguments: dict[str, Any] = {}
    if any(prefixes):
        rows = [torch.tensor([decoder_start_of(model), *prefix]) for prefix in prefixes]
        arguments["decoder_input_ids"] = _padded_left(rows, model.config.pad_token_id or 0).to(model.device)
        mask = _padded_left([torch.ones_like(row) for row in rows], 0)
        if not bool(mask.all()):
            arguments["decoder_attention_mask"] = mask.to(model.device)
    if any(phrases):
        arguments["must_contain"] = [[list(phrase) for phrase in of_sentence] for of_sentence in phrases]
    return arguments


def _padded_left(rows: list[torch.Tensor], fill: int) -> torch.Tensor:
    flipped = torch.nn.utils.rnn.pad_sequence([row.flip(0) for row in rows], batch_first=True, padding_value=fill)
    return flipped.flip(1)


def translation_token_ids(
    sequence: Sequence[int], num_forced: int, prompt_length: int, model: PreTrainedModel
) -> list[int]:
    """The tokens of a translation that `generate` gave back, without the start and without padding.

    Args:
        sequence: A row of its result.
        num_forced: Tokens of the translation's target prefix.
        prompt_length: Tokens that `generate` was given for the decoder, padding and start included.
        model: The model that generated.

    Returns:
        The prefix first; `</s>` last, unless the translation was cut off.
    """
    ends = model.generation_config.eos_token_id  # type: ignore[union-attr]
    ends = set(ends if isinstance(ends, (list, tuple)) else [ends])
    own = list(sequence[prompt_length:])
    end = next((position + 1 for position, token_id in enumerate(own) if token_id in ends), len(own))
    # What was cut off before the others of its batch is filled up.
    while end > 1 and own[end - 1] == model.config.pad_token_id and own[end - 1] not in ends:
        end -= 1
    return [*sequence[prompt_length - num_forced : prompt_length], *own[:end]]


__all__ = [
    "assign_phrases",
    "constraint_arguments",
    "decoder_start_of",
    "phrase_token_ids",
    "prefix_token_ids",
    "translation_token_ids",
]
