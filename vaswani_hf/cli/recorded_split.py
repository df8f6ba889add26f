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
    from ..data.held_out import hold_out
    from ..data.splits import explain_split_errors
    from ..recipe.data_record import data_record

    if recipe is None:
        raise InvalidValueError(f"`{option}` must be given, because the checkpoint has no recipe; {remedy}.")
    load_split = recipe.make_task().load_split
    try:
        with explain_split_errors("test"):
            test: Any = load_split("test")
        if "test" in recipe.data.held_out_sizes:
            with explain_split_errors("train"):
                train: Any = load_split("train")
            test = hold_out(train, recipe.data.held_out_sizes)["test"]
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
