"""Recipes: what one run is."""
