"""Translates subtitles, templates (plain text with placeholders) and the messages of programs: texts that can
contain tags, but are not HTML documents.
"""

import re
from collections import Counter
from collections.abc import Sequence

from .passages import TranslateSentences, translate_passages
from .pieces import Passage, Piece, divide_text, protected_piece, tag_piece
from .placeholders import PLACEHOLDER, REFERENCE, STATEMENT

_LINE_MARK = r"(?m:^[-–—]\ +|^[♪♫]+\ *|\ *[♪♫]+$)"
# Matches a tag such as `<b>`, or a numbered tag of Lingui or i18next such as `<0>`.
_TAG = r"<(?P<slash>/?)(?P<name>[A-Za-z][\w:-]*|\d+(?=\s*/?>))(?:\s[^<>]*|/)?>"
# The group "break" matches parts that are copied unchanged. Examples of such parts are template statements,
# control characters such as tabs, and white space at both ends of a text. The group "break" also matches a
# dash at the start of a line, and musical notes at the start or the end of a line. The alternative `<\d*`
# matches a "<" that does not begin a tag, as in "I <3 you".
_PART = re.compile(
    rf"(?P<break>{STATEMENT.pattern}|[\x00-\x1f]|\A\s+|\s+\Z|{_LINE_MARK})"
    rf"|{_TAG}"
    rf"|(?P<protected>{PLACEHOLDER.pattern}|{REFERENCE.pattern}|<\d*|[♪♫]+)",
    re.VERBOSE,
)


def translate_templates(texts: Sequence[str], translate: TranslateSentences) -> list[str]:
    """Translate several templates together, so that the sentences of all templates share batches. A template
    is plain text that contains placeholders, such as `{name}`, or tags. Each line of a template is a separate
    text.
    """
    lines_of_texts = [text.split("\n") for text in texts]
    lines = [line for lines_of_text in lines_of_texts for line in lines_of_text]
    translations = iter(translate_tagged_texts(lines, translate))
    return ["\n".join(next(translations) for _ in lines_of_text) for lines_of_text in lines_of_texts]


def translate_tagged_texts(
    texts: Sequence[str], translate: TranslateSentences, *, are_messages: bool = False
) -> list[str]:
    """Translate each text. Keep the source text if the tags of the translation differ from the tags of the
    source text, because then the model itself has written a tag. With `are_messages`, the translation of a
    text is empty if the tags differ, or if the model could not translate a sentence of the text.
    """
    passages = [
        Passage(divide_text(text, _PART, _piece_of_match), is_indivisible=are_messages) for text in texts
    ]
    results = []
    for text, translation in zip(texts, translate_passages(passages, translate), strict=True):
        if _tags(translation) != _tags(text):
            translation = "" if are_messages else text
        results.append(translation)
    return results


def _tags(text: str) -> Counter[str]:
    return Counter(match[0] for match in re.finditer(_TAG, text))


def _piece_of_match(match: re.Match[str]) -> Piece:
    raw = match[0]
    name = (match["name"] or "").lower()
    if match["break"] or name == "br":
        return Piece("break", raw)
    if match["protected"]:
        return protected_piece(raw)
    return tag_piece(raw, name)
