"""Determines the positions of the tags and of the atoms (unchangeable parts, such as placeholders) in a
translation by the word alignment.

A `Unit` is a word, punctuation, or an atom that the model receives. A `Node` is a pair of tags, a single tag,
or an atom that the model does not receive. The `Node` objects form a tree: a tag or an atom between the two
tags of a pair is a child of the pair. In the translation, each pair of tags encloses one contiguous range of
`Unit` objects. The range of a pair of tags is inside the range of the parent pair. Two pairs of tags with the
same parent enclose ranges that do not overlap. Therefore each tag occurs exactly once in the translation, and
the pairs of tags are nested.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby


@dataclass(slots=True)
class Unit:
    """A word, punctuation, or an atom, such as a placeholder.

    Attributes:
        raw (str): The source code of an atom, such as `&copy;`; empty for words and punctuation.
        word (int): For a source unit, the index of the unit's word in the sentence. White space separates the
            words.
        space (str): The white space before the word, the punctuation or the atom.
        source (int, optional): The index of the source unit that is aligned with this unit of the
            translation. None in source units and in unaligned units.
    """

    text: str
    raw: str = ""
    word: int = -1
    space: str = ""
    source: int | None = None

    @property
    def is_word(self) -> bool:
        """True for a word or an atom, such as `{name}`; False for punctuation."""
        return bool(self.raw) or any(map(str.isalnum, self.text))


@dataclass(slots=True)
class Node:
    """A pair of tags, a single tag, or an atom, such as the placeholder `{name}`. The root node represents
    the whole passage, and has no tags.

    Attributes:
        raw (str): The source code of the node; for a pair, only of the opening tag.
        closing (str): The source code of the closing tag of a pair.
        name (str): The name of a tag.
        kind (str): "pair" (two tags), "open" or "close" (a tag whose partner is missing), or "atom" (an
            unchangeable part).
        before (str): The source character before the node; "X" if an unchangeable part precedes the node, and
            "" at the beginning of the sentence.
        after (str): The source character after the node; "X" if an unchangeable part follows the node, and ""
            at the end of the sentence.
        source_start (int): The index of the first source unit after the node. For a pair of tags,
            `source_start` is the index of the first source unit after the opening tag.
        source_end (int): For a pair of tags, the index of the first source unit after the closing tag.
        start (int): The index of the first unit (such as a word) that follows the node in the translation.
            For a pair of tags, `start` is the index of the translation's first unit (such as a word) after
            the opening tag.
        end (int): For a pair of tags, the index of the first unit of the translation after the closing tag;
            otherwise equal to `start`.
        children (list): The nodes between the two tags of a pair, in the order of the source.
    """

    raw: str = ""
    closing: str = ""
    name: str = ""
    kind: str = "pair"
    before: str = ""
    after: str = ""
    source_start: int = 0
    source_end: int = 0
    start: int = 0
    end: int = 0
    children: "list[Node]" = field(default_factory=list)

    @property
    def source_range(self) -> range:
        """The indices of the source units between the two tags of a pair."""
        return range(self.source_start, self.source_end)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The units (such as words) of a sentence, or of a part of a sentence. The slice
    `source_start:source_end` selects the source units, and the slice `start:end` selects the units of the
    translation.
    """

    source_start: int
    source_end: int
    start: int
    end: int

    def inside(self, parent: Node) -> "Bounds":
        """Return the part of the sentence that is inside the node `parent`."""
        start = min(max(parent.start, self.start), parent.end)
        return Bounds(
            source_start=max(parent.source_start, self.source_start),
            source_end=min(parent.source_end, self.source_end),
            start=start,
            end=max(start, min(parent.end, self.end)),
        )


def project(root: Node, source: Sequence[Unit], target: Sequence[Unit], sentences: Sequence[Bounds]) -> None:
    """Set `start` and `end` of each `Node`, so that the node encloses the units `target[start:end]` of the
    translation.
    """
    root.end = len(target)
    projection = _Projection(source, target, sentences)
    parents = [root]
    while parents:
        parent = parents.pop()
        pairs = [child for child in parent.children if child.kind == "pair"]
        projection.place_pairs(parent, pairs)
        projection.place_other_nodes(parent, pairs)
        parents += pairs


