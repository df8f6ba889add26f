"""Translates HTML: the text between tags, and some attributes, such as `alt`. All other characters are
copied.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape, unescape
from html.parser import HTMLParser
from string import ascii_letters, digits, whitespace
from unicodedata import category

from .passages import TranslateSentences, join_parts
from .pieces import Passage, Piece
from .placeholders import NUMBERED_TAG, PLACEHOLDER, STATEMENT, TEMPLATE

# An inline element is a part of a sentence. An element that is not inline begins a new passage.
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins label mark q s small span strike "
    "strong sub sup time tt u wbr code kbd samp var br".split()
)
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
# The elements, such as `<code>`, whose content is not translated.
_OPAQUE = frozenset(
    "script style textarea pre code kbd samp var svg math template object sub sup iframe noembed noframes xmp plaintext".split()
)
_TRANSLATED_ATTRIBUTES = frozenset(("alt", "title", "placeholder", "aria-label"))
_ATTRIBUTE = re.compile(r"""[\s/]+([^\s/>=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+))?""")
_REFERENCE = re.compile(r"&(?:\#\d+|\#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
_ATOM = re.compile(
    rf"(?P<statement>{STATEMENT.pattern})|{NUMBERED_TAG.pattern}|{PLACEHOLDER.pattern}"
    rf"|(?P<reference>{_REFERENCE.pattern})",
    re.VERBOSE,
)


def translate_html(text: str, translate: TranslateSentences) -> str:
    """Return the translation of an HTML document."""
    (translation,) = translate_html_documents([text], translate)
    return translation


def translate_html_documents(texts: Sequence[str], translate: TranslateSentences) -> list[str]:
    """Translate several documents together, so that the sentences of all documents share batches."""
    texts = join_parts([_Reader(text).attribute_parts() for text in texts], translate)
    return join_parts([_Reader(text).text_parts() for text in texts], translate)


class _Reader(HTMLParser):
    """Parses an HTML document, and records the offset of each tag and of each text between tags."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self._text = text
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        # The tags, texts and comments: tuples (offset in the document, kind, name of the tag).
        self._events: list[tuple[int, str, str]] = []
        # Each key is the index of an opening tag in `_events`. True means that the element is not translated.
        # False means that the element has `translate="yes"`. If an element inherits the setting `translate`
        # of its parent, the dict has no entry for the element.
        self.is_kept: dict[int, bool] = {}
        # Tags inside a template, such as `<%= "<b>" %>`, are not tags of the document.
        self.feed(TEMPLATE.sub(lambda match: re.sub(r"[^\n]", "X", match[0]), text))
        if self.rawdata.startswith("<"):
            # The document ends inside a tag or a comment. `HTMLParser.close` would interpret the incomplete
            # tag or comment as text.
            self._events.append((len(text) - len(self.rawdata), "declaration", ""))
        else:
            self.close()
        self._events.append((len(text), "end", ""))

    def _add(self, kind: str, name: str = "") -> None:
        line, column = self.getpos()
        self._events.append((self._line_starts[line - 1] + column, kind, name))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        translate = (values.get("translate") or "").lower() if "translate" in values else None
        if tag in self.CDATA_CONTENT_ELEMENTS or translate == "no":
            self.is_kept[len(self._events)] = True
        elif translate in {"yes", ""}:
            self.is_kept[len(self._events)] = False
        elif tag in _OPAQUE or "notranslate" in (values.get("class") or "").split():
            self.is_kept[len(self._events)] = True
        self._add("open", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("single", tag)

    def handle_endtag(self, tag: str) -> None:
        self._add("close", tag)

    def handle_data(self, data: str) -> None:
        if not self._events or self._events[-1][1] != "text":
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
        """Return a tuple (kind, name, source code, False) for each tag and each text, and a tuple (kind,
        name, source code, True) for an element that is not translated. The name of an untranslated element is
        empty if the element has no end tag, or contains another element with `translate="yes"`.
        """
        ends, are_closed = self._ends()
        last = len(self._events) - 1
        is_kept = [False] * last
        stack = [(last, False)]
        for i in range(last):
            while i >= stack[-1][0]:
                stack.pop()
            if i in self.is_kept:
                stack.append((min(ends[i], stack[-1][0]), self.is_kept[i]))
            is_kept[i] = stack[-1][1]
        found = []
        i = 0
        while i < last:
            start, kind, name = self._events[i]
            stop = i + 1
            if is_kept[i]:
                limit = ends[i] if i in self.is_kept else last
                while stop < limit and is_kept[stop]:
                    stop += 1
                if i not in self.is_kept or stop != limit or not are_closed[i]:
                    name = ""
            found.append((kind, name, self._text[start : self._events[stop][0]], is_kept[i]))
            i = stop
        return found

    def _ends(self) -> tuple[list[int], list[bool]]:
        """Return two lists, `ends` and `are_closed`, with one element for each event (a tag, a text or a
        comment). If event `i` is an opening tag, `ends[i]` is the index of the first event after the element.
        `are_closed[i]` is False if the element has no end tag. For texts, end tags and void elements, such as
        `<br>`, `ends[i]` is i + 1, and `are_closed[i]` is True. Without an end tag, an inline element ends at
        the next tag of a block element, and a block element ends at the end of its parent.
        """
        last = len(self._events) - 1
        ends = [i + 1 for i in range(last)]
        are_closed = [True] * last
        open_tags: list[int] = []
        num_open: Counter[str] = Counter()
        for i in range(last):
            _, kind, name = self._events[i]
            if name and name not in _INLINE:
                for j in reversed(open_tags):
                    if self._events[j][2] not in _INLINE or ends[j] < last:
                        break
                    ends[j] = i
            if kind == "open" and name not in VOID:
                open_tags.append(i)
                num_open[name] += 1
                ends[i] = last
                are_closed[i] = False
            elif kind == "close" and num_open[name]:
                while True:
                    j = open_tags.pop()
                    other = self._events[j][2]
                    num_open[other] -= 1
                    if other == name:
                        break
                    ends[j] = min(ends[j], i)
                ends[j] = i + 1
                are_closed[j] = True
        return ends, are_closed

    def attribute_parts(self) -> list[str | Passage]:
        """Divide the document into parts, with a `Passage` for each translated attribute value."""
        parts: list[str | Passage] = []
        for kind, _, raw, is_kept in self._elements():
            end = 0
            if kind in {"open", "single"} and not is_kept:
                for match in _ATTRIBUTE.finditer(raw):
                    if match[2] and match[1].lower() in _TRANSLATED_ATTRIBUTES:
                        parts += [raw[end : match.start(2)], '"']
                        value = match[2].strip(match[2][0]) if match[2][0] in "\"'" else match[2]
                        parts += [*_passage_parts(text_pieces(value), quotes="\"'"), '"']
                        end = match.end()
            parts.append(raw[end:])
        return parts

    def text_parts(self) -> list[str | Passage]:
        """Divide the document into parts, with a `Passage` for each text between the tags of blocks."""
        parts: list[str | Passage] = []
        pieces: list[Piece] = []
        for kind, name, raw, is_kept in self._elements():
            if (kind == "text" and not is_kept) or NUMBERED_TAG.fullmatch(raw):
                # The parser of HTML reads the numbered tag `</0>` as a comment.
                pieces += text_pieces(raw)
            elif (kind == "comment" and not is_kept) or (name in _INLINE and (is_kept or name in VOID)):
                is_break = name == "br"
                pieces.append(Piece("break" if is_break else "atom", raw, text_of_code(name, raw)))
            elif name in _INLINE:
                pieces.append(Piece("atom" if kind == "single" else kind, raw, name=name))  # type: ignore[arg-type]
            else:
                parts += [*_passage_parts(pieces), raw]
                pieces = []
        return parts + _passage_parts(pieces)


def keeps_content(tag: str) -> bool:
    """Return True if the content of the element that begins with the given tag is not translated."""
    return _Reader(tag).is_kept.get(0, False)


def text_of_code(name: str, raw: str) -> str:
    """Return the text of an inline code element if the text is one word, so that the model can copy the word
    into the translation. Otherwise, return an empty text.
    """
    match = re.fullmatch(r"<[^>]*>([^<>\s]+)<[^<>]*>", raw)
    return unescape(match[1]) if match and name in _OPAQUE - {"sub", "sup"} else ""


def references_of(pieces: Sequence[Piece]) -> dict[str, str]:
    """Map each character that occurs only as a reference, such as `&nbsp;`, to the reference."""
    texts = [piece.raw for piece in pieces if piece.kind == "text"]
    references = {}
    for text in texts:
        references.update({unescape(reference): reference for reference in _REFERENCE.findall(text)})
    characters = {*_REFERENCE.sub("", "".join(texts)), *ascii_letters, *digits, *whitespace}
    return {
        character: reference
        for character, reference in references.items()
        if len(character) == 1 and character not in characters
    }


def _escape_function(pieces: Sequence[Piece], quotes: str = "") -> Callable[[str], str]:
    """Return a function that escapes a translation, and writes the same character references as the source
    text, such as `&nbsp;`.
    """
    references = {character: escape(character) for character in f"&<>{quotes}"} | references_of(pieces)
    table = {ord(character): reference for character, reference in references.items()}
    return lambda text: text.translate(table)


def _passage_parts(pieces: Sequence[Piece], quotes: str = "") -> list[str | Passage]:
    """Return the white space before a passage, the passage, and the white space after the passage."""
    before, inner, after = divide_outer_space(pieces)
    return [before, Passage(inner, _escape_function(inner, quotes)), after]


def divide_outer_space(pieces: Sequence[Piece]) -> tuple[str, list[Piece], str]:
    """Divide the pieces of a passage into outer white space and content. Return the source code of the white
    space before the content, the pieces of the content, and the source code of the white space after the
    content. The white space can contain character references, such as `&nbsp;`.
    """
    inner = [*pieces]
    before = after = ""
    while inner and inner[0].kind == "text":
        first = inner.pop(0)
        start, _ = _visible_range(first.raw)
        before += first.raw[:start]
        if start < len(first.raw):
            inner.insert(0, Piece("text", first.raw[start:], first.text.lstrip()))
            break
    while inner and inner[-1].kind == "text":
        last = inner.pop()
        _, end = _visible_range(last.raw)
        after = last.raw[end:] + after
        if end > 0:
            inner.append(Piece("text", last.raw[:end], last.text.rstrip()))
            break
    return before, inner, after


def _visible_range(raw: str) -> tuple[int, int]:
    """Return the offset of the first visible character (not white space) in a text, and the offset after the
    last visible character. If all characters are white space, the first offset is the length of the text, and
    the second offset is 0.
    """
    characters = re.finditer(rf"{_REFERENCE.pattern}|.", raw, flags=re.DOTALL)
    visible = [match.span() for match in characters if not unescape(match[0]).isspace()]
    return (visible[0][0], visible[-1][1]) if visible else (len(raw), 0)


def text_pieces(raw: str) -> list[Piece]:
    """Divide a text without HTML tags (for example the text between two tags) into translatable parts and
    unchangeable parts, such as placeholders.
    """
    pieces = []
    end = 0
    for match in _ATOM.finditer(raw):
        reference = match["reference"]
        if reference is not None:
            character = unescape(reference)
            if character != "&" and not category(character[0]).startswith("S"):
                # A character reference for a letter, white space or punctuation, such as `&auml;`, is a part
                # of the text.
                continue
        pieces.append(_text_piece(raw[end : match.start()]))
        if match["statement"]:
            pieces.append(Piece("break", match[0]))
        elif match["end"]:
            pieces.append(Piece("atom", match[0]))
        elif match["number"]:
            pieces.append(Piece("close" if match["slash"] else "open", match[0], name=match["number"]))
        else:
            pieces.append(Piece("atom", match[0], unescape(match[0])))
        end = match.end()
    pieces.append(_text_piece(raw[end:]))
    return [piece for piece in pieces if piece.raw]


def _text_piece(raw: str) -> Piece:
    """Convert a text without tags to a `Piece`. Each sequence of ASCII white space becomes one space. Other
    white space does not change.
    """
    return Piece("text", raw, re.sub(r"\s+", " ", unescape(raw), flags=re.ASCII))
