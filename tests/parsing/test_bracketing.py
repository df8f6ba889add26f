"""Labelled bracketing by the rules of evalb, on cases that can be counted by hand."""

import pytest
from sentences import refused

from vaswani_hf.data.trees import tree_from_text
from vaswani_hf.parsing.bracketing import bracketing_scores


def scores(gold, predicted):
    found = bracketing_scores([tree_from_text(gold)], [tree_from_text(predicted)])
    return found.gold_brackets, found.predicted_brackets, found.matched_brackets


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        # Cases with function tags, with PRT counted as ADVP, with TOP, and with punctuation.
        (
            "(S (NP-SBJ (PRP He)) (VP (VBD gave) (PRT (RP up))) (. .))",
            "(TOP (S (NP (PRP He)) (VP (VBD gave) (ADVP (RB up))) (. .)))",
            (4, 4, 4),
        ),
        ("(S (NP (NN a)) (VP (VB b)))", "(S (NP (NN a)) (VP (VB b)))", (3, 3, 3)),
        # Cases with a wrong label and with a wrong span.
        ("(S (NP (NN a)) (VP (VB b)))", "(S (ADJP (NN a)) (VP (VB b)))", (3, 3, 2)),
        ("(S (NP (NN a)) (VP (VB b) (NP (NN c))))", "(S (NP (NN a)) (VP (VB b)) (NP (NN c)))", (4, 4, 3)),
        # Brackets are a multiset: twice in one tree and once in the other is one match.
        ("(S (NP (NP (NN a))) (VP (VB b)))", "(S (NP (NP (NN a))) (VP (VB b)))", (4, 4, 4)),
        ("(S (NP (NP (NN a))) (VP (VB b)))", "(S (NP (NN a)) (VP (VB b)))", (4, 3, 3)),
        # The attachment of punctuation has no effect, and brackets of only punctuation do not count.
        ("(S (NP (NN a) (, ,)) (VP (VB b)) (. .))", "(S (NP (NN a)) (, ,) (VP (VB b) (. .)))", (3, 3, 3)),
        ("(S (NP (NN a)) (X (: --)) (VP (VB b)))", "(S (NP (NN a)) (: --) (VP (VB b)))", (3, 3, 3)),
        # The tags of the gold tree determine the punctuation, even if the other tree has other tags.
        (
            "(S (NP (NN a)) (`` ``) (VP (VB b)) (. .))",
            "(S (NP (NN a) (XX ``)) (VP (VB b)) (XX .))",
            (3, 3, 3),
        ),
        ("(S (NP (NN .)) (VP (VB b)))", "(S (NP (. .)) (VP (VB b)))", (3, 3, 3)),
        ("( (S (NN a)) (. .))", "(S (NN a) (. .))", (1, 1, 1)),
        # A word in its own brackets is still a word.
        (
            "(S (-LRB- -LRB-) (NP (NN a)) (-RRB- -RRB-))",
            "(S (-LRB- -LRB-) (NP (NN a) (-RRB- -RRB-)))",
            (2, 2, 1),
        ),
    ],
)
def test_brackets_are_counted_as_by_hand(gold, predicted, counts):
    assert scores(gold, predicted) == counts


def test_the_scores_are_those_of_all_sentences_together():
    gold = [
        tree_from_text("(S (NP (NN a)) (VP (VB b)))"),
        tree_from_text("(S (NP (NN a)) (VP (VB b) (NP (NN c))))"),
    ]
    predicted = [gold[0], tree_from_text("(S (NP (NN a)) (VP (VB b) (NN c)))")]
    found = bracketing_scores(gold, predicted)
    assert found.precision == 100 and found.recall == pytest.approx(100 * 6 / 7)
    assert found.f1 == pytest.approx(100 * 12 / 13) and found.exact_match == 50 and found.sentences == 2


def test_trees_of_other_words_are_refused():
    with refused("Tree 2 must have the words of the gold tree, 'a', but has 'b'."):
        bracketing_scores(
            [tree_from_text("(S (NN a))")] * 2, [tree_from_text("(S (NN a))"), tree_from_text("(S (NN b))")]
        )
