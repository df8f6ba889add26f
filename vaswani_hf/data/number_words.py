"""The quick-start corpus: numbers in English words and the German number words for them.

The pairs are made here, so nothing is downloaded, and each source has exactly one right translation. German writes a
number as one word and says the ones before the tens: "four hundred and seventy-one thousand and five" is
"vierhunderteinundsiebzigtausendfünf". A model has to learn compounding and reordering, not a table of words.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator

_END = 1_000_000
# The thousands of a number and the rest: nothing, or a number of one, two or three digits.
_PARTS = (range(1), range(1, 10), range(10, 100), range(100, 1000))
_SHAPES = tuple(itertools.product(_PARTS, _PARTS))
_SPLITS = ("train", "validation", "test")
# Smaller numbers are all in the training split: every word occurs in them, "hundred" and "thousand" apart.
SMALLEST_HELD_OUT = 100

# fmt: off
_ENGLISH_BELOW_20 = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GERMAN_BELOW_20 = (
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)
_GERMAN_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
# fmt: on
_ENGLISH_VALUES = {
    **{word: value for value, word in enumerate(_ENGLISH_BELOW_20)},
    **{word: 10 * tens for tens, word in enumerate(_ENGLISH_TENS) if word},
}


def english_words(number: int) -> str:
    """The number in British English words, as in "one thousand one hundred and twenty-one".

    Args:
        number (int): 0 to 999,999.

    Returns:
        str: Lower-case words; "and" stands before the last two digits wherever hundreds or thousands precede them.

    Raises:
        ValueError: If `number` is not an integer from 0 to 999,999.
    """
    _check_number(number)
    thousands, rest = divmod(number, 1000)
    if thousands == 0:
        return _english_below_1000(rest)
    words = f"{_english_below_1000(thousands)} thousand"
    if rest == 0:
        return words
    return f"{words} {'and ' if rest < 100 else ''}{_english_below_1000(rest)}"


def german_words(number: int) -> str:
    """The number as one German word, as in "eintausendeinhunderteinundzwanzig".

    Args:
        number (int): 0 to 999,999.

    Returns:
        str: The word, lower-case; "ein" is always written before "hundert" and "tausend".

    Raises:
        ValueError: If `number` is not an integer from 0 to 999,999.
    """
    _check_number(number)
    thousands, rest = divmod(number, 1000)
    if thousands == 0:
        return _german_below_1000(rest)
    word = f"{_german_inside(_german_below_1000(thousands))}tausend"
    return word + _german_below_1000(rest) if rest else word


def num_digits(words: str) -> int:
    """The number of digits of a number that `english_words` wrote.

    Args:
        words (str): The words.

    Returns:
        int: 1 to 6.
    """
    thousands, _, rest = words.rpartition("thousand")
    return len(str(1000 * _value_below_1000(thousands) + _value_below_1000(rest)))


def number_pairs(num_pairs: int, seed: int, split: str) -> list[dict[str, str]]:
    """Numbers of one split, drawn at random, each as a sentence pair.

    A draw chooses evenly how many digits, from none to 3, the thousands have and how many the rest, and then one of
    the numbers of this shape: nine in ten of all have six digits, and would drown the short and the round ones. A number
    belongs to one split whatever the seed: about 5 % each to "validation" and "test", the others, with all below 100, to
    "train". Those of "validation" and "test" are all different; in "train" a number comes again when all of its shape
    have come as often, as the few short ones soon have. The pairs for a seed are the same on every machine, and a
    smaller `num_pairs` gives the first of them.

    Args:
        num_pairs (int): The number of pairs.
        seed (int): Chooses which numbers of the split are drawn and in which order.
        split (str): "train", "validation" or "test".

    Returns:
        list[dict[str, str]]: The pairs, English words under "source" and the German word under "target".

    Raises:
        ValueError: If `num_pairs` is not positive or more than "validation" or "test" has, or if `split` is unknown.
    """
    if split not in _SPLITS:
        raise ValueError(f'`split` must be "train", "validation" or "test", but is {split!r}.')
    if num_pairs < 1:
        raise ValueError(f"`num_pairs` must be a positive integer, but is {num_pairs}.")
    drawn = _drawn_numbers(random.Random(seed), is_endless=split == "train")
    drawn = (number for number in drawn if _split_of(number) == split)
    numbers = list(itertools.islice(drawn, num_pairs))
    if len(numbers) < num_pairs:
        raise ValueError(
            f'`num_pairs` must be at most {len(numbers)}, the size of the "{split}" split, but is {num_pairs}.'
        )
    return [{"source": english_words(number), "target": german_words(number)} for number in numbers]


def _check_number(number: int) -> None:
    if not isinstance(number, int) or not 0 <= number < _END:
        raise ValueError(f"`number` must be an integer from 0 to 999,999, but is {number!r}.")


def _english_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if hundreds == 0:
        return _english_below_100(rest)
    words = f"{_ENGLISH_BELOW_20[hundreds]} hundred"
    return f"{words} and {_english_below_100(rest)}" if rest else words


def _english_below_100(number: int) -> str:
    if number < 20:
        return _ENGLISH_BELOW_20[number]
    tens, ones = divmod(number, 10)
    return f"{_ENGLISH_TENS[tens]}-{_ENGLISH_BELOW_20[ones]}" if ones else _ENGLISH_TENS[tens]


def _value_below_1000(words: str) -> int:
    hundreds, _, rest = words.rpartition("hundred")
    return 100 * _value_below_100(hundreds) + _value_below_100(rest)


def _value_below_100(words: str) -> int:
    return sum(_ENGLISH_VALUES[word] for word in words.replace("-", " ").split() if word != "and")


def _german_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if hundreds == 0:
        return _german_below_100(rest)
    word = f"{_german_inside(_GERMAN_BELOW_20[hundreds])}hundert"
    return word + _german_below_100(rest) if rest else word


def _german_below_100(number: int) -> str:
    if number < 20:
        return _GERMAN_BELOW_20[number]
    tens, ones = divmod(number, 10)
    return f"{_german_inside(_GERMAN_BELOW_20[ones])}und{_GERMAN_TENS[tens]}" if ones else _GERMAN_TENS[tens]


def _german_inside(word: str) -> str:
    # "eins" ends a number; "ein" is one where more of the word follows.
    return word[:-1] if word.endswith("eins") else word


def _split_of(number: int) -> str:
    if number < SMALLEST_HELD_OUT:
        return "train"
    # SHA-256 rather than hash(), which may differ between Python versions; 20 parts of 5 % each.
    part = int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:8], "big") % 20
    return {0: "test", 1: "validation"}.get(part, "train")


def _drawn_numbers(generator: random.Random, *, is_endless: bool) -> Iterator[int]:
    """Numbers of all splits; those of a shape that are used up begin again, or come no more."""
    shapes = [_rounds(shape, generator, is_endless) for shape in _SHAPES]
    while shapes:
        # random() is the only method whose sequence Python promises to keep from version to version.
        shape = shapes[int(generator.random() * len(shapes))]
        number = next(shape, None)
        if number is None:
            shapes.remove(shape)
        else:
            yield number


def _rounds(shape: tuple[range, range], generator: random.Random, is_endless: bool) -> Iterator[int]:
    while True:
        yield from _shuffled_numbers(*shape, generator)
        if not is_endless:
            return


def _shuffled_numbers(thousands: range, rests: range, generator: random.Random) -> Iterator[int]:
    """Every number of a shape once, in random order.

    This is the Fisher-Yates shuffle that remembers only what it has moved, so that the first numbers of 810,000 cost
    no more than the first of ten.
    """
    moved: dict[int, int] = {}
    for last in range(len(thousands) * len(rests) - 1, -1, -1):
        pick = int(generator.random() * (last + 1))
        thousand, rest = divmod(moved.get(pick, pick), len(rests))
        moved[pick] = moved.pop(last, last)
        yield 1000 * thousands[thousand] + rests[rest]
