"""Translates documents with markup: HTML, Markdown, SubRip subtitles, gettext catalogues and templates."""

import re
from collections.abc import Callable

from .gettext import translate_catalogue
from .html import translate_html, translate_html_documents
from .markdown import translate_markdown
from .passages import TranslateSentences
from .subtitles import translate_subtitles
from .tagged_text import translate_template, translate_templates

__all__ = ["FORMATS", "translate_html_documents", "translate_markup", "translate_templates"]

# Maps the name of each format to the function that translates a document of this format.
FORMATS: dict[str, Callable[[str, TranslateSentences], str]] = {
    "html": translate_html,
    "markdown": translate_markdown,
    "srt": translate_subtitles,
    "po": translate_catalogue,
    "template": translate_template,
}

_LINE_END = re.compile(r"\r\n?|\n")


def translate_markup(text: str, format: str, translate: TranslateSentences) -> str:
    """Translate a document. The tags, placeholders, code, time stamps and message ids of the document do not
    change. A byte order mark, and the line endings of the document (CRLF, LF or CR), also stay. If a document
    mixes line endings, and the translation has another number of lines than the document, all lines of the
    translation have the first line ending of the document.

    `translate_markup` divides the text of the document into sentences, and calls the function `translate`
    with lists of sentences.

    Args:
        text (str): The document.
        format (str): "html", "markdown", "srt", "po" or "template" (plain text with placeholders).
        translate (callable): A function that translates a list of sentences, and returns a `Translation` for
            each sentence. Each `Translation` must have the field `alignment`, because without a word
            alignment a pair of tags encloses whole sentences. If the `Translation` of a sentence has an
            `error`, the sentence stays untranslated in the document.

    Returns:
        str: The translated document, with the markup of the source.

    Raises:
        ValueError: If `format` is "srt" or "po", and the document does not have this format.
        ModuleNotFoundError: If the library that parses the given format is not installed.

    Example:
        >>> from vaswani_hf.model.translations_vaswani import Translation
        >>> translate_markup(
        ...     "<p>A <b>dog</b>.</p>",
        ...     "html",
        ...     lambda sentences: [Translation("Ein Hund.", alignment="0-0 1-1")],
        ... )
        '<p>Ein <b>Hund</b>.</p>'
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    endings = _LINE_END.findall(body)
    first, *others = FORMATS[format](_LINE_END.sub("\n", body), translate).split("\n")
    if len(others) != len(endings):
        endings = (endings[:1] or ["\n"]) * len(others)
    lines = [ending + line for ending, line in zip(endings, others, strict=True)]
    return "".join([mark, first, *lines])
