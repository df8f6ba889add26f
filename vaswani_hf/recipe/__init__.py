"""Recipes: everything that one run is, in one YAML file."""

from .loading import load_recipe
from .schema import Recipe

__all__ = ["Recipe", "load_recipe"]
