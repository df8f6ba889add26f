"""Translates Markdown (CommonMark with tables, strikethrough and footnotes): the markup is copied, the text
is translated.

The library markdown-it does not record the offsets of inline tokens. Therefore `_InlineReader` looks for each
inline token in the Markdown source of the block. A block is not translated if `_InlineReader` does not find
all inline tokens in the source code of the block.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .html import VOID, are_kept, keeps_content, text_of_code, translate_html_documents
from .html_text import divide_outer_space, references_of, text_pieces
from .passages import TranslateSentences, translate_passages
from .pieces import Passage, Piece, protected_piece, tag_piece

# Matches front matter in YAML or in TOML.
_FRONT_MATTER = re.compile(
    r"\A(?:---[ \t]*\n(?=\S).*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?\n\+\+\+)[ \t]*(?:\n|\Z)", re.DOTALL
)
# Matches the check box at the beginning of an item in a task list, and the mark of an alert, such as
# `[!NOTE]`.
_TASK = re.compile(r"\[[ xX]\][ \t]+(?=\S)|\[![A-Za-z]+\][ \t]*(?:\n|\Z)")
# Matches formulas such as `$x$` and `$$x$$`, but neither `$5 and $6` nor `${a}-${b}`.
_MATH = re.compile(r"\$\$.+?\$\$|(?<!\w)\$(?![\s{])[^$\n]*?(?<!\s)\$(?![\w{])", re.DOTALL)
_FOOTNOTE = re.compile(r"\[\^[^\s\[\]]+\]")
_FOOTNOTE_DEFINITION = re.compile(rf"{_FOOTNOTE.pattern}:[ \t]*")
_SOFT_OR_HARD_BREAK = re.compile(r"\\?[ \t]*\n[ \t]*")
# `_KEEPING_TAG` is inserted before an HTML block that begins inside an untranslated element, and is removed
# after the translation.
_KEEPING_TAG = '<div translate="no">'
_PARAGRAPH = ["paragraph_open", "inline", "paragraph_close"]
_SPECIAL = r"[\\`*_\[\]<>~]|&(?=#?\w+;)"
_LINE_START = re.compile(r"(^|\n)([ \t]*)([#+=-]|\d+(?=[.)]))")


class _LinePart(NamedTuple):
    """The part of a line of the document from the column `start` to the column `end`."""

    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a document, such as a paragraph or the cell of a table.

    Attributes:
        content (str): The source code of the block. In the cell of a table, the parser has replaced `\\|` by
            `|`.
        is_cell (bool): True if the block is the cell of a table.
        place (list): The part of each line that belongs to the block.
        before (str): The check box of a task list item, and the white space before the text, such as
            `&nbsp;`.
        pieces (list): The texts, protected parts and tags of the block.
        after (str): The white space after the text.
    """

    content: str
    is_cell: bool
    place: list[_LinePart]
    before: str
    pieces: list[Piece]
    after: str


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replaces a part of a line by `text`, and removes the lines `removed`. `text` can contain line
    breaks.
    """

    part: _LinePart
    text: str
    removed: Sequence[int] = ()


def translate_markdown(text: str, translate: TranslateSentences) -> str:
    """Return the translation of a Markdown document."""
    front_matter = _FRONT_MATTER.match(text)
    metadata = front_matter[0] if front_matter else ""
    lines = text[len(metadata) :].split("\n")
    parser = _parser()
    # The parser writes the link definitions of the document into `definitions`.
    definitions: dict[str, Any] = {}
    tokens = parser.parse("\n".join(lines), definitions)
    # An HTML block ends at an empty line, but an element such as `<div translate="no">` can also contain the
    # following blocks.
    for token, is_kept in zip(tokens, are_kept([_as_html(token) for token in tokens]), strict=True):
        token.meta["is_kept"] = is_kept
    edits = _edits_of_html_blocks(tokens, lines, translate)
    blocks = _blocks_of(tokens, lines)
    passages = [Passage(block.pieces, _escape_function(block)) for block in blocks]
    for block, translation in zip(blocks, translate_passages(passages, translate), strict=True):
        if translation == "".join(piece.raw for piece in block.pieces):
            # Keep a block unchanged if the translation of the block equals the source.
            continue
        content = f"{block.before}{translation.strip()}{block.after}"
        content = _LINE_START.sub(_escaped_line_start, content)
        if _has_equal_markup(parser, block.content, content, definitions):
            edits.append(_edit_of_block(block, lines, content))
    return metadata + "\n".join(_edited(lines, edits))


def _as_html(token: Any) -> str:
    """Return the HTML code of a block. The letter "x" before the code represents the text of the block."""
    if token.type == "html_block":
        return f"x{token.content}"
    if token.type == "inline":
        return "".join(["x", *(child.content for child in token.children if child.type == "html_inline")])
    if token.nesting == 0:
        return ""
    return f"<{token.tag}>" if token.nesting > 0 else f"</{token.tag}>"


def _edits_of_html_blocks(
    tokens: Sequence[Any], lines: Sequence[str], translate: TranslateSentences
) -> list[_Edit]:
    """Translate all blocks of HTML together. Keep the Markdown prefix of each line, such as the `>` of a
    quotation.
    """
    found = []
    for token in tokens:
        if token.type != "html_block":
            continue
        start, end = token.map
        content = token.content.removesuffix("\n")
        of_lines = content.split("\n")
        if end - start == len(of_lines) and all(map(str.endswith, lines[start:end], of_lines)):
            prefixes = [*map(str.removesuffix, lines[start:end], of_lines)]
            opening = _KEEPING_TAG if token.meta["is_kept"] else ""
            found.append((start, prefixes, opening, opening + content))
    edits = []
    translations = translate_html_documents([content for *_, content in found], translate)
    for (start, prefixes, opening, _), translation in zip(found, translations, strict=True):
        new_lines = translation.removeprefix(opening).split("\n")
        new = [prefix + line for prefix, line in zip(prefixes, new_lines, strict=False)]
        first_line = _LinePart(start, 0, len(lines[start]))
        removed = range(start + 1, start + len(prefixes))
        edits.append(_Edit(first_line, text="\n".join(new), removed=removed))
    return edits


def _blocks_of(tokens: Sequence[Any], lines: Sequence[str]) -> list[_Block]:
    """Return the blocks with text. Leave out a block if its Markdown text is not found in the document."""
    blocks = []
    finder = _PlaceFinder(lines)
    is_cell = False
    for token in tokens:
        if token.type == "footnote_open":
            finder.skip_to(*token.meta["label_end"])
        is_cell = token.type in {"th_open", "td_open"} or (is_cell and token.type == "inline")
        if token.type != "inline" or not token.content.strip():
            continue
        place = finder.find(token, is_cell)
        pieces = _InlineReader(token.content).pieces_of(token.children)
        if place is None or pieces is None or token.meta["is_kept"]:
            continue
        task = _TASK.match(token.content)
        check_box = task[0] if task else ""
        pieces = _with_kept_elements(_after(pieces, len(check_box)))
        before, pieces, after = divide_outer_space(pieces)
        blocks.append(_Block(token.content, is_cell, place, check_box + before, pieces, after))
    return blocks


class _PlaceFinder:
    """Finds the lines and columns of each block in a document, one block after another."""

    def __init__(self, lines: Sequence[str]):
        self._lines = lines
        # The line and the column at which the previous block ends. If two table cells have equal text, a
        # search from the start of the line would find the first cell twice.
        self._cursor = (0, 0)

    def skip_to(self, line: int, column: int) -> None:
        """Begin the next search for a block at `line` and `column`, so that the search does not find the
        block's text in the label of a footnote.
        """
        self._cursor = (line, column)

    def find(self, token: Any, is_cell: bool) -> list[_LinePart] | None:
        """Return the position of the block in each of its lines. The result has the format of `_Block.place`.
        Return None if a line of the block is not in the document.
        """
        first, end = token.map
        content = token.content.replace("|", r"\|") if is_cell else token.content
        place: list[_LinePart] = []
        number = first
        for line in content.split("\n"):
            part = self._find_line(line, number, end)
            if part is None:
                # Move the cursor to the end of the line. If the cursor stayed at its position, the search for
                # the text of a later table cell could match text inside the skipped cell.
                self._cursor = (first, len(self._lines[first]))
                return None
            place.append(part)
            number = part.line + 1
        self._cursor = (place[-1].line, place[-1].end)
        return place

    def _find_line(self, line: str, first: int, end: int) -> _LinePart | None:
        """Return the place of the text `line` in the document. Search the lines `first` to `end - 1`, from
        the position `_cursor` on.
        """
        for number in range(first, end):
            column = self._cursor[1] if number == self._cursor[0] else 0
            start = self._lines[number].find(line, column)
            if start >= 0:
                return _LinePart(number, start, start + len(line))
        return None


def _edit_of_block(block: _Block, lines: Sequence[str], translation: str) -> _Edit:
    """Replace a block by its translation. Each line of the translation after the first line begins with the
    prefix of the block's second line, such as the `>` of a quotation.
    """
    first, *others = block.place
    prefix = lines[others[0].line][: others[0].start] if others else ""
    text = translation.replace("\n", f"\n{prefix}")
    if block.is_cell:
        text = text.replace("|", r"\|")
    return _Edit(first, text=text, removed=[part.line for part in others])


def _edited(lines: Sequence[str], edits: Sequence[_Edit]) -> list[str]:
    """Return the lines of a document with the given changes."""
    edited = [*lines]
    removed: set[int] = set()
    # Make the last edit first, because an edit changes the columns of all later characters in the line.
    for edit in sorted(edits, key=lambda edit: edit.part, reverse=True):
        number, start, end = edit.part
        line = edited[number]
        edited[number] = line[:start] + edit.text + line[end:]
        removed.update(edit.removed)
    return [line for number, line in enumerate(edited) if number not in removed]


def _parser() -> Any:
    """Return a parser that knows footnotes, and records the source code of links, images and code."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import autolink, backtick, image, link

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    inline = parser.inline.ruler
    inline.at("backticks", _recording(backtick))
    inline.at("link", _recording(link))
    inline.at("image", _recording(image))
    inline.at("autolink", _recording(autolink))
    inline.after("link", "footnote", _inline_rule(_FOOTNOTE, "footnote"))
    inline.after("link", "math", _recording(_inline_rule(_MATH, "math")))
    parser.block.ruler.before(
        "reference",
        "footnote_definition",
        _footnote_definition,
        {"alt": ["paragraph", "reference", "blockquote"]},
    )
    return parser


