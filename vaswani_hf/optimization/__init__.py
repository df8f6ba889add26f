"""Defines the tables of optimizers, learning rate schedules and regularisers.

Each entry of a table declares its recipe keys. The section `training` of a recipe (section.py) has the keys
of all entries of all tables.
"""
