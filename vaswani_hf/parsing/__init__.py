"""Constituency parsing (Section 6.3): the same model gives sentences their trees, and the trees are scored.

`data/trees.py` reads trees. `tasks/parsing.py` makes them targets for training.
"""

from .parser import Parser

__all__ = ["Parser"]
