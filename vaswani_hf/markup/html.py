"""Translates HTML. Two parts of a document are translated: the text between tags, and the values of some
attributes, such as `alt`. All other characters are copied unchanged.
"""

import re
from collections.abc import Sequence
from html import escape, unescape
from html.parser import HTMLParser
from unicodedata import category

from .passages import Passage, Piece, TranslateSentences, join_parts
from .placeholders import PLACEHOLDER

# The inline elements of HTML, such as `<b>`. An inline element is a part of a sentence; any other element
# begins a new passage.
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark q s small span strike "
    "strong sub sup time tt u wbr code kbd samp var br".split()
)
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
# The elements, such as `<script>`, whose content is not translated.
_OPAQUE = frozenset(
    "script style textarea pre code kbd samp var svg math template object sub sup iframe noembed noframes xmp plaintext".split()
)
_TRANSLATED_ATTRIBUTES = frozenset(("alt", "title", "placeholder", "aria-label"))
_ATTRIBUTE = re.compile(r"""[\s/]+([^\s/>=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
_REFERENCE = re.compile(r"&(?:\#\d+|\#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
_ATOM = re.compile(f"{PLACEHOLDER.pattern}|(?P<reference>{_REFERENCE.pattern})", re.VERBOSE)


def translate_html(text: str, translate: TranslateSentences) -> str:
    """Return the translation of an HTML document."""
    (translation,) = translate_html_documents([text], translate)
    return translation


def translate_html_documents(texts: Sequence[str], translate: TranslateSentences) -> list[str]:
    """Return the translation of each HTML document. `translate` is called with the sentences of all documents
    at once, so that sentences of several documents share batches.
    """
    texts = join_parts([_Reader(text).attribute_parts() for text in texts], translate)
    return join_parts([_Reader(text).text_parts() for text in texts], translate)


class _Reader(HTMLParser):
    """Parses an HTML document, and records the offset of each tag and of each text between tags."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self._text = text
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        # The tags, texts and comments of the document, called events. Each event is a tuple (offset in the
        # document, kind, name of the tag).
        self._events: list[tuple[int, str, str]] = []
        # The indices in `_events` of the opening tags whose elements, such as `<pre>`, are not translated.
        self._kept: set[int] = set()
        self.feed(text)
        self.close()
        self._events.append((len(text), "end", ""))

    def _add(self, kind: str, name: str = "") -> None:
        line, column = self.getpos()
        self._events.append((self._line_starts[line - 1] + column, kind, name))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_kept = values.get("translate") == "no" or "notranslate" in (values.get("class") or "").split()
        if is_kept or tag in _OPAQUE:
            self._kept.add(len(self._events))
        self._add("open", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("single", tag)

    def handle_endtag(self, tag: str) -> None:
        self._add("close", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("comment")

    def handle_decl(self, decl: str) -> None:
        self._add("declaration")

    def handle_pi(self, data: str) -> None:
        self._add("declaration")

    def unknown_decl(self, data: str) -> None:
        self._add("declaration")

    def _elements(self) -> "list[tuple[str, str, str, bool]]":
        """Return a tuple (kind, name, source code, False) for each tag and each text, but only one tuple
        (kind, name, source code, True) for an element whose content is not translated.
        """
        found = []
        i = 0
        while i < len(self._events) - 1:
            start, kind, name = self._events[i]
            is_kept = i in self._kept
            stop = self._end_of_element(i) if is_kept else i + 1
            found.append((kind, name, self._text[start : self._events[stop][0]], is_kept))
            i = stop
        return found

    def _end_of_element(self, i: int) -> int:
        """Return the index of the first event (tag, text or comment) after the element that begins at the
        event `i`. If the element has no end tag, an inline element ends at the next tag of a block, and a
        block ends at the end of the document.
        """
        name = self._events[i][2]
        if name in _VOID:
            return i + 1
        depth = 0
        for j in range(i, len(self._events) - 1):
            _, kind, other = self._events[j]
            if other == name:
                depth += (kind == "open") - (kind == "close")
            if depth == 0:
                return j + 1
            if name in _INLINE and other and other not in _INLINE:
                return j
        return len(self._events) - 1

    def attribute_parts(self) -> list[str | Passage]:
        """Divide the document into parts, with a `Passage` for the value of each attribute that is
        translated.
        """
        parts: list[str | Passage] = []
        for kind, _, raw, is_kept in self._elements():
            end = 0
            if kind in {"open", "single"} and not is_kept:
                for match in _ATTRIBUTE.finditer(raw):
                    if match[2] and match[1].lower() in _TRANSLATED_ATTRIBUTES:
                        parts += [raw[end : match.start(2)], '"']
                        value = match[2].strip(match[2][0]) if match[2][0] in "\"'" else match[2]
                        parts += [Passage(text_pieces(value), escape), '"']
                        end = match.end()
            parts.append(raw[end:])
        return parts

    def text_parts(self) -> list[str | Passage]:
        """Divide the document into parts, with a `Passage` for each text between the tags of blocks."""
        parts: list[str | Passage] = []
        pieces: list[Piece] = []
        for kind, name, raw, is_kept in self._elements():
            if kind == "text":
                pieces += text_pieces(raw)
            elif kind == "comment" or (name in _INLINE and (is_kept or name in _VOID)):
                is_break = name == "br"
                pieces.append(Piece("break" if is_break else "atom", raw, _text_of_code(name, raw)))
            elif name in _INLINE:
                pieces.append(Piece("atom" if kind == "single" else kind, raw, name=name))  # type: ignore[arg-type]
            else:
                parts += [*_stripped(pieces), raw]
                pieces = []
        return parts + _stripped(pieces)


def _text_of_code(name: str, raw: str) -> str:
    """Return the text between the tags of an inline code element, if this text is one word. The word is part
    of the sentence that the model receives, so that the model can copy the word into the translation. Return
    an empty text for all other elements.
    """
    match = re.fullmatch(r"<[^>]*>([^<>\s]+)<[^<>]*>", raw)
    return unescape(match[1]) if match and name in _OPAQUE - {"sub", "sup"} else ""


def _escape_text(text: str) -> str:
    return escape(text, quote=False)


def _stripped(pieces: list[Piece]) -> list[str | Passage]:
    """Return three parts: the white space before a passage, the passage without this white space, and the
    white space after the passage.
    """
    pieces = [*pieces]
    before = after = ""
    if pieces and pieces[0].kind == "text":
        raw = pieces[0].raw
        before = raw[: len(raw) - len(raw.lstrip())]
        pieces[0] = Piece("text", raw.lstrip(), pieces[0].text.lstrip())
    if pieces and pieces[-1].kind == "text":
        raw = pieces[-1].raw
        after = raw[len(raw.rstrip()) :]
        pieces[-1] = Piece("text", raw.rstrip(), pieces[-1].text.rstrip())
    return [before, Passage(pieces, _escape_text), after]


def text_pieces(raw: str) -> list[Piece]:
    """Divide an HTML text without tags into two kinds of pieces: texts and unchangeable parts. The texts are
    translated. An unchangeable part, such as a placeholder, is copied into the translation.
    """
    pieces = []
    end = 0
    for match in _ATOM.finditer(raw):
        reference = match["reference"]
        if reference is not None:
            character = unescape(reference)
            if character != "&" and not category(character[0]).startswith("S"):
                # A character reference for a letter, white space or punctuation, such as `&auml;`, is not
                # an unchangeable part: the character is translated with the text around the character.
                continue
        pieces += [_text_piece(raw[end : match.start()]), Piece("atom", match[0], unescape(match[0]))]
        end = match.end()
    pieces.append(_text_piece(raw[end:]))
    return [piece for piece in pieces if piece.raw]


def _text_piece(raw: str) -> Piece:
    return Piece("text", raw, re.sub(r"\s+", " ", unescape(raw)))
