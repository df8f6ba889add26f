"""Defines recipes. A recipe is a YAML file with all settings of one run."""

from .loading import load_recipe
from .recipe import Recipe, make_recipe

__all__ = ["Recipe", "load_recipe", "make_recipe"]
