"""Translates gettext catalogues (.po). Translations are written in place of empty translations. All other
lines of a catalogue, such as message ids and comments, are copied unchanged.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .passages import TranslateSentences
from .tagged_text import translate_tagged_texts

# Matches a blank line, a comment, or a string with or without a keyword.
_LINE = re.compile(
    r"\s*(?:#.*|(?:(?P<keyword>(?P<kind>msgctxt|msgid(?:_plural)?|msgstr)(?:(?<=msgstr)\[\d+\])?)\s*)?"
    r'"(?P<string>(?:[^"\\]|\\.)*)"\s*)?'
)
# Maps each kind of field in a gettext catalogue, such as "msgid", to the kinds that the previous field can
# have. If "" is in the tuple, the field can be the first field of the catalogue.
_PREVIOUS = {
    "msgctxt": ("", "msgstr"),
    "msgid": ("", "msgstr", "msgctxt"),
    "msgid_plural": ("msgid",),
    "msgstr": ("msgid", "msgid_plural", "msgstr"),
}
_NUM_FORMS = re.compile(r"^Plural-Forms:\s*nplurals\s*=\s*([1-9])", re.MULTILINE)
_ESCAPE = re.compile(rb'\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|(?P<octal>[0-7]{1,3})|(?P<letter>[abfnrtv"\\]))')
_CHARACTERS = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))
_ESCAPE_TABLE = {character: f"\\{chr(letter)}" for letter, character in _CHARACTERS.items()}


@dataclass(slots=True)
class _Field:
    """A field of a message, such as `msgid "one"`.

    Attributes:
        keyword (str): The keyword, such as `msgid` or `msgstr[0]`.
        kind (str): The keyword without an index: `msgstr` for `msgstr[0]`.
        start (int): The index of the first line of the field.
        end (int): The index of the line after the field.
        string (str): The string as the catalogue contains it, such as `one\\ntwo`.
    """

    keyword: str
    kind: str
    start: int
    end: int
    string: str


# A message as a dict from keywords to fields.
_Message = dict[str, _Field]


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replaces the lines `start` to `end - 1` of the catalogue by `lines`. If `start` equals `end`, inserts
    `lines` before the line `start`.
    """

    start: int
    end: int
    lines: list[str]


def translate_catalogue(text: str, translate: TranslateSentences) -> str:
    """Translate the untranslated messages of a catalogue, and return the completed catalogue.

    Raises:
        ValueError: If the text is not a gettext catalogue.
    """
    lines = text.split("\n")
    messages = _messages_of(lines)
    num_forms = _num_forms(messages)
    missing = [message for message in messages if not _is_translated(message)]
    ids: list[str] = []
    for message in missing:
        ids += [_unescaped(field.string) for field in message.values() if field.kind.startswith("msgid")]
    translations = iter(translate_tagged_texts(ids, translate, are_messages=True))
    edits: list[_Edit] = []
    for message in missing:
        singular = next(translations)
        plural = next(translations) if "msgid_plural" in message else None
        # Leave the message without a translation if a translation failed.
        if singular and plural != "":
            edits += _edits_of(message, singular, plural, num_forms)
    # Apply the edits from the last to the first, because an edit changes the indices of all later lines.
    edits.sort(key=lambda edit: edit.start)
    for edit in reversed(edits):
        lines[edit.start : edit.end] = edit.lines
    return "\n".join(lines)


def _edits_of(message: _Message, singular: str, plural: str | None, num_forms: int | None) -> list[_Edit]:
    """Return the edits that write the translations of `msgid` and `msgid_plural` into the empty fields of a
    message, and that add missing plural forms after the last field of the message.
    """
    keywords = [field.keyword for field in message.values() if field.kind == "msgstr"]
    end = message[keywords[-1]].end
    if num_forms and plural is not None:
        keywords = [f"msgstr[{form}]" for form in range(num_forms)]
    edits = []
    for keyword in keywords:
        field = message.get(keyword)
        if field is not None and field.string:
            continue
        # Plural form 0 is the translation of the singular (`msgid`). If the target language has only one
        # form, form 0 is the translation of the plural (`msgid_plural`).
        is_first_form = keyword == "msgstr[0]" and len(keywords) > 1
        new = _lines_of(keyword, singular if plural is None or is_first_form else plural)
        edits.append(_Edit(field.start, field.end, new) if field else _Edit(end, end, new))
    return edits


def _messages_of(lines: Sequence[str]) -> list[_Message]:
    """Return the messages of a catalogue, without the obsolete messages."""
    messages: list[_Message] = []
    last: _Field | None = None
    for number, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        previous = last.kind if last else ""
        if match is None or (match["kind"] and previous not in _PREVIOUS[match["kind"]]):
            raise _syntax_error(number)
        if match["keyword"]:
            last = _Field(match["keyword"], match["kind"], number, number + 1, match["string"])
            if previous in {"", "msgstr"} and last.kind != "msgstr":
                messages.append({})
            messages[-1][last.keyword] = last
        elif match["string"] is not None:
            if last is None:
                raise _syntax_error(number)
            last.end = number + 1
            last.string += match["string"]
    if last is not None and last.kind != "msgstr":
        raise _syntax_error(last.start)
    return messages


def _syntax_error(number: int) -> ValueError:
    return ValueError(f"The text must be a gettext catalogue, but has a syntax error (line {number + 1}).")


def _num_forms(messages: Sequence[_Message]) -> int | None:
    """Return the number of plural forms that the header of the catalogue gives. The header is the message
    whose `msgid` is empty.
    """
    for message in messages:
        if not message["msgid"].string and "msgstr" in message:
            match = _NUM_FORMS.search(_unescaped(message["msgstr"].string))
            return int(match[1]) if match else None
    return None


def _is_translated(message: _Message) -> bool:
    """Return True if the message already has a translation, or translations of all plural forms. A
    translation that is marked as fuzzy counts as a translation.
    """
    return all(field.string for field in message.values() if field.kind == "msgstr")


def _unescaped(string: str) -> str:
    return _ESCAPE.sub(_byte_of, string.encode()).decode(errors="replace")


def _byte_of(escape: re.Match[bytes]) -> bytes:
    if escape["letter"]:
        return bytes([_CHARACTERS[escape["letter"][0]]])
    number = int(escape["hex"], 16) if escape["hex"] else int(escape["octal"], 8)
    return bytes([number % 256])


def _lines_of(keyword: str, text: str) -> list[str]:
    """Return the lines of a PO file for the field `keyword`, such as `msgstr`. Each line of `text` becomes
    one quoted string.
    """
    strings = [f'"{line.translate(_ESCAPE_TABLE)}"' for line in re.findall(r"[^\n]*\n|[^\n]+", text)]
    if len(strings) != 1:
        return [f'{keyword} ""', *strings]
    return [f"{keyword} {strings[0]}"]
