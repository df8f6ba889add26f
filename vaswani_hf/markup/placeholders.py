"""Finds the parts of a text that a translation must not change: placeholders, URLs and e-mail addresses."""

import re

# Code of templates: ERB (`<%= x %>`), PHP (`<?= $x ?>`) and Jinja (`{% if x %}`). The patterns match no code
# with a second opening mark, because otherwise the search time would grow with the square of the length of a
# text with many opening marks.
_ERB = r"<%(?s:(?!<%|%>).)*%>"
_PHP = r"<\?(?s:(?!<\?|\?>).)*\?>"
_JINJA = r"\{%(?:(?!\{%|%\}).)*%\}"
# Matches code that can contain characters of HTML, such as `<`.
TEMPLATE = re.compile(rf"{_ERB}|{_PHP}|\{{%[^{{}}\n]*?%\}}|\{{\{{[^{{}}\n]*?\}}\}}")
# Matches statements of templates. A statement stays between the same texts, because the order of the
# statements matters. Expressions, such as `<%= x %>`, can move to another place in the sentence.
STATEMENT = re.compile(rf"(?!<%=|<\?=)(?:{_ERB}|{_PHP}|{_JINJA})")
# Matches placeholders such as `%s` and `%(n)d`.
_FORMAT = r"(?<!\d)%(?:\(\w+\)|\d+\$)?[-+\#0]*\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGcrsaA@]"
_URL = r"""(?:https?|ftp)://[^\s<>"']*[^\s<>"'.,;:!?)\]]"""
# Matches placeholders, URLs and e-mail addresses. The look-behind assertions forbid matches that begin inside
# a word. Without the look-behind assertions, the search time would grow with the square of the length of a
# word. A URL directly after a placeholder such as `%s` is a part of the placeholder.
PLACEHOLDER = re.compile(
    rf"{_ERB}|{_PHP}|{_JINJA}|{_FORMAT}(?:{_URL})?|(?<!\w){_URL}"
    r"""
    | [$%\#@]?\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}          # {name}, {{x}}, ${x}, {n, plural, one {…}}
    | %%
    | \$[A-Za-z_]\w*                                            # $name
    | (?<!\w)www\.[^\s<>"']*[^\s<>"'.,;:!?)\]]
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+
    """,
    re.VERBOSE,
)
