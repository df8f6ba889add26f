"""Declares the keys of a recipe. For each key, declares the limits and the unit of the value, and whether the
value can change when a run is resumed.
"""

from typing import Annotated, Any, Literal, TypedDict, Unpack

from .base import Settings, field_with_properties, properties_of

# A user can change the value of a key in a recipe and then resume the run. The resumed run then does one of
# the following:
# - "fixed": The run refuses the new value with an error, because the value changes the training steps.
# - "free": An unfinished run continues with the new value. A finished run stays as it is.
# - "continue": An unfinished run and a finished run continue with the new value. The `on_resume` value of a
# recipe key is "continue" if changing the key requires more training steps, different final weights, new
# scores or new examples.
OnResume = Literal["fixed", "free", "continue"]

# A text that can contain commas. On the command line, a list of free texts is not split at commas.
FreeText = Annotated[str, "free text"]


class KeyProperties(TypedDict, total=False):
    """Properties of a recipe key that are not in its type, its default, its limits or its help text."""

    unit: str
    """The unit of a number, such as "tokens"."""
    range: str
    """The possible values in words, if the limits do not describe the possible values."""
    on_resume: OnResume
    """How a resumed run handles a new value of the key. The default is `keys_on_resume` of the settings
    class. If the settings class has no `keys_on_resume`, the default is "fixed".
    """


def recipe_key(
    default: Any = ...,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    description: str | None = None,
    **properties: Unpack[KeyProperties],
) -> Any:
    """Declare a field of a settings class as a key of a recipe. `gt` and `lt` are exclusive limits. By
    default, the help text of the key is the docstring below the field. If `description` is given,
    `description` is the help text.
    """
    return field_with_properties(default, properties, gt=gt, ge=ge, lt=lt, le=le, description=description)


def on_resume(section: type[Settings], key: str) -> OnResume:
    """Return "fixed", "free" or "continue": how a resumed run handles a new value of `key` in the section
    `section`.
    """
    field = section.model_fields.get(key)
    if field is None:
        # The key belongs to another task, or to an earlier version of the package.
        return "fixed"
    default: OnResume = getattr(section, "keys_on_resume", "fixed")
    return properties_of(field).get("on_resume", default)
