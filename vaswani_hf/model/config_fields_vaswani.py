"""Defines how `VaswaniConfig` declares a field, and the rules for the values of fields. This file is saved
with every checkpoint.
"""

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, NamedTuple

from transformers.utils import is_torch_available

from .extension_vaswani import ATTENTIONS, POSITION_ENCODINGS, Registry
from .inputs_vaswani import is_int, is_number


def _are_ints(value: Any, may_be_none: bool = False) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return len(values) > 0 and all(is_int(one) or (may_be_none and one is None) for one in values)


def _is_activation(value: Any) -> bool:
    if not isinstance(value, str) or not is_torch_available():
        return isinstance(value, str)
    from transformers.activations import ACT2FN

    return value in ACT2FN


def _is_one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


def _is_none_or(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _names_of(registry: Registry) -> str:
    names = ", ".join(f'"{name}"' for name in registry.built_in)
    return f"{names} or a name that `{registry.function}` has added"


class Rule(NamedTuple):
    """The rule for the values of a field: a test, and the words that follow "must be" in the error message."""

    accepts: Callable[[Any], bool]
    words: str


A_SIZE = Rule(partial(is_int, least=1), "a positive integer")
A_SIZE_OR_NONE = Rule(_is_none_or(partial(is_int, least=1)), "a positive integer or None")
A_RATE = Rule(lambda value: is_number(value) and value < 1, "a number from 0 up to, but not including, 1")
A_POSITIVE_NUMBER = Rule(_is_positive, "a positive number")
A_POSITIVE_NUMBER_OR_NONE = Rule(_is_none_or(_is_positive), "a positive number or None")
A_SWITCH = Rule(_is_bool, "True or False")
A_SWITCH_OR_NONE = Rule(_is_none_or(_is_bool), "True, False or None")
ALWAYS_TRUE = Rule(lambda value: value is True, "True, because the model always has an encoder and a decoder")
A_TOKEN_OR_NONE = Rule(_is_none_or(is_int), "a token id (an integer of 0 or more) or None")
TOKENS_OR_NONE = Rule(
    _is_none_or(_are_ints),
    "a token id (an integer of 0 or more), a list of token ids or None",
)
AN_ACTIVATION = Rule(_is_activation, 'the name of an activation of transformers, such as "relu" or "gelu"')
A_NORM_POSITION = Rule(_is_one_of("post", "pre"), '"post" or "pre"')
A_NORM_POSITION_OR_NONE = Rule(_is_none_or(_is_one_of("post", "pre")), '"post", "pre" or None')
A_POSITION_ENCODING = Rule(POSITION_ENCODINGS.accepts, _names_of(POSITION_ENCODINGS))
TIMESCALES = Rule(_is_one_of("paper", "tensor2tensor"), '"paper" or "tensor2tensor"')
AN_OFFSET = Rule(is_int, "an integer of 0 or more (tokens)")
A_SCORE = Rule(ATTENTIONS.accepts, _names_of(ATTENTIONS))
A_SCORE_OR_NONE = Rule(_is_none_or(ATTENTIONS.accepts), f"{_names_of(ATTENTIONS)}, or None")
WINDOWS = Rule(
    partial(_are_ints, may_be_none=True),
    "an integer of 0 or more (tokens), a list with one entry per layer or None",
)
A_SMOOTHING_FORM = Rule(_is_one_of("t2t", "torch"), '"t2t" or "torch"')


def config_field(
    default: Any,
    help: str,
    rule: Rule,
    *,
    unit: str = "",
    is_recipe_key: bool = True,
    changes_outputs: bool = True,
    needs_encoder_decoder: bool = False,
) -> Any:
    """Declare a field of `VaswaniConfig`. All code that depends on properties of fields reads the properties
    from `CONFIG_FIELDS`.

    Args:
        default (Any): The default value.
        help (str): The meaning of the field, for the docstring of `VaswaniConfig` and for the manual.
        rule (Rule): The rule for the values of the field.
        unit (str): The unit of a count or a size.
        is_recipe_key (bool): True if the field is a key of the section `model` of a recipe. False if the
            tokenizer or another section of the recipe determines the value.
        changes_outputs (bool): False if the field changes the training, but not the outputs of a trained
            model.
        needs_encoder_decoder (bool): True if the field has no meaning for a model with one stack.
    """
    properties = {
        "help": help,
        "rule": rule,
        "unit": unit,
        "is_recipe_key": is_recipe_key,
        "changes_outputs": changes_outputs,
        "needs_encoder_decoder": needs_encoder_decoder,
    }
    return field(default=default, metadata=properties)
