"""How a step changes the weights: the tables of optimizers, learning rate schedules and regularisers.

An entry declares its keys in its own file. The section `training` of a recipe (section.py) has the keys of all entries.
"""
