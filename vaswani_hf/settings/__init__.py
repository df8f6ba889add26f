"""Defines the sections of a recipe, and `Settings`, the base class for recipes, command-line options and
other user input.
"""
