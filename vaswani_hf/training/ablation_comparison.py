"""Compares the runs of an ablation (`vaswani ablate`): the scores, the table, the JSON text, the picture."""

import dataclasses
import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.files import METRICS_FILE, finite, read_metrics
from ..model.configuration_vaswani import VaswaniConfig
from ..recipe import Recipe

# Maps the name of each run of an ablation to the recipes of the run. For each seed, the run has one recipe
# and one training.
Runs = dict[str, list[Recipe]]
# Maps the `output_dir` of each training that has ended to its outcome: the content of results.json, or the
# message of the error that ended the training.
Outcomes = dict[str, dict[str, Any] | str]

# The prefixes of the recipe keys that `changes` does not compare, because `vaswani ablate` itself sets these
# keys.
_OF_THE_PLACE = ("output_dir", "data.test_", "training.resume")
# Stands for the value of a config field that comes from the model in `init_from`. The function `changes` does
# not list a config field that a run takes from the model in `init_from`.
_OF_THE_BASE = "that of the model"
# Maps each score in the comparison table to its title.
_SCORES = {"perplexity": "validation perplexity", "bleu": "BLEU", "chrf": "chrF"}


@dataclass(frozen=True, kw_only=True)
class FinishedTraining:
    """The cost and the scores of a finished training.

    Attributes:
        seed: The seed of the training.
        folder: The output folder of the training.
        parameters: The number of parameters of the model.
        steps: The number of optimizer steps.
        epochs: The number of passes over the corpus.
        seconds: The duration of the training in seconds.
        hardware: The name of the hardware.
        perplexity: The perplexity per token.
        bleu: The BLEU score, from 0 to 100.
        chrf: The chrF score, from 0 to 100.
        bleu_signature: The settings of sacreBLEU.
        num_beams: The number of beams of the search.
    """

    seed: int
    folder: str
    parameters: int
    steps: int
    epochs: float | None
    seconds: float
    hardware: str
    perplexity: float | None
    bleu: float | None
    chrf: float | None
    bleu_signature: str
    num_beams: int


@dataclass(frozen=True, kw_only=True)
class FailedTraining:
    """A training that an error has ended. `folder` is the output folder, and `error` is the error message."""

    seed: int
    folder: str
    error: str


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """The scores of a run. The field names are the keys of `vaswani ablate --json`.

    Attributes:
        name: The name of the run.
        changes: The recipe keys that differ from the first run.
        num_seeds: The number of trainings of the run, including trainings that have not ended.
        seeds: One entry for each training that has finished or failed.
        mean: Maps each score to its mean over the seeds, or to None if no training has finished.
        std: Maps each score to its sample standard deviation, with N - 1 in the denominator. The value is
            None if there are fewer than two seeds.
    """

    name: str
    changes: str
    num_seeds: int
    seeds: list[FinishedTraining | FailedTraining]
    mean: dict[str, float | None]
    std: dict[str, float | None]

    @property
    def finished(self) -> list[FinishedTraining]:
        """The trainings that have ended without an error."""
        return [seed for seed in self.seeds if isinstance(seed, FinishedTraining)]


def comparison(runs: Runs, outcomes: Outcomes) -> list[RunComparison]:
    """Compare the runs of an ablation. Leave out a run if none of its trainings has finished or failed.

    Args:
        runs (dict): The result of `plan_runs`.
        outcomes (dict): Maps the `output_dir` of each training that has ended to its outcome (see `Outcomes`).

    Returns:
        list: One entry for each run.
    """
    (first, *_), *_ = runs.values()
    compared: list[RunComparison] = []
    for name, recipes in runs.items():
        seeds = [
            _training_facts(recipe, outcomes[recipe.output_dir])
            for recipe in recipes
            if recipe.output_dir in outcomes
        ]
        if not seeds:
            continue
        finished = [seed for seed in seeds if isinstance(seed, FinishedTraining)]
        mean: dict[str, float | None] = {}
        deviation: dict[str, float | None] = {}
        for score in _SCORES:
            values = [getattr(seed, score) for seed in finished if getattr(seed, score) is not None]
            mean[score] = statistics.mean(values) if values else None
            deviation[score] = statistics.stdev(values) if len(values) > 1 else None
        compared.append(
            RunComparison(
                name=name,
                changes=changes(recipes[0], first),
                num_seeds=len(recipes),
                seeds=seeds,
                mean=mean,
                std=deviation,
            )
        )
    return compared


def _training_facts(recipe: Recipe, outcome: dict[str, Any] | str) -> FinishedTraining | FailedTraining:
    if isinstance(outcome, str):
        return FailedTraining(seed=recipe.seed, folder=recipe.output_dir, error=outcome)
    training = outcome["training"]
    test = outcome["test"]
    decoding: Any = recipe.decoding
    return FinishedTraining(
        seed=recipe.seed,
        folder=recipe.output_dir,
        parameters=training["parameters"],
        steps=training["steps"],
        epochs=training["epochs"],
        seconds=training["seconds"],
        hardware=training["hardware"],
        perplexity=test["perplexity"],
        bleu=test["bleu"],
        chrf=test["chrf"],
        bleu_signature=test["bleu_signature"],
        num_beams=decoding.num_beams,
    )


def as_json(compared: list[RunComparison]) -> str:
    """Return the result of `comparison` as JSON."""
    runs = [dataclasses.asdict(run) for run in compared]
    return json.dumps({"runs": finite(runs)}, indent=2, ensure_ascii=False)


