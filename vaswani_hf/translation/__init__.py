"""Translating and scoring texts: checkpoints by name, dtypes, int8, CTranslate2 and several processes."""

from .translator import Translator

__all__ = ["Translator"]
