"""Parses texts that may contain tags but are not HTML documents: subtitles and messages of programs."""

import re

from .passages import Passage, Piece
from .placeholders import PLACEHOLDER

_TAG = r"<(?P<slash>/?)(?P<name>[A-Za-z][\w:-]*)(?:\s[^<>]*|/)?>"
_PART = re.compile(
    rf"(?P<break>\n)|{_TAG}|(?P<atom>{PLACEHOLDER.pattern}|&(?:\#\d+|\#[xX][0-9a-fA-F]+|[A-Za-z]\w*);)",
    re.VERBOSE,
)


def tagged_passage(text: str) -> Passage:
    """Divide a text into translatable texts, tags, line breaks and unchangeable parts (atoms), such as
    placeholders. Character references, such as `&amp;`, are atoms.
    """
    pieces = []
    end = 0
    for match in _PART.finditer(text):
        if match.start() > end:
            pieces.append(_text(text[end : match.start()]))
        raw = match[0]
        name = (match["name"] or "").lower()
        if match["break"] or name == "br":
            pieces.append(Piece("break", raw))
        elif match["atom"]:
            pieces.append(Piece("atom", raw, raw))
        elif raw.endswith("/>"):
            pieces.append(Piece("atom", raw))
        else:
            pieces.append(Piece("close" if match["slash"] else "open", raw, name=name))
        end = match.end()
    if end < len(text):
        pieces.append(_text(text[end:]))
    return Passage(pieces, _without_tags)


def _text(raw: str) -> Piece:
    return Piece("text", raw, raw)


def _without_tags(text: str) -> str:
    """Remove "<" from a translated text, because the model must not add tags to the translation."""
    return text.replace("<", "")
