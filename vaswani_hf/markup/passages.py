"""Translates passages. A passage is a section of a document, such as a paragraph.

1. sentences.py divides each passage into sentences.
2. The model translates each sentence without its tags. Usually, the model translates a sentence together with
   its protected parts (parts that a translation must not change, such as `{name}`). If the translation
   contains a protected part more often or less often than the source, the model
   translates the sentence again, without its protected parts.
3. source_units.py and target_units.py divide each source sentence and its translation into units, such as
   words. The word alignment of the model connects units of the translation with units of the source sentence.
4. projection.py determines the positions of the tags in the translation from the word alignment. If the model
   has translated the sentence without its protected parts, projection.py also determines the positions of the
   protected parts.
5. rendering.py writes the translation with the tags and the protected parts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..model.translations_vaswani import Translation
from .pieces import Passage
from .projection import Bounds, Unit, project
from .rendering import render
from .sentences import Sentence, sentences_of
from .source_units import SourceReader
from .target_units import target_units

# Translates sentences with the option `return_alignments`, and returns a `Translation` for each sentence.
TranslateSentences = Callable[[Sequence[str]], Iterable[Translation]]


def join_parts(documents: Sequence[Sequence[str | Passage]], translate: TranslateSentences) -> list[str]:
    """Translate each part of a document that is a `Passage`, and copy each part that is a string. Join the
    parts of each document.
    """
    passages: list[Passage] = []
    for parts in documents:
        passages += [part for part in parts if isinstance(part, Passage)]
    translations = iter(translate_passages(passages, translate))
    return [
        "".join(part if isinstance(part, str) else next(translations) for part in parts)
        for parts in documents
    ]


def translate_passages(passages: Sequence[Passage], translate: TranslateSentences) -> list[str]:
    """Return the translation of each passage, in the format of the document (for example, as HTML)."""
    of_passages = [sentences_of(passage) for passage in passages]
    sentences: list[Sentence] = []
    for of_passage in of_passages:
        sentences += [sentence for sentence in of_passage if sentence.needs_translation]
    for sentence in sentences:
        sentence.has_protected_parts = sentence.can_keep_protected_parts()
    _translate(sentences, translate)
    translated = [sentence for sentence in sentences if sentence.translation]
    unfaithful = [
        sentence for sentence in translated if sentence.has_protected_parts and not sentence.is_faithful()
    ]
    for sentence in unfaithful:
        sentence.has_protected_parts = False
    _translate(unfaithful, translate)
    return [_assemble(passage, of_passage) for passage, of_passage in zip(passages, of_passages, strict=True)]


def _translate(sentences: Sequence[Sentence], translate: TranslateSentences) -> None:
    if not sentences:
        return
    translations = translate([sentence.source() for sentence in sentences])
    for sentence, translation in zip(sentences, translations, strict=True):
        # If a sentence cannot be translated, keep its source text. If the translation is a copy of the
        # source, keep the source text, because the copy can lack an alignment, and the tags already have the
        # right positions.
        sentence.is_failed = bool(translation.error)
        is_kept = sentence.is_failed or translation.text == sentence.source()
        sentence.translation = None if is_kept else translation


def _assemble(passage: Passage, sentences: Sequence[Sentence]) -> str:
    """Join the translations of the sentences, and insert the tags and the protected parts."""
    if passage.is_indivisible and any(sentence.is_failed for sentence in sentences):
        return ""
    if not any(sentence.translation for sentence in sentences):
        return "".join(piece.raw or passage.escape(piece.text) for piece in passage.pieces)
    reader = SourceReader()
    source = reader.units
    target: list[Unit] = []
    bounds: list[Bounds] = []
    for sentence in sentences:
        source_start = len(source)
        start = len(target)
        reader.add_sentence(sentence)
        if sentence.translation is None:
            target += [replace(source[i], source=i) for i in range(source_start, len(source))]
        else:
            target += target_units(sentence.translation, source, source_start, sentence.separator)
        bounds.append(Bounds(source_start, len(source), start, len(target)))
    reader.finish()
    project(reader.root, source, target, bounds)
    return render(reader.root, target, passage.escape)
