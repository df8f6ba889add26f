"""Defines `vaswani train`, and the options of all commands that read a recipe."""

import sys
from contextlib import redirect_stderr
from typing import Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from ..packaged import find_recipe, similar_recipes
from .options import RecipeKeyOptions, on_command_line
from .recipe_keys import PrintKeys


class RecipeOptions(RecipeKeyOptions):
    """The options that name a recipe and replace values of keys in the recipe."""

    recipe: str = on_command_line(positional=True)
    """a YAML file, or the name of a recipe that `vaswani recipes` lists, such as numbers"""
    help_keys: bool = on_command_line(False, action=PrintKeys)
    """print all keys of a recipe with type, default, unit, range and meaning, and exit"""
    help_key: str | None = on_command_line(None, action=PrintKeys, metavar="KEY")
    """print the description of one key of a recipe, such as training.warmup_steps or warmup_steps, and exit
    """

    @model_validator(mode="after")
    def _check_recipe(self) -> Self:
        if not find_recipe(self.recipe).exists():
            similar = similar_recipes(self.recipe)
            hint = "`vaswani recipes` lists all recipes of the package"
            if similar:
                hint = f"the package has recipes with the names {', '.join(similar)}"
            raise InvalidValueError(
                f"`recipe` must be an existing file or the name of a recipe, but is {self.recipe}; {hint}."
            )
        return self


def run(options: RecipeOptions) -> None:
    """Run the command: load the recipe, and train the model."""
    from ..messages import PipeSafeStream, hide_progress_bars_without_terminal
    from ..recipe.loading import load_recipe
    from ..training.processes import Processes
    from ..training.run import train
    from ..user_code import run_user_code

    hide_progress_bars_without_terminal()
    # Only the main process reads the recipe and reports errors, and sends the recipe to the other processes.
    processes = Processes()
    recipe = processes.run_on_main(load_recipe, options.recipe, options.overrides)
    if recipe.model.code is not None and not processes.is_first:
        run_user_code(recipe.model.code, "model.code")
    with redirect_stderr(PipeSafeStream(sys.stderr)):
        train(recipe)
