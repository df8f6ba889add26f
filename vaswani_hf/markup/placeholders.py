"""Finds the parts of a text that a translation must not change: placeholders, URLs and e-mail addresses."""

import re
from collections.abc import Iterable

# Code of templates, such as `<%= x %>` (ERB), `<?= $x ?>` (PHP), `{% if x %}` (Jinja) and `[% x %]` (Template
# Toolkit). The patterns match no code with a second opening mark, such as `<% <% x %>`. With a match across a
# second opening mark, the time for a text with many opening marks would be quadratic in the length of the
# text.
_ERB = r"<%(?s:(?!<%|%>).)*%>"
_PHP = r"<\?(?s:(?!<\?|\?>).)*\?>"
_JINJA = r"\{%(?:(?!\{%|%\}).)*%\}"
_TOOLKIT = r"\[%(?s:(?!\[%|%\]).)*%\]"
# The statements of Mustache and Handlebars, such as `{{#if x}}`, `{{else}}` and `{{/if}}`.
_SECTION = r"\{\{~?(?:[\#/^]|else\b)[^{}]*\}\}"
# Matches template code that can contain reserved characters of HTML, such as `<`.
TEMPLATE = re.compile(rf"{_ERB}|{_PHP}|{_TOOLKIT}|\{{%[^{{}}\n]*?%\}}|\{{\{{[^{{}}\n]*?\}}\}}")
# Matches statements of templates. In the translation, a template statement stays between the same texts as in
# the source, because the order of the statements matters. Expressions, such as `<%= x %>`, can move to
# another place in the sentence. A statement of Template Toolkit begins with a word in capitals.
STATEMENT = re.compile(
    rf"(?!<%=|<\?=)(?:{_ERB}|{_PHP}|{_JINJA})|{_SECTION}|(?=\[%[-+=~]?\s*[A-Z]{{2}}){_TOOLKIT}"
)
# Matches the numbered tags of Lingui and i18next, such as `<0>`, `</0>` and `<1/>`. In HTML, the brackets of
# a numbered tag can be `&lt;` and `&gt;`.
NUMBERED_TAG = re.compile(r"(?:<|&lt;)(?P<slash>/?)(?P<number>\d+)\s*(?P<end>/?)(?:>|&gt;)")
# Matches character references of HTML, such as `&amp;` and `&#38;`.
REFERENCE = re.compile(r"&(?:\#\d+|\#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
# Matches placeholders of C and Python, such as `%s`, `%-*d`, `%I64d` and `%(n)d`. `%ige` is no placeholder,
# because German has words such as "20 %ige".
_CONVERSION = r"(?:hh|ll|I64|I32|[hlLqjzt])?(?:[douxXeEfFgGcrsaA@]|i(?!ge)|[CSp](?![A-Za-z]))"
_FORMAT = rf"(?<!\d)%(?:\(\w+\)|\d+\$)?[-+\#0']*(?:\*(?:\d+\$)?|\d*)(?:\.(?:\*|\d+))?{_CONVERSION}"
# Matches the placeholders `%name%` of Symfony and of Windows. `_VARIABLE` does not match the `%s%` in `%s%%`
# or the `%d%` in `%d%d`, because `%s` and `%d` are placeholders of C.
_VARIABLE = rf"(?<![\w%])%(?!{_CONVERSION}%)[A-Za-z_][\w.]*%(?![\w%])"
# {name}, {{x}}, ${x}, {n, plural, one {…}}
_BRACES = r"[$%\#@]?\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_CODE = rf"{_ERB}|{_PHP}|{_JINJA}|{_TOOLKIT}|{_BRACES}"
# Matches the characters of a URL. A URL can contain expressions of templates, such as `{{ x }}`, but ends
# before a template statement.
_CHARACTERS = rf"""(?:(?!{STATEMENT.pattern})(?>{_CODE}|[^\s<>"']))+(?<![.,;:!?)\]])"""
_URL = rf"(?:https?|ftp)://{_CHARACTERS}"
# Matches placeholders, URLs and e-mail addresses. The look-behind assertions forbid matches that begin inside
# a word. Without the look-behind assertions, the search time would grow with the square of the length of a
# word. If a URL directly follows a placeholder such as `%s`, the match of the placeholder includes the URL.
PLACEHOLDER = re.compile(
    rf"{_CODE}|{_VARIABLE}|{_FORMAT}(?:{_URL})?|(?<!\w)(?:{_URL}|www\.{_CHARACTERS})"
    r"""
    | \[\[[A-Za-z_][\w.]*\]\]                                   # [[x]] (Polymer)
    | \$t\([^()\n]*\)                                          # $t(key) (i18next)
    | %%
    | \$[A-Za-z_]\w*                                            # $name
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+
    """,
    re.VERBOSE,
)


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the given texts and all placeholders."""
    literals = sorted(map(re.escape, texts), key=len, reverse=True)
    return re.compile("|".join([*literals, PLACEHOLDER.pattern]), re.VERBOSE)
