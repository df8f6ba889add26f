"""Changes sentence pairs at random to imitate the text of users: upper case, typos, wrong spaces,
placeholders.

Each function in the table `PERTURBATIONS` changes one sentence pair. Training with `data.augment` and the
command `vaswani evaluate --robustness` use the functions in `PERTURBATIONS`. A change of style, such as upper
case, applies to source and target. An error, such as a typo, is added only to the source, because the model
should translate a text with errors into a text without errors.
"""

import re
from collections.abc import Callable
from random import Random

from ..model.tokenizing_vaswani import TAG
from ..settings.data import Augmentation

Perturbation = Callable[[str, str, Random], tuple[str, str]]

# A text gets one error (a typo or a wrong space) per `_WORDS_PER_ERROR` words, but at least one error.
_WORDS_PER_ERROR = 10
# Matches a word of at least 4 letters, because a typo often makes a shorter word unreadable.
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
# Matches the language tag of a source, and the white space after the tag.
_TAG = re.compile(rf"\A{TAG.pattern}\s*")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
_FINAL_PUNCTUATION = re.compile(r"\s*[.!?…。！？]+$")
# Matches a number, or a word with an initial capital, such as a name. `_COPIED_WORD` does not match a word
# without an initial capital, because a word such as "was" exists in English and in German with different
# meanings.
_COPIED_WORD = re.compile(r"\b(?:\d+|[A-ZÀ-ÖØ-Þ]\w{2,})\b")
_PLACEHOLDER_FORMS = ("{%s}", "{{%s}}", "%%(%s)s", "${%s}", "<%s>", "%%%s")


def upper_case(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Convert the source and the target to upper case."""
    return source.upper(), target.upper()


def title_case(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Convert the first letter of each word in the source and the target to upper case."""
    return _title_case(source), _title_case(target)


def typos(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Add typos to some words of the source."""
    words = list(_LONG_WORD.finditer(source))
    # Change the last word first, because the change of a word moves the positions of all later words.
    for word in sorted(_sample(words, source, rng), key=re.Match.start, reverse=True):
        source = source[: word.start()] + _with_typo(word[0], rng) + source[word.end() :]
    return source, target


def final_punctuation(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Remove the final punctuation of the source and of the target, if both sentences have final punctuation
    and are not only punctuation.
    """
    shorter_source = _FINAL_PUNCTUATION.sub("", source)
    shorter_target = _FINAL_PUNCTUATION.sub("", target)
    if shorter_source in ("", source) or shorter_target in ("", target):
        return source, target
    return shorter_source, shorter_target


def spaces(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Remove and add spaces in the source: between words, inside a word, and before punctuation."""
    gaps = [match.start() for match in re.finditer(r"(?<=\S) (?=\S)", source)]
    inside = [match.start() + 2 for match in _LONG_WORD.finditer(source)]
    ends = [match.start() for match in re.finditer(r"(?<=\w)[.,!?;:](?=\s|$)", source)]
    changes = [(place, change) for place in gaps for change in ("", "  ")]
    changes += [(place, " ") for place in (*inside, *ends)]
    for place, change in sorted(_sample(changes, source, rng), reverse=True):
        following = place + 1 if change != " " else place
        source = source[:place] + change + source[following:]
    return source, target


def placeholders(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Replace a name or number by the same placeholder, such as `{name}`, in the source and the target.

    The name or number must occur exactly once in the source, and exactly once in the target. If no name or
    number occurs exactly once in the source and exactly once in the target, insert the placeholder at the
    beginning of both.
    """
    placeholder = rng.choice(_PLACEHOLDER_FORMS) % _identifier(rng)
    in_target = _COPIED_WORD.findall(target)
    words = [
        word
        for word in _COPIED_WORD.findall(source)
        if in_target.count(word) == 1 and source.count(word) == 1 and target.count(word) == 1
    ]
    if not words:
        return f"{placeholder} {source}", f"{placeholder} {target}"
    word = rng.choice(words)
    return source.replace(word, placeholder), target.replace(word, placeholder)


# The perturbations in the order in which the training applies them. The keys of the dict are names of fields
# of the settings class `Augmentation`. `placeholders` comes last, so that no other perturbation changes a
# placeholder.
PERTURBATIONS: dict[str, Perturbation] = {
    "final_punctuation": final_punctuation,
    "typos": typos,
    "spaces": spaces,
    "title_case": title_case,
    "upper_case": upper_case,
    "placeholders": placeholders,
}
PLACEHOLDER = re.compile(r"\{\{\w+\}\}|\$?\{\w+\}|%\(\w+\)s|<\w+>|%\w+")


class Augmenter:
    """Applies perturbations at random. A language tag such as `>>en<<` before the source stays unchanged."""

    def __init__(self, rates: Augmentation):
        self._rates = {name: getattr(rates, name) for name in PERTURBATIONS}

    def __call__(self, source: str, target: str, rng: Random) -> tuple[str, str]:
        """Return a changed copy of a sentence pair, or the sentence pair itself if nothing was changed."""
        tag, text = divide_tag(source)
        for name, perturb in PERTURBATIONS.items():
            if rng.random() < self._rates[name]:
                text, target = perturb(text, target, rng)
        return tag + text, target


def divide_tag(source: str) -> tuple[str, str]:
    """Return the language tag of a source with the white space after the tag, and the text after both."""
    text = _TAG.sub("", source)
    return source.removesuffix(text), text


def _title_case(text: str) -> str:
    return _FIRST_LETTER.sub(lambda letter: letter[0].upper(), text)


def _sample(items: list, text: str, rng: Random) -> list:
    number = max(1, len(text.split()) // _WORDS_PER_ERROR)
    return rng.sample(items, min(number, len(items)))


def _with_typo(word: str, rng: Random) -> str:
    """Exchange two letters, or leave out, double or replace one letter, but never the first letter."""
    place = rng.randrange(1, len(word) - 1)
    before, first, second, after = word[:place], word[place], word[place + 1], word[place + 2 :]
    return before + rng.choice((second + first, second, first + first + second, second + second)) + after


def _identifier(rng: Random) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(1, 8)))
