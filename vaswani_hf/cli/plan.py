"""Defines `vaswani plan`, the command that estimates the cost of a training run."""

import json
from typing import Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from ..settings.gpus import GPUS, PAPER_GPUS
from ..settings.names import joined
from .options import on_command_line
from .train import RecipeOptions


class PlanOptions(RecipeOptions):
    """The options of `vaswani plan`."""

    hardware: str | None = on_command_line(
        None,
        group="computing",
        description=f"estimate the hours on one GPU of this type: {joined(GPUS, 'or')}; or on eight GPUs "
        "of a type in the "
        f"paper: {joined(PAPER_GPUS, 'or')}",
    )
    tokens_per_second: float | None = on_command_line(None, gt=0, group="computing")
    """estimate the hours from this measured speed, in target tokens per second; the training log shows the
    speed
    """
    measure: bool = on_command_line(False, group="computing")
    """measure training steps on this machine for ten seconds, and estimate the hours from the measured speed
    """
    price_per_hour: float | None = on_command_line(None, gt=0, group="computing")
    """the price of one hour of the hardware, in any currency; the plan prints the price of the run"""
    mean_length: int | None = on_command_line(None, ge=1, group="computing")
    """the mean sentence length in tokens that the estimate assumes; 32 by default"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON"""

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        given = {
            "--hardware": self.hardware is not None,
            "--tokens_per_second": self.tokens_per_second is not None,
            "--measure": self.measure,
        }
        names = [f"`{name}`" for name, is_given in given.items() if is_given]
        if len(names) > 1:
            raise InvalidValueError(
                f"{' and '.join(names)} must not be given together, because each of them sets the training "
                "speed; keep only one of them."
            )
        if self.price_per_hour is not None and not names:
            raise InvalidValueError(
                f"`--price_per_hour` is {self.price_per_hour:g}, but the price needs a training speed; give "
                "`--hardware`, `--measure` or `--tokens_per_second`."
            )
        return self


def run(options: PlanOptions) -> None:
    """Print the estimated cost of the recipe."""
    from ..recipe.loading import load_recipe
    from ..training.plan import plan_run
    from ..training.plan_text import plan_as_text

    recipe = load_recipe(options.recipe, options.overrides, needs_data=False)
    plan = plan_run(
        recipe,
        hardware=options.hardware,
        tokens_per_second=options.tokens_per_second,
        measure=options.measure,
        price_per_hour=options.price_per_hour,
        mean_length=options.mean_length,
    )
    print(json.dumps(plan.as_json(), indent=2) if options.as_json else plan_as_text(plan))
