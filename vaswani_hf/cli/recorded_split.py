"""Reads the test split that the recipe of a checkpoint names."""

from typing import Any, NamedTuple

from ..model.errors_vaswani import InvalidValueError


class NamedTestSet(NamedTuple):
    """The texts of a test set, and the name of the test set in messages."""

    sources: list[str]
    references: list[str]
    name: str


def recorded_test_set(recipe: Any, option: str, remedy: str) -> NamedTestSet:
    """Return the test split of a recipe. If the split cannot be read, the error message tells the user to
    give the option `option`, and ends with the text `remedy`.
    """
    from ..recipe.data_record import data_record

    if recipe is None:
        raise InvalidValueError(f"`{option}` must be given, because the checkpoint has no recipe; {remedy}.")
    try:
        test = recipe.make_task().load_texts("test")
    except ValueError as error:
        raise InvalidValueError(
            f"`{option}` must be given, because the test set of the recipe cannot be read ({error}); "
            f"{remedy}."
        ) from error
    if test is None:
        raise InvalidValueError(f"`{option}` must be given, because the recipe has no test set; {remedy}.")
    record = data_record(recipe.data).test
    name = record.name if record else None
    return NamedTestSet(list(test["source"]), list(test["target"]), name or "the test set")
