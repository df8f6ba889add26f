"""Repetition: finding translations that fall into a loop, as models do on short or unusual input."""

import operator
from collections.abc import Iterator, Sequence

# A loop has a word, or a sequence of words, at least so often in a row. Three times the same word are no rarity in language
# ("very very very"), three times the same phrase are.
_WORD_REPEATS = 4
_PHRASE_REPEATS = 3
# A loop without white space, as in Chinese or in a word that does not end, has at least so many characters.
_CHARACTERS_OF_LOOP = 20
# The longest unit that is looked for, in words or characters: the work grows with the length of the text, not its square.
_LONGEST_UNIT = 100
# A short input has at most so many words.
_SHORT = 10


def is_loop(translation: str, source: str) -> bool:
    """True if a translation repeats something in a row far more often than its source does.

    That is at least four times a word, three times a phrase, or four times some characters of a word if it is of twenty
    or more, and more than twice as often as anything is repeated in the source.

    Args:
        translation: A translation.
        source: The text that was translated.
    """
    words = [word.casefold().strip(".,;:!?…'\"()„“”«»") or word for word in translation.split()]
    repeats = max((count for length, count in _repeats(words) if count >= _least_repeats(length)), default=0)
    for word in translation.split():
        if len(word) >= _CHARACTERS_OF_LOOP:
            runs = [count for length, count in _repeats(word) if count * length >= _CHARACTERS_OF_LOOP]
            repeats = max([repeats, *(count for count in runs if count >= _WORD_REPEATS)])
    return repeats > 0 and repeats > 2 * _most_repeats(source)


def ngram_size_without_loops(source: str) -> int:
    """The `no_repeat_ngram_size` with which a text is translated once more after a loop.

    As soon as no three tokens may occur twice, nothing can be repeated as often as in a loop; a longer sentence may well
    say the same two tokens twice. Of 950 short inputs of a small Multi30k model 20 fell into a loop; with three tokens
    something was still said three times in a row in 19 of them, with two in 2.

    Args:
        source: The text.
    """
    return 2 if len(source.split()) <= _SHORT else 3


def _least_repeats(num_words: int) -> int:
    return _WORD_REPEATS if num_words == 1 else _PHRASE_REPEATS


def _most_repeats(source: str) -> int:
    """The number of times that anything stands in a row in the source, be it "ha ha ha", "ha, ha, ha" or "hahaha"."""
    characters = "".join(source.casefold().split())
    letters = "".join(character for character in characters if character.isalnum())
    # Two equal letters in a row are spelling.
    in_words = [count for text in (characters, letters) for length, count in _repeats(text) if length * count > 2]
    return max([1, *in_words, *(count for _, count in _repeats(source.casefold().split()))])


def _repeats(symbols: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Each length of a unit, and how many of the same units stand in a row at most."""
    for length in range(1, min(len(symbols) // 2, _LONGEST_UNIT) + 1):
        is_same = bytes(map(operator.eq, symbols, symbols[length:]))
        yield length, 1 + max(map(len, is_same.split(b"\0"))) // length


__all__ = ["is_loop", "ngram_size_without_loops"]
