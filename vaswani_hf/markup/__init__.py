"""Translates documents with markup: HTML, Markdown, SubRip subtitles, gettext catalogues and templates."""

from .documents import translate_documents, translate_markup

__all__ = ["translate_documents", "translate_markup"]