def _recording(rule: Callable[[Any, bool], bool]) -> Callable[[Any, bool], bool]:
    """Wrap a rule of the parser, so that the rule also records the Markdown source of the found token."""

    def record(state: Any, silent: bool) -> bool:
        start = state.pos
        num_tokens = len(state.tokens)
        is_found = rule(state, silent)
        if is_found and not silent:
            for token in state.tokens[num_tokens:]:
                # Skip text tokens. The parser makes a separate text token from the text before a link, an
                # image or code.
                if token.type != "text":
                    token.meta["source"] = state.src[start : state.pos]
                    break
        return is_found

    return record


def _inline_rule(pattern: re.Pattern[str], token_type: str) -> Callable[[Any, bool], bool]:
    """Return a rule of the parser: text that matches `pattern` is a token of the type `token_type`."""

    def parse(state: Any, silent: bool) -> bool:
        match = pattern.match(state.src, state.pos, state.posMax)
        if match is None:
            return False
        if not silent:
            state.push(token_type, "", 0).content = match[0]
        state.pos = match.end()
        return True

    return parse


def _footnote_definition(state: Any, first: int, end: int, silent: bool) -> bool:
    """Parse a definition such as `[^1]: text`, and the following lines that begin with four spaces."""
    start = state.bMarks[first] + state.tShift[first]
    match = _FOOTNOTE_DEFINITION.match(state.src, start, state.eMarks[first])
    if match is None or state.is_code_block(first):
        return False
    if silent:
        return True
    opening = state.push("footnote_open", "", 1)
    opening.meta["label_end"] = (first, match.end() - (state.src.rfind("\n", 0, start) + 1))
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


