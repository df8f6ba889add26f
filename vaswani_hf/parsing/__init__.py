"""Constituency parsing (Section 6.3): a translation model writes trees, and the trees are scored.

`data/trees.py` reads trees. `tasks/parsing.py` converts trees to targets for the training.
"""

from .parser import Parser

__all__ = ["Parser"]
