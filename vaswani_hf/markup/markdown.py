"""Translates Markdown (CommonMark with tables and strikethrough). The markup of a document is copied, and
only the text is translated.

The library markdown-it finds the blocks and the inline tokens of a document, but does not record the offsets
of inline tokens. Therefore `_pieces` finds each inline token in the source code of its block. If the tokens
of a block cannot be found in its source code, the block is not translated.
"""

import re
from typing import Any

from .html import text_pieces, translate_html
from .passages import Passage, Piece, TranslateSentences, translate_passages

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
# Matches the check box at the beginning of an item in a task list.
_TASK = re.compile(r"\[[ xX]\][ \t]+(?=\S)")
_PARAGRAPH = ["paragraph_open", "inline", "paragraph_close"]
_SPECIAL = re.compile(r"([\\`*_\[\]<>~|])|&(?=#?\w+;)")
_LINE_START = re.compile(r"(^|\n)([ \t]*)([#+=-]|\d+(?=[.)]))")


def translate_markdown(text: str, translate: TranslateSentences) -> str:
    """Return the translation of a Markdown document."""
    from markdown_it import MarkdownIt

    parser: Any = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    front_matter = _FRONT_MATTER.match(text)
    before = front_matter[0] if front_matter else ""
    lines = text[len(before) :].split("\n")
    blocks = []
    # The line and the column at which the previous block ends. The search for the next block begins at
    # `cursor`, so that the second of two table cells with equal text is found.
    cursor = (0, 0)
    for token in parser.parse("\n".join(lines)):
        if token.type == "html_block":
            start, end = token.map
            source = "\n".join(lines[start:end])
            lines[start:end] = [translate_html(source, translate), *[None] * (end - start - 1)]  # type: ignore[list-item]
        if token.type != "inline" or not token.content.strip():
            continue
        place = _place_of(token, lines, cursor)
        pieces = _pieces(token, parser)
        if place is None or pieces is None:
            continue
        if task := _TASK.match(token.content):
            pieces = [Piece("break", task[0]), *_after(pieces, len(task[0]))]
        cursor = place[-1][0], place[-1][2]
        blocks.append((token, place, pieces))
    translations = translate_passages([Passage(pieces, _escape) for _, _, pieces in blocks], translate)
    # Replace the last block first, because the replacement of a block changes the columns of all later blocks
    # in the same line.
    for (token, place, _), translation in reversed([*zip(blocks, translations, strict=True)]):
        translation = _LINE_START.sub(_escaped_line_start, translation)
        if _structure(parser, translation) != _structure(parser, token.content):
            # Keep the source block, because the Markdown parser finds different markup in the translation.
            # For example, `**` before a space does not begin bold text.
            continue
        if [block.type for block in parser.parse(translation)] != _PARAGRAPH:
            # Keep the source block, because the Markdown parser does not read the translation as exactly one
            # paragraph. For example, the translation is empty, or begins a code block with `~~~~`.
            continue
        number, start, end = place[0]
        prefix = lines[place[1][0]][: place[1][1]] if len(place) > 1 else ""
        translation = translation.replace("\n", f"\n{prefix}")
        lines[number] = lines[number][:start] + translation + lines[number][end:]
        for number, _, _ in place[1:]:
            lines[number] = None  # type: ignore[call-overload]
    return before + "\n".join(line for line in lines if line is not None)


def _place_of(token: Any, lines: list[Any], cursor: tuple[int, int]) -> list[tuple[int, int, int]] | None:
    """Return a tuple (line number, first column, column after the last character) for each line of a block.
    Return None if a line of the block is not found in the document.
    """
    if token.map is None:
        return None
    number = token.map[0]
    place = []
    for content in token.content.split("\n"):
        after = cursor[1] if number == cursor[0] else 0
        while number < token.map[1] and (lines[number] is None or content not in lines[number][after:]):
            number += 1
            after = 0
        if number >= token.map[1]:
            return None
        start = lines[number].index(content, after)
        place.append((number, start, start + len(content)))
        number += 1
    return place


