"""Translates documents with markup: HTML, Markdown, SubRip subtitles and gettext catalogues."""

from .documents import FORMATS, translate_markup
from .html import translate_html_documents

__all__ = ["FORMATS", "translate_html_documents", "translate_markup"]
