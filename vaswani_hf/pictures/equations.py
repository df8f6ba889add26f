"""Draws the position encodings, the learning rate and the label-smoothed targets of a checkpoint."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..model.loss_vaswani import smoothed_cross_entropy, target_probabilities
from .style import COLORS, LINE_STYLES, SIGNED_MAP, Picture, heat_map, label_ticks, new_figure

_NUM_POSITIONS = 20
_NUM_PRODUCTS = 60
# With more output classes or less label smoothing, the colours of small probabilities would look like the
# colour of 0.
_NUM_CLASSES = 6
_SHOWN_SMOOTHING = 0.4


def draw_positions(name: str, encodings: torch.Tensor, note: str) -> Picture:
    """Draw the first 20 `encodings` [positions, D], and the dot products of three encodings with the first 60
    encodings.
    """
    encodings = encodings.float().cpu()
    shown = encodings[:_NUM_POSITIONS]
    largest = shown.abs().max().item() or 1.0
    figure = new_figure(11, 6.2)
    above, below = figure.subplots(2, 1)
    image = heat_map(above, shown, SIGNED_MAP, -largest, largest)
    above.set(xlabel="dimension", ylabel="position")
    above.set_yticks(range(0, len(shown), 5))
    figure.colorbar(image, ax=above, label="encoding")
    products = encodings[:_NUM_PRODUCTS] @ encodings[:_NUM_PRODUCTS].T
    for number, position in enumerate((0, len(products) // 3, 2 * len(products) // 3)):
        below.plot(
            products[position].tolist(),
            color=COLORS[number],
            linestyle=LINE_STYLES[number],
            label=f"with position {position}",
        )
    below.set(xlabel="position", ylabel="dot product")
    below.legend(frameon=False)
    caption = (
        f"Encodings of {len(shown)} positions in {encodings.shape[1]} dimensions, and the dot products "
        f"between three encodings and the first {len(products)} encodings. {note}"
    )
    numbers = {
        "num_dimensions": encodings.shape[1],
        "num_positions": len(shown),
        "products_with_position_0": [round(product, 4) for product in products[0].tolist()],
    }
    return Picture(name, figure, caption, numbers)


def draw_schedule(
    rate: Callable[[int], float], num_steps: int, metrics: Sequence[dict[str, Any]], schedule: str
) -> Picture:
    """Draw the learning rates of the schedule for steps 1 to `num_steps`, and the learning rates that the run
    has logged.
    """
    steps = sorted({max(1, round(index * num_steps / 500)) for index in range(501)})
    rates = [rate(step) for step in steps]
    logged = [row for row in metrics if row.get("learning_rate") is not None]
    figure = new_figure(7, 3.6)
    axes = figure.add_subplot(xlabel="optimizer steps", ylabel="learning rate")
    axes.plot(steps, rates, color=COLORS[0], label=f'schedule "{schedule}"')
    if logged:
        axes.plot(
            [row["step"] for row in logged],
            [row["learning_rate"] for row in logged],
            linestyle="none",
            marker="x",
            markersize=4,
            color=COLORS[1],
            label="log of the run",
        )
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.legend(frameon=False)
    highest = max(rates)
    numbers = {"highest_rate": highest, "last_rate": rates[-1], "num_steps": num_steps, "schedule": schedule}
    caption = (
        f'The learning rate of the schedule "{schedule}" (Section 5.3 of the paper has the schedule "paper"): at most '
        f"{highest:.2e}, {rates[-1]:.2e} at step {num_steps:,}."
    )
    return Picture("schedule", figure, caption, numbers)


def draw_targets(smoothing: float, form: str) -> Picture:
    """Draw label-smoothed targets, and the loss as a function of the reference token's predicted
    probability.
    """
    figure = new_figure(8.5, 3.6)
    left, right = figure.subplots(1, 2)
    gold, other = target_probabilities(_SHOWN_SMOOTHING, form, _NUM_CLASSES)
    targets = torch.full((_NUM_CLASSES, _NUM_CLASSES), other).fill_diagonal_(gold)
    heat_map(left, targets)
    classes = [str(number) for number in range(1, _NUM_CLASSES + 1)]
    label_ticks(left, classes, classes)
    left.set(xlabel="class", ylabel="reference token", title=f"targets with smoothing {_SHOWN_SMOOTHING}")
    for row, values in enumerate(targets.tolist()):
        for column, value in enumerate(values):
            color = "white" if value > 0.5 else "black"
            left.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=color)
    probabilities = torch.linspace(0.02, 0.998, 300)
    curves = {}
    for number, value in enumerate(dict.fromkeys((0.0, smoothing or 0.1, _SHOWN_SMOOTHING))):
        losses = [loss_of_probability(probability, value, form) for probability in probabilities.tolist()]
        curves[value] = losses
        right.plot(
            probabilities.tolist(),
            losses,
            color=COLORS[number],
            linestyle=LINE_STYLES[number],
            label=f"smoothing {value:g}",
        )
    right.set(xlabel="probability of the reference token", ylabel="loss (nats)", ylim=(0, 4))
    right.legend(frameon=False)
    best = {
        f"{value:g}": round(probabilities[torch.tensor(losses).argmin()].item(), 3)
        for value, losses in curves.items()
    }
    caption = (
        f"Left: the target probabilities of {_NUM_CLASSES} classes (`label_smoothing_form: {form}`). Right: "
        "the loss, if all classes except the reference token have equal probabilities. With smoothing, the loss "
        f"has its minimum at a probability below 1. The label smoothing of the model is {smoothing:g}."
    )
    numbers = {"label_smoothing": smoothing, "form": form, "probability_of_lowest_loss": best}
    return Picture("smoothed_targets", figure, caption, numbers)


def loss_of_probability(probability: float, smoothing: float, form: str) -> float:
    """Return the loss (nats) if the reference token has `probability` and all other classes have equal
    probabilities.
    """
    others = torch.full((_NUM_CLASSES - 1,), (1 - probability) / (_NUM_CLASSES - 1))
    logits = torch.cat([torch.tensor([probability]), others]).log()
    return smoothed_cross_entropy(logits[None], torch.tensor([0]), None, smoothing, form).item()
