"""Divides texts between the tags of HTML and Markdown into pieces, and writes character references such as
`&nbsp;`.
"""

import re
from collections.abc import Sequence
from html import unescape
from string import ascii_letters, digits, whitespace
from unicodedata import category

from .pieces import Piece, divide_text, tag_piece
from .placeholders import NUMBERED_TAG, PLACEHOLDER, REFERENCE, STATEMENT

_PROTECTED = re.compile(
    rf"(?P<statement>{STATEMENT.pattern})|{NUMBERED_TAG.pattern}|{PLACEHOLDER.pattern}"
    rf"|(?P<reference>{REFERENCE.pattern})",
    re.VERBOSE,
)


def text_pieces(raw: str) -> list[Piece]:
    """Divide a text into texts, breaks, protected parts (such as placeholders) and numbered tags,
    such as `<0>`. The text `raw` contains no HTML tags.
    """
    return divide_text(raw, _PROTECTED, _piece_of_match, _piece_of_text)


def _piece_of_match(match: re.Match[str]) -> Piece | None:
    raw = match[0]
    if match["reference"] and not _is_symbol(unescape(raw)):
        # A character reference for a letter, white space or punctuation, such as `&auml;`, is a part of the
        # text. The text of an invalid character reference, such as `&#1;`, is empty.
        return None
    if match["statement"]:
        return Piece("break", raw)
    if match["number"]:
        return tag_piece(raw, match["number"])
    return Piece("protected", raw, unescape(raw))


def _is_symbol(text: str) -> bool:
    return text == "&" or any(category(character).startswith("S") for character in text)


def _piece_of_text(raw: str) -> Piece:
    """Convert each sequence of ASCII white space to one space. Other white space does not change."""
    return Piece("text", raw, re.sub(r"\s+", " ", unescape(raw), flags=re.ASCII))


def references_of(pieces: Sequence[Piece]) -> dict[str, str]:
    """Map each character that the texts in `pieces` contain only as a character reference, such as `&nbsp;`,
    to the reference.
    """
    texts = [piece.raw for piece in pieces if piece.kind == "text"]
    references = {}
    for text in texts:
        references.update({unescape(reference): reference for reference in REFERENCE.findall(text)})
    characters = {*REFERENCE.sub("", "".join(texts)), *ascii_letters, *digits, *whitespace}
    return {
        character: reference
        for character, reference in references.items()
        if len(character) == 1 and character not in characters
    }


def divide_outer_space(pieces: Sequence[Piece]) -> tuple[str, list[Piece], str]:
    """Separate the white space at both ends of a passage from the content of the passage. Return the source
    code of the white space before the content, the pieces of the content, and the source code of the white
    space after the content. The white space can contain character references, such as `&nbsp;`.
    """
    content = [*pieces]
    before = after = ""
    while content and content[0].kind == "text":
        first = content.pop(0)
        start, _ = _visible_range(first.raw)
        before += first.raw[:start]
        if start < len(first.raw):
            content.insert(0, Piece("text", first.raw[start:], first.text.lstrip()))
            break
    while content and content[-1].kind == "text":
        last = content.pop()
        _, end = _visible_range(last.raw)
        after = last.raw[end:] + after
        if end > 0:
            content.append(Piece("text", last.raw[:end], last.text.rstrip()))
            break
    return before, content, after


def _visible_range(raw: str) -> tuple[int, int]:
    """Return the offset of the first visible character (not white space) in a text, and the offset after the
    last visible character. If all characters are white space, return the length of the text, and 0.
    """
    characters = re.finditer(rf"{REFERENCE.pattern}|.", raw, flags=re.DOTALL)
    visible = [match.span() for match in characters if not unescape(match[0]).isspace()]
    return (visible[0][0], visible[-1][1]) if visible else (len(raw), 0)
