"""Constituency parsing (Section 6.3 of the paper): parses sentences with a sequence-to-sequence model, and
scores the predicted trees.

The file `data/trees.py` reads treebanks. The file `tasks/parsing.py` converts trees to training targets.
"""

from .parser import Parser

__all__ = ["Parser"]
