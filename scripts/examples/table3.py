"""Prints the numbers of parameters and FLOPs of the models in the paper's Table 3, as a Markdown table.

Run `python scripts/examples/table3.py`. The script computes the numbers from the recipes in
configuration/table3/, and trains no model. The table also shows the numbers of the paper.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vaswani_hf.recipe import Recipe, load_recipe
from vaswani_hf.training.plan import MEAN_LENGTH, Flops, PaperFlops, counted_flops, paper_flops, planned_run
from vaswani_hf.training.recipe_model import Parameters, parameters_by_part, planned_config, planned_model
from vaswani_hf.training.step_cost import step_cost

COLUMNS = (
    "row of Table 3",
    "parameters, millions",
    "in the paper",
    "vocabulary sizes that give the paper's number of parameters",
    "FLOPs of matrix products",
    "FLOPs by the paper's method",
    "in the paper",
    "perplexity in the paper",
    "BLEU in the paper",
)
FOLDER = Path(__file__).parents[2] / "configuration" / "table3"


class PaperRow(NamedTuple):
    """The numbers in the paper for a row of Table 3: perplexity and BLEU on newstest2013, parameters in
    millions (Table 3), and FLOPs of the training (Table 2).
    """

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
    """A row of the paper's Table 3, its recipe, and the numbers of parameters and FLOPs that are computed
    from the recipe.
    """

    paper: PaperRow
    recipe: Recipe
    parameters: Parameters
    counted: Flops
    by_paper: PaperFlops

    @property
    def millions(self) -> float:
        """Parameters in millions."""
        return self.parameters.total / 1e6

    @property
    def classes(self) -> tuple[float, float] | None:
        """The smallest and the largest vocabulary size with which the number of parameters, rounded to
        millions, equals the paper's number.
        """
        if self.paper.millions is None:
            return None
        width = planned_config(self.recipe.model, self.recipe.tokenizer).d_model
        others = self.parameters.total - self.parameters.embeddings
        low, high = ((self.paper.millions + half) * 1e6 - others for half in (-0.5, 0.5))
        return low / width, high / width


@cache
def planned_rows(names: tuple[str, ...] = tuple(PAPER)) -> dict[str, PlannedRow]:
    """Return a dict from the name of each recipe to its row of Table 3."""
    rows = {}
    for name in names:
        paper = PAPER[name]
        recipe = load_recipe(FOLDER / f"{name}.yaml")
        run = planned_run(recipe)
        cost = step_cost(run, MEAN_LENGTH)
        rows[name] = PlannedRow(
            paper,
            recipe,
            parameters=parameters_by_part(planned_model(run.config)),
            counted=counted_flops(cost, recipe.training),
            by_paper=paper_flops(run, MEAN_LENGTH, cost),
        )
    return rows


def table(rows: dict[str, PlannedRow]) -> list[str]:
    """Format the rows as lines of Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows.values():
        paper = row.paper
        classes = row.classes
        cells = [
            paper.label,
            f"{row.millions:.1f}",
            "" if paper.millions is None else str(paper.millions),
            "" if classes is None else f"{classes[0]:,.0f} to {classes[1]:,.0f}",
            f"{row.counted.run:.2e}",
            f"{row.by_paper.run:.2e}",
            "" if paper.flops is None else f"{paper.flops:.1e}",
            f"{paper.perplexity:.2f}",
            f"{paper.bleu:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args(argv)
    print("\n".join(table(planned_rows())))


if __name__ == "__main__":
    main()
