"""Recipes: all settings of one run, in one YAML file."""

from .loading import load_recipe
from .recipe import Recipe

__all__ = ["Recipe", "load_recipe"]
