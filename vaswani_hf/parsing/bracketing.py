"""Labelled bracketing: precision, recall and F1 of trees by the rules of evalb (Sekine and Collins 1997).

Those of its parameter file COLLINS.prm, with the labels that new.prm adds to them: function tags are cut off, ADVP and PRT are
the same label, constituents TOP, punctuation and traces are deleted, and constituents are compared as a multiset of label and
first and last word, over all sentences together; parts of speech are not. Punctuation is what the gold tree tags so, in both
trees, so that a parser needs no tags.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from ..data.trees import WORD, WRAPPERS, Tree

PUNCTUATION = frozenset([",", ":", "``", "''", ".", "?", "!"])
_SAME_LABEL = {"PRT": "ADVP"}


def brackets(tree: Tree, punctuation: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """The constituents that count, with the number of times that each is there.

    Args:
        tree: The tree.
        punctuation: For each word whether it is punctuation, which is deleted.

    Returns:
        Label and words of each, by their places among those that stay; constituents of punctuation alone are deleted too.
    """
    places = [0, *accumulate(not is_deleted for is_deleted in punctuation)]
    found = (
        (_SAME_LABEL.get(label, label), places[start], places[end])
        for label, start, end in tree.constituents
        if label not in WRAPPERS
    )
    return Counter(bracket for bracket in found if bracket[1] < bracket[2])


def is_punctuation(tree: Tree) -> list[bool]:
    """For each word of a gold tree whether its tag says that it is punctuation; without a tag the word itself does.

    Args:
        tree: The gold tree.
    """
    return [(word if tag == WORD else tag) in PUNCTUATION for word, tag in zip(tree.words, tree.tags, strict=True)]


def bracketing_scores(gold: Iterable[Tree], predicted: Iterable[Tree]) -> dict[str, Any]:
    """The scores of trees for the same sentences.

    Args:
        gold: The right ones.
        predicted: The others, in the same order.

    Returns:
        `precision`, `recall`, `f1` and `exact_match`, the sentences whose constituents are all right (percent), and the number
        of `sentences`, of `gold_brackets`, of `predicted_brackets` and of `matched_brackets`.

    Raises:
        ValueError: If there are no sentences, not equally many, or two trees are of different words.
    """
    gold, predicted = list(gold), list(predicted)
    if len(gold) != len(predicted) or not gold:
        raise ValueError(
            f"There must be as many trees as gold trees, and some, but there are {len(predicted):,} and {len(gold):,}."
        )
    matched = num_gold = num_predicted = num_exact = 0
    for number, (right, tree) in enumerate(zip(gold, predicted, strict=True), 1):
        if tree.sentence != right.sentence:
            raise ValueError(
                f"Tree {number:,} must be of the words of the gold tree, {right.sentence!r:.200}, but is of {tree.sentence!r:.200}."
            )
        punctuation = is_punctuation(right)
        wanted, found = brackets(right, punctuation), brackets(tree, punctuation)
        matched += (wanted & found).total()
        num_gold += wanted.total()
        num_predicted += found.total()
        num_exact += wanted == found
    return {
        "f1": 100 * 2 * matched / max(1, num_gold + num_predicted),
        "precision": 100 * matched / max(1, num_predicted),
        "recall": 100 * matched / max(1, num_gold),
        "exact_match": 100 * num_exact / len(gold),
        "sentences": len(gold),
        "gold_brackets": num_gold,
        "predicted_brackets": num_predicted,
        "matched_brackets": matched,
    }
