"""Translates passages. A passage is a section of a document, such as a paragraph: a list of texts, tags and
atoms (parts that a translation must not change, such as `{name}`).

Each sentence of a passage is translated without its tags. The word alignment determines the positions of the
tags in the translation (see projection.py). Usually, the model translates a sentence together with its
unchangeable parts (atoms). If the translation contains an unchangeable part more often or less often than the
source, the unchangeable parts are removed from the source sentence. Then the model translates the source
sentence again. After the translation without unchangeable parts, the word alignment also determines the
positions of the unchangeable parts.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Literal

from ..model.text_rules_vaswani import split_sentences
from ..model.translations_vaswani import Translation
from .placeholders import PLACEHOLDER
from .projection import Bounds, Node, Unit, project, render

# Translates sentences with the option `return_alignments`, and returns a `Translation` for each sentence.
TranslateSentences = Callable[[Sequence[str]], Iterable[Translation]]

# The three groups match the punctuation before a word, the word, and the punctuation after the word.
_WORD = re.compile(r"([^\w\s]*)(\S*?)([^\w\s]*)")
# Matches white space that is not an ASCII character, such as a non-breaking space.
_OTHER_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
# Punctuation that belongs to the preceding text, even if tags are between the text and the punctuation.
_END_PUNCTUATION = ".,;:!?…)]}"
_SPACE_OR_WORD = re.compile(r"\s+|\S+")


@dataclass(slots=True)
class Piece:
    """A text, a tag, a line break or an unchangeable part of a passage.

    Attributes:
        kind (str): "text" (translated), "atom" (an unchangeable part), "open" or "close" (a tag) or "break".
        raw (str): The piece as the document contains it, such as `<b>` or `R&amp;D`.
        text (str): The text that the model receives; empty for pieces without text, such as tags, line breaks
            and images.
        name (str): The name of a tag. A closing tag belongs to the nearest opening tag with the same name.
        partner (Piece, optional): The other tag of a pair of tags. `translate_passages` sets `partner`.
    """

    kind: Literal["text", "atom", "open", "close", "break"]
    raw: str = ""
    text: str = ""
    name: str = ""
    partner: "Piece | None" = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class Passage:
    """A section of a document, such as a paragraph. `escape` converts a translated text to the format of the
    document. For example, `escape` replaces `<` by `&lt;` in HTML.
    """

    pieces: list[Piece]
    escape: Callable[[str], str] = str


@dataclass(slots=True)
class _Sentence:
    """A sentence of a passage: texts, tags and unchangeable parts in the order of the document."""

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
        """Return the text that the model receives for each `Piece`. If `has_atoms` is False, the model
        receives an empty text for each unchangeable part.
        """
        texts: list[str] = []
        # True if an unchangeable part was removed after the last non-empty text in `texts`.
        is_after_removed = False
        for piece in self.pieces:
            is_removed = piece.kind == "atom" and not self.has_atoms
            texts.append("" if is_removed else piece.text)
            is_after_removed = is_after_removed or (is_removed and piece.text != "")
            if piece.kind == "text" and is_after_removed and not piece.text[:1].isalnum():
                # Remove the space before a removed part, unless the text after the part begins with a letter
                # or a digit.
                before = next((i for i in range(len(texts) - 2, -1, -1) if texts[i]), None)
                if before is not None:
                    texts[before] = texts[before].rstrip()
                    # Remove one of two commas around a removed part: "a, {x}, b" becomes "a, b" instead of
                    # "a,, b".
                    is_repeated = piece.text[:1] == texts[before][-1:] == ","
                    texts[-1] = piece.text[1:] if is_repeated else piece.text
            if texts[-1]:
                is_after_removed = False
        return texts

    def source(self) -> str:
        """Return the sentence as the model receives it, without tags."""
        return _OTHER_SPACE.sub(" ", "".join(self.texts())).strip()

    def may_keep_atoms(self) -> bool:
        """Return False if an unchangeable part (atom) consists only of letters, or if the text of an atom
        also occurs elsewhere in the source sentence. Otherwise return True.
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
    pieces = _with_glued_tags_divided(_with_whole_words(passage))
    for is_break, group in groupby(pieces, lambda piece: piece.kind == "break"):
        run = list(group)
        if is_break:
            sentences += [_Sentence(run, separator=separator), _Sentence()]
            separator = ""
            continue
        # Replace unchangeable parts by letters, because a full stop inside an unchangeable part does not end
        # a sentence.
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
                # The white space after the sentence can begin in an earlier piece than `piece`.
                last_text = text[start:end] or text[start:begin]
                sentences[-1].pieces.append(Piece("text", text=last_text))
                sentences.append(_Sentence(separator=text[max(start, end) : begin] or " "))
                start = begin
            own = piece if piece.kind != "text" else Piece("text", raw=piece.raw, text=text[start:offset])
            sentences[-1].pieces.append(own)
    if _OTHER_SPACE.search(separator):
        # If a passage ends with white space such as `&nbsp;`, write the white space after the closing tags:
        # `<b>one&nbsp;</b>` becomes `<b>eins</b>&nbsp;`.
        sentences.append(_Sentence([Piece("break")], separator=separator))
    return sentences


