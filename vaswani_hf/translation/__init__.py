"""Translates and scores texts: loads checkpoints by name, chooses the dtype, and supports int8 weights,
CTranslate2 and several processes.
"""

from .translator import Translator

__all__ = ["Translator"]
