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
# The look-behind assertions forbid matches that begin inside a word. Otherwise, the search time would grow
# with the square of the length of a word.
PLACEHOLDER = re.compile(
    rf"{_ERB}|{_PHP}|{_JINJA}"
    r"""
    | [$%\#@]?\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}          # {name}, {{x}}, ${x}, {n, plural, one {…}}
    | %%
    | (?<!\d)%(?:\(\w+\)|\d+\$)?[-+\#0]*\d*(?:\.\d+)?(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGcrsaA@]    # %s, %(n)d
    | \$[A-Za-z_]\w*                                            # $name
    | (?<!\w)(?:https?|ftp)://[^\s<>"']*[^\s<>"'.,;:!?)\]]
    | (?<!\w)www\.[^\s<>"']*[^\s<>"'.,;:!?)\]]
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+
    """,
    re.VERBOSE,
)
