"""Translates gettext catalogues (.po). Message ids, comments and existing translations are not changed."""

import re

from .passages import TranslateSentences
from .tagged_text import translate_tagged_texts

# Matches a complete line. polib accepts a line without the last quotation mark, and loses the message.
_LINE = re.compile(r'\ufeff?\s*(?:#.*|(?:msg\w+(?:\[\d+\])?)?\s*"(?:[^"\\]|\\.)*"\s*)?')
_NUM_FORMS = re.compile(r"nplurals\s*=\s*([1-9])")


def translate_catalogue(text: str, translate: TranslateSentences) -> str:
    """Translate all messages without a translation. Raise a ValueError for an invalid catalogue."""
    import polib

    if not text.strip():
        return text
    try:
        for number, line in enumerate(text.split("\n"), 1):
            if not _LINE.fullmatch(line):
                raise OSError(f"(line {number})")
        catalogue = polib.pofile(f"{text}\n")
    except (OSError, UnicodeError) as error:
        reason = str(error).removeprefix("Syntax error in po file ").rstrip(".")
        raise ValueError(f"The text must be a gettext catalogue, but has a syntax error {reason}.") from None
    entries = [entry for entry in catalogue if not entry.obsolete and not _is_translated(entry)]
    messages = []
    for entry in entries:
        messages += [entry.msgid, entry.msgid_plural] if entry.msgid_plural else [entry.msgid]
    num_forms = _NUM_FORMS.match(catalogue.metadata.get("Plural-Forms", ""))
    translations = iter(translate_tagged_texts(messages, translate))
    for entry in entries:
        first = next(translations)
        if not entry.msgid_plural:
            entry.msgstr = first
            continue
        plural = next(translations)
        forms = range(int(num_forms[1])) if num_forms else sorted(entry.msgstr_plural) or [0, 1]
        # Plural form 0 is translated from the singular. If the target language has only one form, form 0 is
        # translated from the plural.
        new = {form: first if form == 0 and len(forms) > 1 else plural for form in forms}
        old = {form: translation for form, translation in entry.msgstr_plural.items() if translation}
        entry.msgstr_plural = new | old
    return str(catalogue)


def _is_translated(entry: "object") -> bool:
    """Return True if the message, or each plural form, has a translation, including a fuzzy translation."""
    forms = entry.msgstr_plural.values()  # type: ignore[attr-defined]
    return bool(entry.msgstr) or (bool(forms) and all(forms))  # type: ignore[attr-defined]
