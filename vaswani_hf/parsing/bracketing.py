"""Computes labelled bracketing scores: precision, recall and F1 of trees, with the rules of the program evalb
(Sekine and Collins 1997).

The rules come from the parameter files COLLINS.prm and new.prm of evalb. Before the comparison, function tags
are removed from labels, and TOP, punctuation and traces are removed from trees. The labels ADVP and PRT count
as equal. Two constituents match if they have the same label, the same first word and the same last word.
Precision and recall count the constituents of all sentences together. Part-of-speech tags are not compared.
Only the tags of the gold tree decide which words of the two trees are punctuation, because predicted trees do
not always have tags.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from transformers.utils import logging

from ..checkpoint.results import Record
from ..data.lines import check_equally_many
from ..data.trees import WORD, WRAPPERS, Tree, read_treebank, tree_from_symbols, treebank_files
from ..model.errors_vaswani import InvalidValueError
from .parser import Parser

logger = logging.get_logger(__name__)

PUNCTUATION = frozenset([",", ":", "``", "''", ".", "?", "!"])
_SAME_LABEL = {"PRT": "ADVP"}


class BracketingScores(Record):
    """The labelled bracketing scores of predicted trees, and the speed of the parser.

    Attributes:
        f1: The harmonic mean of `precision` and `recall`.
        precision: The percentage of predicted constituents that are correct.
        recall: The percentage of gold constituents that are predicted.
        exact_match: The percentage of sentences whose gold tree and predicted tree have the same
            constituents.
        sentences: The number of sentences.
        gold_brackets: The number of constituents in the gold trees.
        predicted_brackets: The number of constituents in the predicted trees.
        matched_brackets: The number of predicted constituents that are correct.
        seconds: The time in seconds that the parser took; None if the trees are from a file.
        sentences_per_second: The number of sentences that the parser parses in one second; None if the trees
            are from a file.
    """

    f1: float
    precision: float
    recall: float
    exact_match: float
    sentences: int
    gold_brackets: int
    predicted_brackets: int
    matched_brackets: int
    seconds: float | None = None
    sentences_per_second: float | None = None


def bracketing_scores(gold: Sequence[Tree], predicted: Sequence[Tree]) -> BracketingScores:
    """Score predicted trees against gold trees. `gold` and `predicted` must contain trees of the same
    sentences in the same order.
    """
    num_gold = 0
    num_predicted = 0
    num_matched = 0
    num_exact = 0
    for number, (gold_tree, tree) in enumerate(zip(gold, predicted, strict=True), 1):
        if tree.sentence != gold_tree.sentence:
            raise ValueError(
                f"Tree {number:,} must have the words of the gold tree, {gold_tree.sentence!r:.200}, but has "
                f"{tree.sentence!r:.200}."
            )
        is_kept = [not is_punctuation for is_punctuation in _punctuation_of(gold_tree)]
        gold_brackets = _brackets(gold_tree, is_kept)
        brackets = _brackets(tree, is_kept)
        num_gold += gold_brackets.total()
        num_predicted += brackets.total()
        num_matched += (gold_brackets & brackets).total()
        num_exact += gold_brackets == brackets
    return BracketingScores(
        f1=100 * 2 * num_matched / max(1, num_gold + num_predicted),
        precision=100 * num_matched / max(1, num_predicted),
        recall=100 * num_matched / max(1, num_gold),
        exact_match=100 * num_exact / len(gold),
        sentences=len(gold),
        gold_brackets=num_gold,
        predicted_brackets=num_predicted,
        matched_brackets=num_matched,
    )


def _punctuation_of(tree: Tree) -> list[bool]:
    """For each word, return True if the word is punctuation. A word is punctuation if its tag is in
    `PUNCTUATION`. A word without a tag is punctuation if the word itself is in `PUNCTUATION`.
    """
    names = [word if tag == WORD else tag for word, tag in zip(tree.words, tree.tags, strict=True)]
    return [name in PUNCTUATION for name in names]


def _brackets(tree: Tree, is_kept: Iterable[bool]) -> Counter[tuple[str, int, int]]:
    """Count the scored constituents of a tree by (label, start, end). The start and the end are word indices
    that do not count punctuation.
    """
    # `places[i]` is the number of words before word `i`, without punctuation. The last entry of `places` is
    # the number of words in the sentence, without punctuation.
    places = [0, *accumulate(is_kept)]
    brackets: Counter[tuple[str, int, int]] = Counter()
    for label, start, end in tree.constituents:
        # Count neither brackets with a label in `WRAPPERS`, such as TOP, nor constituents that consist only
        # of punctuation.
        if label not in WRAPPERS and places[start] < places[end]:
            brackets[_SAME_LABEL.get(label, label), places[start], places[end]] += 1
    return brackets


def evaluate_parser(
    parser: Parser, gold: Sequence[Tree], **options: Any
) -> tuple[list[Tree | None], BracketingScores]:
    """Parse the sentences of gold trees, and score the predicted trees. `options` are options of
    `Parser.parse`.

    Return a list of predicted trees, one for each gold tree, and the scores. For a gold tree without words,
    the list of predicted trees contains None.
    """
    from tqdm.auto import tqdm

    with_words = trees_with_words(gold)
    start = time.perf_counter()
    parsed = parser.parse((tree.sentence for tree in with_words), **options)
    # With `disable=None`, tqdm shows no progress bar if stderr is not a terminal.
    bar = tqdm(parsed, total=len(with_words), unit=" sentences", desc="parsing", disable=None, leave=False)
    # Replace the words of the predicted tree by the words of the gold tree. The words of the predicted tree
    # come from `Tree.sentence`, the input of the parser. For example, `Tree.sentence` contains `(` instead of
    # `-LRB-`.
    trees = [
        tree_from_symbols(gold_tree.words, tree.symbols, tree.tags)
        for gold_tree, tree in zip(with_words, bar, strict=True)
        if tree is not None
    ]
    seconds = time.perf_counter() - start
    scores = bracketing_scores(with_words, trees)
    scores.seconds = seconds
    scores.sentences_per_second = len(with_words) / seconds
    remaining = iter(trees)
    aligned = [next(remaining) if tree.words else None for tree in gold]
    return aligned, scores


def read_gold_trees(treebank: str) -> list[Tree]:
    """Read the treebank that the option `--trees` names. Raise a ValueError if the treebank has no tree with
    words.
    """
    gold = [tree for path in treebank_files([treebank]) for tree in read_treebank(path)]
    if not any(tree.words for tree in gold):
        raise InvalidValueError(f"`--trees` must have a tree with words in it, but {treebank} has none.")
    return gold


def score_tree_file(path: str, gold: Sequence[Tree], treebank: str) -> BracketingScores:
    """Score the trees of a file against the gold trees of a treebank."""
    with_words = trees_with_words(gold)
    predicted = [tree for tree in read_treebank(path) if tree.words]
    check_equally_many("trees with words", treebank, len(with_words), path, len(predicted))
    return bracketing_scores(with_words, predicted)


def trees_with_words(gold: Sequence[Tree]) -> list[Tree]:
    """Return the gold trees that have words, and log how many trees have only traces."""
    found = [tree for tree in gold if tree.words]
    if len(found) < len(gold):
        logger.warning(
            f"{len(gold) - len(found):,} of {len(gold):,} trees have no words and are left out of the scores."
        )
    return found


def trees_as_lines(trees: Iterable[Tree | None]) -> str:
    """Return each tree as one line in bracket notation. A missing tree (None) becomes an empty line."""
    return "".join("\n" if tree is None else f"{tree}\n" for tree in trees)


def bracketing_scores_as_text(scores: BracketingScores) -> str:
    """Format the scores as text, one score per line."""
    sentences = f"{scores.sentences:,} sentences"
    if scores.seconds is not None:
        sentences += f" in {scores.seconds:.1f} s, {scores.sentences_per_second:.1f} sentences/s"
    lines = [
        f"F1 {scores.f1:.2f}  labelled brackets by the rules of evalb",
        f"precision {scores.precision:.2f}",
        f"recall {scores.recall:.2f}  {scores.matched_brackets:,} of {scores.gold_brackets:,} brackets",
        f"exact match {scores.exact_match:.2f} %",
        sentences,
    ]
    return "\n".join(lines)
