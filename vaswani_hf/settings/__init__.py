"""Defines `Settings`, the base class for recipes, command-line options and other user input, and the sections
of a recipe.
"""
