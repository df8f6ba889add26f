"""The options of BLEU and chrF in the recipes of checkpoints."""

from collections.abc import Collection, Mapping
from typing import Any

from ..settings.base import as_yaml
from ..settings.sections import EvaluationSettings
from .bleu import check_tokenizer

# The options whose default values come from the section `evaluation` of the checkpoint's recipe.
KEYS = ("tokenize", "lowercase")


def scoring_of_recipes(given: Collection[str], sections: Mapping[str, EvaluationSettings]) -> dict[str, Any]:
    """Return `tokenize` and `lowercase` from the recipes of the checkpoints, without the options that the
    user has given.

    `sections` maps the name of each checkpoint to the section `evaluation` of its recipe. Raise an error if
    the recipes have different values, because all systems must be scored with the same options.
    """
    scoring = {}
    for key in KEYS:
        if key in given:
            continue
        values = {name: getattr(section, key) for name, section in sections.items() if hasattr(section, key)}
        if len(set(values.values())) > 1:
            of_systems = ", ".join(f"{as_yaml(value)} for {name}" for name, value in values.items())
            raise ValueError(
                f"`--{key}` must be given, because `evaluation.{key}` differs between the recipes of the "
                f"systems ({of_systems}), and all systems must be scored alike."
            )
        if values:
            scoring[key] = next(iter(values.values()))
    if "tokenize" in scoring:
        check_tokenizer(scoring["tokenize"], "evaluation.tokenize")
    return scoring


def recipe_note(scoring: Mapping[str, Any], names: Collection[str]) -> str:
    """Return a sentence about the options that come from the recipes of the checkpoints `names`."""
    settings = " and ".join(
        f"`{key}: {value if key == 'tokenize' else as_yaml(value)}`" for key, value in scoring.items()
    )
    options = " and ".join(f"`--{key}`" for key in scoring)
    return (
        f"The scores use {settings} from the recipe of {' and '.join(names)}; {options} would override the "
        "recipe."
    )
