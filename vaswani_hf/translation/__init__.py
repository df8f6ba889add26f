"""Translates and scores texts: loading by name, dtypes, int8 weights, CTranslate2 and worker processes."""

from .translator import Translator

__all__ = ["Translator"]
