"""Translates documents with markup: HTML, Markdown, SubRip subtitles and gettext catalogues."""

from .documents import FORMATS, translate_markup

__all__ = ["FORMATS", "translate_markup"]
