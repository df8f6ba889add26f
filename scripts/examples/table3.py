"""Table 3 of the paper as a plan: parameters and cost of each row beside the paper's, as Markdown. Nothing is trained.

Run `python scripts/examples/table3.py`. The rows are the recipes in configuration/table3/.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vaswani_hf.model.modeling_vaswani import VaswaniForSeq2SeqLM
from vaswani_hf.recipe import Recipe, load_recipe
from vaswani_hf.training.plan import (
    MEAN_LENGTH,
    NUM_PAPER_GPUS,
    PAPER_GPUS,
    batch_cost,
    parameters_by_part,
    planned_flops,
)
from vaswani_hf.training.planned_model import planned_config, planned_model

FOLDER = Path(__file__).parents[2] / "configuration" / "table3"


class PaperRow(NamedTuple):
    """What the paper says of a row: perplexity and BLEU on newstest2013, parameters in millions (Table 3), FLOPs (Table 2)."""

    label: str
    perplexity: float
    bleu: float
    millions: int | None = None
    flops: float | None = None


PAPER = {
    "base": PaperRow("base", 4.92, 25.8, 65, 3.3e18),
    "a_h_1": PaperRow("(A) h = 1, d_k = d_v = 512", 5.29, 24.9),
    "a_h_4": PaperRow("(A) h = 4, d_k = d_v = 128", 5.00, 25.5),
    "a_h_16": PaperRow("(A) h = 16, d_k = d_v = 32", 4.91, 25.8),
    "a_h_32": PaperRow("(A) h = 32, d_k = d_v = 16", 5.01, 25.4),
    "b_d_k_16": PaperRow("(B) d_k = 16", 5.16, 25.1, 58),
    "b_d_k_32": PaperRow("(B) d_k = 32", 5.01, 25.4, 60),
    "c_n_2": PaperRow("(C) N = 2", 6.11, 23.7, 36),
    "c_n_4": PaperRow("(C) N = 4", 5.19, 25.3, 50),
    "c_n_8": PaperRow("(C) N = 8", 4.88, 25.5, 80),
    "c_d_model_256": PaperRow("(C) d_model = 256, d_k = d_v = 32", 5.75, 24.5, 28),
    "c_d_model_1024": PaperRow("(C) d_model = 1024, d_k = d_v = 128", 4.66, 26.0, 168),
    "c_d_ff_1024": PaperRow("(C) d_ff = 1024", 5.12, 25.4, 53),
    "c_d_ff_4096": PaperRow("(C) d_ff = 4096", 4.75, 26.2, 90),
    "d_dropout_0.0": PaperRow("(D) P_drop = 0.0", 5.77, 24.6),
    "d_dropout_0.2": PaperRow("(D) P_drop = 0.2", 4.95, 25.5),
    "d_label_smoothing_0.0": PaperRow("(D) eps_ls = 0.0", 4.67, 25.3),
    "d_label_smoothing_0.2": PaperRow("(D) eps_ls = 0.2", 5.47, 25.7),
    "e_learned_positions": PaperRow("(E) learned positions", 4.92, 25.7),
    "big": PaperRow("big", 4.33, 26.4, 213, 2.3e19),
}


class PlannedRow(NamedTuple):
    """A row of the paper, its recipe, and the planned parameters and operations."""

    paper: PaperRow
    recipe: Recipe
    parameters: dict[str, Any]
    flops: dict[str, Any]

    @property
    def millions(self) -> float:
        """Parameters."""
        return self.parameters["total"] / 1e6

    @property
    def classes(self) -> tuple[float, float] | None:
        """The sizes of the one vocabulary between which the planned parameters round to the paper's."""
        if self.paper.millions is None:
            return None
        width = planned_config(self.recipe.model, self.recipe.tokenizer).d_model
        others = self.parameters["total"] - self.parameters["embeddings"]
        low, high = ((self.paper.millions + half) * 1e6 - others for half in (-0.5, 0.5))
        return low / width, high / width


