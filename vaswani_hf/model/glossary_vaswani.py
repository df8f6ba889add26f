"""Reads a glossary, and finds terms of the glossary in source texts.

A glossary is a text file with a source term, a tab and a target term in each line. A translation of a text
with the source term must contain the target term. If the target term is empty or equals the source term, the
translation must contain a copy of the words in the source text.

A term matches in upper and lower case. A term also matches inflected words: "house" matches "houses", and
"city" matches "cities". An inflected word must share at least the first three letters with the term, and may
differ only in an ending of the list `_ENDINGS`.

This file is saved with every checkpoint because the translator reads glossaries with this file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors_vaswani import InvalidValueError

# Common endings of inflected words in English, German and the Romance languages.
_ENDINGS = frozenset(("", *"s es e n en er em ern ens ed d ing y ies ied x a o as os".split()))
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


@dataclass(frozen=True)
class Glossary:
    """The terms of a glossary. Each term is a pair of the words of the source term in lower case and the
    target term.
    """

    terms: tuple[tuple[tuple[str, ...], str], ...]

    def phrases(self, text: str) -> list[str]:
        """Return the phrases that the translation of a text must contain. Where a longer term matches, a
        shorter term in the same words is ignored.
        """
        matches = list(_WORD.finditer(text))
        words = [match[0].casefold() for match in matches]
        is_free = [True] * len(words)
        found: list[tuple[int, str]] = []
        for term, target in self.terms:
            for start in range(len(words) - len(term) + 1):
                end = start + len(term)
                if all(is_free[start:end]) and all(map(_is_same_word, term, words[start:end])):
                    is_free[start:end] = [False] * len(term)
                    found.append((start, target or text[matches[start].start() : matches[end - 1].end()]))
        return list(dict.fromkeys(phrase for _, phrase in sorted(found)))


def _is_same_word(term: str, word: str) -> bool:
    if term == word:
        return True
    length = next(
        (i for i, (a, b) in enumerate(zip(term, word, strict=False)) if a != b), min(len(term), len(word))
    )
    # Also try endings that begin one letter before the first different letter. For example, compare the
    # endings "es" and "em" of "kleines" and "kleinem".
    return any(
        term[begin:] in _ENDINGS and word[begin:] in _ENDINGS
        for begin in range(length, max(2, length - 2), -1)
    )


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
        source, tab, target = line.removesuffix("\r").partition("\t")
        if not source.strip() and not target.strip():
            continue
        words = tuple(_words(source))
        target = target.strip()
        if not tab or not words or "\t" in target:
            raise ValueError(
                f"Line {number:,} of the glossary {path} must have a source term, a tab and a target term, "
                f"but is {line[:60]!r}."
            )
        target = "" if target == source.strip() else target
        earlier, earlier_number = terms.setdefault(words, (target, number))
        if earlier != target:
            _warn(
                f"Lines {earlier_number:,} and {number:,} of the glossary {path} have different targets for "
                f"{source.strip()!r}; line {number:,} is ignored."
            )
    longest_first = sorted(terms.items(), key=lambda term: -len(term[0]))
    return Glossary(tuple((words, target) for words, (target, _) in longest_first))


def _words(text: str) -> Sequence[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _warn(message: str) -> None:
    import logging

    logging.getLogger(__name__).warning(message)