def _with_whole_words(passage: Passage) -> list[Piece]:
    """If an unchangeable part is inside a word, such as "&amp;" in "R&amp;D", extend the unchangeable part to
    the whole word.
    """
    found: list[Piece] = []
    following = deque(passage.pieces)
    while following:
        piece = following.popleft()
        if piece.kind == "atom" and piece.text and found and following:
            last, after = found[-1], following[0]
            are_texts = last.kind == after.kind == "text"
            if are_texts and last.text[-1:].isalnum() and after.text[:1].isalnum():
                start = re.split(r"\s", last.text)[-1]
                end = re.split(r"\s", after.text)[0]
                found[-1] = Piece("text", text=last.text.removesuffix(start))
                raw = passage.escape(start) + piece.raw + passage.escape(end)
                piece = Piece("atom", raw, start + piece.text + end)
                following[0] = Piece("text", text=after.text.removeprefix(end))
        found.append(piece)
    return found


def _with_glued_tags_divided(pieces: Sequence[Piece]) -> list[Piece]:
    """Insert an empty "break" between two words if only a closing tag and an opening tag are between the
    words, as in `<b>one</b><i>two</i>`.
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
            if not following[0].isspace() and following[0] not in _END_PUNCTUATION:
                found.append(Piece("break"))
        found.append(piece)
    return found


def _set_partners(pieces: Sequence[Piece]) -> None:
    """Set `partner` of the opening tag and the closing tag of each pair. Two pairs of tags are always nested
    or disjoint.
    """
    waiting: list[Piece] = []
    for piece in pieces:
        piece.partner = None
        if piece.kind == "open":
            waiting.append(piece)
        elif piece.kind == "close":
            numbers = [i for i, opened in enumerate(waiting) if opened.name == piece.name]
            if numbers:
                opened = waiting[numbers[-1]]
                opened.partner = piece
                piece.partner = opened
                del waiting[numbers[-1] :]


def _assemble(passage: Passage, sentences: Sequence[_Sentence]) -> str:
    """Join the translations of the sentences, and insert the tags and the unchangeable parts."""
    _set_partners(passage.pieces)
    builder = _SourceBuilder()
    target: list[Unit] = []
    bounds: list[Bounds] = []
    for sentence in sentences:
        first_source = len(builder.units)
        first_target = len(target)
        builder.add_sentence(sentence)
        source = builder.units[first_source:]
        if sentence.translation is None:
            units = [replace(unit, source=i) for i, unit in enumerate(source)]
        else:
            units = _target_units(sentence.translation, source, sentence.separator)
        for unit in units:
            if unit.source is not None:
                unit.source += first_source
        target += units
        bounds.append(Bounds(first_source, len(builder.units), first_target, len(target)))
    root = builder.root
    root.source_end = len(builder.units)
    project(root, builder.units, target, bounds)
    return render(root, target, passage.escape)


class _SourceBuilder:
    """Divides the sentences of a passage into `Unit` objects (such as words) and `Node` objects (tags, and
    unchangeable parts that the model does not receive).
    """

    def __init__(self) -> None:
        self.root = Node()
        self.units: list[Unit] = []
        # The root of the tree, and each pair of tags whose opening tag has been read but whose closing tag
        # has not.
        self._open_nodes = [self.root]

    def add_sentence(self, sentence: _Sentence) -> None:
        """Append the words of a sentence to `units`, and the tags of the sentence to the tree `root`."""
        # The index of the last added word, counted from the beginning of the sentence.
        self._word = -1
        # The white space before the next unit.
        self._space = " "
        # The last character of the source text before the next piece; "X" if the next piece follows an
        # unchangeable part.
        self._before = ""
        # The nodes whose field `after` is not yet known, because the next character has not been read.
        self._last_nodes: list[Node] = []
        first = len(self.units)
        for piece, text in zip(sentence.pieces, sentence.texts(), strict=True):
            self._add(piece, text)
        if len(self.units) > first:
            self.units[first].space = sentence.separator

    def _add(self, piece: Piece, text: str) -> None:
        """Add a piece. `text` is the text that the model receives for the piece."""
        if piece.kind == "open":
            self._open(piece)
        elif piece.kind == "close":
            self._close(piece)
        elif piece.kind == "break":
            self._add_atom(text, piece.raw)
        elif piece.kind == "atom":
            self._set_after("X")
            if text:
                self._add_atom(text, piece.raw)
            else:
                self._add_node(piece.raw, "atom")
            self._before = "X"
        else:
            self._set_after(piece.text[:1])
            self._add_text(text)
            self._before = piece.text[-1:]

    def _add_text(self, text: str) -> None:
        for match in _SPACE_OR_WORD.finditer(text):
            if match[0].isspace():
                # Keep a space that is not an ASCII space, such as a non-breaking space.
                self._space = self._space.strip(" ") or match[0]
                continue
            if self._space:
                self._word += 1
            for part in _WORD.fullmatch(match[0]).groups():  # type: ignore[union-attr]
                if part:
                    self._add_unit(part)

    def _add_atom(self, text: str, raw: str) -> None:
        num_words = len(text.split())
        if num_words and not self._space:
            # Do not count the first word of an unchangeable part if no space precedes the unchangeable part,
            # as in "No.{number}".
            num_words -= 1
        self._word += num_words
        self._add_unit(text, raw)
        if text[-1:].isspace():
            self._space = " "

    def _add_unit(self, text: str, raw: str = "") -> None:
        self.units.append(Unit(text, raw=raw, word=self._word, space=self._space))
        self._space = ""

    def _open(self, piece: Piece) -> None:
        if piece.partner is None:
            self._add_node(piece.raw, "open")
        else:
            self._open_nodes.append(self._add_node(piece.raw, "pair"))

    def _close(self, piece: Piece) -> None:
        if piece.partner is None:
            self._add_node(piece.raw, "close")
            return
        node = self._open_nodes.pop()
        node.closing = piece.raw
        node.source_end = len(self.units)
        # Clear `node.after`, because it contains the character after the opening tag. The next call of
        # `_set_after` stores the character after the closing tag in `node.after`.
        node.after = ""
        self._last_nodes.append(node)

    def _add_node(self, raw: str, kind: str) -> Node:
        position = len(self.units)
        node = Node(raw, kind=kind, before=self._before, source_start=position, source_end=position)
        self._open_nodes[-1].children.append(node)
        self._last_nodes.append(node)
        return node

    def _set_after(self, character: str) -> None:
        for node in self._last_nodes:
            node.after = character
        self._last_nodes = []


@dataclass(frozen=True, slots=True)
class _Part:
    """A substring of a word in a translation. `atom` is the unchangeable part, such as `{name}`, that
    contains the substring, or empty. If an unchangeable part contains spaces, as in `<%= x %>`, each word of
    the unchangeable part is a separate `_Part`.
    """

    text: str
    atom: str = ""
    begins_atom: bool = False


def _target_units(translation: Translation, source: Sequence[Unit], separator: str) -> list[Unit]:
    """Divide a translation into units. `Unit.source` is the index of the aligned unit in `source`."""
    aligned = _aligned_units(translation, source)
    atoms: dict[str, deque[int]] = {}
    for i, unit in enumerate(source):
        if unit.raw:
            atoms.setdefault(unit.text, deque()).append(i)
    units: list[Unit] = []
    space = separator
    for number, parts in enumerate(_words_of(translation.text, _pattern_of(atoms))):
        for part in parts:
            if not part.atom:
                of_part = _units_of_chunk(part.text, source, aligned.get(number, []))
            elif part.begins_atom and atoms.get(part.atom):
                index = atoms[part.atom].popleft()
                of_part = [replace(source[index], source=index)]
            elif not part.begins_atom and units and units[-1].text == part.atom:
                # If an unchangeable part contains spaces, such as `<%= x %>`, skip all words of the part
                # after its first word. `units` already contains the whole unchangeable part.
                space = ""
                continue
            else:
                # The model has invented the placeholder.
                continue
            of_part[0].space = space
            units += of_part
            space = ""
        space = " " if units else separator
    for previous, unit in pairwise(units):
        if unit.space and unit.source is not None and unit.source - 1 == previous.source:
            # Copy the space between the two aligned source words, because the space can be a non-breaking
            # space.
            unit.space = source[unit.source].space or unit.space
            if previous.raw and unit.raw:
                # If two placeholders have no space between them in the source, put no space between them in
                # the translation.
                unit.space = source[unit.source].space
    if units and source and not units[-1].is_word and not source[-1].is_word:
        # Align the punctuation at the end of the translation with the punctuation at the end of the source.
        units[-1].source = len(source) - 1
    return units


def _aligned_units(translation: Translation, source: Sequence[Unit]) -> dict[int, list[int]]:
    """Map the index of each aligned target word to a list of indices in `source`: the aligned source word and
    its punctuation.
    """
    units_of_word: dict[int, list[int]] = {}
    for i, unit in enumerate(source):
        if not unit.raw:
            units_of_word.setdefault(unit.word, []).append(i)
    aligned = {}
    for pair in (translation.alignment or "").split():
        source_word, target_word = pair.split("-")
        aligned[int(target_word)] = units_of_word.get(int(source_word), [])
    return aligned


def _words_of(text: str, pattern: re.Pattern[str]) -> Iterator[list[_Part]]:
    """Divide each word of a text into parts inside and outside of the matches of `pattern`."""
    atoms = deque(pattern.finditer(text))
    for word in re.finditer(r"\S+", text):
        parts = []
        start = word.start()
        while start < word.end():
            atom = atoms[0] if atoms else None
            if atom is None or word.end() <= atom.start():
                end = word.end()
                parts.append(_Part(text[start:end]))
            elif start < atom.start():
                end = atom.start()
                parts.append(_Part(text[start:end]))
            else:
                end = min(atom.end(), word.end())
                parts.append(_Part(text[start:end], atom=atom[0], begins_atom=atom.start() == start))
                if atom.end() <= word.end():
                    atoms.popleft()
            start = end
        yield parts


def _pattern_of(atoms: Iterable[str]) -> re.Pattern[str]:
    """Return a regular expression that matches each text in `atoms` and each placeholder."""
    literals = sorted(map(re.escape, atoms), key=len, reverse=True)
    return re.compile("|".join([*literals, PLACEHOLDER.pattern]), re.VERBOSE)


def _units_of_chunk(chunk: str, source: Sequence[Unit], aligned: Sequence[int]) -> list[Unit]:
    """Divide a target word, such as '(house)', into `Unit` objects: punctuation, words and unchangeable
    parts. `aligned` contains the indices in `source` of the units that are aligned with the target word.
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