def changes(recipe: Recipe, first: Recipe) -> str:
    """Return the recipe keys whose values in `recipe` differ from the first recipe of the ablation (`first`),
    and the values in `recipe`.
    """
    keys = {**recipe.values(), **first.values()}
    # If the encoder and the decoder start from different models, `init_from` is a dict with the keys
    # "encoder" and "decoder".
    keys |= {} if any(key.startswith("model.init_from.") for key in keys) else {"model.init_from": None}
    changed = {
        # If `init_from` is the folder OUTPUT/NAME/seed_N of an earlier run, replace the path by NAME, the
        # name of the run.
        key: _name_of_base(value) if value and key.startswith("model.init_from") else value
        for key in keys
        if (value := _value(recipe, key)) not in (_value(first, key), _OF_THE_BASE)
        and not key.startswith(_OF_THE_PLACE)
    }
    last = [key.removeprefix("model.") if "init_from" in key else key.rpartition(".")[2] for key in changed]
    # If two changed keys in different sections have the same name, write the name of the section before each
    # key.
    names = [name if last.count(name) == 1 else key for key, name in zip(changed, last, strict=True)]
    words = ["null" if value is None else value for value in changed.values()]
    return ", ".join(f"{name} {word}" for name, word in zip(names, words, strict=True))


def _name_of_base(folder: str) -> str:
    path = Path(folder)
    return path.parent.name if re.fullmatch(r"seed_\d+", path.name) else path.name


def _value(recipe: Recipe, key: str) -> Any:
    """Return the value of a recipe key. For a config field that the recipe does not contain, return
    `_OF_THE_BASE` if the recipe has `init_from`, otherwise the default of the field.
    """
    values = recipe.values()
    if key in values:
        return values[key]
    return (
        _OF_THE_BASE if recipe.model.init_from else getattr(VaswaniConfig, key.removeprefix("model."), None)
    )


def table(compared: list[RunComparison]) -> str:
    """Return the result of `comparison` as a table in Markdown."""
    scores = " | ".join(_SCORES.values())
    lines = [
        f"| run | differs from the first run by | seeds | parameters, millions | steps | minutes | {scores} "
        "|",
        f"|{'---|' * (6 + len(_SCORES))}",
    ]
    measures: dict[str, list[str]] = {}
    for run in compared:
        finished = run.finished
        cells = [run.name, run.changes.replace("|", r"\|"), f"{len(finished)} of {run.num_seeds}"]
        if finished:
            first = finished[0]
            cells += [f"{first.parameters / 1e6:.2f}", f"{first.steps:,}"]
            cells.append(f"{statistics.mean(seed.seconds for seed in finished) / 60:.1f}")
            cells += [_with_deviation(run.mean[score], run.std[score]) for score in _SCORES]
            measure = f"{first.num_beams} beams, {first.bleu_signature}; {first.hardware}"
            measures.setdefault(measure, []).append(run.name)
        else:
            cells += ["–"] * (3 + len(_SCORES))
        lines.append(f"| {' | '.join(cells)} |")
    notes = [
        "Scores of the validation split. Perplexity is per token, so perplexities of runs with different "
        "vocabularies cannot be compared."
    ]
    if any(run.num_seeds > 1 for run in compared):
        notes.append("Scores are the mean over the seeds ± the sample standard deviation.")
    for measure, names in measures.items():
        notes.append(f"{measure}." if len(measures) == 1 else f"{', '.join(names)}: {measure}.")
    lines += ["", " ".join(notes)]
    for run in compared:
        for seed in run.seeds:
            if isinstance(seed, FailedTraining):
                lines += ["", f"{run.name}, seed {seed.seed}, failed: {seed.error}"]
    return "\n".join(lines)


def _with_deviation(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def draw(compared: list[RunComparison], path: Path) -> None:
    """Draw a bar with the mean BLEU of each run, and a curve with the validation loss of each training over
    time.
    """
    # Import matplotlib inside the function, because only the picture needs matplotlib.
    from matplotlib.figure import Figure

    ended = [run for run in compared if run.mean["bleu"] is not None]
    if not ended:
        return
    figure = Figure(figsize=(13, 2.5 + 0.25 * len(ended)), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, run in enumerate(ended):
        color = f"C{number % 10}"
        style = ("-", "--", ":")[number // 10 % 3]
        bar = left.barh([run.name], [run.mean["bleu"]], xerr=run.std["bleu"], color=color)
        left.bar_label(bar, fmt="%.2f", padding=2)
        label = run.name
        for seed in run.finished:
            metrics = read_metrics(Path(seed.folder, METRICS_FILE))
            rows = [row for row in metrics if row.get("eval_loss") is not None]
            minutes = [row["seconds"] / 60 for row in rows]
            losses = [row["eval_loss"] for row in rows]
            right.plot(minutes, losses, label=label, color=color, linestyle=style)
            # Name each run only once in the legend. matplotlib leaves labels that begin with "_" out of the
            # legend.
            label = "_"
    scores = [score for run in ended if (score := run.mean["bleu"]) is not None]
    # Start the BLEU axis near the lowest score, so that small differences are visible.
    margin = max(max(scores) - min(scores), 0.5)
    left.set_xlim(max(0, min(scores) - margin), max(scores) + 0.4 * margin)
    left.invert_yaxis()
    left.set_xlabel("validation BLEU of the final weights (the axis need not begin at 0)")
    right.set(xlabel="minutes of training", ylabel="validation loss, nats per token", yscale="log")
    for axis_format in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        axis_format("{x:.3g}")
    # Put the legend beside the right panel, because many curves leave no room inside the panel.
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)
