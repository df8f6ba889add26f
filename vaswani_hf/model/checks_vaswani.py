"""Rules for the values of options and config fields, and other functions that check input from users.

A `Rule` decides whether a value is possible, and describes the possible values in error messages. `rule_of`
returns the rule of an option in inputs_vaswani or of a field of `VaswaniConfig`. The recipe and the command
line check their values with the same rules, see `checked_by` in settings/base.py.

This file imports neither torch nor transformers, because the command `vaswani` reads its arguments before the
slow import of torch and transformers.

This file is saved with every checkpoint because the config and the search check values with this file.
"""

import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Union, Unpack, get_args, get_origin

from .errors_vaswani import InvalidValueError

# Maps symbols of the paper, such as d_ff, to the config fields with the same meaning but another name. If a
# symbol has one config field for the encoder and one for the decoder, `PAPER_SYMBOLS` contains the field for
# the encoder.
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


class Limits(TypedDict, total=False):
    """The limits of a number, with the names that pydantic uses."""

    gt: float
    """An exclusive lower limit."""
    ge: float
    """The smallest possible number."""
    lt: float
    """An exclusive upper limit."""
    le: float
    """The largest possible number."""


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


@dataclass(frozen=True)
class Rule:
    """Describes which values an option or a config field can have.

    Attributes:
        accepts: A function that returns True if the rule allows the value.
        words: The words that follow "must be" in an error message.
        limits: The lower and upper limits of allowed numbers.
        remedy: The end of an error message, such as "; install the library".
    """

    accepts: Callable[[Any], bool]
    words: str
    limits: Limits = dataclasses.field(default_factory=Limits)
    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """If the rule does not allow `value`, raise an error with `name` in the message."""
        if not self.accepts(value):
            raise InvalidValueError(f"`{name}` must be {self.words}, but is {value!r}{self.remedy}.")


def a_number(words: str, **limits: Unpack[Limits]) -> Rule:
    """Return a `Rule` that accepts finite numbers (not a bool) within the limits."""
    return Rule(lambda value: _is_within(value, limits), words, limits)


def an_integer(words: str, *, accepts_float: bool = False, **limits: Unpack[Limits]) -> Rule:
    """Return a `Rule` that accepts integers (not a bool) within the limits. If `accepts_float` is True, the
    rule also accepts a float without a fraction, such as 50.0.
    """

    def accepts(value: Any) -> bool:
        is_integer = isinstance(value, int) or accepts_float
        return is_integer and _is_within(value, limits) and value == int(value)

    return Rule(accepts, words, limits)


def _is_within(value: Any, limits: Limits) -> bool:
    """Return True for a finite number (not a bool) within the limits."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not -math.inf < value < math.inf:
        return False
    return all(_COMPARISONS[name](value, limit) for name, limit in limits.items())


def one_of(*choices: Any) -> Rule:
    """Return a `Rule` that accepts only the given choices (two or more)."""

    def accepts(value: Any) -> bool:
        # Compare the types, because 1 equals True.
        return any(isinstance(value, type(choice)) and value == choice for choice in choices)

    *others, last = [f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices]
    return Rule(accepts, f"{', '.join(others)} or {last}")


def or_none(rule: Rule) -> Rule:
    """Return a rule that accepts None and all values that `rule` accepts."""
    return dataclasses.replace(
        rule,
        accepts=lambda value: value is None or rule.accepts(value),
        words=f"{rule.words} or None",
    )


ANYTHING = Rule(lambda value: True, "any value")
A_SIZE = an_integer("a positive integer", ge=1)
A_COUNT = an_integer("an integer of 0 or more", ge=0)
A_PROBABILITY = a_number("a number from 0 to 1", ge=0, le=1)


def rule_of(field: dataclasses.Field) -> Rule:
    """Return the rule for the values of a dataclass field: the rule in its metadata, or else the rule for its
    type. The types bool and `Literal` allow only certain values, and other types allow any value.
    """
    rule = field.metadata["rule"]
    if rule is not None:
        return rule
    choices = _choices_of(field.type)
    return one_of(*choices) if choices else ANYTHING


def _choices_of(kind: Any) -> list[Any]:
    """Return all values of a type such as `Literal["a", "b"] | None`, or an empty list for a type with an
    unlimited number of values.
    """
    choices: list[Any] = []
    for member in union_members(kind):
        if member is bool:
            choices += [True, False]
        elif member is NoneType:
            choices.append(None)
        elif get_origin(member) is Literal:
            choices += get_args(member)
        else:
            return []
    return choices


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union such as `int | None`, or a tuple with `kind` itself if it is no union."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
