"""Determines the positions of the tags and of the protected parts (such as placeholders) in a translation,
from the word alignment.

A `Unit` is a word, punctuation, or a protected part that the model receives. A `Node` is a pair of tags, a
single tag, or a protected part that the model does not receive. The `Node` objects form a tree: a tag or a
protected part between the two tags of a pair is a child of the pair. In the translation, each pair of tags
encloses one contiguous range of `Unit` objects. The range of a pair of tags is inside the range of the parent
pair. Two pairs of tags with the same parent enclose ranges that do not overlap. Therefore each tag occurs
exactly once in the translation, and the pairs of tags are nested.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby


@dataclass(slots=True)
class Unit:
    """A word, punctuation, or a protected part, such as a placeholder.

    Attributes:
        raw (str): The source code of a protected part, such as `&copy;`; empty for words and punctuation.
        word (int): For a source unit, the index of the unit's word in the sentence. White space separates the
            words.
        space (str): The white space before the word, the punctuation or the protected part.
        source (int, optional): The index of the source unit that is aligned with this unit of the
            translation; None in source units and in unaligned units.
    """

    text: str
    raw: str = ""
    word: int = -1
    space: str = ""
    source: int | None = None

    @property
    def is_word(self) -> bool:
        """True for a word or a protected part, such as `{name}`; False for punctuation."""
        return bool(self.raw) or any(map(str.isalnum, self.text))


@dataclass(slots=True, eq=False)
class Node:
    """A pair of tags, a single tag, or a protected part, such as the placeholder `{name}`. The root node
    represents the whole passage, and has no tags.

    Attributes:
        raw (str): The source code of the node; for a pair, only of the opening tag.
        closing (str): The source code of the closing tag of a pair.
        name (str): The name of a tag.
        kind (str): "pair" (two tags), "open" or "close" (a tag whose partner is missing), or "protected" (an
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
    projection = _Projection(root, source, target, sentences)
    parents = [root]
    while parents:
        parent = parents.pop()
        pairs = [child for child in parent.children if child.kind == "pair"]
        projection.place_pairs(parent, pairs)
        projection.place_other_nodes(parent)
        parents += pairs


class _Projection:
    """Finds the positions of a node's children in the translation. The range of the node in the translation
    is already known. The counts that the constructor computes avoid a loop over all words for most tags,
    because a document can contain thousands of tags in one sentence.
    """

    def __init__(
        self, root: Node, source: Sequence[Unit], target: Sequence[Unit], sentences: Sequence[Bounds]
    ):
        self._target = target
        self._sentences = sentences
        self._source_ends = [sentence.source_end for sentence in sentences]
        # For each target unit, the innermost placed node around the unit.
        self._owners = [root] * len(target)
        # The number of words before each source unit.
        self._num_source_words = _counts([unit.is_word for unit in source])
        # The number of aligned units, and the number of aligned words, before each target unit.
        self._num_aligned = _counts([unit.source is not None for unit in target])
        self._num_words = _counts([unit.source is not None and unit.is_word for unit in target])
        # The aligned target units in the order of their source units. The target units that are aligned with
        # the source unit `i` are `_aligned[_aligned_starts[i] : _aligned_starts[i + 1]]`.
        targets: list[list[int]] = [[] for _ in source]
        for i, unit in enumerate(target):
            if unit.source is not None:
                targets[unit.source].append(i)
        self._aligned = [i for of_unit in targets for i in of_unit]
        self._aligned_starts = [0, *accumulate(map(len, targets))]

    def place_pairs(self, parent: Node, pairs: Sequence[Node]) -> None:
        """Set `start` and `end` of the tag pairs `pairs`, which are children of the node `parent`.

        A pair of tags can enclose source units of several sentences. First, place each pair for which
        `_aligned_range` finds a range in the first and in the last of the sentences that the pair encloses.
        Second, if `parent` has only one child pair, and `_aligned_range` finds no range for this pair in a
        sentence, the pair encloses all target units of the sentence inside `parent`. Finally, place each
        remaining pair of tags around the nearest target word that no placed pair encloses. If all target
        words are already enclosed, or if a pair has no source text, place the empty pair like a single tag.
        """
        remaining = []
        for pair in pairs:
            if pair.source_start == pair.source_end:
                remaining.append(pair)
                continue
            first = self._sentences[bisect_right(self._source_ends, pair.source_start)].inside(parent)
            last = self._sentences[bisect_left(self._source_ends, pair.source_end)].inside(parent)
            first_range = self._aligned_range(pair, first, parent)
            last_range = self._aligned_range(pair, last, parent)
            if (first_range and last_range) or len(pairs) == 1:
                start, _ = first_range or (first.start, first.end)
                _, end = last_range or (last.start, last.end)
                self._enclose(pair, start, end, parent)
            else:
                remaining.append(pair)
        for pair in remaining:
            position = self._position(pair, parent)
            has_text = pair.source_start < pair.source_end
            word = self._nearest_free_word(position, parent) if has_text else None
            if word is None:
                self._place_empty(pair, position, parent)
            else:
                self._enclose(pair, word, word + 1, parent)

    def _aligned_range(self, pair: Node, sentence: Bounds, parent: Node) -> tuple[int, int] | None:
        """Return the range of target units (such as words) that corresponds to the source units between a
        pair of tags. `sentence` contains the bounds of a sentence, limited to the part of the sentence inside
        the parent of `pair`. Return None if the text between the tags is aligned with no target word, or only
        with target words inside other pairs of tags.
        """
        first = max(sentence.source_start, pair.source_start)
        last = min(sentence.source_end, pair.source_end)
        words = self._num_source_words
        num_words = words[last] - words[first]
        num_other_words = words[sentence.source_end] - words[sentence.source_start] - num_words
        if num_other_words == 0 and self._is_free(sentence.start, sentence.end, parent):
            return self._range_of_all_words(pair, sentence)
        aligned = sorted(self._aligned[self._aligned_starts[first] : self._aligned_starts[last]])
        inside = aligned[bisect_left(aligned, sentence.start) : bisect_left(aligned, sentence.end)]
        return self._best_range(inside, parent, needs_word=num_words > 0)

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
        if unit.is_word or unit.source is None:
            return False
        return not pair.source_start <= unit.source < pair.source_end

    def _best_range(self, inside: Sequence[int], parent: Node, needs_word: bool) -> tuple[int, int] | None:
        """Return the range of target units that has the highest score. All units of the range are free (see
        `_is_free`). The score of a range is the number of its units that are aligned with a source unit
        between the tags, minus the number of its units that are aligned with another source unit.

        Args:
            inside (list): The indices of the target units that are aligned with a source unit between the
                tags, in ascending order.
            parent (Node): The parent of the pair of tags.
            needs_word (bool): True if the range must contain a word, because the source has a word between
                the tags.
        """
        if not inside:
            return None
        whole = (inside[0], inside[-1] + 1)
        if _number(self._num_aligned, *whole) == len(inside) and self._is_free(*whole, parent):
            return whole if not needs_word or _number(self._num_words, *whole) else None
        best = None
        best_score = 0
        # `score` is the score of the units from `start` to the current unit.
        start = inside[0]
        score = 0
        previous = inside[0] - 1
        for i in inside:
            if self._owners[i] is not parent:
                continue
            score -= _number(self._num_aligned, previous + 1, i)
            if score <= 0 or not self._is_free(previous + 1, i, parent):
                score = 0
                start = i
            score += 1
            previous = i
            has_word = best is not None or _number(self._num_words, start, i + 1) > 0
            if score > best_score and (has_word or not needs_word):
                best_score = score
                best = (start, i + 1)
        return best

    def _is_free(self, start: int, end: int, parent: Node) -> bool:
        """Return True if all target units of the slice `start:end` are free: inside `parent`, but not inside
        a placed child pair of `parent`.
        """
        return self._owners[start:end].count(parent) == end - start

    def _enclose(self, pair: Node, start: int, end: int, parent: Node) -> None:
        """Set the range of a pair of tags to the longest range between `start` and `end` whose units are free
        (see `_is_free`).
        """
        if not self._is_free(start, end, parent):
            runs = groupby(range(start, end), key=lambda i: self._owners[i] is parent)
            free = [[*run] for is_free, run in runs if is_free]
            longest = max(free, key=len, default=[])
            start = longest[0] if longest else start
            end = start + len(longest)
        pair.start = start
        pair.end = end
        self._owners[start:end] = [pair] * (end - start)

    def _nearest_free_word(self, position: int, parent: Node) -> int | None:
        """Return the index of the nearest target word inside `parent` that no placed pair encloses."""
        for distance in range(parent.end - parent.start + 1):
            for i in (position - distance, position + distance):
                is_inside = parent.start <= i < parent.end
                if is_inside and self._owners[i] is parent and self._target[i].is_word:
                    return i
        return None

    def place_other_nodes(self, parent: Node) -> None:
        """Set `start` and `end` of the single tags and the protected parts among the children of `parent`."""
        last_tag = parent.start
        for child in parent.children:
            if child.kind == "pair":
                continue
            self._place_empty(child, self._position(child, parent), parent)
            if child.kind != "protected":
                # Keep the order of opening and closing tags whose partner tags are not in this passage.
                last_tag = child.start = child.end = max(child.start, last_tag)

    def _place_empty(self, node: Node, position: int, parent: Node) -> None:
        """Place `node`, which encloses no words, before the target unit `position`. If a child pair of
        `parent` encloses this position, move `node` out of the pair. If `node` precedes the pair in the
        source text, put `node` before the opening tag. If `node` follows the pair's opening tag in the source
        text, put `node` after the closing tag of the pair.
        """
        if parent.start < position < parent.end:
            pair = self._owners[position]
            if pair is not parent and self._owners[position - 1] is pair:
                position = pair.start if node.source_start <= pair.source_start else pair.end
        node.start = node.end = position

    def _position(self, node: Node, parent: Node) -> int:
        """Return the position of `node` (a tag or an unchangeable part) in the translation: the index of the
        unit (such as a word) that follows `node`.

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
        is_after_text = node.kind == "protected" and node.before.strip() != ""
        is_at_end = node.kind == "close" or index == parent.source_end or is_after_text
        bisect = bisect_left if is_at_end else bisect_right
        number = bisect(self._source_ends, index)
        return self._sentences[min(number, len(self._sentences) - 1)]

    def _aligned_units(self, source: int, sentence: Bounds) -> list[int]:
        """Return the indices of the target units in `sentence` that are aligned with the source unit with the
        index `source`.
        """
        aligned = self._aligned[self._aligned_starts[source] : self._aligned_starts[source + 1]]
        return [i for i in aligned if sentence.start <= i < sentence.end]


def _counts(flags: Sequence[bool]) -> list[int]:
    """Return the number of true values before each index, and the number of all true values."""
    return [0, *accumulate(flags)]


def _number(counts: Sequence[int], start: int, end: int) -> int:
    """Return the number of true values in the slice `start:end`. `counts` is the result of `_counts`."""
    return counts[end] - counts[start]
