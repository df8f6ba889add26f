"""Constituency trees: reading brackets, what of a treebank is left out, and the symbols that a parser writes.

A tree is kept as its linearisation (Vinyals et al. 2015, "Grammar as a Foreign Language", which Section 6.3 follows): `(NP`
opens a constituent, `)` closes the last one that is open, `XX` stands for the next word. Words and their tags lie beside it,
so that any sequence of symbols that is well-formed is a tree over the words of a sentence, and nothing here is recursive.

A model writes the tag of each word in place of `XX`, as in the code of the paper's authors; Vinyals et al. wrote `XX`. Here
the tags teach it which word it is at, long before it knows the brackets.

Differs from Vinyals et al.: closing brackets have no label, because the constituent that is open has it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

OPEN, CLOSE, WORD = "(", ")", "XX"
# Brackets around a sentence that say nothing of it: those of Penn files have no label.
WRAPPERS = ("", "TOP", "ROOT", "S1")
TRACE = "-NONE-"
# White space of ASCII only: the thousands of a French number are held together by another one.
_TOKEN = re.compile(r"[()]|[^()\s]+", re.ASCII)
# `NP-SBJ-1=2` is an NP, `NP|ADJP` the first of two that annotators could not choose from, and `-LRB-` is whole.
_LABEL = re.compile(r"-[^-]+-|[^-=|]+")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}


class Constituent(NamedTuple):
    """A label and the words from `start` up to, but not including, `end`."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Tree:
    """A constituency tree; as a str it is one line of brackets, `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`.

    Attributes:
        symbols (tuple): Its linearisation: `(S`, `(NP`, …, `)`, and `XX` for each word.
        words (tuple): As many words as there are `XX`.
        tags (tuple): The part of speech of each word; `XX` where it is not known.
    """

    symbols: tuple[str, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]

    def __str__(self) -> str:
        leaves = (f"({tag} {escaped(word)})" for tag, word in zip(self.tags, self.words, strict=True))
        text = " ".join(next(leaves) if symbol == WORD else symbol for symbol in self.symbols)
        return text.replace(" )", ")")

    @property
    def sentence(self) -> str:
        """The words as a sentence, brackets written as such; what Unicode calls white space in a word is an underscore."""
        return " ".join(re.sub(r"\s", "_", unescaped(word)) for word in self.words)

    @property
    def constituents(self) -> list[Constituent]:
        """All constituents, inner ones first; tags are none."""
        found: list[Constituent] = []
        opened: list[tuple[str, int]] = []
        position = 0
        for symbol in self.symbols:
            if symbol == WORD:
                position += 1
            elif symbol == CLOSE:
                label, start = opened.pop()
                found.append(Constituent(label, start, position))
            else:
                opened.append((symbol.removeprefix(OPEN), position))
        return found


def escaped(word: str) -> str:
    """A word as a treebank writes it, where brackets are structure.

    Args:
        word: The word.
    """
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescaped(word: str) -> str:
    """A word as people write it.

    Args:
        word: As it is in a treebank.
    """
    return re.sub("-[LR][RCS]B-", lambda escape: _ESCAPES[escape[0]], word)


def tree_over(words: Sequence[str], symbols: Sequence[str], tags: Sequence[str] | None = None) -> Tree:
    """The tree that a linearisation means over the words of a sentence; the inverse of `Tree.symbols`.

    Args:
        words: The words.
        symbols: `(LABEL`, `)` and `XX`.
        tags: The part of speech of each word, if it is known.

    Raises:
        ValueError: If the symbols are no tree, or one over another number of words.
    """
    depth, num_words = 0, 0
    for place, (before, symbol) in enumerate(zip(("", *symbols), symbols, strict=False)):
        depth += {CLOSE: -1, WORD: 0}.get(symbol, 1)
        num_words += symbol == WORD
        is_empty = symbol == CLOSE and before not in (CLOSE, WORD)
        if is_empty or depth < (place == 0 or place + 1 < len(symbols)):
            raise ValueError(
                f"The symbols must be a tree, but are not from number {place + 1} on: {' '.join(symbols)}."
            )
    if depth or num_words != len(words) or not words:
        raise ValueError(
            f"The symbols must be a tree over {len(words):,} words, but have {num_words:,} and leave {depth:,} brackets open: "
            f"{' '.join(symbols)}."
        )
    return Tree(tuple(symbols), tuple(words), tuple(tags or [WORD] * len(words)))


def tree_of(text: str) -> Tree:
    """The tree that a text of brackets describes, without traces, function tags and a wrapper.

    Args:
        text: One tree.

    Raises:
        ValueError: If it is not one, or there is no word in it.
    """
    trees = list(read_trees(text.split("\n"), "the tree"))
    if len(trees) != 1 or not trees[0].words:
        raise ValueError(f"The text must be one tree with a word in it, but is {text!r:.200}.")
    return trees[0]


