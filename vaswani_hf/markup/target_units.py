"""Divides the translation of a sentence into units, such as words, and aligns the units with the source."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..model.translations_vaswani import Translation
from .pieces import divide_text, protected_piece
from .placeholders import pattern_of
from .projection import Unit
from .source_units import SPACE_OR_WORD, divide_word


def target_units(translation: Translation, source: Sequence[Unit], first: int, separator: str) -> list[Unit]:
    """Divide a translation into units. `Unit.source` is the index of the aligned unit in `source`.

    Args:
        translation (Translation): The translation of the last sentence of `source`.
        source (list): The source units, such as words, of this sentence and of all previous sentences of the
            passage.
        first (int): The index of the sentence's first unit in `source`.
        separator (str): The white space between the previous sentence and this sentence.
    """
    aligned = _aligned_units(translation, source, first)
    protected = _protected_parts_of(source, first)
    source_text = "".join(unit.space + unit.text for unit in source[first:] if not unit.raw)
    units: list[Unit] = []
    space = separator
    word = 0
    for piece in divide_text(
        translation.text.strip(), pattern_of(protected), lambda match: protected_piece(match[0])
    ):
        if piece.kind == "protected" and (piece.text in protected or piece.text not in source_text):
            word += len(piece.text.split()) - 1
            # Leave out a placeholder that the model has invented. Keep the text as words if the text only
            # looks like a placeholder and occurs as ordinary text in the source sentence, such as the address
            # in `a<b>@b.de</b>`.
            if protected.get(piece.text):
                index = protected[piece.text].popleft()
                units.append(replace(source[index], source=index, space=space))
                space = ""
            continue
        for match in SPACE_OR_WORD.finditer(piece.text):
            if match[0].isspace():
                word += 1
                space = " " if units else separator
            else:
                of_word = _units_of_word(match[0], source, aligned.get(word, []))
                of_word[0].space = space
                units += of_word
                space = ""
    _copy_source_spaces(units, source)
    if units and first < len(source) and not units[-1].is_word and not source[-1].is_word:
        # Align the punctuation at the end of the translation with the punctuation at the end of the source.
        units[-1].source = len(source) - 1
    return units


def _aligned_units(translation: Translation, source: Sequence[Unit], first: int) -> dict[int, list[int]]:
    """Map the index of each aligned target word to a list of indices in `source`: the aligned source word and
    its punctuation.
    """
    units_of_word: dict[int, list[int]] = {}
    for i in range(first, len(source)):
        if not source[i].raw:
            units_of_word.setdefault(source[i].word, []).append(i)
    aligned = {}
    for pair in (translation.alignment or "").split():
        source_word, target_word = pair.split("-")
        aligned[int(target_word)] = units_of_word.get(int(source_word), [])
    return aligned


def _protected_parts_of(source: Sequence[Unit], first: int) -> dict[str, deque[int]]:
    """Map the text of each protected part to its indices in `source`."""
    protected: dict[str, deque[int]] = {}
    for i in range(first, len(source)):
        if source[i].raw:
            protected.setdefault(source[i].text, deque()).append(i)
    return protected


def _units_of_word(word: str, source: Sequence[Unit], aligned: Sequence[int]) -> list[Unit]:
    """Divide a target word, such as '(house)', into `Unit` objects: the punctuation and the word. `aligned`
    contains the indices in `source` of the units that are aligned with the target word.
    """
    if "".join(source[i].text for i in aligned) == word:
        return [Unit(source[i].text, source=i) for i in aligned]
    before, inner, after = divide_word(word)
    units = []
    if before:
        units.append(Unit(before, source=_first_punctuation(source, aligned[:1])))
    if inner:
        words = [i for i in aligned if source[i].is_word]
        longest = max(words, key=lambda i: len(source[i].text), default=None)
        units.append(Unit(inner, source=longest))
    if after:
        units.append(Unit(after, source=_first_punctuation(source, aligned[-1:])))
    return units


def _first_punctuation(source: Sequence[Unit], indices: Sequence[int]) -> int | None:
    return next((i for i in indices if not source[i].is_word), None)


def _copy_source_spaces(units: Sequence[Unit], source: Sequence[Unit]) -> None:
    """Copy the space between two source units to the translation, if the translations of the two source units
    are neighbours in the same order. The copied space can be, for example, a non-breaking space.
    """
    for previous, unit in pairwise(units):
        if not unit.space or unit.source is None or unit.source - 1 != previous.source:
            continue
        space = source[unit.source].space
        # If the source has no space between two protected parts, remove the space between the two
        # protected parts in the translation.
        if space or (previous.raw and unit.raw):
            unit.space = space
