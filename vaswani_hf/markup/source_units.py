"""Divides the sentences of a passage into units (such as words) and a tree of tags."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from .pieces import Piece
from .projection import Node, Unit
from .sentences import Sentence

SPACE_OR_WORD = re.compile(r"\s+|\S+")
# The three groups match the punctuation before a word, the word, and the punctuation after the word.
_WORD = re.compile(r"([^\w\s]*)(\S*?)([^\w\s]*)")


def divide_word(word: str) -> tuple[str, str, str]:
    """Return the punctuation before a word, the word, and the punctuation after the word."""
    match = _WORD.fullmatch(word)
    assert match is not None
    return match[1], match[2], match[3]


class SourceReader:
    """Reads the sentences of a passage one after another. `units` contains the words, the punctuation and the
    protected parts that the model receives. `root` is the tree of all tags. The tree also contains
    the protected parts that the model does not receive.
    """

    def __init__(self) -> None:
        self.root = Node()
        self.units: list[Unit] = []
        # The root, and the opening tags whose closing tags have not been read.
        self._open_nodes = [self.root]
        # The number of open tags with each name.
        self._num_open: Counter[str] = Counter()
        # The index of the last word of the sentence.
        self._word = -1
        # The white space before the next unit.
        self._space = " "

    def add_sentence(self, sentence: Sentence) -> None:
        """Append the units of a sentence to `units`, and the tags of the sentence to the tree `root`."""
        first = len(self.units)
        self._word = -1
        self._space = " "
        pieces = sentence.pieces
        all_before = _neighbours(pieces, slice(-1, None))
        all_after = reversed([*_neighbours(pieces[::-1], slice(1))])
        for piece, text, before, after in zip(pieces, sentence.texts(), all_before, all_after, strict=True):
            if piece.kind == "text":
                self._add_text(text)
            elif piece.kind == "break" or text:
                self._add_protected_part(text, piece.raw)
            elif piece.kind == "close":
                self._close(piece, before, after)
            else:
                node = self._add_node(piece, before, after)
                if piece.kind == "open":
                    self._open_nodes.append(node)
                    self._num_open[node.name] += 1
        if len(self.units) > first:
            self.units[first].space = sentence.separator

    def finish(self) -> None:
        """After the last sentence, remove all open tags from `_open_nodes`, and set `source_end` of the
        root.
        """
        while len(self._open_nodes) > 1:
            self._remove_innermost()
        self.root.source_end = len(self.units)

    def _add_text(self, text: str) -> None:
        for match in SPACE_OR_WORD.finditer(text):
            if match[0].isspace():
                # Keep a space that is not an ASCII space, such as a non-breaking space.
                self._space = self._space.strip(" ") or match[0]
                continue
            if self._space:
                self._word += 1
            for part in divide_word(match[0]):
                if part:
                    self._add_unit(part)

    def _add_protected_part(self, text: str, raw: str) -> None:
        num_words = len(text.split())
        if num_words and not self._space:
            # Do not count the first word of a protected part (such as a placeholder) if no space precedes the
            # protected part, as in "No.{number}".
            num_words -= 1
        self._word += num_words
        self._add_unit(text, raw)
        if text[-1:].isspace():
            self._space = " "

    def _add_unit(self, text: str, raw: str = "") -> None:
        self.units.append(Unit(text, raw=raw, word=self._word, space=self._space))
        self._space = ""

    def _add_node(self, piece: Piece, before: str, after: str) -> Node:
        position = len(self.units)
        node = Node(
            piece.raw,
            name=piece.name,
            kind=piece.kind,
            before=before,
            after=after,
            source_start=position,
            source_end=position,
        )
        self._open_nodes[-1].children.append(node)
        return node

    def _close(self, piece: Piece, before: str, after: str) -> None:
        """Close the nearest opening tag with the name of the closing tag `piece`."""
        if not self._num_open[piece.name]:
            self._add_node(piece, before, after)
            return
        while self._open_nodes[-1].name != piece.name:
            self._remove_innermost()
        node = self._open_nodes.pop()
        self._num_open[node.name] -= 1
        node.kind = "pair"
        node.closing = piece.raw
        node.after = after
        node.source_end = len(self.units)

    def _remove_innermost(self) -> None:
        """Remove the innermost open tag. The removed tag has no closing tag inside the parent element.
        Therefore the children of the removed tag become children of the tag's parent.
        """
        node = self._open_nodes.pop()
        self._num_open[node.name] -= 1
        self._open_nodes[-1].children += node.children
        node.children = []


def _neighbours(pieces: Sequence[Piece], end: slice) -> Iterator[str]:
    """For each piece, yield the first or last character (selected by `end`) of the nearest text before the
    piece. If a protected part is nearer than any text, yield "X". If neither a text nor a protected part
    precedes the piece, yield "".
    """
    character = ""
    for piece in pieces:
        yield character
        if piece.kind == "protected":
            character = "X"
        elif piece.kind == "text":
            character = piece.text[end]
