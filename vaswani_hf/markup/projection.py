"""Inserts the tags and the unchangeable parts (atoms) of a source text into the translation. The word
alignment determines the positions of the tags and the unchangeable parts.

A `Unit` is a word, the punctuation before or after a word, or an unchangeable part. A `Node` is a pair of
tags, a single tag, or an unchangeable part that the model does not receive. The nodes form a tree: a node
between two tags is a child of the pair of tags. In the translation, each pair of tags encloses one contiguous
range of `Unit` objects. The range of a pair of tags is inside the range of the parent pair. Two pairs of tags
with the same parent enclose ranges that do not overlap. Therefore each tag occurs exactly once in the
translation, and the pairs of tags are nested.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

# Maps the index of a source unit to the indices of the target units that are aligned with the source unit.
# The key None has the unaligned target units.
Aligned = dict[int | None, list[int]]


@dataclass(slots=True)
class Unit:
    """A word, punctuation, or an unchangeable part such as a placeholder.

    Attributes:
        raw (str): The source code of an unchangeable part, such as `&nbsp;`; empty for words and punctuation.
        word (int): For a source unit, the index of the unit's word in the sentence. White space separates the
            words.
        space (str): The white space before the unit.
        source (int, optional): If the unit is in the translation, the index of the source unit to which the
            unit is aligned.
    """

    text: str
    raw: str = ""
    word: int = -1
    space: str = ""
    source: int | None = None

    @property
    def is_word(self) -> bool:
        """True for a word or an unchangeable part, such as `{name}`; False for punctuation."""
        return bool(self.raw) or any(map(str.isalnum, self.text))


@dataclass(slots=True)
class Node:
    """A pair of tags, a single tag, or an unchangeable part (atom). The root node represents the whole
    passage, and has no tags.

    Attributes:
        raw (str): The source code of the node; for a pair, only of the opening tag.
        closing (str): The source code of the closing tag of a pair.
        kind (str): "pair" (two tags), "open" or "close" (a tag whose partner is missing), or "atom" (an
            unchangeable part).
        before (str): The source character before the node (a tag or an atom); "X" if an unchangeable part is
            before the node, and "" at the beginning of the sentence.
        after (str): The character after the node in the source; "X" if an unchangeable part is after the
            node, and "" at the end of the sentence.
        source_start (int): The index of the first source unit after the node. For a pair of tags,
            `source_start` is the index of the first source unit after the opening tag.
        source_end (int): For a pair of tags, the index of the first source unit after the closing tag.
        start (int): The index of the first unit of the translation after the node. For a pair of tags,
            `start` is the index of the first translation unit after the opening tag.
        end (int): For a pair of tags, the index of the first unit of the translation after the closing tag;
            otherwise equal to `start`.
        children (list): The nodes between the two tags of a pair, in the order of the source.
    """

    raw: str = ""
    closing: str = ""
    kind: str = "pair"
    before: str = ""
    after: str = ""
    source_start: int = 0
    source_end: int = 0
    start: int = 0
    end: int = 0
    children: "list[Node]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The units of one sentence: the slice `source_start:source_end` of the source units, and the slice
    `start:end` of the translation units.
    """

    source_start: int
    source_end: int
    start: int
    end: int


def project(root: Node, source: Sequence[Unit], target: Sequence[Unit], sentences: Sequence[Bounds]) -> None:
    """Set `start` and `end` of each `Node`, so that the node encloses the units `target[start:end]` of the
    translation.
    """
    root.end = len(target)
    aligned: Aligned = {}
    for i, unit in enumerate(target):
        aligned.setdefault(unit.source, []).append(i)
    parents = [root]
    while parents:
        parent = parents.pop()
        pairs = [child for child in parent.children if child.kind == "pair"]
        _place_pairs(parent, pairs, source, target, aligned, sentences)
        last_tag = parent.start
        for child in parent.children:
            if child.kind == "pair":
                continue
            child.start = child.end = _position(child, parent, aligned, sentences)
            _move_out_of_pairs(child, pairs)
            if child.kind != "atom":
                # Keep the order of opening and closing tags whose partner tags are not in this passage.
                last_tag = child.start = child.end = max(child.start, last_tag)
        parents += pairs