class _InlineReader:
    """Finds the inline tokens of a block, one after another, in the source code of the block."""

    def __init__(self, content: str):
        self._content = content
        # The offset of the next token.
        self._position = 0
        # For each link that encloses the current position, the offsets of the start and of the end of the
        # link.
        self._links: list[tuple[int, int]] = []

    def pieces_of(self, tokens: Sequence[Any]) -> list[Piece] | None:
        """Return the pieces of the block, or None if the tokens do not match the Markdown source."""
        pieces: list[Piece] = []
        for token in _without_texts_of_autolinks(tokens):
            found = self._read(token)
            if found is None or not self._content.startswith(found[0], self._position):
                return None
            raw, of_token = found
            pieces += of_token
            self._position += len(raw)
        return pieces if self._position == len(self._content) else None

    def _read(self, token: Any) -> tuple[str, list[Piece]] | None:
        """Return the Markdown source and the pieces of a token, or None if the type of the token is
        unknown.
        """
        name = token.type.removesuffix("_open").removesuffix("_close")
        match token.type:
            case "text":
                return token.content, text_pieces(token.content)
            case "text_special" if token.markup.startswith("&"):
                return token.markup, text_pieces(token.markup)
            case "text_special":
                # A character after a backslash.
                return token.markup, [Piece("text", token.markup, token.content)]
            case "softbreak":
                raw = self._source_of_break()
                return raw, [Piece("text", raw, " ")]
            case "hardbreak":
                raw = self._source_of_break()
                return raw, [Piece("break", raw)]
            case "code_inline" | "math":
                raw = token.meta["source"]
                return raw, [protected_piece(raw)]
            case "image":
                raw = token.meta["source"]
                return raw, [Piece("protected", raw)]
            case "footnote":
                return token.content, [Piece("protected", token.content)]
            case "html_inline":
                return token.content, [_html_piece(token.content)]
            case "link_open" if token.info == "auto":
                raw = token.meta["source"]
                return raw, [protected_piece(raw)]
            case "link_open":
                self._links.append((self._position, self._position + len(token.meta["source"])))
                return "[", [Piece("open", "[", name=name)]
            case "link_close":
                raw, closing = self._closing_of_link()
                return raw, [Piece("close", closing, name=name)]
            case "em_open" | "strong_open" | "s_open":
                return token.markup, [Piece("open", token.markup, name=name)]
            case "em_close" | "strong_close" | "s_close":
                return token.markup, [Piece("close", token.markup, name=name)]
        return None

    def _source_of_break(self) -> str:
        match = _SOFT_OR_HARD_BREAK.match(self._content, self._position)
        # If `_SOFT_OR_HARD_BREAK` does not match, return "\n". `pieces_of` returns None after this "\n",
        # because the source code has no line break at `_position`.
        return match[0] if match else "\n"

    def _closing_of_link(self) -> tuple[str, str]:
        """Return two texts: the end of the innermost link in the source code, such as `](url)`, and the end
        of the same link in the translated document.
        """
        start, end = self._links.pop()
        raw = self._content[self._position : end]
        label = self._content[start + 1 : self._position]
        # Write the translation of the link `[label]` or `[label][]` as `[translation][label]`, so that the
        # translated link still refers to the definition `[label]: url`.
        closing = f"][{' '.join(label.split())}]" if raw in {"]", "][]"} else raw
        return raw, closing


