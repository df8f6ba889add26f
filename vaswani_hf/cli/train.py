"""`vaswani train`."""

import sys
from contextlib import redirect_stderr

from .options import RecipeOptions


class TrainOptions(RecipeOptions):
    """The options of `vaswani train`."""


def run(options: TrainOptions) -> None:
    """Train the recipe."""
    from ..recipe import load_recipe
    from ..training import train
    from ..training.processes import PipeSafeStream, Processes

    # One process of several reads the recipe and reports its faults.
    recipe = Processes().run_on_main(lambda: load_recipe(options.recipe, options.overrides))
    with redirect_stderr(PipeSafeStream(sys.stderr)):
        train(recipe)