def _place_pairs(
    parent: Node,
    pairs: Sequence[Node],
    source: Sequence[Unit],
    target: Sequence[Unit],
    aligned: Aligned,
    sentences: Sequence[Bounds],
) -> None:
    """Set `start` and `end` of the tag pairs `pairs`, which are children of the node `parent`. First, place
    each pair of tags for which `_aligned_range` finds a range of the translation. If the pair encloses text
    of several sentences, `_aligned_range` must find a range in each sentence. Then place each remaining pair
    of tags around one target word outside of all placed pairs. An empty pair encloses no word. If no such
    target word is left, a pair also encloses no word. If the remaining pair is the only entry of `pairs`, the
    pair encloses the part of the translated sentence that is inside `parent`.
    """
    free = [True] * len(target)
    unsure = []
    for pair in pairs:
        ranges = []
        is_sure = True
        for sentence in _inside(sentences, pair):
            found = _aligned_range(pair, parent, sentence, source, target, free)
            is_sure = is_sure and found is not None
            ranges.append(found or _region(parent, sentence))
        if is_sure and ranges:
            _set_range(pair, ranges[0][0], ranges[-1][1], free)
        else:
            unsure.append((pair, ranges))
    for pair, ranges in unsure:
        if len(pairs) == 1 and ranges:
            _set_range(pair, ranges[0][0], ranges[-1][1], free)
        else:
            start = _position(pair, parent, aligned, sentences)
            nearest = [i for i in range(parent.start, parent.end) if free[i] and target[i].is_word]
            begin = min(nearest, key=lambda i: abs(i - start), default=None)
            if begin is None or pair.source_start == pair.source_end:
                pair.start = pair.end = start
                _move_out_of_pairs(pair, [other for other in pairs if other.start < other.end])
            else:
                _set_range(pair, begin, begin + 1, free)


def _inside(sentences: Sequence[Bounds], pair: Node) -> Iterable[Bounds]:
    """Yield each sentence that has a source unit (such as a word) between the two tags of the pair."""
    for sentence in sentences:
        start = max(pair.source_start, sentence.source_start)
        if start < min(pair.source_end, sentence.source_end):
            yield sentence


def _region(parent: Node, sentence: Bounds) -> tuple[int, int]:
    """Return the start and the end (indices of target units) of the part of `sentence` that is inside
    `parent`.
    """
    start = min(max(parent.start, sentence.start), parent.end)
    return start, max(start, min(parent.end, sentence.end))


def _aligned_range(
    pair: Node,
    parent: Node,
    sentence: Bounds,
    source: Sequence[Unit],
    target: Sequence[Unit],
    free: Sequence[bool],
) -> tuple[int, int] | None:
    """Return the range of target units (such as words) that corresponds to the source units between a pair of
    tags. Return None if the text between the tags is aligned with no target word, or only with target words
    inside other pairs of tags.
    """
    region = _region(parent, sentence)
    first = max(parent.source_start, sentence.source_start)
    last = min(parent.source_end, sentence.source_end)
    inside = range(max(first, pair.source_start), min(last, pair.source_end))
    has_other_words = any(source[i].is_word for i in range(first, last) if i not in inside)
    if not has_other_words and all(free[slice(*region)]):
        # A pair of tags around all source words of a sentence encloses all words of the translated sentence.
        # At both ends of the translated sentence, exclude punctuation that is aligned with a source unit
        # outside the two tags.
        start, end = region
        while start < end and _is_outside(target[start], pair):
            start += 1
        while start < end and _is_outside(target[end - 1], pair):
            end -= 1
        return start, end
    # Find the contiguous range with the highest score. A unit adds 1 to the score if the aligned source unit
    # is inside the pair of tags, and subtracts 1 if the aligned source unit is outside.
    has_words = any(source[i].is_word for i in inside)
    best = None
    best_sum = 0
    start = region[0]
    total = 0
    for i in range(*region):
        if total <= 0 or not free[i]:
            total = 0
            start = i if free[i] else i + 1
        aligned = target[i].source
        if not free[i] or aligned is None:
            continue
        total += 1 if pair.source_start <= aligned < pair.source_end else -1
        if total > best_sum and (target[i].is_word or best is not None or not has_words):
            best_sum = total
            best = (start, i + 1)
    if best is None:
        return None
    start, end = best
    while target[start].source is None:
        start += 1
    return start, end


def _is_outside(unit: Unit, pair: Node) -> bool:
    """Return True if `unit` is punctuation that is aligned with a source unit outside the pair of tags."""
    return (
        not unit.is_word
        and unit.source is not None
        and not pair.source_start <= unit.source < pair.source_end
    )


def _set_range(pair: Node, start: int, end: int, free: list[bool]) -> None:
    """Set the range of a pair of tags to the longest sequence of target units whose entries in
    `free[start:end]` are True. A unit is free if the unit is outside the ranges of the already placed pairs
    of tags with the same parent.
    """
    best = (start, start)
    run_start = start
    for i in range(start, end + 1):
        if i == end or not free[i]:
            if i - run_start > best[1] - best[0]:
                best = (run_start, i)
            run_start = i + 1
    pair.start, pair.end = best
    free[pair.start : pair.end] = [False] * (pair.end - pair.start)


