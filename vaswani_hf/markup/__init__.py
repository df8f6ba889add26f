"""Translates documents with markup: HTML, Markdown, SubRip subtitles, gettext catalogues and templates."""

from .documents import FORMATS, translate_markup
from .html import translate_html_documents
from .tagged_text import translate_templates

__all__ = ["FORMATS", "translate_html_documents", "translate_markup", "translate_templates"]
