"""Checks the phrases that a translation must contain, and merges phrases that overlap. A phrase is a list of
token ids.

If a phrase contradicts a setting of the search, `check_phrases` raises an error before the search. If the
phrases have too many tokens for the length limit, `fit_phrases` merges phrases that overlap. The code in the
file phrase_search_vaswani searches for translations that contain the phrases.

This file is saved with every checkpoint because `generate(must_contain=...)` checks phrases with this file.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig

from .configuration_vaswani import eos_token_ids
from .errors_vaswani import InvalidValueError
from .masks_vaswani import CACHE_NAME
from .search_errors_vaswani import SentenceError


class PhraseError(SentenceError, InvalidValueError):
    """Raised if phrases of a sentence contradict a setting. `reason` is the end of the error message."""

    def __init__(self, sentence: int, phrases: list[list[int]], reason: str, text: str | None = None):
        super().__init__(sentence, text)
        self.args = (sentence, phrases, reason, text)
        self.phrases = phrases
        self.reason = reason
        # The texts of the phrases, or an empty list if only the token ids are known.
        self.phrase_texts: list[str] = []

    def __str__(self) -> str:
        phrases = ", ".join(map(repr, self.phrase_texts or self.phrases))
        return f"`must_contain` has {phrases} for {self.place}, but {self.reason}."


def check_phrases(
    must_contain: Sequence[Sequence[Sequence[int]]],
    config: GenerationConfig,
    num_classes: int,
    has_given_cache: bool,
) -> None:
    """Raise an error if an argument contradicts `must_contain`, or if a phrase is invalid or forbidden."""
    for name, is_given in (("do_sample", config.do_sample), (CACHE_NAME, has_given_cache)):
        if is_given:
            raise InvalidValueError(
                f"`must_contain` cannot be combined with `{name}`; remove one of the two arguments."
            )
    lists = [must_contain, *must_contain] if isinstance(must_contain, (list, tuple)) else [must_contain]
    for one in lists:
        if one is not None and not isinstance(one, (list, tuple)):
            raise InvalidValueError(
                "`must_contain` must be a list with a list of phrases for each sentence, and each phrase "
                f"must be a list of token ids, but a {type(one).__name__} is given instead of a list; "
                "convert a tensor with `.tolist()`."
            )
    for sentence, phrases in enumerate(must_contain):
        for phrase in phrases or ():
            _check_phrase(phrase, sentence, config, num_classes)


def _check_phrase(phrase: Any, sentence: int, config: GenerationConfig, num_classes: int) -> None:
    tokens = phrase if isinstance(phrase, (list, tuple)) else []
    if not tokens or not has_ordinary_tokens(tokens, config, num_classes):
        raise InvalidValueError(
            "`must_contain` must have phrases that are lists of one or more ids of ordinary target tokens, but "
            f"has {phrase!r} for sentence {sentence}."
        )
    reason = forbidden_tokens(tokens, config)
    ngram = repeated_ngram(tokens, config.no_repeat_ngram_size)
    if reason is None and ngram is not None:
        reason = f"`no_repeat_ngram_size` is {config.no_repeat_ngram_size} and forbids {ngram} twice, as"
    if reason is not None:
        raise PhraseError(sentence, [[*tokens]], f"{reason} in this phrase; remove the phrase or the setting")


def has_ordinary_tokens(phrase: Sequence[Any], config: GenerationConfig, num_classes: int) -> bool:
    """Return True if all elements of a phrase are ids of target tokens, and no element is a special token."""
    special = {*eos_token_ids(config), config.pad_token_id, config.decoder_start_token_id}
    return all(isinstance(t, int) and 0 <= t < num_classes and t not in special for t in phrase)


def forbidden_tokens(token_ids: Sequence[int], config: GenerationConfig) -> str | None:
    """If a setting forbids a token or a sequence in `token_ids`, return a message that names the setting.
    Otherwise return None.
    """
    for bad in config.bad_words_ids or ():
        if bad and contains(token_ids, bad):
            return f"`bad_words_ids` forbids the tokens {[*bad]}"
    for token in config.suppress_tokens or ():
        if token in token_ids:
            return f"`suppress_tokens` forbids the token {token}"
    return None


def repeated_ngram(token_ids: Sequence[int], size: int | None) -> list[int] | None:
    """Return the first n-gram of `size` tokens that is equal to an earlier n-gram, or None."""
    if not size:
        return None
    seen = set()
    for start in range(len(token_ids) - size + 1):
        ngram = tuple(token_ids[start : start + size])
        if ngram in seen:
            return [*ngram]
        seen.add(ngram)
    return None


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    """Return True if `tokens` contains the tokens of `phrase` in the same order and without gaps."""
    starts = range(len(tokens) - len(phrase) + 1)
    return any([*tokens[start : start + len(phrase)]] == [*phrase] for start in starts)


def num_tokens(phrases: Sequence[Sequence[int]]) -> int:
    """Return the total number of tokens in phrases."""
    return sum(len(phrase) for phrase in phrases)


def fit_phrases(phrases: list[Sequence[int]], prompt: list[int], capacity: int) -> list[Sequence[int]] | None:
    """Return the phrases if all phrases fit into the `capacity` tokens that can follow the prompt. If the
    phrases do not fit, return one sequence in which the phrases overlap. If the sequence of overlapping
    phrases is also too long, return None.
    """
    missing = [tuple(phrase) for phrase in phrases if not contains(prompt, phrase)]
    if _num_missing_tokens(missing, prompt) <= capacity:
        return phrases
    row = _shortest_sequence(missing)
    return [row] if _num_missing_tokens([row], prompt) <= capacity else None


def _num_missing_tokens(missing: list[tuple[int, ...]], prompt: list[int]) -> int:
    """Return the number of tokens that must follow the prompt to complete all missing phrases."""
    return num_tokens(missing) - max(
        (_longest_matching_beginning(phrase, tuple(prompt)) for phrase in missing), default=0
    )


def _shortest_sequence(phrases: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return a sequence of token ids that contains all phrases. The sequence of up to six phrases is the
    shortest possible; more than six phrases keep their order.
    """
    orders = itertools.permutations(phrases) if len(phrases) <= 6 else [tuple(phrases)]
    rows = []
    for order in orders:
        row: tuple[int, ...] = ()
        for phrase in order:
            if not contains(row, phrase):
                row += phrase[_longest_matching_beginning(phrase, row) :]
        rows.append(row)
    return min(rows, key=len)


def _longest_matching_beginning(phrase: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """Return the length of the longest prefix of the phrase that is also a suffix of the tokens."""
    for length in range(min(len(phrase), len(tokens)), 0, -1):
        if phrase[:length] == tokens[len(tokens) - length :]:
            return length
    return 0
