"""A parser on a treebank: its trees and their scores."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from transformers.utils import logging

from ..data.trees import Tree, tree_over
from .bracketing import bracketing_scores
from .parser import Parser

logger = logging.get_logger(__name__)


def evaluate_parser(parser: Parser, gold: Sequence[Tree], **options: Any) -> dict[str, Any]:
    """The scores of a parser on the sentences of gold trees, and its trees.

    Args:
        parser (Parser): The parser.
        gold (sequence): The right trees. Trees without words have nothing to parse; they are left out of the scores, and
            a warning counts them.
        **options: Options of `Parser.parse`.

    Returns:
        dict: What `bracketing_scores` gives, `seconds`, `sentences_per_second`, and the list `trees` with one entry for
        each gold tree, None for one without words.

    Raises:
        ValueError: If there is no tree with words.
    """
    from tqdm.auto import tqdm

    with_words = trees_with_words(gold)
    start = time.perf_counter()
    parsed = parser.parse((tree.sentence for tree in with_words), **options)
    # disable=None: no bar where stderr is no terminal.
    bar = tqdm(parsed, total=len(with_words), unit=" sentences", desc="parsing", disable=None, leave=False)
    # A sentence has not all characters of a treebank's words.
    trees = [
        tree_over(right.words, tree.symbols, tree.tags)
        for right, tree in zip(with_words, bar, strict=True)
        if tree is not None
    ]
    seconds = time.perf_counter() - start
    scores = bracketing_scores(with_words, trees)
    remaining = iter(trees)
    aligned = [next(remaining) if tree.words else None for tree in gold]
    return scores | {"seconds": seconds, "sentences_per_second": len(with_words) / seconds, "trees": aligned}


def trees_with_words(gold: Sequence[Tree]) -> list[Tree]:
    """The gold trees that can be scored; a warning counts the others.

    Args:
        gold (sequence): The trees of a treebank, in which a tree of traces alone has no words.
    """
    found = [tree for tree in gold if tree.words]
    if len(found) < len(gold):
        logger.warning(
            f"{len(gold) - len(found):,} of {len(gold):,} trees have no words and are left out of the scores."
        )
    return found


def lines_of(trees: Iterable[Tree | None]) -> str:
    """Trees one a line, with an empty line for None.

    Args:
        trees (iterable): As from `evaluate_parser`.
    """
    return "".join("\n" if tree is None else f"{tree}\n" for tree in trees)


def scores_as_text(scores: dict[str, Any]) -> str:
    """The scores, a line each.

    Args:
        scores (dict): As from `evaluate_parser` or `bracketing_scores`.
    """
    brackets = f"{scores['matched_brackets']:,} of {scores['gold_brackets']:,} brackets"
    speed = (
        f" in {scores['seconds']:.1f} s, {scores['sentences_per_second']:.1f} sentences/s"
        if "seconds" in scores
        else ""
    )
    return "\n".join(
        [
            f"F1 {scores['f1']:.2f}  labelled brackets by the rules of evalb",
            f"precision {scores['precision']:.2f}",
            f"recall {scores['recall']:.2f}  {brackets}",
            f"exact match {scores['exact_match']:.2f} %",
            f"{scores['sentences']:,} sentences{speed}",
        ]
    )
