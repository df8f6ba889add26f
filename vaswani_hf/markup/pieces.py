"""Defines `Passage` and `Piece`, into which the formats divide a document, and divides texts into pieces."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Piece:
    """A text, a tag, a break or a protected part of a passage. A protected part is a part that the
    translation must not change, such as a placeholder, an image or code.

    Attributes:
        kind (str): "text" (translated), "protected" (an unchangeable part), "open" or "close" (a tag), or
            "break" (a part that is copied and ends a sentence, such as a line break).
        raw (str): The piece as the document contains it, such as `<b>` or `R&amp;D`.
        text (str): The text that the model receives; empty for tags, breaks, and unchangeable parts without
            text, such as images.
        name (str): The name of a tag. A closing tag belongs to the nearest opening tag with the same name.
    """

    kind: Literal["text", "protected", "open", "close", "break"]
    raw: str = ""
    text: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """A section of a document, such as a paragraph. `escape` converts a translated text to the format of the
    document. For example, `escape` replaces `<` by `&lt;` in HTML. If the model cannot translate a sentence,
    the sentence stays untranslated. If `is_indivisible` is True and the model cannot translate a sentence,
    the translation of the whole passage is an empty text.
    """

    pieces: list[Piece]
    escape: Callable[[str], str] = str
    is_indivisible: bool = False


def plain_text(raw: str) -> Piece:
    """Convert a text of the document to a `Piece`. The model receives the text unchanged."""
    return Piece("text", raw, raw)


def protected_piece(raw: str) -> Piece:
    """Convert an unchangeable part of the document, such as a placeholder, to a `Piece`. The model receives
    the part unchanged.
    """
    return Piece("protected", raw, raw)


def tag_piece(raw: str, name: str) -> Piece:
    """Convert a tag to a `Piece`. The brackets of the tag can be written as `&lt;` and `&gt;`. A tag without
    a closing tag, such as `<x/>`, is a protected part.
    """
    tag = raw.replace("&lt;", "<").replace("&gt;", ">")
    if tag.endswith("/>"):
        return Piece("protected", raw)
    return Piece("close" if tag.startswith("</") else "open", raw, name=name)


def divide_text(
    text: str,
    pattern: re.Pattern[str],
    piece_of_match: Callable[[re.Match[str]], Piece | None],
    piece_of_text: Callable[[str], Piece] = plain_text,
) -> list[Piece]:
    """Divide a text into pieces. `piece_of_match` converts each match of `pattern`, and `piece_of_text`
    converts the texts before, between and after the matches. If `piece_of_match` returns None, the matched
    characters remain a part of the surrounding text.
    """
    pieces = []
    end = 0
    for match in pattern.finditer(text):
        piece = piece_of_match(match)
        if piece is None:
            continue
        if end < match.start():
            pieces.append(piece_of_text(text[end : match.start()]))
        pieces.append(piece)
        end = match.end()
    if end < len(text):
        pieces.append(piece_of_text(text[end:]))
    return pieces
