"""Reads a glossary, and finds terms of the glossary in source texts.

A glossary is a text file with a source term, a tab and a target term in each line. If a text contains the
source term, the translation of the text must contain the target term. If the target term is empty or equals
the source term, the translation must contain the matching words of the source text unchanged.

A term matches regardless of upper and lower case. A term also matches inflected words: "house" matches
"houses", and "city" matches "cities". An inflected word must share at least the first three letters with the
term. The ending of the word can differ from the ending of the term if `_ENDINGS` contains both endings. If
the matches of several terms overlap in a text, the term with the most words is used. Among terms with the
same number of words, an exact match is used before a match of inflected words. An exact match can differ from
the term in upper and lower case.

This file is saved with every checkpoint because the translator reads glossaries with this file.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors_vaswani import InvalidValueError

logger = logging.getLogger(__name__)

# Common endings of inflected words in English, German and the Romance languages.
_ENDINGS = frozenset(("", *"s es e n en er em ern ens ed d ing y ies ied x a o as os".split()))
_LONGEST_ENDING = max(map(len, _ENDINGS))
# The minimum number of letters of a stem.
_SHORTEST_STEM = 3
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


@dataclass(frozen=True)
class Term:
    """A term of a glossary: the words of the source term in lower case, and the target term."""

    words: tuple[str, ...]
    target: str


class Glossary:
    """Finds the terms of a glossary in texts.

    A dict maps each stem to the terms whose first word has the stem. Therefore the glossary compares a text
    only with the terms whose first word shares a stem with a word of the text.

    Args:
        terms (Iterable): The terms. If the matches of terms with equally many words overlap, an exact match
            has precedence over an inflected match. Among terms of equal precedence, the glossary uses the
            first term.
    """

    def __init__(self, terms: Iterable[Term]):
        self._terms = list(terms)
        # Maps each stem to the indices of the terms whose first word has the stem.
        self._terms_of_stem: dict[str, list[int]] = {}
        for number, term in enumerate(self._terms):
            for stem in _stems(term.words[0]):
                self._terms_of_stem.setdefault(stem, []).append(number)

    def phrases(self, text: str) -> list[str]:
        """Return the phrases that the translation of `text` must contain. If the matches of two terms
        overlap, ignore the term with fewer words.
        """
        matches = list(_WORD.finditer(text))
        is_free = [True] * len(matches)
        found: list[tuple[int, str]] = []
        for number, start in self._find([match[0].casefold() for match in matches]):
            term = self._terms[number]
            end = start + len(term.words)
            if all(is_free[start:end]):
                is_free[start:end] = [False] * len(term.words)
                copy = text[matches[start].start() : matches[end - 1].end()]
                found.append((start, term.target or copy))
        return list(dict.fromkeys(phrase for _, phrase in sorted(found)))

    def _find(self, words: Sequence[str]) -> list[tuple[int, int]]:
        """Return the index of each term that matches, and the index of the first word of the match. Terms
        with more words come first. Among terms with equally many words, exact matches come before inflected
        matches.
        """
        stems = [_stems(word) for word in words]
        found = set()
        for start, of_word in enumerate(stems):
            for stem in of_word:
                for number in self._terms_of_stem.get(stem, ()):
                    others = self._terms[number].words[1:]
                    following = stems[start + 1 : start + 1 + len(others)]
                    if len(following) == len(others) and not any(map(_stems_differ, others, following)):
                        found.add((number, start))

        def precedence(match: tuple[int, int]) -> tuple[int, bool, int, int]:
            number, start = match
            term_words = self._terms[number].words
            is_inflected = tuple(words[start : start + len(term_words)]) != term_words
            return -len(term_words), is_inflected, number, start

        return sorted(found, key=precedence)


def _stems(word: str) -> set[str]:
    """Return the word and, for each possible ending of the word, the word without the ending. "cities" and
    "city" share the stem "cit".
    """
    shortest = max(_SHORTEST_STEM, len(word) - _LONGEST_ENDING)
    return {word, *(word[:length] for length in range(shortest, len(word)) if word[length:] in _ENDINGS)}


def _stems_differ(word: str, stems: set[str]) -> bool:
    return stems.isdisjoint(_stems(word))


def read_glossary(path: str) -> Glossary:
    """Read a glossary from a UTF-8 text file."""
    terms: dict[tuple[str, ...], tuple[str, int]] = {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError:
        raise InvalidValueError(f"`glossary` must be UTF-8 text, but {path} is not.") from None
    except OSError as error:
        raise InvalidValueError(
            f"`glossary` must be a readable file, but {path} is not ({error.strerror})."
        ) from None
    for number, line in enumerate(lines, 1):
        columns = [column.strip() for column in line.split("\t")]
        if not any(columns):
            continue
        source = columns[0]
        words = tuple(word.casefold() for word in _WORD.findall(source))
        if not words or len(columns) == 1 or any(columns[2:]):
            raise ValueError(
                f"Line {number:,} of the glossary {path} must have a source term, a tab and a target term, "
                f"but is {line[:60]!r}."
            )
        target = "" if columns[1] == source else columns[1]
        earlier, earlier_number = terms.setdefault(words, (target, number))
        if earlier != target:
            logger.warning(
                f"Lines {earlier_number:,} and {number:,} of the glossary {path} have different targets for "
                f"{source!r}; line {number:,} is ignored."
            )
    return Glossary(Term(words, target) for words, (target, _) in terms.items())
