"""Translates and scores texts: loads checkpoints by name, chooses the dtype, and translates with int8
weights, with CTranslate2 or in several processes.
"""

from .translator import Translator

__all__ = ["Translator"]
