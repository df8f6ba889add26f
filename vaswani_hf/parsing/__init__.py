"""Constituency parsing (Section 6.3 of the paper): parses sentences with a sequence-to-sequence model, and
scores the predicted trees.

data/trees.py reads treebanks. tasks/parsing.py converts trees to the targets of the training.
"""

from .parser import Parser

__all__ = ["Parser"]
