"""Rules for the values of options and config fields, and other functions that check input from users.

A `Rule` decides whether a value is possible, and describes the possible values in error messages. Each option
in inputs_vaswani and each field of `VaswaniConfig` has a rule.

This file imports neither torch nor transformers, because the command `vaswani` reads its arguments before the
slow import of torch and transformers.

This file is saved with every checkpoint because the config and the search check values with this file.
"""

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .errors_vaswani import InvalidValueError

# Maps each symbol of the paper to the config field with the same meaning. If the encoder and the decoder have
# separate fields, the dict contains the field of the encoder.
PAPER_SYMBOLS = {
    "N": "encoder_layers",
    "h": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
    "P_drop": "dropout",
    "eps_ls": "label_smoothing",
}


def nearest_name(name: Any, known: Iterable[str]) -> str:
    """Return the name in the non-empty list `known` whose spelling is most similar to `name`."""
    return difflib.get_close_matches(str(name), list(known), 1, cutoff=0)[0]


def is_int(value: Any, least: int = 0) -> bool:
    """Return True for an int (not a bool) of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_filled(value: Any) -> bool:
    """Return False for None and for an empty list or tuple, else True."""
    return value is not None and not (isinstance(value, (list, tuple)) and len(value) == 0)


@dataclass(frozen=True)
class Rule:
    """Describes which values an option or a config field can have.

    Attributes:
        accepts: Returns True if the rule allows the value.
        words: The words that follow "must be" in an error message.
        least: The smallest possible number, or None without a limit.
        above: An exclusive lower limit, or None without a limit.
        most: The largest possible number, or None without a limit.
    """

    accepts: Callable[[Any], bool]
    words: str
    least: float | None = None
    above: float | None = None
    most: float | None = None

    def check(self, name: str, value: Any, remedy: str = "") -> None:
        """Raise an error about `name` if the value is not possible. `remedy` is the end of the message."""
        if not self.accepts(value):
            raise InvalidValueError(f"`{name}` must be {self.words}, but is {value!r}{remedy}.")


def an_integer(words: str, *, least: int, most: int | None = None) -> Rule:
    """Return the rule for an integer (not a bool) of at least `least` and at most `most`."""
    return Rule(
        lambda value: is_int(value, least) and (most is None or value <= most),
        words,
        least=least,
        most=most,
    )


def a_number(
    words: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float = math.inf,
    most: float | None = None,
    whole: bool = False,
) -> Rule:
    """Return a `Rule` that accepts finite numbers. The limits `above` and `below` are exclusive."""

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and -math.inf < value < below
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
            and (not whole or value == int(value))
        )

    return Rule(accepts, words, least=least, above=above, most=most)


def one_of(*choices: Any) -> Rule:
    """Return a `Rule` that accepts only the given choices (two or more)."""

    def accepts(value: Any) -> bool:
        # Compare the types, because 1 equals True.
        return any(isinstance(value, type(choice)) and value == choice for choice in choices)

    *others, last = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices]
    return Rule(accepts, f"{', '.join(others)} or {last}")


def or_none(rule: Rule) -> Rule:
    """Return a rule that accepts None and all values that `rule` accepts."""
    return Rule(lambda value: value is None or rule.accepts(value), f"{rule.words} or None")


ANYTHING = Rule(lambda value: True, "any value")
A_SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")
A_SIZE = an_integer("a positive integer", least=1)
A_COUNT = an_integer("an integer of 0 or more", least=0)
