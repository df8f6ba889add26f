"""Translates passages. A passage is a section of a document, such as a paragraph, that contains texts, tags
and parts that a translation must not change.

A passage is a list of pieces: texts, tags and unchangeable parts. Each sentence of a passage is translated
without its tags. The word alignment of the sentence determines the positions of the tags in the translation
(see projection.py).

A sentence is first translated with its unchangeable parts, such as `{name}`. If an unchangeable part occurs
in the translation more often or less often than in the source, the sentence is translated again without its
unchangeable parts, and the word alignment determines the positions of the unchangeable parts in the
translation. The code calls an unchangeable part an atom.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Literal

from ..model.text_rules_vaswani import split_sentences
from ..model.translations_vaswani import Translation
from .placeholders import PLACEHOLDER
from .projection import Bounds, Node, Unit, project, render

# A function that translates sentences with the option `return_alignments`, and returns one `Translation` for
# each sentence.
TranslateSentences = Callable[[Sequence[str]], Iterable[Translation]]

# Matches a word and the punctuation before and after the word. The groups are the punctuation before the
# word, the word, and the punctuation after the word.
_WORD = re.compile(r"([^\w\s]*)(\S*?)([^\w\s]*)")
# Matches white space that is not an ASCII character, such as a space that does not break.
_OTHER_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
_SPACE_OR_WORD = re.compile(r"\s+|\S+")


@dataclass(slots=True)
class Piece:
    """A text, a tag, a line break or an unchangeable part of a passage.

    Attributes:
        kind (str): "text" (a text that is translated), "atom" (an unchangeable part that is copied), "open"
            (an opening tag), "close" (a closing tag) or "break" (a line break).
        raw (str): The source code of the text, tag, line break or unchangeable part in the document.
        text (str): The text that the model receives for the piece. The text is empty for tags, line breaks
            and some unchangeable parts.
        name (str): The name of a tag. A closing tag belongs to the nearest opening tag with the same name.
    """

    kind: Literal["text", "atom", "open", "close", "break"]
    raw: str = ""
    text: str = ""
    name: str = ""


@dataclass(slots=True)
class Passage:
    """A section of a document, such as a paragraph, as a list of pieces (texts, tags, unchangeable parts and
    line breaks). The function `escape` converts a translated text to the format of the document. For example,
    `escape` replaces `<` by `&lt;` in HTML.
    """

    pieces: list[Piece]
    escape: Callable[[str], str] = str


@dataclass(slots=True)
class _Sentence:
    """A sentence of a passage: its texts, tags, line breaks and unchangeable parts, in the order of the
    document.
    """

    pieces: list[Piece] = field(default_factory=list)
    # The white space between the previous sentence and this sentence.
    separator: str = ""
    has_atoms: bool = True
    translation: Translation | None = None

    @property
    def atoms(self) -> list[str]:
        """The non-empty texts of all unchangeable parts of the sentence."""
        return [piece.text for piece in self.pieces if piece.kind == "atom" and piece.text]

    @property
    def needs_translation(self) -> bool:
        """True if the sentence contains a letter outside tags and unchangeable parts."""
        return any(piece.kind == "text" and any(map(str.isalpha, piece.text)) for piece in self.pieces)

    def texts(self) -> list[str]:
        """For each piece, return the text that the model receives. If `has_atoms` is False, the model
        receives an empty text for each unchangeable part.
        """
        texts: list[str] = []
        # True if a removed part is between the previous text and the current piece.
        is_after_removed = False
        for piece in self.pieces:
            is_removed = piece.kind == "atom" and not self.has_atoms
            texts.append("" if is_removed else piece.text)
            is_after_removed = is_after_removed or (is_removed and piece.text != "")
            if piece.kind == "text" and is_after_removed and not piece.text[:1].isalnum():
                # Remove the space before a removed part, such as `{x}`, unless the text after the part begins
                # with a letter or a digit.
                before = next((i for i in range(len(texts) - 2, -1, -1) if texts[i]), None)
                if before is not None:
                    texts[before] = texts[before].rstrip()
                    # If two commas follow each other after the removal of an unchangeable part, remove one of
                    # the commas. For example, "a, {x}, b" becomes "a, b" instead of "a,, b".
                    is_repeated = piece.text[:1] == texts[before][-1:] == ","
                    texts[-1] = piece.text[1:] if is_repeated else piece.text
            if texts[-1]:
                is_after_removed = False
        return texts

    def source(self) -> str:
        """Return the sentence as the model receives it, without tags."""
        return _OTHER_SPACE.sub(" ", "".join(self.texts())).strip()

    def may_keep_atoms(self) -> bool:
        """Return True if the text of each unchangeable part, such as `{x}`, can be recognised in a
        translation. The text of an unchangeable part must not be a word, and must not occur elsewhere in the
        source sentence.
        """
        source = self.source()
        return all(
            not text.isalpha() and source.count(text) == number
            for text, number in Counter(self.atoms).items()
        )

    def is_faithful(self) -> bool:
        """Return True if each unchangeable part occurs in the translation as many times as in the source."""
        assert self.translation is not None
        numbers = Counter(self.atoms)
        found = Counter(_pattern_of(numbers).findall(self.translation.text))
        return all(found[text] == number for text, number in numbers.items())


def translate_passages(passages: Sequence[Passage], translate: TranslateSentences) -> list[str]:
    """Return the translation of each passage, in the format of the document (for example, as HTML)."""
    of_passages = [_sentences_of(passage) for passage in passages]
    sentences = [one for of_passage in of_passages for one in of_passage if one.needs_translation]
    for sentence in sentences:
        sentence.has_atoms = sentence.may_keep_atoms()
    _translate(sentences, translate)
    unfaithful = [one for one in sentences if one.has_atoms and one.translation and not one.is_faithful()]
    for sentence in unfaithful:
        sentence.has_atoms = False
    _translate(unfaithful, translate)
    found = []
    for passage, of_passage in zip(passages, of_passages, strict=True):
        if any(sentence.translation for sentence in of_passage):
            found.append(_assemble(passage, of_passage))
        else:
            found.append("".join(piece.raw or passage.escape(piece.text) for piece in passage.pieces))
    return found


def join_parts(documents: Sequence[Sequence[str | Passage]], translate: TranslateSentences) -> list[str]:
    """Return the translation of each document. A document is a list of `Passage` objects, which are
    translated, and strings, which are copied unchanged.
    """
    passages: list[Passage] = []
    for parts in documents:
        passages += [part for part in parts if isinstance(part, Passage)]
    translations = iter(translate_passages(passages, translate))
    return [
        "".join(part if isinstance(part, str) else next(translations) for part in parts)
        for parts in documents
    ]


def _translate(sentences: Sequence[_Sentence], translate: TranslateSentences) -> None:
    sentences = [sentence for sentence in sentences if any(map(str.isalpha, sentence.source()))]
    if not sentences:
        return
    translations = translate([sentence.source() for sentence in sentences])
    for sentence, translation in zip(sentences, translations, strict=True):
        # If a sentence cannot be translated, keep its source text.
        sentence.translation = None if translation.error else translation


def _sentences_of(passage: Passage) -> list[_Sentence]:
    sentences = [_Sentence()]
    # The white space after the last text.
    separator = ""
    pieces = _with_glued_tags_divided(_with_whole_words(passage.pieces))
    for is_break, group in groupby(pieces, lambda piece: piece.kind == "break"):
        run = list(group)
        if is_break:
            sentences += [_Sentence(run, separator=separator), _Sentence()]
            separator = ""
            continue
        # Before the text is split into sentences, replace each placeholder or other unchangeable part by
        # letters. A full stop inside an unchangeable part does not end a sentence.
        text = "".join("X" * len(piece.text) if piece.kind == "atom" else piece.text for piece in run)
        parts, separators = split_sentences(text)
        ends = [piece for piece in run if piece.text or piece.kind == "atom"] or run
        if ends[0].kind == "text":
            sentences[-1].separator = ends[0].text[: len(ends[0].text) - len(ends[0].text.lstrip())]
        if ends[-1].kind == "text":
            separator = ends[-1].text[len(ends[-1].text.rstrip()) :]
        cuts: deque[tuple[int, int]] = deque()
        end = len(separators[0])
        for part, space in zip(parts[:-1], separators[1:], strict=False):
            end += len(part)
            cuts.append((end, end + len(space)))
            end += len(space)
        offset = 0
        for piece in run:
            start = offset
            offset += len(piece.text)
            while piece.kind == "text" and cuts and cuts[0][1] <= offset:
                end, begin = cuts.popleft()
                sentences[-1].pieces.append(Piece("text", text=text[start : max(start, end)]))
                sentences.append(_Sentence(separator=text[end:begin] or " "))
                start = begin
            own = piece if piece.kind != "text" else Piece("text", raw=piece.raw, text=text[start:offset])
            sentences[-1].pieces.append(own)
    return sentences


def _with_whole_words(pieces: Sequence[Piece]) -> list[Piece]:
    """If an unchangeable part is inside a word, such as "&amp;" in "R&amp;D", extend the unchangeable part to
    the whole word.
    """
    found: list[Piece] = []
    following = deque(pieces)
    while following:
        piece = following.popleft()
        if piece.kind == "atom" and piece.text and found and following:
            last, after = found[-1], following[0]
            are_texts = last.kind == after.kind == "text"
            if are_texts and last.text[-1:].isalnum() and after.text[:1].isalnum():
                text = re.split(r"\s", last.text)[-1]
                raw = re.split(r"\s", last.raw)[-1]
                end = re.split(r"\s", after.text)[0]
                end_raw = re.split(r"\s", after.raw)[0]
                found[-1] = Piece("text", last.raw.removesuffix(raw), last.text.removesuffix(text))
                piece = Piece("atom", raw + piece.raw + end_raw, text + piece.text + end)
                following[0] = Piece("text", after.raw.removeprefix(end_raw), after.text.removeprefix(end))
        found.append(piece)
    return found


def _with_glued_tags_divided(pieces: Sequence[Piece]) -> list[Piece]:
    """If only a closing tag and an opening tag separate two words, insert a `Piece` of the kind "break"
    between the two tags. The inserted `Piece` writes no characters to the document. For example,
    `<b>one</b><i>two</i>` has two words, but its text without the tags is "onetwo".
    """
    found: list[Piece] = []
    is_closed = False
    is_glued = False
    for number, piece in enumerate(pieces):
        if piece.text:
            is_closed = False
            is_glued = not piece.text[-1].isspace()
        elif piece.kind == "close":
            is_closed = True
        elif piece.kind == "break":
            is_glued = False
        elif piece.kind == "open" and is_closed and is_glued:
            following = next((one.text for one in pieces[number:] if one.text), " ")
            if not following[0].isspace():
                found.append(Piece("break"))
        found.append(piece)
    return found


def _pairs_of(pieces: Sequence[Piece]) -> set[int]:
    """Find the pairs of opening and closing tags, and return the Python ids of their `Piece` objects. Any two
    pairs of tags are either nested or disjoint.
    """
    paired: set[int] = set()
    waiting: list[Piece] = []
    for piece in pieces:
        if piece.kind == "open":
            waiting.append(piece)
        elif piece.kind == "close":
            numbers = [i for i, opened in enumerate(waiting) if opened.name == piece.name]
            if numbers:
                paired |= {id(waiting[numbers[-1]]), id(piece)}
                del waiting[numbers[-1] :]
    return paired


def _assemble(passage: Passage, sentences: Sequence[_Sentence]) -> str:
    """Join the translations of the sentences of a passage, and insert the tags and the unchangeable
    parts.
    """
    paired = _pairs_of([piece for sentence in sentences for piece in sentence.pieces])
    root = Node()
    open_nodes = [root]
    source: list[Unit] = []
    target: list[Unit] = []
    bounds: list[Bounds] = []
    for sentence in sentences:
        first_source = len(source)
        first_target = len(target)
        word = -1
        # The white space before the next word.
        space = " "
        before = ""
        nodes: list[Node] = []
        for piece, text in zip(sentence.pieces, sentence.texts(), strict=True):
            if piece.kind in {"text", "atom"}:
                for node in nodes:
                    node.after = node.after or (piece.text[:1] if piece.kind == "text" else "X")
                nodes = []
            if piece.kind == "close" and id(piece) in paired:
                node = open_nodes.pop()
                node.closing = piece.raw
                node.source_end = len(source)
                node.after = ""
                nodes.append(node)
            elif piece.kind in {"open", "close"} or (piece.kind == "atom" and not text):
                kind = "pair" if id(piece) in paired else piece.kind
                node = Node(piece.raw, kind=kind, before=before)
                node.source_start = node.source_end = len(source)
                open_nodes[-1].children.append(node)
                nodes.append(node)
                if kind == "pair":
                    open_nodes.append(node)
            elif piece.kind == "text":
                for match in _SPACE_OR_WORD.finditer(text):
                    if match[0].isspace():
                        space = space.strip(" ") or match[0]
                        continue
                    word += bool(space)
                    for part in filter(None, _WORD.fullmatch(match[0]).groups()):  # type: ignore[union-attr]
                        source.append(Unit(part, word=word, space=space))
                        space = ""
            else:
                word += len(text.split()) - (not space) if text.strip() else 0
                source.append(Unit(text, raw=piece.raw, word=word, space=space))
                space = " " if text[-1:].isspace() else ""
            if piece.kind in {"text", "atom"}:
                before = piece.text[-1:] if piece.kind == "text" else "X"
        own = source[first_source:]
        if own:
            own[0].space = sentence.separator
        if sentence.translation is None:
            target += [replace(unit, source=first_source + i) for i, unit in enumerate(own)]
        else:
            target += _target_units(sentence.translation, own, first_source, sentence.separator)
        bounds.append(Bounds(first_source, len(source), first_target, len(target)))
    root.source_end = len(source)
    project(root, source, target, bounds)
    return render(root, target, passage.escape)


def _target_units(
    translation: Translation, source: Sequence[Unit], first_source: int, separator: str
) -> list[Unit]:
    """Divide a translation into units (words, punctuation and unchangeable parts). `Unit.source` is the index
    of the aligned word, punctuation or unchangeable part in the source text.
    """
    text = translation.text
    source_word_of = {}
    for pair in (translation.alignment or "").split():
        source_word, target_word = pair.split("-")
        source_word_of[int(target_word)] = int(source_word)
    units_of_word: dict[int, list[int]] = {}
    atoms: dict[str, deque[int]] = {}
    for i, unit in enumerate(source):
        if unit.raw:
            atoms.setdefault(unit.text, deque()).append(i)
        else:
            units_of_word.setdefault(unit.word, []).append(i)
    # Remove placeholders that occur in the translation but not in the source, because the model has invented
    # them.
    found = deque(_pattern_of(atoms).finditer(text))
    units: list[Unit] = []
    space = separator
    for number, match in enumerate(re.finditer(r"\S+", text)):
        start = match.start()
        aligned = units_of_word.get(source_word_of.get(number, -1), [])
        while start < match.end():
            if found and found[0].start() <= start:
                atom = found[0]
                if atom.start() == start and atoms.get(atom[0]):
                    of_source = atoms[atom[0]].popleft()
                    units.append(replace(source[of_source], source=first_source + of_source, space=space))
                    space = ""
                elif atom.start() < start and units and units[-1].text == atom[0]:
                    # The end of an unchangeable part with spaces, such as `<%= x %>`.
                    space = ""
                start = min(atom.end(), match.end())
                if atom.end() <= match.end():
                    found.popleft()
                continue
            end = min(found[0].start(), match.end()) if found else match.end()
            of_chunk = _units_of_chunk(text[start:end], source, aligned)
            for unit in of_chunk:
                unit.source = None if unit.source is None else first_source + unit.source
                unit.space = space
                space = ""
                units.append(unit)
            start = end
        space = " " if units else separator
    for previous, unit in pairwise(units):
        if unit.space and unit.source is not None and unit.source - 1 == previous.source:
            # Keep a space that does not break between two words.
            unit.space = source[unit.source - first_source].space or unit.space
    if units and source and not units[-1].is_word and not source[-1].is_word:
        # Record that the punctuation at the end of the translation is aligned with the punctuation at the end
        # of the source sentence.
        units[-1].source = first_source + len(source) - 1
    return units


def _pattern_of(atoms: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the given unchangeable parts, and all other placeholders."""
    literals = sorted(map(re.escape, atoms), key=len, reverse=True)
    return re.compile("|".join([*literals, PLACEHOLDER.pattern]), re.VERBOSE)


def _units_of_chunk(chunk: str, source: Sequence[Unit], aligned: Sequence[int]) -> list[Unit]:
    """Divide a target word into units (word and punctuation). `aligned` contains the indices of the source
    units (words and punctuation) that the target word is aligned with.
    """
    if "".join(source[i].text for i in aligned) == chunk:
        return [Unit(source[i].text, source=i) for i in aligned]
    before, word, after = _WORD.fullmatch(chunk).groups()  # type: ignore[union-attr]
    words = [i for i in aligned if source[i].is_word]
    units = []
    if before:
        units.append(Unit(before, source=_punctuation(source, aligned[:1])))
    if word:
        longest = max(words, key=lambda i: len(source[i].text), default=None)
        units.append(Unit(word, source=longest))
    if after:
        units.append(Unit(after, source=_punctuation(source, aligned[-1:])))
    return units


def _punctuation(source: Sequence[Unit], index: Sequence[int]) -> int | None:
    return index[0] if index and not source[index[0]].is_word else None
