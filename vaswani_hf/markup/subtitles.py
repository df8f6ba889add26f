"""Translates SubRip subtitles. The numbers, the time stamps and the tags of the subtitles are not changed."""

import re

from ..settings.base import first_line_of
from .passages import TranslateSentences
from .placeholders import PLACEHOLDER
from .tagged_text import translate_tagged_texts

# Matches a line break inside a sentence. A dash (another speaker) or a musical note (a song) at the start of
# the next line begins a new sentence. An empty line, or a line break after a musical note, also ends a
# sentence.
_BREAK_IN_SENTENCE = re.compile(r"(?<![\n♪♫])\n(?!\s*[-–—♪♫]|\n)")
_TIME_STAMPS = re.compile(r"-[ -] *>.*\n?")
# Treat `\N` as a line break, because players read `\N` in SubRip files as a line break, as in other subtitle
# formats.
_LINE_BREAK = re.compile(r"\\N|\n")
# Matches a tag, a placeholder, a dash at the start of a line, or a space. The group `space` matches only a
# space outside of tags, placeholders and dashes.
_SPACE = re.compile(rf"<[^<>]*>|{PLACEHOLDER.pattern}|(?m:^[-–—]\ )|(?P<space>\ )", re.VERBOSE)


def translate_subtitles(text: str, translate: TranslateSentences) -> str:
    """Translate the text of a SubRip file (`.srt`). Raise a ValueError if the file is invalid."""
    import srt

    if not text.strip():
        return text
    try:
        subtitles = list(srt.parse(text))
    except (srt.SRTParseError, ValueError) as error:
        raise ValueError(
            f"The text must have the SubRip format, but has an error: {first_line_of(error)}."
        ) from None
    contents = [subtitle.content.strip() for subtitle in subtitles]
    sources = [_BREAK_IN_SENTENCE.sub(" ", _LINE_BREAK.sub("\n", content)) for content in contents]
    translations = translate_tagged_texts(sources, translate)
    parts = []
    end = 0
    for content, translation in zip(contents, translations, strict=True):
        # Replace only the text of each subtitle, and copy the rest of the file, such as the time stamps.
        time_stamps = _TIME_STAMPS.search(text, end)
        assert time_stamps is not None
        start = text.index(content, time_stamps.end())
        line_breaks = _LINE_BREAK.findall(content)
        first, *others = _in_lines(translation, len(line_breaks) - translation.count("\n") + 1).split("\n")
        line_breaks += ["\n"] * (len(others) - len(line_breaks))
        parts += [text[end:start], first]
        for line_break, line in zip(line_breaks, others, strict=False):
            parts += [line_break, line]
        end = start + len(content)
    return "".join(parts) + text[end:]


def _in_lines(text: str, number: int) -> str:
    """Divide a text into the given number of lines of similar lengths, by replacing spaces with line
    breaks.
    """
    for line in range(1, number):
        spaces = [match.start() for match in _SPACE.finditer(text) if match["space"]]
        if not spaces:
            break
        nearest = min(spaces, key=lambda i: abs(i - len(text) * line / number))
        text = f"{text[:nearest]}\n{text[nearest + 1 :]}"
    return text
