"""Target prefixes and phrases: from text to the arguments of `generate`; the search for phrases is in model/phrase_search_vaswani."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.configuration_vaswani import decoder_start_token_id
from ..model.translator_vaswani import TOKENIZING, Request, checked_text


def prefix_token_ids(prefix: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of the beginning of a translation, without `</s>`; white space around it is left out.

    Args:
        prefix: The text, or nothing.
        tokenizer: Of the target language.

    Raises:
        TypeError: If it is no text.
        ValueError: If UTF-8 cannot write it.
    """
    checked_text(prefix, "A target prefix")
    return _token_ids(prefix.strip(), tokenizer) if prefix.strip() else []


def phrase_token_ids(phrase: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of a phrase as they are inside a sentence, behind a space.

    Many tokenizers have different tokens for a word behind a space and for the same letters elsewhere.

    Args:
        phrase: The text; white space around it is left out.
        tokenizer: Of the target language.

    Raises:
        TypeError: If it is no text.
        ValueError: If it is empty, or UTF-8 cannot write it.
    """
    checked_text(phrase, "A phrase of `must_contain`")
    if not phrase.strip():
        raise ValueError("A phrase of `must_contain` must have at least one character, but one is empty.")
    # The phrase stands behind some word, which is then taken away.
    word, with_word = (_token_ids(text, tokenizer) for text in ("a", f"a {phrase.strip()}"))
    if with_word[: len(word)] == word:
        return with_word[len(word) :]
    return _token_ids(phrase.strip(), tokenizer)


def _token_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    with TOKENIZING:
        return tokenizer(text_target=text, add_special_tokens=False)["input_ids"]


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
        `must_contain`, of which the caller reports unmet phrases.
    """
    arguments: dict[str, Any] = {}
    if any(prefixes):
        rows = [torch.tensor([decoder_start_token_id(model.generation_config), *prefix]) for prefix in prefixes]
        arguments["decoder_input_ids"] = _padded_left(rows, model.config.pad_token_id or 0).to(model.device)
        mask = _padded_left([torch.ones_like(row) for row in rows], 0)
        if not bool(mask.all()):
            arguments["decoder_attention_mask"] = mask.to(model.device)
    if any(phrases):
        arguments["must_contain"] = [[list(phrase) for phrase in of_sentence] for of_sentence in phrases]
        arguments["warn_of_unmet_phrases"] = False
    return arguments


def _padded_left(rows: list[torch.Tensor], fill: int) -> torch.Tensor:
    flipped = torch.nn.utils.rnn.pad_sequence([row.flip(0) for row in rows], batch_first=True, padding_value=fill)
    return flipped.flip(1)


def constrained_requests(inputs: Any, target_prefix: Any = None, must_contain: Any = None) -> Any:
    """The texts that the pipeline is given, each with its constraints.

    Args:
        inputs: A text, a sequence of texts or another iterable of texts.
        target_prefix: The beginning of all translations, or for a sequence a list of them, None for no constraint.
        must_contain: The phrases of all translations, or for a sequence a list of such lists, None for no constraint.

    Returns:
        A `Request`, a list of them or an iterator of them.

    Raises:
        TypeError: If a text is no str, or the phrases are no list.
        ValueError: If there are not as many prefixes or lists of phrases as texts.
    """
    if not isinstance(must_contain, (list, tuple, set, frozenset, type(None))):
        raise TypeError(f"`must_contain` must be a list of phrases, but is a {type(must_contain).__name__}.")
    if not isinstance(target_prefix, (str, list, tuple, type(None))):
        raise TypeError(f"`target_prefix` must be a str or a list of them, but is a {type(target_prefix).__name__}.")
    is_one = isinstance(inputs, (str, Mapping)) or not isinstance(inputs, Iterable)
    num_texts = len(inputs) if isinstance(inputs, Sequence) and not is_one else None
    columns: list[Iterable[Any]] = []
    given = (("target_prefix", target_prefix, str, ""), ("must_contain", must_contain, (list, tuple), ()))
    for name, value, kind, nothing in given:
        entries = value if isinstance(value, (list, tuple)) else ()
        if not any(isinstance(e, kind) for e in entries) or not all(e is None or isinstance(e, kind) for e in entries):
            columns.append(repeat(value or nothing))
            continue
        if len(entries) != num_texts:
            there = "one text or a stream" if num_texts is None else f"{num_texts} texts"
            raise ValueError(f"`{name}` must have one entry per text, but has {len(entries)} for {there}.")
        columns.append([entry or nothing for entry in entries])
    rows = zip([inputs] if is_one else inputs, *columns, strict=False)
    requests: Iterator[Request] = (Request(checked_text(text), *constraints) for text, *constraints in rows)
    if is_one:
        return next(requests)
    return requests if num_texts is None else list(requests)
