"""`vaswani ablate`: trains variations of one recipe and compares their validation scores."""

from pathlib import Path
from typing import Self

from pydantic import model_validator

from .options import RecipeKeyOptions, check_file, on_command_line


class AblateOptions(RecipeKeyOptions):
    """The options of `vaswani ablate`."""

    runs: str = on_command_line(positional=True, metavar="LIST")
    """a YAML file that lists the training runs, such as configuration/ablations/multi30k_en_de.yaml"""
    output: str
    """the folder for the runs; to continue an interrupted list, run the same command with the same folder"""
    seeds: int | None = on_command_line(None, ge=1, group="computing")
    """the number of times that each run of the list is trained, with a different seed each time; by default
    the value of `seeds` in the list, or 1 if the list has no `seeds`"""
    as_json: bool = on_command_line(False, option="json")
    """print JSON instead of the table"""

    @model_validator(mode="after")
    def _check_list(self) -> Self:
        check_file("runs", self.runs)
        return self


def run(options: AblateOptions) -> None:
    """Run the command: validate the list of runs, train the runs, and print a comparison of their scores."""
    from ..messages import hide_progress_bars_without_terminal
    from ..training.ablation import FailedRunsError, plan_runs, run_all
    from ..training.ablation_comparison import as_json, comparison, table

    hide_progress_bars_without_terminal()
    path = Path(options.runs)
    output = Path(options.output)
    runs = plan_runs(path, output, options.overrides, options.seeds)
    outcomes = run_all(runs, output, path.stem)
    compared = comparison(runs, outcomes)
    print(as_json(compared) if options.as_json else table(compared))
    num_failed = sum(isinstance(outcome, str) for outcome in outcomes.values())
    if num_failed:
        raise FailedRunsError(
            f"{num_failed} of {len(outcomes)} trainings failed; the comparison shows the errors."
        )
