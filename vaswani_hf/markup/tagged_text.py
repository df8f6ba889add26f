"""Translates texts that may contain tags but are not HTML documents: subtitles and messages of programs."""

import re
from collections import Counter
from collections.abc import Sequence

from .passages import Passage, Piece, TranslateSentences, translate_passages
from .placeholders import PLACEHOLDER, STATEMENT

_LINE_MARK = r"(?m:^[-–—]\ +|^[♪♫]+\ *|\ *[♪♫]+$)"
_TAG = r"<(?P<slash>/?)(?P<name>[A-Za-z][\w:-]*)(?:\s[^<>]*|/)?>"
# A "break" is copied unchanged: template statements, line breaks, tabs, white space at both ends of a text, a
# dash at the start of a line, and musical notes at both ends of a line. The alternative `<\d*` matches a "<"
# that does not begin a tag, as in "I <3 you".
_PART = re.compile(
    rf"(?P<break>{STATEMENT.pattern}|[\n\t]|\A\s+|\s+\Z|{_LINE_MARK})|{_TAG}|(?P<atom>{PLACEHOLDER.pattern}|&(?:\#\d+|\#[xX][0-9a-fA-F]+|[A-Za-z]\w*);|<\d*|[♪♫]+)",
    re.VERBOSE,
)


def translate_tagged_texts(texts: Sequence[str], translate: TranslateSentences) -> list[str]:
    """Translate each text. If the tags change, because the model has written a tag, keep the source text."""
    translations = translate_passages([_passage(text) for text in texts], translate)
    return [
        translation if _tags(translation) == _tags(text) else text
        for text, translation in zip(texts, translations, strict=True)
    ]


def _tags(text: str) -> Counter[str]:
    return Counter(match[0] for match in re.finditer(_TAG, text))


def _passage(text: str) -> Passage:
    """Divide a text into texts, tags, breaks and unchangeable parts, such as placeholders and `&amp;`."""
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
    return Passage(pieces)


def _text(raw: str) -> Piece:
    return Piece("text", raw, raw)
