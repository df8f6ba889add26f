"""Defines how `VaswaniConfig` declares a field, and the rules for the values of fields. This file is saved
with every checkpoint.
"""

from dataclasses import field
from typing import Any

from transformers.utils import is_torch_available

from .checks_vaswani import Rule, a_number, is_int, or_none
from .extension_vaswani import ATTENTIONS, POSITION_ENCODINGS, Registry


def _are_ints(value: Any, may_be_none: bool = False) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return len(values) > 0 and all(is_int(one) or (may_be_none and one is None) for one in values)


def _is_activation(value: Any) -> bool:
    if not isinstance(value, str) or not is_torch_available():
        return isinstance(value, str)
    from transformers.activations import ACT2FN

    return value in ACT2FN


def _name_in(registry: Registry) -> Rule:
    names = ", ".join(f'"{name}"' for name in registry.built_in)
    return Rule(registry.accepts, f"{names} or a name that `{registry.function}` has added")


A_RATE = a_number("a number from 0 up to, but not including, 1", least=0, below=1)
A_POSITIVE_NUMBER = a_number("a positive number", above=0)
A_TOKEN_OR_NONE = or_none(Rule(is_int, "a token id (an integer of 0 or more)"))
TOKENS_OR_NONE = or_none(Rule(_are_ints, "a token id (an integer of 0 or more), a list of token ids"))
AN_ACTIVATION = Rule(_is_activation, 'the name of an activation of transformers, such as "relu" or "gelu"')
A_POSITION_ENCODING = _name_in(POSITION_ENCODINGS)
A_SCORE = _name_in(ATTENTIONS)
A_SCORE_OR_NONE = Rule(or_none(A_SCORE).accepts, f"{A_SCORE.words}, or None")
AN_OFFSET = Rule(is_int, "an integer of 0 or more (tokens)")
WINDOWS = Rule(
    lambda value: _are_ints(value, may_be_none=True),
    "an integer of 0 or more (tokens), a list with one entry per layer or None",
)
ALWAYS_TRUE = Rule(lambda value: value is True, "True, because the model always has an encoder and a decoder")


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
