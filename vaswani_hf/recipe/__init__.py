"""Recipes: all settings of one run, in one YAML file."""

from .loading import load_recipe
from .recipe import Recipe, make_recipe

__all__ = ["Recipe", "load_recipe", "make_recipe"]
