"""Translates Markdown (CommonMark with tables, strikethrough and footnotes). The markup of a document is
copied, and only the text is translated.

The library markdown-it finds the blocks and the inline tokens of a document, but does not record the offsets
of inline tokens. Therefore `_pieces` finds each inline token in the source code of its block. If `_pieces`
cannot find an inline token in the Markdown source code of its block, the block is not translated.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from .html import keeps_content, references_of, text_of_code, text_pieces, translate_html
from .passages import Passage, Piece, TranslateSentences, translate_passages

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?=\S).*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
# Matches the check box at the beginning of an item in a task list.
_TASK = re.compile(r"\[[ xX]\][ \t]+(?=\S)")
_FOOTNOTE = re.compile(r"\[\^[^\s\[\]]+\]")
_FOOTNOTE_DEFINITION = re.compile(rf"{_FOOTNOTE.pattern}:[ \t]*")
_PARAGRAPH = ["paragraph_open", "inline", "paragraph_close"]
_SPECIAL = re.compile(r"[\\`*_\[\]<>~|]|&(?=#?\w+;)")
_LINE_START = re.compile(r"(^|\n)([ \t]*)([#+=-]|\d+(?=[.)]))")


def translate_markdown(text: str, translate: TranslateSentences) -> str:
    """Return the translation of a Markdown document."""
    parser = _parser()
    front_matter = _FRONT_MATTER.match(text)
    before = front_matter[0] if front_matter else ""
    lines = text[len(before) :].split("\n")
    blocks = []
    # The line and the column at which the previous block ends. The search for the next block begins at
    # `cursor`, so that the second of two table cells with equal text is found.
    cursor = (0, 0)
    # The parser writes the link definitions of the document into `definitions`.
    definitions: dict[str, Any] = {}
    for token in parser.parse("\n".join(lines), definitions):
        if token.type == "html_block":
            _translate_html_block(token, lines, translate)
        if token.type != "inline" or not token.content.strip():
            continue
        place = _place_of(token, lines, cursor)
        pieces = _pieces(token)
        if place is None or pieces is None:
            continue
        if task := _TASK.match(token.content):
            pieces = [Piece("break", task[0]), *_after(pieces, len(task[0]))]
        cursor = place[-1][0], place[-1][2]
        blocks.append((token, place, _with_kept_elements(pieces)))
    passages = [Passage(pieces, _escape_function(pieces)) for _, _, pieces in blocks]
    translations = translate_passages(passages, translate)
    # Replace the last block first, because the replacement of a block changes the columns of all later blocks
    # in the same line.
    for (token, place, pieces), translation in reversed([*zip(blocks, translations, strict=True)]):
        if translation == "".join(piece.raw for piece in pieces):
            # Keep the source block, because no sentence of the block is translated.
            continue
        translation = _LINE_START.sub(_escaped_line_start, translation.strip())
        if _structure(parser, translation, definitions) != _structure(parser, token.content, definitions):
            # Leave the block untranslated, because the Markdown parser finds other markup in the translation
            # than in the source block. For example, `**` before a space does not begin bold text.
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


def _translate_html_block(token: Any, lines: list[Any], translate: TranslateSentences) -> None:
    """Translate a block of HTML. Copy the characters before the block in each line, such as the `>` of a
    quotation.
    """
    start, end = token.map
    sources = lines[start:end]
    contents = token.content.removesuffix("\n").split("\n")
    if len(sources) != len(contents) or not all(map(str.endswith, sources, contents)):
        return
    prefixes = map(str.removesuffix, sources, contents)
    translation = translate_html("\n".join(contents), translate)
    new = [prefix + line for prefix, line in zip(prefixes, translation.split("\n"), strict=False)]
    lines[start:end] = [*new, *[None] * (len(sources) - len(new))]


def _parser() -> Any:
    """Return a parser that writes the source code of links, images and code into the tokens, and knows
    footnotes.
    """
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import autolink, backtick, image, link

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    inline = parser.inline.ruler
    inline.at("backticks", _recording(backtick))
    inline.at("link", _recording(link))
    inline.at("image", _recording(image))
    inline.at("autolink", _recording(autolink))
    inline.after("link", "footnote", _footnote)
    parser.block.ruler.before(
        "reference",
        "footnote_definition",
        _footnote_definition,
        {"alt": ["paragraph", "reference", "blockquote"]},
    )
    return parser


def _recording(rule: Callable[[Any, bool], bool]) -> Callable[[Any, bool], bool]:
    """Return a rule of the parser that also records the source code of the token that `rule` finds."""

    def record(state: Any, silent: bool) -> bool:
        start = state.pos
        num_tokens = len(state.tokens)
        is_found = rule(state, silent)
        if is_found and not silent:
            for token in state.tokens[num_tokens:]:
                # The first token can be the text before the link, the image or the code.
                if token.type != "text":
                    token.meta["source"] = state.src[start : state.pos]
                    break
        return is_found

    return record


def _footnote(state: Any, silent: bool) -> bool:
    """Parse the mark of a footnote, such as `[^1]`."""
    match = _FOOTNOTE.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("footnote", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _footnote_definition(state: Any, first: int, end: int, silent: bool) -> bool:
    """Parse the definition of a footnote. The definition begins at the line `first`, for example with
    `[^1]: text`, and contains the following lines that begin with four spaces.
    """
    start = state.bMarks[first] + state.tShift[first]
    match = _FOOTNOTE_DEFINITION.match(state.src, start, state.eMarks[first])
    if match is None or state.is_code_block(first):
        return False
    if silent:
        return True
    state.push("footnote_open", "", 1)
    saved = state.bMarks[first], state.tShift[first], state.sCount[first], state.parentType
    state.blkIndent += 4
    state.bMarks[first] = match.end()
    state.tShift[first] = 0
    state.sCount[first] = state.blkIndent
    state.parentType = "footnote"
    state.md.block.tokenize(state, first, end)
    state.bMarks[first], state.tShift[first], state.sCount[first], state.parentType = saved
    state.blkIndent -= 4
    state.push("footnote_close", "", -1)
    return True


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


def _pieces(token: Any) -> list[Piece] | None:
    """Return the texts, unchangeable parts and tags of a block. Return None if a token is not found in the
    source code of the block.
    """
    content = token.content
    position = 0
    pieces: list[Piece] = []
    # The offsets of the first and after the last character of each link that is not closed yet.
    links: list[tuple[int, int]] = []
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
            raw = child.meta["source"]
            pieces.append(Piece("atom", raw, raw))
        elif kind == "html_inline":
            raw = child.content
            pieces.append(_html_piece(raw))
        elif kind == "image":
            raw = child.meta["source"]
            pieces.append(Piece("atom", raw))
        elif kind == "footnote":
            raw = child.content
            pieces.append(Piece("atom", raw))
        elif kind == "link_open" and child.info == "auto":
            raw = child.meta["source"]
            next(tokens)
            next(tokens)
            pieces.append(Piece("atom", raw, raw))
        elif kind == "link_open":
            links.append((position, position + len(child.meta["source"])))
            raw = "["
            pieces.append(Piece("open", raw, name="link"))
        elif kind == "link_close":
            start, end = links.pop()
            raw = content[position:end]
            label = content[start + 1 : position]
            # The text of the link `[label]` or `[label][]` is translated. Therefore the translation is
            # `[text][label]`, with the label of the definition.
            closing = f"][{' '.join(label.split())}]" if raw in {"]", "][]"} else raw
            pieces.append(Piece("close", closing, name="link"))
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
    if raw.startswith("<?") or (match is not None and match[2].lower() == "br"):
        return Piece("break", raw)
    if match is None or raw.endswith("/>"):
        return Piece("atom", raw)
    return Piece("close" if match[1] else "open", raw, name=match[2].lower())


def _with_kept_elements(pieces: Sequence[Piece]) -> list[Piece]:
    """Join the pieces of each HTML element that is not translated, such as `<kbd>Ctrl</kbd>`, to one
    unchangeable part. An element without end tag ends at the end of the block.
    """
    found: list[Piece] = []
    # The name of the element, and the number of its start tags minus the number of its end tags.
    name = ""
    depth = 0
    raw = ""
    for piece in pieces:
        if depth == 0:
            if piece.kind != "open" or not keeps_content(piece.raw):
                found.append(piece)
                continue
            name = piece.name
            raw = ""
        raw += piece.raw
        if piece.name == name:
            depth += 1 if piece.kind == "open" else -1
        if depth == 0:
            found.append(Piece("atom", raw, text_of_code(name, raw)))
    if depth > 0:
        found.append(Piece("atom", raw))
    return found


def _structure(parser: Any, content: str, definitions: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the type and the content of each inline token that is not text, sorted alphabetically, to
    compare the markup of two texts.
    """
    (token,) = parser.parseInline(content, definitions)
    return sorted(
        (child.type, str(child.attrs or child.content))
        for child in token.children
        if child.type not in {"text", "text_special", "softbreak"}
    )


def _escape_function(pieces: Sequence[Piece]) -> Callable[[str], str]:
    """Return a function that writes a backslash before each character that Markdown can interpret as markup,
    and writes the character references of the passage, such as `&nbsp;`, as in the source.
    """
    references = references_of(pieces)
    pattern = re.compile("|".join([*map(re.escape, references), _SPECIAL.pattern]))
    return lambda text: pattern.sub(lambda match: references.get(match[0], f"\\{match[0]}"), text)


def _escaped_line_start(match: re.Match) -> str:
    if match[3].isdigit():
        return f"{match[1]}{match[2]}{match[3]}\\"
    return f"{match[1]}{match[2]}\\{match[3]}"
