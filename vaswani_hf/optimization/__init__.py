"""Defines the tables of optimizers, learning rate schedules and regularisers.

Each optimizer, schedule and regulariser declares its recipe keys. The file section.py combines the keys of
all optimizers, schedules and regularisers into the section `training` of a recipe.
"""
