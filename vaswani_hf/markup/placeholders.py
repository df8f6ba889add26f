"""Finds placeholders, URLs and e-mail addresses in a text, because a translation must not change these parts
of the text.
"""

import re

# Matches code of templates: `<%= x %>` (ERB), `<?php echo $x ?>` (PHP), `{% if x %}` (Jinja) and `{{ x }}`.
TEMPLATE = re.compile(r"<%.*?%>|<\?.*?\?>|\{%[^{}\n]*?%\}|\{\{[^{}\n]*?\}\}", re.DOTALL)
# Matches statements of templates. A statement stays between the same texts as in the source, because the order
# of the statements matters. Expressions, such as `<%= x %>`, can move.
STATEMENT = re.compile(r"<%(?!=)(?s:.*?)%>|<\?(?!=)(?s:.*?)\?>|\{%.*?%\}")
# Matches placeholders, URLs and e-mail addresses. The look-behind assertions forbid matches that begin inside
# a word. Without the look-behind assertions, the search time would grow with the square of the length of a
# word.
PLACEHOLDER = re.compile(
    r"""
    <%(?s:.*?)%> | <\?(?s:.*?)\?>                               # <%= x %>, <?= x ?>
    | \{%.*?%\}                                                   # {% if x %}
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
