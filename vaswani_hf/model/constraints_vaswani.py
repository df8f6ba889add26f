"""Assigns the target prefix and the required phrases of a text to its segments, and adds the terms of the
glossary. The file implements step 3 of a translation (translator_vaswani describes all steps).

This file is saved with every checkpoint because the translator uses the class `ConstraintAssigner` of this
file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import GenerationConfig
from transformers.utils import logging

from .backend_vaswani import Backend, Segment, language_token
from .errors_vaswani import InvalidValueError
from .glossary_vaswani import Glossary
from .length_limits_vaswani import max_new_tokens_of
from .phrases_vaswani import forbidden_tokens, has_ordinary_tokens, repeated_ngram
from .precedence_vaswani import config_of_call
from .requests_vaswani import Request
from .tokenizing_vaswani import phrase_token_ids, prefix_token_ids

logger = logging.get_logger(__name__)


class ConstraintAssigner:
    """Assigns target prefixes, required phrases and glossary terms to segments."""

    def __init__(self, target_tokenizer: Any, backend: Backend):
        self.target_tokenizer = target_tokenizer
        self.backend = backend

    def assign(self, segments: list[Segment], request: Request) -> None:
        """Assign the target prefix of a text to its first segment, and each required phrase to one
        segment.
        """
        segments[0].prefix = prefix_token_ids(request.target_prefix, self.target_tokenizer)
        segments[0].prefix_text = request.target_prefix
        if not request.must_contain:
            return
        if not self.backend.supports_phrases:
            raise InvalidValueError(
                "`must_contain` must be left out, because the engine of the model does not support phrases."
            )
        phrases_of = assign_phrases(request.must_contain, [segment.text for segment in segments])
        for segment, phrases in zip(segments, phrases_of, strict=True):
            segment.phrases = [phrase_token_ids(phrase, self.target_tokenizer) for phrase in phrases]
            segment.phrase_texts = phrases

    def add_terms(self, segment: Segment, terms: Glossary, settings: Mapping[str, Any]) -> None:
        """Add target terms of the glossary to the required phrases of a segment. Ignore a term that cannot
        occur in the translation, for example because a search setting in `settings` forbids the term.
        """
        config = config_of_call(settings, self.backend.generation_config)
        room = self._room_for_terms(segment, config)
        for phrase in terms.phrases(segment.text):
            token_ids = phrase_token_ids(phrase, self.target_tokenizer)
            obstacle = self._obstacle_to_term(token_ids, room, config)
            if obstacle is not None:
                logger.warning(
                    f"The glossary asks for {phrase[:40]!r} in the translation of {segment.text[:40]!r}, but "
                    f"{obstacle}; the term is ignored."
                )
            elif phrase not in segment.phrase_texts:
                room -= len(token_ids)
                segment.phrases = [*segment.phrases, token_ids]
                segment.phrase_texts = [*segment.phrase_texts, phrase]

    def _room_for_terms(self, segment: Segment, config: GenerationConfig) -> int:
        """Return the number of tokens that glossary terms can occupy in the translation of a segment."""
        prompt_length = 1 + len(segment.prefix)
        longest = max_new_tokens_of(config, len(segment.token_ids), prompt_length, self.backend.max_positions)
        num_others = len(language_token(segment)) + sum(map(len, segment.phrases))
        # Subtract 1 for `</s>`.
        return max(0, longest - num_others - 1)

    def _obstacle_to_term(self, token_ids: list[int], room: int, config: GenerationConfig) -> str | None:
        """Return the reason why a glossary term cannot occur in the translation, or None."""
        num_classes = len(self.target_tokenizer)
        has_tokens = bool(token_ids) and has_ordinary_tokens(token_ids, config, num_classes)
        if not has_tokens or self.target_tokenizer.unk_token_id in token_ids:
            return "the vocabulary lacks a part of the term"
        if len(token_ids) > room:
            return f"the term has {len(token_ids)} tokens, and the translation has room for {room}"
        if repeated_ngram(token_ids, config.no_repeat_ngram_size):
            return f"`no_repeat_ngram_size` is {config.no_repeat_ngram_size} and forbids a repetition in the term"
        return forbidden_tokens(token_ids, config)


def assign_phrases(phrases: Sequence[str], texts: Sequence[str]) -> list[list[str]]:
    """Assign each phrase to the first text that contains the phrase. Required phrases are often names, and a
    name often has the same spelling in the source and in the translation. If no text contains the phrase,
    assign the phrase to the longest text. For each text, return the list of its phrases.
    """
    assigned: list[list[str]] = [[] for _ in texts]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    for phrase in phrases:
        part = next((i for i, text in enumerate(texts) if phrase in text), longest)
        assigned[part].append(phrase)
    return assigned
