"""Defines `Settings`, the base class for recipes, command-line options and other user input. Also defines the
error messages about invalid values.

pydantic checks the type and the range of each field. The string below the declaration of a field is the help
text of the field.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from ..model.checks_vaswani import Rule
from ..model.errors_vaswani import InvalidValueError
from .names import suggestion

# Maps each error type of pydantic to the text that follows "must be" in the error message.
_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "string_unicode": "UTF-8 text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "none_required": "null",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "text that matches {pattern}",
}


# Options of pydantic's `create_model`. Turn `use_attribute_docstrings` off, because a class from
# `create_model` has no source code, and pydantic would search all modules for the source code.
NO_DOCSTRINGS = {"use_attribute_docstrings": False}


class Settings(BaseModel):
    """Base class of all settings. A settings object cannot be changed; `replace` makes a copy with other
    values.

    Each value must have the type of its field: the text "1" is not a number, and true is not an integer. An
    integer is accepted as a float.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # Without a limit of the length, pydantic accepts text that UTF-8 cannot write, such as the name of a
        # file in another encoding.
        str_min_length=0,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                context = {
                    "key": str(key),
                    "value": values[key],
                    "similar": suggestion(str(key), cls.model_fields),
                }
                raise PydanticCustomError("unknown_key", "unknown key", context)
        return values

    @classmethod
    def load(cls, values: dict[str, Any], prefix: str = "") -> Self:
        """Create settings. In error messages, `prefix`, such as `data.`, precedes the name of a field."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InvalidValueError(explain_invalid(error, values, prefix)) from None

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the settings in which the fields in `changes` have new values. Check the values of
        all fields again.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return self.load(given | changes)


def field_with_properties(default: Any, properties: Mapping[str, Any], **arguments: Any) -> Any:
    """Declare a field with properties that pydantic does not know. `arguments` are arguments of `Field`."""
    return Field(default, json_schema_extra=dict(properties), **arguments)


def properties_of(field: FieldInfo) -> Any:
    """Return the dict of the properties that `field_with_properties` stored in a field."""
    return field.json_schema_extra or {}


def checked_by(rule: Rule) -> BeforeValidator:
    """Return a validator that checks the values of a pydantic field with a `Rule`. The rule checks a
    value before pydantic checks the type of the value, so that the error message has the words of the rule.
    """
    return BeforeValidator(lambda value: check_with_rule(rule, value))


def check_with_rule(rule: Rule, value: Any) -> Any:
    """Return the value of a pydantic field, or raise an error of pydantic if the rule does not accept the
    value. Accept None (null in YAML), because the type of the field decides whether None is valid.
    """
    if value is None or rule.accepts(value):
        return value
    raise PydanticCustomError("rule", "{words}", {"words": words_in_yaml(rule), "remedy": rule.remedy})


def words_in_yaml(rule: Rule) -> str:
    """Describe the values of a rule, with null, true and false as in YAML."""
    words = rule.words
    for value in (None, True, False):
        words = words.replace(str(value), format_value(value))
    return words


def explain_invalid(error: ValidationError, values: Any, prefix: str = "") -> str:
    """Explain the first error in one sentence that names the key, its value, and the permitted values.
    `values` are the values that pydantic has checked.
    """
    errors_by_place: dict[str, list[ErrorDetails]] = {}
    for found in error.errors(include_url=False):
        errors_by_place.setdefault(_place_of(found, values), []).append(found)
    first_place = next(iter(errors_by_place))
    # Explain an error inside a list or mapping rather than an error about the whole value, because the
    # message then names the invalid entry.
    inner_places = [
        place for place in errors_by_place if place.startswith((f"{first_place}[", f"{first_place}."))
    ]
    place = max([first_place, *inner_places], key=len)
    errors = errors_by_place[place]
    first = next((found for found in errors if found["type"] == "unknown_key"), errors[0])
    if first["type"] == "unknown_key":
        return _explain_unknown_key(first["ctx"], f"{prefix}{place}." if place else prefix)
    if first["type"] == "missing":
        return f"`{prefix}{place}` must be given, but is missing."
    if first["type"] == "value_error":
        # Return the message of the validator unchanged, because the validators of settings classes raise
        # errors with complete sentences.
        return str(first["ctx"]["error"])
    return _explain_wrong_value(f"{prefix}{place}", first["input"], errors)


def _place_of(error: ErrorDetails, values: Any) -> str:
    """Return the full name of the value that `error` is about, such as `data.train_weights[0]`. `values` are
    the values that pydantic has checked.
    """
    place = ""
    value = values
    for part in error["loc"]:
        if isinstance(part, int):
            place += f"[{part}]"
            value = value[part]
        elif isinstance(value, Mapping) and part in value:
            place += f".{part}"
            value = value[part]
        # If a field accepts several types, pydantic adds the name of a type to `error["loc"]`. Do not add the
        # name of the type to `place`.
    if error["type"] == "missing":
        place += f".{error['loc'][-1]}"
    return place.removeprefix(".")


def _explain_unknown_key(context: dict[str, Any], section: str) -> str:
    """Return the message for a key that the settings class does not have. `section` is a prefix such as
    `data.`.
    """
    hint = f"; the nearest key is `{section}{context['similar']}`" if context["similar"] else ""
    value = format_value(context["value"])
    return f"`{section}{context['key']}` is not a key, but is set to {value}{hint}."


def _explain_wrong_value(name: str, value: Any, errors: list[ErrorDetails]) -> str:
    """Return the error message for a value that is not permitted. If the field accepts several types,
    `errors` has one error of pydantic for each type.
    """
    expected = list(dict.fromkeys(_expected(error) for error in errors))
    if "a number" in expected and "an integer" in expected:
        expected.remove("an integer")
    # Recommend quotes for words, because YAML 1.1 reads the words no and off without quotes as false, and the
    # words yes and on as true.
    is_word = isinstance(value, bool) and any(error["type"] == "string_type" for error in errors)
    remedy = "; put the word in quotes" if is_word else errors[0].get("ctx", {}).get("remedy", "")
    return f"`{name}` must be {' or '.join(expected)}, but is {format_value(value)}{remedy}."


def first_line_of(error: BaseException) -> str:
    """Return the first line of an exception's message, at most 200 characters and without the full stop."""
    lines = str(error).strip().rstrip(".").splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__


def format_value(value: Any) -> str:
    """Format a value for error messages, with null, true and false as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _expected(error: ErrorDetails) -> str:
    words = _EXPECTED.get(error["type"])
    if words is None:
        return error["msg"]
    # In error messages, write a limit such as 1.0 as 1, because pydantic converts the limits of float fields
    # from 1 to 1.0.
    limits = {
        name: int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        for name, limit in error.get("ctx", {}).items()
    }
    return words.format(**limits)
