"""Defines `vaswani recipes`, the command that lists the recipes of the package."""

import json
import textwrap
from typing import ClassVar, Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from ..packaged import describe_recipes, packaged_folder, packaged_recipes, similar_recipes
from .options import Options, on_command_line
from .output import standard_output


class RecipesOptions(Options):
    """The options of `vaswani recipes`."""

    needs_libraries: ClassVar[bool] = False

    name: str | None = on_command_line(None, positional=True)
    """the name of a recipe; print the text of this recipe instead of the list"""
    as_json: bool = on_command_line(False, option="json")
    """print the list as JSON"""
    folder: bool = False
    """print the path of the folder of the recipes; the folder also has the configuration files for
    `accelerate launch`"""

    @model_validator(mode="after")
    def _check_one_output(self) -> Self:
        if sum([self.name is not None, self.as_json, self.folder]) > 1:
            raise InvalidValueError(
                "Only one of `name`, `--json` and `--folder` can be given; leave the others out."
            )
        return self


def run(options: RecipesOptions) -> None:
    """Print the list of recipes, the text of one recipe, or the path of the folder of the recipes."""
    if options.folder:
        print(packaged_folder("configuration"))
    elif options.name is not None:
        standard_output().write(_text(options.name))
    elif options.as_json:
        print(json.dumps(describe_recipes(), indent=2))
    else:
        for recipe in describe_recipes():
            print(recipe["name"])
            print(textwrap.fill(recipe["purpose"], 100, initial_indent="    ", subsequent_indent="    "))
            print(f"    Data: {recipe['data']}.")


def _text(name: str) -> bytes:
    recipes = packaged_recipes()
    if name not in recipes:
        similar = similar_recipes(name)
        hint = f"similar names are {', '.join(similar)}" if similar else "`vaswani recipes` lists all recipes"
        raise InvalidValueError(f"`name` must be a recipe of the package, but is '{name}'; {hint}.")
    return recipes[name].read_bytes()
