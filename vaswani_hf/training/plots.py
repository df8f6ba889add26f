"""Pictures: the training curve."""

from pathlib import Path
from typing import Any


def plot_training_curve(metrics: list[dict[str, Any]], path: str | Path) -> None:
    """Draw training loss, validation loss and, where it was measured, validation BLEU over steps.

    Args:
        metrics (list): Rows of a metrics.jsonl.
        path (str or Path): The PNG that is written; nothing is where there is nothing to draw.
    """
    # Drawing is the last of a run; whoever only translates need not load matplotlib.
    from matplotlib.figure import Figure

    curves = {"training loss, smoothed": "loss", "validation loss": "eval_loss", "validation BLEU": "eval_bleu"}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="optimizer steps", ylabel="nats per target token")
    right = axes.twinx() if any("eval_bleu" in row for row in metrics) else axes
    for (label, name), color in zip(curves.items(), ("tab:gray", "tab:blue", "tab:orange"), strict=True):
        points = [(row["step"], row[name]) for row in metrics if name in row]
        if points:
            (right if name == "eval_bleu" else axes).plot(*zip(*points, strict=True), label=label, color=color)
    if not any(a.lines for a in (axes, right)):
        return
    if right is not axes:
        right.set_ylabel("BLEU")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
