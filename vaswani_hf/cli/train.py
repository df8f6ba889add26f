"""`vaswani train`, and the options of all commands that read a recipe."""

import sys
from contextlib import redirect_stderr

from .options import Options, on_command_line


class RecipeOptions(Options):
    """A recipe, and options that replace values of keys in the recipe."""

    recipe: str = on_command_line(positional=True)
    """a YAML file, or the name of a recipe that `vaswani recipes` lists, such as numbers"""
    overrides: list[str] = on_command_line([], hidden=True)
    """options of the form `--key value`, each for a key of the recipe"""


def run(options: RecipeOptions) -> None:
    """Load the recipe and train."""
    from ..recipe.loading import load_recipe
    from ..training.processes import PipeSafeStream, Processes
    from ..training.run import train

    # Only the main process reads the recipe and reports errors. The other processes receive the recipe from
    # the main process.
    recipe = Processes().run_on_main(lambda: load_recipe(options.recipe, options.overrides))
    with redirect_stderr(PipeSafeStream(sys.stderr)):
        train(recipe)
