"""`vaswani average`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from .options import Options, check_different, on_command_line


class AverageOptions(Options):
    """The options of `vaswani average`."""

    checkpoints: list[str] = on_command_line(positional=True)
    """checkpoints of one model; or a run, with --last or --best"""
    output: str
    """a folder that is new or empty"""
    last: int | None = Field(None, ge=1)
    """as many of the run's last checkpoints"""
    best: int | None = Field(None, ge=1)
    """as many of its checkpoints with the best validation"""
    metric: str | None = None
    """what the validation measures, such as bleu, for --best (loss)"""
    raw: bool = False
    """the weights themselves of a run with a moving average"""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        chosen = self.checkpoints
        if self.last and self.best:
            raise ValueError("`--last` and `--best` each choose checkpoints; leave one of them out.")
        if self.metric and not self.best:
            raise ValueError(f"`--metric {self.metric}` is for `--best`, which is not given; leave it out.")
        if self.last or self.best:
            if len(chosen) != 1:
                raise ValueError(
                    f"`--last` and `--best` choose from one run, but {len(chosen):,} folders are given."
                )
        elif len(chosen) < 2:
            raise ValueError(
                "`checkpoints` must be two or more, or one run with `--last` or `--best`, but is one."
            )
        check_different("checkpoints", chosen)
        return self


def run(options: AverageOptions) -> None:
    """Write the mean of the checkpoints."""
    from ..training.averaging import numbered_checkpoints, write_average

    chosen: list[str | Path] = [*options.checkpoints]
    if options.last or options.best:
        run_folder, metric = Path(chosen[0]), options.metric or "loss"
        chosen = [*numbered_checkpoints(run_folder, options.last, options.best, metric, raw=options.raw)]
    write_average(chosen, options.output, raw=options.raw)
    print(f"the mean of {', '.join(Path(name).name for name in chosen)} is in '{options.output}'")