class _Projection:
    """Places the children of a node. The range of the node in the translation is already known."""

    def __init__(self, source: Sequence[Unit], target: Sequence[Unit], sentences: Sequence[Bounds]):
        self._source = source
        self._target = target
        self._sentences = sentences
        # Maps the index of a source unit to the indices of the aligned target units. The key None maps to the
        # indices of the unaligned target units.
        self._aligned: dict[int | None, list[int]] = {}
        for i, unit in enumerate(target):
            self._aligned.setdefault(unit.source, []).append(i)

    def place_pairs(self, parent: Node, pairs: Sequence[Node]) -> None:
        """Set `start` and `end` of the tag pairs `pairs`, which are children of the node `parent`.

        A pair of tags can enclose source units of several sentences. First, place each pair for which
        `_aligned_range` finds a range in each of these sentences. If `parent` has only one child pair, also
        place this pair if `_aligned_range` finds no range in a sentence. Then the pair encloses all target
        units of the sentence inside `parent`. Finally, place each remaining pair of tags around the nearest
        target word that no placed pair encloses. If all target words are already enclosed, or if a pair has
        no source text, place the empty pair like a single tag.
        """
        # The indices of the target units inside `parent` that no placed pair encloses.
        free = set(range(parent.start, parent.end)) if pairs else set()
        remaining = []
        for pair in pairs:
            sentences = [sentence.inside(parent) for sentence in self._sentences_of(pair)]
            ranges = [self._aligned_range(pair, sentence, free) for sentence in sentences]
            if sentences and (None not in ranges or len(pairs) == 1):
                start, _ = ranges[0] or (sentences[0].start, sentences[0].end)
                _, end = ranges[-1] or (sentences[-1].start, sentences[-1].end)
                _enclose(pair, start, end, free)
            else:
                remaining.append(pair)
        for pair in remaining:
            position = self._position(pair, parent)
            words = [i for i in sorted(free) if self._target[i].is_word]
            if words and pair.source_start < pair.source_end:
                nearest = min(words, key=lambda i: abs(i - position))
                _enclose(pair, nearest, nearest + 1, free)
            else:
                pair.start = pair.end = position
                _move_out_of_pairs(pair, pairs)

    def _sentences_of(self, pair: Node) -> Iterable[Bounds]:
        """Yield each sentence that has a source unit (such as a word) between the two tags of the pair."""
        for sentence in self._sentences:
            start = max(pair.source_start, sentence.source_start)
            if start < min(pair.source_end, sentence.source_end):
                yield sentence

    def _aligned_range(self, pair: Node, sentence: Bounds, free: set[int]) -> tuple[int, int] | None:
        """Return the range of target units (such as words) that corresponds to the source units between a
        pair of tags. `sentence` contains the bounds of a sentence, limited to the part of the sentence inside
        the parent of `pair`. Return None if the text between the tags is aligned with no target word, or only
        with target words inside other pairs of tags.
        """
        inside = pair.source_range
        units = range(sentence.source_start, sentence.source_end)
        has_other_words = any(self._source[i].is_word for i in units if i not in inside)
        if not has_other_words and free.issuperset(range(sentence.start, sentence.end)):
            return self._range_of_all_words(pair, sentence)
        return self._best_range(pair, sentence, free)

    def _range_of_all_words(self, pair: Node, sentence: Bounds) -> tuple[int, int]:
        """Return the range of target units for a pair of tags, if the two tags enclose all source words of a
        sentence. The range is the whole translated sentence. At the start and end of the translated sentence,
        exclude punctuation that is aligned with a source unit outside the two tags.
        """
        start = sentence.start
        end = sentence.end
        while start < end and self._is_other_punctuation(start, pair):
            start += 1
        while start < end and self._is_other_punctuation(end - 1, pair):
            end -= 1
        return start, end

    def _is_other_punctuation(self, i: int, pair: Node) -> bool:
        unit = self._target[i]
        return not unit.is_word and unit.source is not None and unit.source not in pair.source_range

    def _best_range(self, pair: Node, sentence: Bounds, free: set[int]) -> tuple[int, int] | None:
        """Return the contiguous range of target units in `free` that has the highest score. A unit adds 1 to
        the score of a range if the aligned source unit is inside the pair of tags. A unit subtracts 1 from
        the score if the aligned source unit is outside.
        """
        inside = pair.source_range
        first = max(sentence.source_start, pair.source_start)
        last = min(sentence.source_end, pair.source_end)
        has_words = any(self._source[i].is_word for i in range(first, last))
        best = None
        best_score = 0
        # `score` is the score of the units from `start` to the current unit.
        start = sentence.start
        score = 0
        for i in range(sentence.start, sentence.end):
            if i not in free:
                score = 0
                continue
            unit = self._target[i]
            if unit.source is None:
                continue
            if score <= 0:
                score = 0
                start = i
            score += 1 if unit.source in inside else -1
            # If the source has a word between the tags, the range in the translation must also contain a
            # word.
            if score > best_score and (unit.is_word or best is not None or not has_words):
                best_score = score
                best = (start, i + 1)
        return best

    def place_other_nodes(self, parent: Node, pairs: Sequence[Node]) -> None:
        """Set `start` and `end` of the single tags and the atoms among the children of `parent`."""
        last_tag = parent.start
        for child in parent.children:
            if child.kind == "pair":
                continue
            child.start = child.end = self._position(child, parent)
            _move_out_of_pairs(child, pairs)
            if child.kind != "atom":
                # Keep the order of opening and closing tags whose partner tags are not in this passage.
                last_tag = child.start = child.end = max(child.start, last_tag)

    def _position(self, node: Node, parent: Node) -> int:
        """Return the index of the unit (such as a word) of the translation before which a tag or an
        unchangeable part (`node`) is placed.

        `node` is placed directly after the translation of the source unit before `node`. If the preceding
        source unit has no translation, the node comes directly before the translation of the following source
        unit. An opening tag without a closing tag comes directly before the translation of the following
        source unit, if the unit has a translation. If neither the preceding nor the following source unit has
        a translation, `node` (a tag or an unchangeable part) gets the same relative position as in the source
        sentence. For example, a tag in the middle of the source sentence is placed in the middle of the
        translation.
        """
        index = node.source_start
        sentence = self._sentence_of(node, parent).inside(parent)
        if index <= sentence.source_start:
            return sentence.start
        if index >= sentence.source_end:
            return sentence.end
        before = self._aligned_units(index - 1, sentence)
        after = self._aligned_units(index, sentence)
        if after and (node.kind == "open" or not before):
            return after[0]
        if before:
            return before[-1] + 1
        share = (index - sentence.source_start) / (sentence.source_end - sentence.source_start)
        return sentence.start + round(share * (sentence.end - sentence.start))

    def _sentence_of(self, node: Node, parent: Node) -> Bounds:
        """Return the sentence of a node. Between two sentences, for example, a closing tag belongs to the
        first sentence, and an opening tag to the second sentence.
        """
        index = node.source_start
        is_after_text = node.kind == "atom" and node.before.strip() != ""
        is_at_end = node.kind == "close" or index == parent.source_end or is_after_text
        for sentence in self._sentences:
            if index < sentence.source_end or (is_at_end and index == sentence.source_end):
                return sentence
        return self._sentences[-1]

    def _aligned_units(self, source: int, sentence: Bounds) -> list[int]:
        """Return the indices of the target units in `sentence` that are aligned with the source unit of the
        index `source`.
        """
        return [i for i in self._aligned.get(source, ()) if sentence.start <= i < sentence.end]


def _enclose(pair: Node, start: int, end: int, free: set[int]) -> None:
    """Set the range of a pair of tags to the longest sequence of target units between `start` and `end` whose
    indices are in `free`. Then remove the indices from `free`.
    """
    runs = [[*run] for is_free, run in groupby(range(start, end), key=free.__contains__) if is_free]
    longest = max(runs, key=len, default=[])
    pair.start = longest[0] if longest else start
    pair.end = pair.start + len(longest)
    free.difference_update(longest)


def _move_out_of_pairs(node: Node, pairs: Iterable[Node]) -> None:
    """`node` is a tag or an atom without words. If `node` is inside a pair of tags in `pairs`, move `node`
    out of the pair. If `node` precedes the pair of tags in the source text, put `node` before the opening
    tag. Otherwise, put `node` after the closing tag.
    """
    for pair in pairs:
        if pair is not node and pair.start < node.start < pair.end:
            is_before = node.source_start <= pair.source_start
            node.start = node.end = pair.start if is_before else pair.end
