"""Constituency parsing (Section 6.3 of the paper): a sequence-to-sequence model writes the tree of a
sentence, and the trees are scored.

The file `data/trees.py` reads treebanks. The file `tasks/parsing.py` converts trees to training targets.
"""

from .parser import Parser

__all__ = ["Parser"]
