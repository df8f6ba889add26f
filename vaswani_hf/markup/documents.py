"""`translate_markup`: translates a document of one of the formats."""

from collections.abc import Callable

from .gettext import translate_catalogue
from .html import translate_html
from .markdown import translate_markdown
from .passages import TranslateSentences
from .subtitles import translate_subtitles

# For each format the function that translates a document.
FORMATS: dict[str, Callable[[str, TranslateSentences], str]] = {
    "html": translate_html,
    "markdown": translate_markdown,
    "srt": translate_subtitles,
    "po": translate_catalogue,
}


def translate_markup(text: str, format: str, translate: TranslateSentences) -> str:
    """Translate a document. Its tags, placeholders, code, time stamps and message ids do not change.

    The text of the document is divided into sentences. `translate_markup` calls `translate` with a list of
    sentences once or several times.

    Args:
        text (str): The document.
        format (str): "html", "markdown", "srt" or "po".
        translate (callable): Translates a list of sentences, and returns a `Translation` for each sentence. The
            translations need the field `alignment`: without an alignment, tags enclose whole sentences. A
            sentence whose translation has an `error` is copied.

    Returns:
        str: The translation of the document.

    Raises:
        ValueError: If the text has not the format `srt` or `po`.
        ModuleNotFoundError: If the library that reads the format is not installed.

    Example:
        >>> from vaswani_hf.model.translator_vaswani import Translation
        >>> translate_markup(
        ...     "<p>A <b>dog</b>.</p>",
        ...     "html",
        ...     lambda sentences: [Translation("Ein Hund.", alignment="0-0 1-1")],
        ... )
        '<p>Ein <b>Hund</b>.</p>'
    """
    return FORMATS[format](text, translate)
