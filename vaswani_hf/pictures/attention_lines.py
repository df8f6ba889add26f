"""Draws the attention of encoder heads as lines between the words of a sentence, as in Figures 3 to 5 of the
paper.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ..messages import counted
from .attention import Tokens
from .head_search import (
    Statistics,
    best_heads,
    encoder_weights,
    mean_matrix,
    measured_head,
    most_different_heads,
)
from .relations import Relation
from .style import COLORS, Picture, literal, new_figure

# The maximum number of words in the sentence of an example, unless all sentences are longer. The words of a
# longer sentence would be too small in print.
_MOST_WORDS = 20
_LINE_WIDTH = 5.0
# A head prefers related words if `mean_weight` is at least `_PREFERENCE` times `mean_weight_same_distance`
# (see `measured_head`).
_PREFERENCE = 1.5
# Do not draw weights below `_LEAST_WEIGHT`, because thousands of faint lines would make an SVG file large.
_LEAST_WEIGHT = 0.01

T = TypeVar("T")


class ModelStatistics(NamedTuple):
    """A model, and the statistics of its heads on the two halves of the test set."""

    model: Any
    # The statistics of the heads on the first half of the test set, for the selection of heads.
    choice: Statistics
    # The statistics of the heads on the second half of the test set, for the numbers in the captions.
    measurement: Statistics


def _median(candidates: Sequence[T], measurement: Callable[[T], float], num_words: Callable[[T], int]) -> T:
    """Return the candidate whose `measurement` is the median of all measurements. `num_words` returns the
    number of words in the sentence of a candidate. Ignore candidates with more than `_MOST_WORDS` words,
    unless all have more words.
    """
    short = [candidate for candidate in candidates if num_words(candidate) <= _MOST_WORDS]
    in_order = sorted(short or candidates, key=measurement)
    return in_order[(len(in_order) - 1) // 2]


def draw_relation(
    relation: Relation, trained: ModelStatistics, random: ModelStatistics, sentences: Sequence[Tokens]
) -> Picture:
    """Draw the best heads for a relation, for the trained model and for the untrained model."""
    pairs_choice = trained.choice.occurrences[relation.name]
    pairs = trained.measurement.occurrences[relation.name]
    (best,) = best_heads(pairs_choice, 1)
    example = _median(
        pairs,
        measurement=lambda found: found.weights[best.layer, best.head].item(),
        num_words=lambda found: len(sentences[found.sentence].words),
    )
    tokens = sentences[example.sentence]
    figure, panels = _panels(tokens, relation.num_heads)
    numbers: dict[str, Any] = {
        "num_pairs_choice": len(pairs_choice),
        "num_pairs_measurement": len(pairs),
        "example": {
            "words": tokens.words,
            "query": example.query,
            "key": example.key,
        },
    }
    texts = []
    for column, (label, of_model) in enumerate((("trained", trained), ("untrained", random))):
        heads = _draw_heads(panels[:, column], label, of_model, relation, pairs.index(example), tokens)
        numbers[label] = heads
        for head in heads:
            texts.append(
                f"{label} layer {head['layer']}, head {head['head']}: largest weight in "
                f"{head['share_largest']:.0%} of the pairs, mean weight {head['mean_weight']:.2f} "
                f"({head['mean_weight_same_distance']:.2f} for all words at the same distance)"
            )
    text = (
        f"{relation.caption} The heads are those with the largest mean weight in "
        f"{counted(len(pairs_choice), 'pair')} of the first half of the texts. Measured in "
        f"{counted(len(pairs), 'pair')} of the second half: "
        f"{'; '.join(texts)}. The example has the median weight.{_verdict(numbers['trained'])}"
    )
    return Picture(relation.name, figure, text, numbers)


def _draw_heads(
    panels: Sequence[Any],
    label: str,
    of_model: ModelStatistics,
    relation: Relation,
    example: int,
    tokens: Tokens,
) -> list[dict[str, float]]:
    """Draw the best heads of one model for a relation, each head in one of `panels`. Return the numbers of
    each head. `example` is the index of the drawn pair in the occurrences of the second half of the texts.
    """
    pairs = of_model.measurement.occurrences[relation.name]
    found = pairs[example]
    weights = _weights(of_model.model, tokens)
    numbers = []
    for row, head in enumerate(best_heads(of_model.choice.occurrences[relation.name], relation.num_heads)):
        weight = found.weights[head.layer, head.head].item()
        _draw_lines(
            panels[row],
            tokens.words,
            weights[head.layer, head.head],
            [found.query],
            f"{label}: {head}, weight {weight:.2f}",
            found.key,
        )
        numbers.append({**measured_head(pairs, head), "weight_in_example": weight})
    return numbers


def _verdict(heads: Sequence[dict[str, float]]) -> str:
    """Return a sentence for the caption if no head prefers related words, else an empty string."""
    if any(head["mean_weight"] >= _PREFERENCE * head["mean_weight_same_distance"] for head in heads):
        return ""
    return " No trained head prefers these pairs to other words at the same distance."


def draw_two_heads(
    name: str, trained: ModelStatistics, random: ModelStatistics, sentences: Sequence[Tokens]
) -> Picture:
    """Draw the two most different heads of a layer, for the trained model and for the untrained model."""
    pairs = [most_different_heads(of_model.choice) for of_model in (trained, random)]
    first, second = pairs[0]
    distances = trained.measurement.distances
    example = _median(
        list(distances),
        measurement=lambda sentence: distances[sentence][first.layer, first.head, second.head].item(),
        num_words=lambda sentence: len(sentences[sentence].words),
    )
    tokens = sentences[example]
    figure, panels = _panels(tokens, 2)
    numbers: dict[str, Any] = {
        "num_sentences_choice": len(trained.choice.distances),
        "num_sentences_measurement": len(distances),
        "example": {"words": tokens.words},
    }
    texts = []
    for column, (label, of_model, pair) in enumerate(
        zip(("trained", "untrained"), (trained, random), pairs, strict=True)
    ):
        weights = _weights(of_model.model, tokens)
        for row, head in enumerate(pair):
            _draw_lines(
                panels[row][column],
                tokens.words,
                weights[head.layer, head.head],
                range(len(tokens.words)),
                f"{label}: {head}",
            )
        place = (pair[0].layer, pair[0].head, pair[1].head)
        distance = mean_matrix(of_model.measurement.distances)[place].item()
        disagreement = mean_matrix(of_model.measurement.disagreements)[place].item()
        numbers[label] = {
            "layer": pair[0].layer + 1,
            "heads": [head.head + 1 for head in pair],
            "mean_distance": distance,
            "share_different_largest": disagreement,
        }
        texts.append(
            f"{label} {pair[0]} and head {pair[1].head + 1}: distance {distance:.2f}, largest weights on "
            f"different words for {disagreement:.0%} of the words"
        )
    text = (
        "The two heads of one encoder layer whose weights differ most. The difference is the total variation "
        "distance (0 to 1) between the weights of a word. The difference is averaged over the words of each "
        "text, and then over the first half of the texts. "
        f"Measured on the second half ({counted(numbers['num_sentences_measurement'], 'text')}): {'; '.join(texts)}. "
        "The example has the median distance."
    )
    return Picture(name, figure, text, numbers)


def _weights(model: Any, tokens: Tokens) -> torch.Tensor:
    """Return the attention weights [N, H, W, W] between the words of one sentence."""
    ((_, weights),) = encoder_weights(model, [tokens])
    return weights


def _panels(tokens: Tokens, num_rows: int) -> tuple[Any, Any]:
    """Return a figure, and its axes by row and column."""
    width = max(3.2, 0.26 * len(tokens.words))
    figure = new_figure(2 * width, 3.1 * num_rows + 1.0)
    return figure, figure.subplots(num_rows, 2, squeeze=False)


def _draw_lines(
    axes: Any,
    words: Sequence[str],
    weights: torch.Tensor,  # [W, W]
    queries: Sequence[int],
    title: str,
    marked_key: int | None = None,
) -> None:
    """Draw a line from each query word (below) to each key word (above). A larger weight has a wider line.

    If `marked_key` is given, `queries` must contain one word, and the query word and the marked key word are
    drawn in bold.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    segments, colors, widths = [], [], []
    for query in queries:
        for key, weight in enumerate(weights[query].tolist()):
            if weight >= _LEAST_WEIGHT:
                segments.append([(query, 0.0), (key, 1.0)])
                # The opacity is the square root of the weight, so that lines of small weights are visible in
                # print.
                colors.append(to_rgba(COLORS[0], min(1.0, weight**0.5)))
                widths.append(_LINE_WIDTH * weight)
    axes.add_collection(LineCollection(segments, colors=colors, linewidths=widths))
    axes.set_xlim(-0.7, len(words) - 0.3)
    axes.set_ylim(0, 1)
    axes.axis("off")
    for index, word in enumerate(words):
        for height, alignment, marked in (
            (1.02, "bottom", marked_key),
            (-0.02, "top", queries[0] if marked_key is not None else None),
        ):
            axes.text(
                index,
                height,
                literal(word),
                rotation=90,
                ha="center",
                va=alignment,
                fontsize=9,
                fontweight="bold" if index == marked else "normal",
                color=COLORS[1] if index == marked else "black",
            )
    axes.set_title(title, fontsize=9, y=1.0, pad=12 + 6.5 * max(map(len, words)))