def _position(node: Node, parent: Node, aligned: Aligned, sentences: Sequence[Bounds]) -> int:
    """Return the index of the translation unit before which a tag or an unchangeable part (`node`) is placed.

    `node` is placed directly after the translation of the source unit before `node`. If the preceding source
    unit has no translation, the node comes directly before the translation of the following source unit. An
    opening tag without a closing tag comes directly before the translation of the following source unit, if
    the unit has a translation. If neither the preceding nor the following source unit has a translation, the
    node has the same relative position in the translation as in the source sentence. For example, a tag in
    the middle of the source sentence is placed in the middle of the translation.
    """
    index = node.source_start
    sentence = next((one for one in sentences if index < one.source_end), sentences[-1])
    is_after_text = node.kind == "atom" and node.before.strip() != ""
    if node.kind == "close" or index == parent.source_end or is_after_text:
        sentence = next((one for one in sentences if index <= one.source_end), sentences[-1])
    start, end = _region(parent, sentence)
    source_start = max(parent.source_start, sentence.source_start)
    source_end = min(parent.source_end, sentence.source_end)
    if index <= source_start:
        return start
    if index >= source_end:
        return end
    before = [i + 1 for i in aligned.get(index - 1, ()) if start <= i < end]
    after = [i for i in aligned.get(index, ()) if start <= i < end]
    if node.kind == "open" and after:
        return after[0]
    if before:
        return before[-1]
    if after:
        return after[0]
    share = (index - source_start) / (source_end - source_start)
    return start + round(share * (end - start))


def _move_out_of_pairs(node: Node, pairs: Iterable[Node]) -> None:
    """Move a node without words, such as an image, out of each pair of tags that encloses the node only in
    the translation. If the node precedes the pair of tags in the source text, put the node before the opening
    tag. Otherwise, put the node after the closing tag.
    """
    for pair in pairs:
        if pair is not node and pair.start < node.start < pair.end:
            is_before = node.source_start <= pair.source_start
            node.start = node.end = pair.start if is_before else pair.end


def render(root: Node, target: Sequence[Unit], escape: Callable[[str], str]) -> str:
    """Return the translation with the tags and the unchangeable parts, in the format of the document."""
    writer = _Writer(root, target, escape)
    return writer.write()


class _Writer:
    """Writes the words of a translation, together with the tags and the unchangeable parts of the passage."""

    def __init__(self, root: Node, target: Sequence[Unit], escape: Callable[[str], str]):
        self._root = root
        self._target = target
        self._escape = escape
        self._parts: list[str] = []
        # The number of target units whose preceding white space is already written. A tag can be between a
        # unit and the white space before the unit.
        self._num_spaced = 0
        # The last written node. None after a unit.
        self._last_node: Node | None = None

    def write(self) -> str:
        """Return the text of the translated passage, with its tags and its unchangeable parts."""
        self._write_node(self._root)
        return "".join(self._parts)

    def _write_node(self, node: Node) -> None:
        """Write a node with all words and nodes between its tags."""
        self._parts.append(node.raw)
        position = node.start
        children = sorted(node.children, key=lambda child: (child.start, child.end))
        for child, following in zip_longest(children, children[1:]):
            self._write_units(position, child.start)
            before, after = self._spaces_around(child, parent=node)
            is_joined = following is not None and child.after == following.before == "X"
            if is_joined and following.start == child.end:
                # Write no space between two unchangeable parts if the source text has no space between them.
                after = ""
            self._parts.append(before)
            self._write_node(child)
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
        """Return the space before and the space after a node."""
        if node.start < node.end or (node.kind == "open" and node.after.strip()):
            # Write the space before the next word, then the opening tag, then the word.
            return self._take_space(node.start), ""
        if node.kind == "close" or (node.kind == "pair" and not node.children):
            return "", ""
        # The remaining nodes are unchangeable parts, opening tags without a closing tag, and pairs of tags
        # that enclose other nodes but no words.
        if parent is not self._root and parent.start == parent.end:
            # If the tags of `parent` enclose no words, the next word and the space before the word come after
            # the closing tag of `parent`. Write a space only if the source text has a space before the node.
            is_spaced = node.before.isspace() and node is not parent.children[0]
            return " " if is_spaced else "", ""
        if node.start == 0 and not node.before and self._target and self._target[0].space:
            # At the beginning of a passage, write the node first, then the white space, then the first word.
            return "", ""
        is_after_unit = self._is_aligned(node.start - 1, node.source_start - 1)
        if node.before.strip() and (is_after_unit or self._is_after_atom(node)):
            # Write no space before the node. In the source, a unit (such as a word) or an unchangeable part
            # directly precedes the node.
            is_next_spaced = node.start < self._num_spaced
            return "", self._space_after(node) if is_next_spaced else ""
        before = self._space_before(node)
        after = self._space_after(node)
        return before, after

    def _is_after_atom(self, node: Node) -> bool:
        """Return True if the last written part is an unchangeable part (atom), and the source has no `Unit`
        between the atom and `node`.
        """
        last = self._last_node
        return last is not None and last.kind == "atom" and last.source_start == node.source_start

    def _space_before(self, node: Node) -> str:
        """Return the space before a node without words, such as an image. Add a space if the node would
        otherwise be joined to the previous word.
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
        """Return the space after a node without words, such as an image. The space that the translation has
        before the next word has already been written before the node.
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
