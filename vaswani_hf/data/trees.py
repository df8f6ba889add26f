"""Reads constituency trees in bracket notation, and converts each tree to a sequence of symbols, its
linearisation.

The linearisation follows Vinyals et al. 2015, "Grammar as a Foreign Language", as Section 6.3 of the paper
does. `(NP` opens a constituent, `)` closes the innermost open constituent, and `XX` stands for the next word.
A `Tree` stores the words and their tags separately.

Differs from Vinyals et al.: closing brackets have no label, because the opening bracket already has the
label. A parsing model outputs the part-of-speech tag of each word instead of `XX`. The code of the paper's
authors also outputs part-of-speech tags.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .lines import MissingFileError, matching_paths, read_lines

OPEN = "("
CLOSE = ")"
WORD = "XX"
# The labels of brackets around a whole sentence. In the files of the Penn Treebank, the bracket around a
# sentence has no label.
WRAPPERS = ("", "TOP", "ROOT", "S1")
# The tag of a trace in the Penn Treebank. A trace, such as `(-NONE- *T*-1)`, marks a position without a word.
TRACE = "-NONE-"
# Only ASCII white space separates words, because a no-break space can be part of a word, as in the French
# number 10 000.
_TOKEN = re.compile(
    r"""
    \( \s* (?P<tag> [^()\s]+) \s+ (?P<word> [^()\s]+) \s* \)  # a word with its tag
    | (?P<empty> \( \s* [^()\s]* \s* \) )                     # a bracket without a word
    | \( \s* (?P<label> [^()\s]*)                             # the opening bracket of a constituent
    | (?P<close> \) )
    | (?P<loose> [^()\s]+)                                    # a word without a tag
    """,
    re.ASCII | re.VERBOSE,
)
# In `NP-SBJ-1=2` and in `NP|ADJP`, the pattern matches the label NP. If a label begins and ends with a
# hyphen, as in `-LRB-`, the pattern matches the whole label.
_LABEL = re.compile(r"-[^-]+-|[^-=|]+")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}


class Constituent(NamedTuple):
    """A constituent of a tree: a label, and the words `start` to `end - 1` of the sentence."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Tree:
    """A constituency tree. `str(tree)` is `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`, for example."""

    # The linearisation of the tree: `(S`, `(NP`, …, `)`, and `XX` for each word.
    symbols: tuple[str, ...]
    words: tuple[str, ...]
    # The part of speech of each word; `XX` if the part of speech is unknown.
    tags: tuple[str, ...]

    def __str__(self) -> str:
        leaves = iter(zip(self.tags, self.words, strict=True))
        parts = []
        for symbol in self.symbols:
            if symbol == WORD:
                tag, word = next(leaves)
                parts.append(f"({tag} {escaped(word)})")
            else:
                parts.append(symbol)
        return " ".join(parts).replace(" )", ")")

    @property
    def sentence(self) -> str:
        """The words, separated by spaces. White space in a word becomes `_`, and `-LRB-` becomes `(`."""
        return " ".join(re.sub(r"\s", "_", unescaped(word)) for word in self.words)

    @property
    def constituents(self) -> list[Constituent]:
        """All constituents. Each constituent comes after the constituents that it contains. The tags of words
        are not constituents.
        """
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
    """Replace the brackets in a word as treebanks do: `(` becomes `-LRB-`, and `)` becomes `-RRB-`."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def unescaped(word: str) -> str:
    """Replace the codes for brackets in a word of a treebank: for example, `-LRB-` becomes `(`."""
    return re.sub("-[LR][RCS]B-", lambda escape: _ESCAPES[escape[0]], word)


def tree_from_symbols(
    words: Sequence[str], symbols: Sequence[str], tags: Sequence[str] | None = None
) -> Tree:
    """Return the tree that has the linearisation `symbols` and the leaves `words`."""
    num_words = list(symbols).count(WORD)
    if not _is_constituent(symbols) or num_words != len(words):
        text = " ".join(symbols)
        raise ValueError(f"The symbols must be a tree over {len(words):,} words, but are {text!r}.")
    return Tree(tuple(symbols), tuple(words), tuple(tags or [WORD] * len(words)))


def _is_constituent(symbols: Sequence[str]) -> bool:
    """Return True if the symbols form exactly one tree without empty brackets."""
    depth = 0
    previous = None
    for symbol in symbols:
        is_first = previous is None
        if symbol == WORD:
            is_possible = depth > 0
        elif symbol == CLOSE:
            is_possible = depth > 0 and previous in (WORD, CLOSE)
            depth -= 1
        else:
            is_possible = depth > 0 or is_first
            depth += 1
        if not is_possible:
            return False
        previous = symbol
    return previous == CLOSE and depth == 0


def tree_from_text(text: str) -> Tree:
    """Return the tree of a text that contains exactly one tree, cleaned as in `read_trees`."""
    trees = list(read_trees(text.split("\n"), "the tree"))
    if len(trees) != 1 or not trees[0].words:
        raise ValueError(f"The text must be one tree with a word in it, but is {text!r:.200}.")
    return trees[0]


def read_trees(lines: Iterable[str], place: str) -> Iterator[Tree]:
    """Yield the trees of a treebank. Remove traces and function tags, and outermost brackets such as `(ROOT
    …)`.

    All lines of a tree except the first must be indented, as in the files of the Penn Treebank. A tree that
    contains only traces becomes a tree without words.
    """
    # Each line that begins with a bracket begins a new block of lines.
    block: list[str] = []
    first_line = 1
    for number, line in enumerate(lines, 1):
        if line.startswith(OPEN):
            end = f"before the next tree begins in line {number:,}"
            yield from _trees_of_block("\n".join(block), place, first_line, end)
            block = []
            first_line = number
        # Skip the header of old Penn Treebank files. The lines of the header begin with `*x*`.
        block.append("" if line.startswith("*x*") else line)
    yield from _trees_of_block("\n".join(block), place, first_line, "at the end of the file")


def _trees_of_block(block: str, place: str, first_line: int, end: str) -> Iterator[Tree]:
    """Yield the trees of a block of lines, which begins at the line with the number `first_line`."""

    def refuse(position: int, fault: str) -> None:
        line = first_line + block.count("\n", 0, position)
        raise ValueError(f"{place}, line {line:,}: {fault}.")

    symbols: list[str] = []
    words: list[str] = []
    tags: list[str] = []
    labels: list[str] = []
    start = 0
    for token in _TOKEN.finditer(block):
        if fault := _fault_of(token, is_inside=bool(labels)):
            refuse(token.start(), fault)
        if not labels:
            start = token.start()
        if token["close"]:
            _close_constituent(symbols, labels)
        elif token["word"] is None:
            labels.append(_cleaned_label(token["label"]))
            # Leave out an inner bracket without a label, but keep its contents.
            if labels[-1] or len(labels) == 1:
                symbols.append(OPEN + labels[-1])
        elif token["tag"] != TRACE:
            symbols.append(WORD)
            words.append(token["word"])
            tags.append(_cleaned_label(token["tag"]))
        if not labels:
            yield Tree(tuple(_without_wrappers(symbols)), tuple(words), tuple(tags))
            symbols = []
            words = []
            tags = []
    if labels:
        missing = "a closing bracket" if len(labels) == 1 else f"{len(labels):,} closing brackets"
        remedy = f"add {missing}, or indent the lines that continue a tree"
        refuse(start, f"the tree that begins here lacks {missing} {end}; {remedy}")


def _fault_of(token: re.Match[str], *, is_inside: bool) -> str | None:
    """Describe what is wrong with a token, or return None for a valid token. `is_inside` is True if a bracket
    is open before the token.
    """
    if token["empty"]:
        label = "".join(token["empty"].split())
        return f"the bracket `{label}` has no word in it; write (TAG word), or remove the bracket"
    if token["loose"]:
        word = f"{token['loose']!r:.40}"
        if is_inside:
            return f"the word {word} has no tag of its own; write each word as (TAG word)"
        return f"{word} stands outside of the brackets of a tree; remove it, or put it into brackets"
    if token["close"] and not is_inside:
        return (
            "a closing bracket has no opening bracket; remove the closing bracket, or add the opening bracket"
        )
    return None


def _close_constituent(symbols: list[str], labels: list[str]) -> None:
    label = labels.pop()
    if not label and labels:
        return
    if symbols[-1].startswith(OPEN):
        # Remove the constituent, because it contains only traces.
        symbols.pop()
    else:
        symbols.append(CLOSE)


def _without_wrappers(symbols: list[str]) -> list[str]:
    """Remove each outermost bracket whose label is in `WRAPPERS` and that contains exactly one constituent.
    If the remaining outermost bracket has no label, give the bracket the label TOP. Put a single word without
    brackets into a bracket TOP.
    """
    if symbols == [WORD]:
        return [OPEN + "TOP", WORD, CLOSE]
    while symbols and symbols[0].removeprefix(OPEN) in WRAPPERS and _is_constituent(symbols[1:-1]):
        symbols = symbols[1:-1]
    if symbols and symbols[0] == OPEN:
        return [OPEN + "TOP", *symbols[1:]]
    return symbols


def _cleaned_label(label: str) -> str:
    """Return a label without function tags, indices and alternatives: `NP-SBJ-1` becomes `NP`."""
    found = _LABEL.match(label)
    return found[0] if found else label


def treebank_files(names: list[str]) -> list[str]:
    """Return the files of a treebank. `names` are files, patterns, and folders with `.mrg` files."""
    files: list[str] = []
    for name in names:
        found = [file for path in matching_paths(name) for file in _files_of(path)]
        if not found:
            if os.path.isdir(name):
                raise MissingFileError(
                    f"`trees` must be a folder with .mrg files, but {name} has no such file."
                )
            raise MissingFileError(f"`trees` must be an existing file, but {name} does not exist.")
        files += found
    return files


def _files_of(path: str) -> list[str]:
    """Return the `.mrg` and `.mrg.gz` files in the folder `path`. Return [`path`] if `path` is a file, and []
    if `path` does not exist.
    """
    if os.path.isdir(path):
        return sorted(str(file) for file in Path(path).rglob("*") if file.name.endswith((".mrg", ".mrg.gz")))
    return [path] if os.path.isfile(path) else []


def read_treebank(path: str) -> Iterator[Tree]:
    """Yield the trees of one file. The file can be compressed (.gz)."""
    is_empty = True
    for tree in read_trees(read_lines(path), path):
        is_empty = False
        yield tree
    if is_empty:
        raise ValueError(f"{path} must hold trees in brackets, but there are none.")
