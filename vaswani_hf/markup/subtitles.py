"""Translates SubRip subtitles. The numbers, the time stamps and the tags of the subtitles are not changed."""

import re

from ..settings.base import first_line_of
from .passages import TranslateSentences
from .tagged_text import translate_tagged_texts

# Matches a line break inside a sentence. A line break before a dash or a musical note is not matched, because
# the next line is a new sentence: a sentence of another person, or a line of a song.
_NEW_SENTENCE = re.compile(r"\n(?!\s*[-–—♪♫])")
_SPACE_OUTSIDE_TAGS = re.compile(r" (?![^<>]*>)")


def translate_subtitles(text: str, translate: TranslateSentences) -> str:
    """Return the translation of the text of a SubRip file (`.srt`).

    Raises:
        ValueError: If `text` is not a valid SubRip file.
    """
    import srt

    if not text.strip():
        return text
    try:
        subtitles = list(srt.parse(text))
    except (srt.SRTParseError, ValueError) as error:
        raise ValueError(
            f"The text must have the SubRip format, but has an error: {first_line_of(error)}."
        ) from None
    texts = [_NEW_SENTENCE.sub(" ", subtitle.content.strip()) for subtitle in subtitles]
    for subtitle, content in zip(subtitles, translate_tagged_texts(texts, translate), strict=True):
        num_lines = subtitle.content.strip().count("\n") - content.count("\n")
        subtitle.content = _in_lines(content, num_lines + 1)
    return srt.compose(subtitles, reindex=False, strict=False)


def _in_lines(text: str, number: int) -> str:
    """Divide a text into the given number of lines of similar lengths, by replacing spaces with line breaks."""
    for line in range(1, number):
        spaces = [match.start() for match in _SPACE_OUTSIDE_TAGS.finditer(text)]
        if not spaces:
            break
        nearest = min(spaces, key=lambda i: abs(i - len(text) * line / number))
        text = f"{text[:nearest]}\n{text[nearest + 1 :]}"
    return text