def _without_texts_of_autolinks(tokens: Sequence[Any]) -> list[Any]:
    """Keep only the first token of each autolink, because the first token contains the source code of the
    whole autolink.
    """
    found = []
    is_in_autolink = False
    for token in tokens:
        if not is_in_autolink:
            found.append(token)
        if token.info == "auto":
            is_in_autolink = token.type == "link_open"
    return found


def _after(pieces: list[Piece], length: int) -> list[Piece]:
    """Remove the first `length` characters, such as a check box, from the Markdown source of `pieces`. Return
    the remaining pieces.
    """
    remaining = [*pieces]
    while length > 0 and remaining:
        first = remaining.pop(0)
        if len(first.raw) > length:
            remaining.insert(0, Piece("text", first.raw[length:], first.text[length:]))
        length -= len(first.raw)
    return remaining


def _html_piece(raw: str) -> Piece:
    """Convert an HTML tag, comment or processing instruction to a `Piece`."""
    match = re.match(r"</?([A-Za-z][\w-]*)", raw)
    name = match[1].lower() if match else ""
    if raw.startswith("<?") or name == "br":
        return Piece("break", raw)
    if not name or name in VOID:
        return Piece("protected", raw)
    return tag_piece(raw, name)


def _with_kept_elements(pieces: Sequence[Piece]) -> list[Piece]:
    """Join the pieces of each untranslated HTML element, such as `<kbd>Ctrl</kbd>`, to one protected part. An
    element without end tag ends at the end of the block.
    """
    found: list[Piece] = []
    # The name of the untranslated element, and its depth: the number of start tags so far, minus the number
    # of end tags.
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
            found.append(Piece("protected", raw, text_of_code(name, raw)))
    if depth > 0:
        found.append(Piece("protected", raw))
    return found


def _has_equal_markup(parser: Any, source: str, translation: str, definitions: dict[str, Any]) -> bool:
    """Return True if the translation of a block is one paragraph with the markup of the source block."""
    if _structure(parser, translation, definitions) != _structure(parser, source, definitions):
        # The markup differs, for example, if the translation has a space after an opening `**`, because `**`
        # before a space does not begin bold text.
        return False
    # The translation is not always one paragraph: for example, the translation can be empty, or begin a code
    # block with `~~~~`.
    return [block.type for block in parser.parse(translation)] == _PARAGRAPH


def _structure(parser: Any, content: str, definitions: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the sorted pairs (type, attributes or content) of the inline tokens that are not text."""
    (token,) = parser.parseInline(content, definitions)
    return sorted(
        (child.type, str(child.attrs or child.content))
        for child in token.children
        if child.type not in {"text", "text_special", "softbreak"}
    )


def _escape_function(block: _Block) -> Callable[[str], str]:
    """Return a function that escapes Markdown, and writes the same character references as the source text,
    such as `&nbsp;`. In the cell of a table, `_edit_of_block` escapes `|`.
    """
    references = references_of(block.pieces)
    pipe = [] if block.is_cell else [r"\|"]
    pattern = re.compile("|".join([*map(re.escape, references), _SPECIAL, *pipe]))
    return lambda text: pattern.sub(lambda match: references.get(match[0], f"\\{match[0]}"), text)


def _escaped_line_start(match: re.Match) -> str:
    if match[3].isdigit():
        return f"{match[1]}{match[2]}{match[3]}\\"
    return f"{match[1]}{match[2]}\\{match[3]}"
