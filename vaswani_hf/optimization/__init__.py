"""How a step changes the weights: the tables of optimizers, learning rate schedules and regularisers.

The folder lies below `recipe` because a recipe has the keys of all entries. An entry declares its keys in
its own file.
"""
