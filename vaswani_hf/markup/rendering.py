"""Writes a translation with its tags and its protected parts (such as placeholders)."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from .projection import Node, Unit


def render(root: Node, target: Sequence[Unit], escape: Callable[[str], str]) -> str:
    """Return the translation with its tags and protected parts, in the format of the document."""
    return _Writer(root, target, escape).write()


class _Writer:
    """Writes the units of a translation (such as words), together with the tags and the protected parts of
    the passage.
    """

    def __init__(self, root: Node, target: Sequence[Unit], escape: Callable[[str], str]):
        self._root = root
        self._target = target
        self._escape = escape
        self._parts: list[str] = []
        # The white space before the first `_num_spaced` target units is already written. A tag can come after
        # the white space and before the unit.
        self._num_spaced = 0
        # The last written node. None after a unit.
        self._last_node: Node | None = None

    def write(self) -> str:
        """Return the text of the translated passage, with its tags and its protected parts."""
        # Use a list of running generators instead of recursive calls, because the tags of a document can be
        # nested more deeply than Python's recursion limit.
        running = [self._write_node(self._root)]
        while running:
            child = next(running[-1], None)
            if child is None:
                running.pop()
            else:
                running.append(self._write_node(child))
        return "".join(self._parts)

    def _write_node(self, node: Node) -> Iterator[Node]:
        """Write a node with all units between its tags. Yield each child, so that `write` writes the child at
        this position.
        """
        self._parts.append(node.raw)
        position = node.start
        children = sorted(node.children, key=lambda child: (child.start, child.end))
        for child, following in zip_longest(children, children[1:]):
            self._write_units(position, child.start)
            before, after = self._spaces_around(child, parent=node)
            if following is not None and _are_joined(child, following):
                after = ""
            self._parts.append(before)
            yield child
            self._parts.append(after)
            self._last_node = child
            position = child.end
        self._write_units(position, node.end)
        self._parts.append(node.closing)

    def _write_units(self, start: int, end: int) -> None:
        for i in range(start, end):
            self._parts.append(self._take_space(i))
            unit = self._target[i]
            self._parts.append(unit.raw or self._escape(unit.text))
            self._last_node = None

    def _take_space(self, i: int) -> str:
        """Return the white space before unit `i` of the translation, or an empty string if the white space is
        already written.
        """
        if i != self._num_spaced or i >= len(self._target):
            return ""
        self._num_spaced += 1
        return self._escape(self._target[i].space)

    def _spaces_around(self, node: Node, parent: Node) -> tuple[str, str]:
        """Return the space before and the space after a `Node`: a tag, a pair of tags or a protected part."""
        is_before_word = node.kind == "open" and node.after.strip() != ""
        if node.start < node.end or is_before_word:
            # Write the space before the next word, then the opening tag, then the word.
            return self._take_space(node.start), ""
        if node.kind == "close" or (node.kind == "pair" and not node.children):
            return "", ""
        if parent is not self._root and parent.start == parent.end:
            # If `parent` encloses no words, write the closing tag of `parent` before the next space and the
            # next word. Write a space only if the source text has a space before the node.
            is_spaced = node.before.isspace() and node is not parent.children[0]
            return " " if is_spaced else "", ""
        if self._is_before_first_space(node):
            return "", ""
        if self._is_attached(node):
            is_next_spaced = node.start < self._num_spaced
            return "", self._space_after(node) if is_next_spaced else ""
        before = self._space_before(node)
        return before, self._space_after(node)

    def _is_before_first_space(self, node: Node) -> bool:
        """Return True if the node begins the passage, and white space follows the node."""
        is_first = node.start == 0 and not node.before
        return is_first and bool(self._target) and self._target[0].space != ""

    def _is_attached(self, node: Node) -> bool:
        """Return True if the node directly follows a unit (such as a word) or a protected part, both in the
        source and in the translation. If the result is True, no space is written before the node.
        """
        if not node.before.strip():
            return False
        return self._is_aligned(node.start - 1, node.source_start - 1) or self._is_after_protected_part(node)

    def _is_after_protected_part(self, node: Node) -> bool:
        """Return True if the last written part is a protected part, and the source has no
        `Unit` between the protected part and `node`.
        """
        last = self._last_node
        return last is not None and last.kind == "protected" and last.source_start == node.source_start

    def _space_before(self, node: Node) -> str:
        """Return the space before a tag or a protected part that encloses no words, such as an image. Add a
        space if the tag or the protected part would otherwise touch the previous word.
        """
        space = self._take_space(node.start)
        written = space or next(filter(None, reversed(self._parts)), " ")
        last = written[-1]
        if not node.before or last.isspace():
            return space
        if node.before.isspace() or node.before.isalnum() or last.isalnum():
            return f"{space} "
        return space

    def _space_after(self, node: Node) -> str:
        """Return the space after a node without words, such as an image. The space between the word before
        the node and the word after the node is already written, before the node.
        """
        is_next = self._is_aligned(node.start, node.source_start)
        if not node.after or (is_next and node.after.isalnum()):
            return ""
        is_spaced = is_next and node.after.isspace()
        is_word_after = node.start < len(self._target) and self._target[node.start].is_word
        return " " if is_spaced or is_word_after else ""

    def _is_aligned(self, i: int, source: int) -> bool:
        """Return True if unit `i` of the translation exists, and is aligned with the source unit `source`."""
        return 0 <= i < len(self._target) and self._target[i].source == source


def _are_joined(node: Node, following: Node) -> bool:
    """Return True if `node` and `following` are adjacent in the translation. In the source, a protected part
    must directly follow `node`, and a protected part must directly precede `following`.
    """
    return node.after == following.before == "X" and following.start == node.end