@cache
def planned_rows() -> dict[str, PlannedRow]:
    """All rows, by the names of their recipes."""
    rows = {}
    for name, paper in PAPER.items():
        recipe = load_recipe(FOLDER / f"{name}.yaml")
        config = planned_config(recipe.model, recipe.tokenizer)
        cost = batch_cost(config, recipe.training, VaswaniForSeq2SeqLM, MEAN_LENGTH)
        flops = planned_flops(config, recipe.training, VaswaniForSeq2SeqLM, MEAN_LENGTH, cost)
        rows[name] = PlannedRow(paper, recipe, parameters_by_part(planned_model(config)), flops)
    return rows


def table(rows: dict[str, PlannedRow]) -> list[str]:
    """The rows as lines of Markdown."""
    lines = [
        "| row of Table 3 | parameters, millions | the paper's | classes that give the paper's | FLOPs counted | by the paper's "
        "method | the paper's | the paper's perplexity | and BLEU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        paper, classes, flops = row.paper, row.classes, row.flops
        cells = [
            paper.label,
            f"{row.millions:.1f}",
            "" if paper.millions is None else str(paper.millions),
            "" if classes is None else f"{classes[0]:,.0f} to {classes[1]:,.0f}",
            f"{flops['counted']['run']:.2e}",
            f"{flops['paper']['run']:.2e}",
            "" if paper.flops is None else f"{paper.flops:.1e}",
            f"{paper.perplexity:.2f}",
            f"{paper.bleu:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def differences(rows: dict[str, PlannedRow]) -> list[str]:
    """Where the plan differs from the paper and why, as far as that is known, as lines of Markdown."""
    base, big = rows["base"], rows["big"]
    others = [row for name, row in rows.items() if row.classes is not None and name != "big"]
    more = [(row.paper.millions or 0) - row.millions for row in others]
    bounds = [row.classes or (0.0, 0.0) for row in others]
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    of_big = big.classes or (0.0, 0.0)
    return [
        f"- Parameters: the paper has {min(more):.1f} to {max(more):.1f} million more than the plan in every row but big, as if one "
        f"vocabulary of {low:,.0f} to {high:,.0f} classes stood behind all of them; Section 5.1 says about "
        f"{base.recipe.tokenizer.vocab_size:,}, with which the plan is made.",
        f"- Parameters of big: {big.millions - (big.paper.millions or 0):.1f} million more here than in the paper, whose number has "
        f"room for {of_big[0]:,.0f} to {of_big[1]:,.0f} classes. No one vocabulary gives it together with the others, and the "
        "paper does not say how it counts.",
        *[_cost(row, hours) for row, hours in ((base, 12), (big, 84))],
        "- Cost of the other rows: the paper gives none. By its method they take the seconds of base, or of big where that is "
        "nearer, in proportion to the products; what narrow heads cost beside their products is not in it.",
    ]


def _cost(row: PlannedRow, hours: int) -> str:
    flops, steps = row.flops, row.recipe.training.max_steps
    seconds, gpus = flops["paper"]["seconds_of_a_step"], NUM_PAPER_GPUS * PAPER_GPUS["P100"]
    return (
        f"- Cost of {row.paper.label}: the paper's {row.paper.flops:.1e} is {hours} hours, {hours * 3600 * gpus:.2e}; its {steps:,} "
        f"steps of {seconds:.1f} s are {steps * seconds / 3600:.1f} hours, {flops['paper']['run']:.2e}. The products alone are "
        f"{flops['counted']['run']:.2e}, {flops['counted']['run'] / flops['paper']['run']:.0%} of that: the paper multiplies the "
        f"time by {PAPER_GPUS['P100'] / 1e12} TFLOPS for each GPU, its estimate of what one sustains (counted for batches of 25,000 positions a side, "
        f"sentences of {flops['mean_length']} tokens assumed)."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    rows = planned_rows()
    print("\n".join([*table(rows), "", *differences(rows)]))


if __name__ == "__main__":
    main()
