"""A checkpoint at work: translating and scoring texts, files and streams."""

from .translator import Translator

__all__ = ["Translator"]