def read_trees(lines: Iterable[str], place: str) -> Iterator[Tree]:
    """The trees of a treebank, without traces, function tags and wrappers; a tree of traces alone has no words.

    A tree may be on a line of its own, or on several, of which all but the first one are indented, as in Penn files.

    Args:
        lines: Lines of text without their ends.
        place: The file, for errors.

    Yields:
        Tree: Each tree.

    Raises:
        ValueError: If brackets are not balanced, or something is no tree; file, line and what is wrong are named.
    """
    reader, number = _Reader(place), 0
    for number, line in enumerate(lines, 1):
        if line.startswith(OPEN):
            reader.refuse_open(f"before the next tree begins in line {number:,}")
        for token in _TOKEN.findall("" if line.startswith("*x*") else line):
            if (tree := reader.take(token, number)) is not None:
                yield tree
    reader.refuse_open("at the end of the file")


@dataclass
class _Bracket:
    """A bracket that is open: its label, once it is read, its word, if it is a tag, and whether others are in it."""

    line: int
    label: str | None = None
    word: str | None = None
    is_parent: bool = False


@dataclass
class _Reader:
    """Tokens to trees."""

    place: str
    opened: list[_Bracket] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    def take(self, token: str, line: int) -> Tree | None:
        """The tree, if this token ends one.

        Raises:
            ValueError: If the token cannot follow.
        """
        if token == OPEN:
            self._open(line)
        elif not self.opened:
            self._refuse(
                line,
                "a closing bracket has no opening one; remove it, or add the opening bracket that is missing"
                if token == CLOSE
                else f"{token!r:.40} stands outside of the brackets of a tree; remove it, or put it into brackets",
            )
        elif token == CLOSE:
            return self._close(line)
        else:
            self._fill(token, line)
        return None

    def _open(self, line: int) -> None:
        if self.opened:
            parent = self.opened[-1]
            if parent.word is not None:
                self._refuse_loose(parent.word, line)
            if not parent.is_parent:
                parent.is_parent = True
                self.symbols.append(OPEN + (parent.label or ""))
        self.opened.append(_Bracket(line))

    def _fill(self, token: str, line: int) -> None:
        bracket = self.opened[-1]
        if bracket.is_parent or bracket.word is not None:
            self._refuse_loose(token, line)
        elif bracket.label is None:
            bracket.label = token
        else:
            bracket.word = token

    def _close(self, line: int) -> Tree | None:
        bracket = self.opened.pop()
        if bracket.word is not None:
            self.symbols.append(WORD)
            self.words.append(bracket.word)
            self.tags.append(bracket.label or "")
        elif bracket.is_parent:
            self.symbols.append(CLOSE)
        else:
            self._refuse(
                line, f"the bracket `({bracket.label or ''})` has no word in it; write (TAG word), or remove it"
            )
        if self.opened:
            return None
        tree = _cleaned(self.symbols, self.words, self.tags)
        self.symbols, self.words, self.tags = [], [], []
        return tree

    def refuse_open(self, where: str) -> None:
        """Refuse brackets that are still open.

        Raises:
            ValueError: If there are some.
        """
        if self.opened:
            number = len(self.opened)
            missing = "a closing bracket" if number == 1 else f"{number:,} closing brackets"
            self._refuse(
                self.opened[0].line,
                f"the tree that begins here lacks {missing} {where}; add what is missing, or indent"
                " the lines that go on with a tree",
            )

    def _refuse_loose(self, word: str, line: int) -> None:
        self._refuse(line, f"the word {word!r:.40} has no tag of its own; write each word as (TAG word)")

    def _refuse(self, line: int, fault: str) -> None:
        raise ValueError(f"{self.place}, line {line:,}: {fault}.")


def _cleaned(symbols: list[str], words: list[str], tags: list[str]) -> Tree:
    """A tree without traces, what they leave empty, function tags, brackets without a label, and wrappers."""
    kept: list[str] = []
    opened: list[str] = []
    leaves = zip(words, tags, strict=True)
    kept_leaves = []
    for place, symbol in enumerate(symbols):
        if symbol == WORD:
            word, tag = next(leaves)
            if tag != TRACE:
                kept.append(WORD)
                kept_leaves.append((word, _label(tag)))
        elif symbol != CLOSE:
            opened.append(OPEN + _label(symbol.removeprefix(OPEN)))
            # A bracket without a label inside of a tree says nothing.
            if opened[-1] != OPEN or place == 0:
                kept.append(opened[-1])
        elif opened.pop() != OPEN or not opened:
            if kept[-1:] and kept[-1] not in (WORD, CLOSE):
                kept.pop()
            else:
                kept.append(CLOSE)
    while kept[:1] and kept[0].removeprefix(OPEN) in WRAPPERS and _is_one_constituent(kept[1:-1]):
        kept = kept[1:-1]
    if kept[:1] == [OPEN]:
        kept[0] = "(TOP"
    if kept == [WORD]:
        kept = ["(TOP", WORD, CLOSE]
    return Tree(tuple(kept), tuple(word for word, _ in kept_leaves), tuple(tag for _, tag in kept_leaves))


def _is_one_constituent(symbols: list[str]) -> bool:
    depth = 0
    for place, symbol in enumerate(symbols):
        depth += {CLOSE: -1, WORD: 0}.get(symbol, 1)
        if depth == 0:
            return place > 0 and place + 1 == len(symbols)
    return False


def _label(label: str) -> str:
    """A label without function tags, indices and alternatives."""
    found = _LABEL.match(label)
    return found[0] if found else label
