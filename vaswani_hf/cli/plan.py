"""`vaswani plan`: estimates the cost of a recipe."""

import json
from typing import Self

from pydantic import Field, model_validator

from .options import on_command_line
from .train import RecipeOptions


class PlanOptions(RecipeOptions):
    """The options of `vaswani plan`."""

    hardware: str | None = None
    """estimate the hours on eight GPUs of this model: K80, K40, M40 or P100, for which the paper gives the
    speed"""
    tokens_per_second: float | None = None
    """estimate the hours at this measured speed in target tokens per second; the training log shows the speed
    """
    mean_length: int | None = Field(None, ge=1)
    """the mean sentence length in tokens that the estimate assumes; 32 by default"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON"""

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        if self.hardware is not None and self.tokens_per_second is not None:
            raise ValueError(
                "`--hardware` and `--tokens_per_second` must not both be given, because each of them sets "
                "the training speed; leave out `--hardware` or `--tokens_per_second`."
            )
        return self


def run(options: PlanOptions) -> None:
    """Print the estimated cost of the recipe."""
    from ..recipe.loading import load_recipe
    from ..training.plan import plan_as_text, plan_run

    recipe = load_recipe(options.recipe, options.overrides, needs_data=False)
    plan = plan_run(
        recipe.task,
        recipe.data,
        recipe.tokenizer,
        recipe.model,
        recipe.training,
        hardware=options.hardware,
        tokens_per_second=options.tokens_per_second,
        mean_length=options.mean_length,
    )
    print(json.dumps(plan, indent=2) if options.as_json else plan_as_text(plan))
