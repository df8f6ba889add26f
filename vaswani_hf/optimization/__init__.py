"""The tables of optimizers, learning rate schedules and regularisers.

Each entry declares its keys. The section `training` of a recipe (section.py) has the keys of all entries.
"""
