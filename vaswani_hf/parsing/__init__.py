"""Constituency parsing (Section 6.3): sentences to trees by the same model, and how good the trees are.

Trees are read, and made for training, in data/.
"""

from .parser import Parser

__all__ = ["Parser"]
