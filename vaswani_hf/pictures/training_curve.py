"""Draws the training curve of a run."""

from typing import TYPE_CHECKING, Any

from ..tasks import TASKS
from .style import COLORS, LINE_STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_training_curve(metrics: list[dict[str, Any]]) -> "Figure | None":
    """Plot the training loss, the validation loss and one validation score against the optimizer steps.
    Return None if `metrics` contains no losses and no validation scores.
    """
    figure = new_figure(7, 4)
    axes = figure.add_subplot(xlabel="optimizer steps", ylabel="nats per target token")
    _plot(axes, metrics, "loss", "training loss, smoothed", 0)
    _plot(axes, metrics, "eval_loss", "validation loss", 1)
    score = validation_score(metrics)
    if score is not None:
        titles = {name: title for task in TASKS.values() for name, title in task.metrics.items()}
        title = titles.get(score, score)
        right_axes = axes.twinx()
        _plot(right_axes, metrics, f"eval_{score}", f"validation {title}", 2)
        right_axes.set_ylabel(title)
    elif not axes.lines:
        return None
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _plot(axes: Any, metrics: list[dict[str, Any]], name: str, label: str, number: int) -> None:
    points = [(row["step"], row[name]) for row in metrics if row.get(name) is not None]
    if points:
        axes.plot(
            *zip(*points, strict=True),
            label=label,
            color=COLORS[number],
            linestyle=LINE_STYLES[number],
            # A line of one point is invisible.
            marker="o" if len(points) == 1 else None,
        )


def validation_score(metrics: list[dict[str, Any]]) -> str | None:
    """Return the first validation score in the log, such as "bleu", but not loss or perplexity."""
    for row in metrics:
        for key in row:
            name = key.removeprefix("eval_")
            is_score = key.startswith("eval_") and not name.startswith("raw_")
            if is_score and name not in ("loss", "perplexity", "seconds"):
                return name
    return None
