"""Finds the parts of a text that a program replaces or that a translation must not change."""

import re

# Placeholders, URLs and e-mail addresses. The look-behinds prevent matches inside a longer run, because with
# such matches the search time would grow with the square of the length of the run.
PLACEHOLDER = re.compile(
    r"""
    \{%.*?%\}                                                   # {% if x %}
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
