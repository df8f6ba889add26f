"""Translates HTML: the text between tags, and some attributes, such as `alt`. The rest of the document is
copied unchanged.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from html.parser import HTMLParser
from itertools import chain
from typing import Literal

from .html_text import divide_outer_space, references_of, text_pieces
from .passages import TranslateSentences, join_parts
from .pieces import Passage, Piece
from .placeholders import NUMBERED_TAG, TEMPLATE

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

# The sections `<![CDATA[...]]>` and the conditional comments of old browsers, such as `<![if IE]>`.
_KNOWN_SECTION = re.compile(r"<!\[(?:cdata|if|else|endif)(?![-_.a-z0-9])", re.IGNORECASE)

_Kind = Literal["open", "close", "single", "text", "comment", "declaration"]


def translate_html_documents(texts: Sequence[str], translate: TranslateSentences) -> list[str]:
    """Translate several HTML documents together, so that the sentences of all documents share batches."""
    documents = [_with_joined_elements(_tokens_of(text)) for text in texts]
    _translate_attributes(documents, translate)
    return join_parts([_text_parts(tokens) for tokens in documents], translate)


def _translate_attributes(documents: Sequence[Sequence["_Token"]], translate: TranslateSentences) -> None:
    """Replace the source code of each tag by the tag with translated attribute values."""
    tokens = chain.from_iterable(documents)
    tags = [token for token in tokens if token.kind in {"open", "single"} and not token.is_kept]
    translations = join_parts([_attribute_parts(tag.raw) for tag in tags], translate)
    for tag, translation in zip(tags, translations, strict=True):
        tag.raw = translation


def _attribute_parts(tag: str) -> list[str | Passage]:
    """Divide a tag into parts. Each attribute value to translate is a `Passage`."""
    parts: list[str | Passage] = []
    end = 0
    for match in _ATTRIBUTE.finditer(tag):
        name, value = match.groups()
        if value is None or name.lower() not in _TRANSLATED_ATTRIBUTES:
            continue
        # Keep the quotation marks of the source, because the copied parts of the value can contain the other
        # quotation mark.
        quote = '"'
        if value[0] in "\"'":
            quote = value[0]
            value = value[1:-1]
        parts += [tag[end : match.start(2)], quote]
        parts += [*_passage_parts(text_pieces(value), quote), quote]
        end = match.end()
    return [*parts, tag[end:]]


def _text_parts(tokens: Sequence["_Token"]) -> list[str | Passage]:
    """Divide a document into parts, with a `Passage` for each text between the tags of block elements, such
    as `<p>`.
    """
    parts: list[str | Passage] = []
    pieces: list[Piece] = []
    for token in tokens:
        if NUMBERED_TAG.fullmatch(token.raw) or (token.kind == "text" and not token.is_kept):
            # Pass each numbered tag to `text_pieces`, because `HTMLParser` reads the numbered tag `</0>` as a
            # comment.
            pieces += text_pieces(token.raw)
        elif token.is_inline:
            pieces.append(_inline_piece(token))
        else:
            parts += [*_passage_parts(pieces), token.raw]
            pieces = []
    return parts + _passage_parts(pieces)


def _inline_piece(token: "_Token") -> Piece:
    """Create the `Piece` for an inline tag, an untranslated inline element or a comment."""
    if token.name == "br":
        return Piece("break", token.raw)
    if not token.is_kept and token.name not in VOID and token.kind in {"open", "close"}:
        return Piece(token.kind, token.raw, name=token.name)
    return Piece("protected", token.raw, text_of_code(token.name, token.raw))


def _passage_parts(pieces: Sequence[Piece], quote: str = "") -> list[str | Passage]:
    """Return the white space before a passage, the passage, and the white space after the passage."""
    before, content, after = divide_outer_space(pieces)
    return [before, Passage(content, _escape_function(content, quote)), after]


def _escape_function(pieces: Sequence[Piece], quote: str) -> Callable[[str], str]:
    """Return a function that escapes a translation, and writes the same character references as the source
    text, such as `&nbsp;`.
    """
    references = {character: escape(character) for character in f"&<>{quote}"} | references_of(pieces)
    table = str.maketrans(references)
    return lambda text: text.translate(table)


def text_of_code(name: str, raw: str) -> str:
    """Return the content of an element such as `<code>` if the content is one word, so that the model can
    copy the word. If the content is not one word, return an empty text. Also return an empty text for
    `<sub>`, `<sup>` and elements that are not in `_OPAQUE`.
    """
    match = re.fullmatch(r"<[^>]*>([^<>\s]+)<[^<>]*>", raw)
    return unescape(match[1]) if match and name in _OPAQUE - {"sub", "sup"} else ""


def visible_text(document: str) -> str:
    """Return the translated text between the tags of an HTML document, without the values of attributes."""
    tokens = _tokens_of(document)
    text = " ".join(token.raw for token in tokens if token.kind == "text" and not token.is_kept)
    return " ".join(unescape(text).split())


def keeps_content(tag: str) -> bool:
    """Return True if the opening tag `tag` excludes the content of its element from translation."""
    tokens = _Tokenizer(tag).tokens
    return bool(tokens) and tokens[0].keeps_content is True


def are_kept(parts: Sequence[str]) -> list[bool]:
    """Return for each part of an HTML document whether the part begins inside an untranslated element."""
    tokens = _tokens_of("".join(parts))
    starts = [token.start for token in tokens]
    found = []
    offset = 0
    for part in parts:
        i = bisect_right(starts, offset) - 1
        found.append(i >= 0 and tokens[i].is_kept)
        offset += len(part)
    return found


@dataclass(slots=True)
class _Token:
    """A tag, a text, a comment, or an untranslated element of an HTML document.

    Attributes:
        kind (str): "open", "close" or "single" (a tag such as `<br/>`), "text", "comment" or "declaration".
            For an untranslated element, `kind` is the kind of its first tag.
        start (int): The offset of the token in the document.
        name (str): The name of a tag. For an untranslated element, `name` is the name of its first tag.
        raw (str): The source code of the token.
        keeps_content (bool, optional): True for an opening tag that excludes its element from translation;
            False for an opening tag with `translate="yes"`; None if the element inherits the value from its
            parent.
        is_kept (bool): True if the token is not translated.
        end (int): For an opening tag, the index of the first token after the element. For a token that is no
            opening tag, the index of the next token.
        is_closed (bool): False for an opening tag without end tag.
        is_whole (bool): False for a part of an untranslated element. A part of an untranslated element has no
            end tag, or precedes or follows an inner element with `translate="yes"`.
    """

    kind: _Kind
    start: int
    name: str = ""
    raw: str = ""
    keeps_content: bool | None = None
    is_kept: bool = False
    end: int = 0
    is_closed: bool = True
    is_whole: bool = True

    @property
    def is_inline(self) -> bool:
        """True if the token is a part of a sentence. A token that is not inline begins a new passage."""
        if self.is_kept:
            return self.is_whole and self.name in _INLINE
        return self.kind == "comment" or self.name in _INLINE


def _tokens_of(document: str) -> list[_Token]:
    """Divide a document into tags, texts and comments."""
    tokens = _Tokenizer(document).tokens
    _set_ends(tokens)
    _set_is_kept(tokens)
    return tokens


class _Tokenizer(HTMLParser):
    """Divides an HTML document into tags, texts and comments."""

    def __init__(self, document: str):
        super().__init__(convert_charrefs=True)
        self.tokens: list[_Token] = []
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", document))]
        # Replace template code, such as `<%= "<b>" %>`, by letters X, because tags inside template code are
        # not tags of the document.
        self.feed(TEMPLATE.sub(lambda match: re.sub(r"[^\n]", "X", match[0]), document))
        if self.rawdata.startswith("<"):
            # If the document ends inside a tag or a comment, copy the incomplete tag or comment, because
            # `HTMLParser.close` would interpret the incomplete tag or comment as text.
            self.tokens.append(_Token("declaration", start=len(document) - len(self.rawdata)))
        else:
            self.close()
        end = len(document)
        for token in reversed(self.tokens):
            token.raw = document[token.start : end]
            end = token.start

    def _add(self, kind: _Kind, name: str = "", keeps_content: bool | None = None) -> None:
        line, column = self.getpos()
        start = self._line_starts[line - 1] + column
        self.tokens.append(_Token(kind, start=start, name=name, keeps_content=keeps_content))

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Read an unknown section, such as `<![CD>`, as a comment, because browsers do so. For a section such
        as `<![CD>`, `HTMLParser` raises an AssertionError.
        """
        if _KNOWN_SECTION.match(self.rawdata, i):
            return super().parse_marked_section(i, report)
        return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add_tag("open", tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add_tag("single", tag, attrs)

    def _add_tag(self, kind: _Kind, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        translate = values.get("translate", "inherit").lower()
        keeps_content = None
        if tag in self.CDATA_CONTENT_ELEMENTS or translate == "no":
            keeps_content = True
        elif translate in {"yes", ""}:
            keeps_content = False
        elif tag in _OPAQUE or "notranslate" in values.get("class", "").split():
            keeps_content = True
        self._add(kind, tag, keeps_content)

    def handle_endtag(self, tag: str) -> None:
        self._add("close", tag)

    def handle_data(self, data: str) -> None:
        if not self.tokens or self.tokens[-1].kind != "text":
            self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("comment")

    def handle_decl(self, decl: str) -> None:
        self._add("declaration")

    def handle_pi(self, data: str) -> None:
        self._add("declaration")

    def unknown_decl(self, data: str) -> None:
        self._add("declaration")


def _set_ends(tokens: Sequence[_Token]) -> None:
    """Set `end` and `is_closed` of each token. Without an end tag, an inline element ends at the next tag of
    a block element, and a block element ends at the end of its parent.
    """
    last = len(tokens)
    open_tags: list[_Token] = []
    num_open: Counter[str] = Counter()
    for i, token in enumerate(tokens):
        token.end = i + 1
        if token.name and token.name not in _INLINE:
            _end_inline_elements(open_tags, i, last)
        if token.kind == "open" and token.name not in VOID:
            open_tags.append(token)
            num_open[token.name] += 1
            token.end = last
            token.is_closed = False
        elif token.kind == "close" and num_open[token.name]:
            opening = open_tags.pop()
            while opening.name != token.name:
                # The end tag of an element also ends all open elements inside the element.
                opening.end = min(opening.end, i)
                num_open[opening.name] -= 1
                opening = open_tags.pop()
            num_open[opening.name] -= 1
            opening.end = i + 1
            opening.is_closed = True


def _end_inline_elements(open_tags: Sequence[_Token], i: int, last: int) -> None:
    """End the innermost inline elements before token `i`, a tag of a block element."""
    for opening in reversed(open_tags):
        if opening.name not in _INLINE or opening.end < last:
            break
        opening.end = i


def _set_is_kept(tokens: Sequence[_Token]) -> None:
    # The pairs (`end`, `keeps_content`) of the document, and of all elements around the current token that
    # set `keeps_content`.
    elements = [(len(tokens), False)]
    for i, token in enumerate(tokens):
        while i >= elements[-1][0]:
            elements.pop()
        if token.keeps_content is not None:
            elements.append((min(token.end, elements[-1][0]), token.keeps_content))
        token.is_kept = elements[-1][1]


def _with_joined_elements(tokens: Sequence[_Token]) -> list[_Token]:
    """Join the tokens of each untranslated element to one token. The joined token ends before an inner
    element with `translate="yes"`. The part of the untranslated element after
    the inner element is a second joined token.
    """
    joined = []
    i = 0
    while i < len(tokens):
        first = tokens[i]
        end = i + 1
        if first.is_kept:
            begins_element = first.keeps_content is not None
            limit = first.end if begins_element else len(tokens)
            while end < limit and tokens[end].is_kept:
                end += 1
            first.raw = "".join(token.raw for token in tokens[i:end])
            first.is_whole = begins_element and first.is_closed and end == limit
        joined.append(first)
        i = end
    return joined
