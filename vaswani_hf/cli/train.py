"""`vaswani train`, and the options of all commands that read a recipe."""

import sys
from contextlib import redirect_stderr

from .options import Options, on_command_line


class RecipeOptions(Options):
    """A recipe, and options that replace values of keys in the recipe."""

    recipe: str = on_command_line(positional=True)
    """a YAML file, such as configuration/numbers.yaml"""
    overrides: list[str] = on_command_line([], hidden=True)
    """options of the form `--key value`, each for a key of the recipe"""


def run(options: RecipeOptions) -> None:
    """Load the recipe and train."""
    from ..recipe.loading import load_recipe
    from ..training.processes import PipeSafeStream, Processes
    from ..training.run import train
    from ..user_code import run_user_code

    # Only the main process reads the recipe and reports errors. The other processes receive the recipe from
    # the main process.
    processes = Processes()
    recipe = processes.run_on_main(lambda: load_recipe(options.recipe, options.overrides))
    if recipe.model.code is not None and not processes.is_first:
        run_user_code(recipe.model.code, "model.code")
    with redirect_stderr(PipeSafeStream(sys.stderr)):
        train(recipe)
