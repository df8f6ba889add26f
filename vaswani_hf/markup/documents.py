"""Defines `translate_markup`, which translates a document (HTML, Markdown, SubRip or gettext) or a template,
and `translate_documents`, which translates several documents together.
"""

import re
from collections.abc import Callable, Sequence

from .gettext import translate_catalogue
from .html import translate_html_documents
from .markdown import translate_markdown
from .passages import TranslateSentences
from .subtitles import translate_subtitles
from .tagged_text import translate_templates

_TranslateDocuments = Callable[[Sequence[str], TranslateSentences], list[str]]


def _one_by_one(translate_document: Callable[[str, TranslateSentences], str]) -> _TranslateDocuments:
    return lambda texts, translate: [translate_document(text, translate) for text in texts]


# Maps the name of each format to the function that translates documents of this format. The function gets
# documents whose lines end with LF, without a byte order mark.
_FORMATS: dict[str, _TranslateDocuments] = {
    "html": translate_html_documents,
    "markdown": _one_by_one(translate_markdown),
    "srt": _one_by_one(translate_subtitles),
    "po": _one_by_one(translate_catalogue),
    "template": translate_templates,
}

_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n?|\n")


def translate_markup(text: str, format: str, translate: TranslateSentences) -> str:
    """Translate a document. The tags, placeholders, code, time stamps and message ids of the document do not
    change. A byte order mark and the line endings (CRLF, LF or CR) of the document do not change. If a
    document mixes line endings, and the translation has another number of lines than the document, all lines
    of the translation have the first line ending of the document.

    `translate_markup` divides the text of the document into sentences, and calls the function `translate`
    with lists of sentences.

    Args:
        text (str): The document.
        format (str): "html", "markdown", "srt", "po" or "template" (plain text with placeholders).
        translate (callable): A function that translates a list of sentences, and returns a `Translation` for
            each sentence. Each `Translation` must have the field `alignment`, because without a word
            alignment a pair of tags encloses whole sentences. If the `Translation` of a sentence has an
            `error`, the sentence stays untranslated in the document, and a gettext message stays without a
            translation.

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
    (translation,) = translate_documents([text], format, translate)
    return translation


def translate_documents(texts: Sequence[str], format: str, translate: TranslateSentences) -> list[str]:
    """Translate several documents as `translate_markup` does. The sentences of all HTML documents, or of all
    templates, share batches.
    """
    bodies = [_LINE_END.sub("\n", text.removeprefix(_BYTE_ORDER_MARK)) for text in texts]
    translations = _FORMATS[format](bodies, translate)
    return [_with_line_endings(text, found) for text, found in zip(texts, translations, strict=True)]


def _with_line_endings(text: str, translation: str) -> str:
    """Return the translation with the byte order mark and the line endings of the document `text`."""
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    endings = _LINE_END.findall(text)
    first, *others = translation.split("\n")
    if len(others) != len(endings):
        endings = (endings[:1] or ["\n"]) * len(others)
    lines = [ending + line for ending, line in zip(endings, others, strict=True)]
    return "".join([mark, first, *lines])