def _pieces(token: Any, parser: Any) -> list[Piece] | None:
    """Return the texts, unchangeable parts and tags of a block. Return None if a token is not found in the
    source code of the block.
    """
    content = token.content
    position = 0
    pieces: list[Piece] = []
    closings: list[str] = []
    tokens = iter(token.children)
    for child in tokens:
        kind = child.type
        if kind == "text":
            raw = child.content
            pieces += text_pieces(raw)
        elif kind == "text_special":
            raw = child.markup
            pieces += _special_pieces(raw, child.content)
        elif kind in {"softbreak", "hardbreak"}:
            match = re.match(r"\\?[ \t]*\n[ \t]*", content[position:])
            if match is None:
                return None
            raw = match[0]
            pieces.append(Piece("break", raw) if kind == "hardbreak" else Piece("text", raw, " "))
        elif kind == "code_inline":
            end = _end_of_code(content, position, child.markup)
            raw = content[position:end]
            pieces.append(Piece("atom", raw, raw))
        elif kind == "html_inline":
            raw = child.content
            pieces.append(_html_piece(raw))
        elif kind == "image":
            end = _end_of_link(content, position + 1, parser)
            raw = content[position:end]
            pieces.append(Piece("atom", raw))
        elif kind == "link_open" and child.info == "auto":
            raw = content[position : content.find(">", position) + 1]
            next(tokens)
            next(tokens)
            pieces.append(Piece("atom", raw, raw))
        elif kind == "link_open":
            end = _end_of_link(content, position, parser)
            label_end = _end_of_label(content, position, parser)
            closings.append(content[label_end:end])
            raw = "["
            pieces.append(Piece("open", raw, name="link"))
        elif kind == "link_close":
            raw = closings.pop()
            pieces.append(Piece("close", raw, name="link"))
        elif kind.endswith(("_open", "_close")):
            raw = child.markup
            name, _, side = kind.rpartition("_")
            pieces.append(Piece(side, raw, name=name))
        else:
            return None
        if not content.startswith(raw, position):
            return None
        position += len(raw)
    return pieces if position == len(content) else None


def _after(pieces: list[Piece], length: int) -> list[Piece]:
    """Remove the first `length` characters of source code from a list of pieces."""
    remaining = [*pieces]
    while length > 0 and remaining:
        first = remaining.pop(0)
        if len(first.raw) > length:
            remaining.insert(0, Piece("text", first.raw[length:], first.text[length:]))
        length -= len(first.raw)
    return remaining


def _special_pieces(raw: str, text: str) -> list[Piece]:
    if raw.startswith("&"):
        return text_pieces(raw)
    return [Piece("text", raw, text)]


def _html_piece(raw: str) -> Piece:
    match = re.match(r"<(/?)([A-Za-z][\w-]*)", raw)
    if match is not None and match[2].lower() == "br":
        return Piece("break", raw)
    if match is None or raw.endswith("/>"):
        return Piece("atom", raw)
    return Piece("close" if match[1] else "open", raw, name=match[2].lower())


def _end_of_code(content: str, position: int, markup: str) -> int:
    end = re.compile(rf"(?<!`){re.escape(markup)}(?!`)").search(content, position + len(markup))
    return end.end() if end else position


def _state(content: str, parser: Any) -> Any:
    from markdown_it.rules_inline import StateInline

    return StateInline(content, parser, {}, [])


def _end_of_label(content: str, position: int, parser: Any) -> int:
    return parser.helpers.parseLinkLabel(_state(content, parser), position, False)


def _end_of_link(content: str, position: int, parser: Any) -> int:
    """Return the offset after a link. The label of the link begins with the bracket at the offset `position`."""
    label_end = _end_of_label(content, position, parser)
    following = content[label_end + 1 : label_end + 2]
    if following == "[":
        return content.find("]", label_end + 1) + 1
    if following != "(":
        return label_end + 1
    start = label_end + 2
    start += _leading_spaces(content[start:])
    destination = parser.helpers.parseLinkDestination(content, start, len(content))
    end = destination.pos if destination.ok else start
    end += _leading_spaces(content[end:])
    title = parser.helpers.parseLinkTitle(content, end, len(content))
    if title.ok:
        end = title.pos
    return content.find(")", end) + 1


def _leading_spaces(text: str) -> int:
    """Return the number of white space characters at the beginning of a text."""
    return len(text) - len(text.lstrip())


def _structure(parser: Any, content: str) -> list[tuple[str, str]]:
    """Return the type and the content of each inline token that is not text, sorted alphabetically, to
    compare the markup of two texts.
    """
    (token,) = parser.parseInline(content)
    return sorted(
        (child.type, str(child.attrs or child.content))
        for child in token.children
        if child.type not in {"text", "text_special", "softbreak"}
    )


def _escape(text: str) -> str:
    """Write a backslash before each character that Markdown can interpret as markup."""
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", text)


def _escaped_line_start(match: re.Match) -> str:
    if match[3].isdigit():
        return f"{match[1]}{match[2]}{match[3]}\\"
    return f"{match[1]}{match[2]}\\{match[3]}"
