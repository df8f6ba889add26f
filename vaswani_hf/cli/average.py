"""Defines `vaswani average`, the command that averages the weights of several checkpoints."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ..model.errors_vaswani import InvalidValueError
from .options import CodeOptions, check_different, on_command_line


class AverageOptions(CodeOptions):
    """The options of `vaswani average`."""

    checkpoints: list[str] = on_command_line(positional=True)
    """two or more checkpoints of one model; if --last or --best is given, the folder of one run"""
    output: str
    """a new or empty folder"""
    last: int | None = Field(None, ge=1)
    """average the last checkpoints of the run; the value is the number of checkpoints"""
    best: int | None = Field(None, ge=1)
    """average the checkpoints with the best validation scores of the run; the value is the number of
    checkpoints"""
    metric: str | None = None
    """the validation score that --best uses to choose checkpoints, such as bleu; by default the validation
    loss
    """
    raw: bool = False
    """average the trained weights instead of their moving averages, for a run with `ema_decay`"""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        chosen = self.checkpoints
        if self.last and self.best:
            raise InvalidValueError(
                "`--last` and `--best` must not both be given, because each of them chooses checkpoints; "
                "leave out `--last` or `--best`."
            )
        if self.metric and not self.best:
            raise InvalidValueError(
                f"`--metric {self.metric}` has an effect only with `--best`, which is not given; leave out "
                "`--metric`."
            )
        if self.metric == "seconds":
            raise InvalidValueError(
                "`--metric` must be a validation score, such as bleu, but is seconds, the duration of the "
                "validation; give another metric."
            )
        if self.last or self.best:
            if len(chosen) != 1:
                raise InvalidValueError(
                    f"`--last` and `--best` choose from one run, but {len(chosen):,} folders are given; give "
                    "one folder."
                )
        elif len(chosen) < 2:
            raise InvalidValueError(
                "`checkpoints` must be two or more folders, or one run with `--last` or `--best`, but is "
                "one folder."
            )
        check_different("checkpoints", chosen)
        return self


def run(options: AverageOptions) -> None:
    """Average the checkpoints."""
    from ..training.averaging import numbered_checkpoints, write_average

    chosen: list[str | Path] = [*options.checkpoints]
    if options.last or options.best:
        run_folder = Path(chosen[0])
        metric = options.metric or "loss"
        chosen = [*numbered_checkpoints(run_folder, options.last, options.best, metric, raw=options.raw)]
    write_average(chosen, options.output, raw=options.raw)
    print(f"the mean of {', '.join(Path(name).name for name in chosen)} is in '{options.output}'")
