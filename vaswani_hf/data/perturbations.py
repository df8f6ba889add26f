"""Changes sentence pairs as people write text: upper case, typos, wrong spaces, placeholders.

Each function of `PERTURBATIONS` changes one pair. The training (`data.augment`) and `vaswani evaluate
--robustness` call the same functions. A change of the style of a text, such as upper case, also changes the
target. An error, such as a typo, changes the source only, because the model should correct the error.
"""

import re
from collections.abc import Callable, Sequence
from random import Random

from ..settings.data import Augmentation

Perturbation = Callable[[str, str, Random], tuple[str, str]]

# A text gets one typo or one wrong space for each `_WORDS_PER_ERROR` words, and at least one.
_WORDS_PER_ERROR = 10
# A typo changes a word of at least 4 letters, because a typo often makes a shorter word unreadable.
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
_FINAL_PUNCTUATION = re.compile(r"\s*[.!?…。！？]+$")
# A name or a number. A word without an initial capital is not used, because an equal spelling in two
# languages, such as English and German "was", does not mean that the words translate each other.
_COPIED_WORD = re.compile(r"\b(?:\d+|[A-ZÀ-ÖØ-Þ]\w{2,})\b")
_PLACEHOLDER_FORMS = ("{%s}", "{{%s}}", "%%(%s)s", "${%s}", "<%s>", "%%%s")


def upper_case(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Write both sides in upper case."""
    return source.upper(), target.upper()


def title_case(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Write the first letter of each word of both sides in upper case."""
    return _title_case(source), _title_case(target)


def typos(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Change letters in some words of the source."""
    words = list(_LONG_WORD.finditer(source))
    # Change the last word first, because a change moves the words that follow.
    for word in sorted(_sample(words, source, rng), key=re.Match.start, reverse=True):
        source = source[: word.start()] + _with_typo(word[0], rng) + source[word.end() :]
    return source, target


def final_punctuation(source: str, target: str, rng: Random) -> tuple[str, str]:
    """Remove the punctuation at the end of both sides. A pair is unchanged if a side has no final
    punctuation, or nothing else.
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
    """Put the same placeholder, such as `{name}`, into both sides.

    The placeholder replaces a name or number that both sides have exactly once, so that the two places of the
    placeholder correspond. Without such a word, the placeholder begins both sides.
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


# The key of a perturbation is the name of its rate in `Augmentation`. The training applies the perturbations
# in this order. `placeholders` is last, so that no other perturbation changes a placeholder.
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
    """Changes sentence pairs at random, each perturbation with the rate of `data.augment`.

    A tag at the beginning of the source, such as `>>en<<`, is kept.
    """

    def __init__(self, rates: Augmentation, tags: Sequence[str] = ()):
        self._rates = {name: getattr(rates, name) for name in PERTURBATIONS}
        self._tags = tuple(f"{tag} " for tag in tags)

    def __call__(self, source: str, target: str, rng: Random) -> tuple[str, str]:
        """Return a changed copy of a pair, or the pair itself."""
        tag = next((tag for tag in self._tags if source.startswith(tag)), "")
        text = source.removeprefix(tag)
        for name, perturb in PERTURBATIONS.items():
            if rng.random() < self._rates[name]:
                text, target = perturb(text, target, rng)
        return tag + text, target


def _title_case(text: str) -> str:
    return _FIRST_LETTER.sub(lambda letter: letter[0].upper(), text)


def _sample(items: list, text: str, rng: Random) -> list:
    number = max(1, len(text.split()) // _WORDS_PER_ERROR)
    return rng.sample(items, min(number, len(items)))


def _with_typo(word: str, rng: Random) -> str:
    """Exchange two letters, leave one out, double one, or replace one by another letter of the word. The
    first letter stays.
    """
    place = rng.randrange(1, len(word) - 1)
    before, first, second, after = word[:place], word[place], word[place + 1], word[place + 2 :]
    return before + rng.choice((second + first, second, first + first + second, second + second)) + after


def _identifier(rng: Random) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(1, 8)))
