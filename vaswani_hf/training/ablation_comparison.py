"""Compares the scores of the runs in an ablation (`vaswani ablate`), and makes a table, a JSON text and a
picture.
"""

import dataclasses
import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.files import METRICS_FILE, finite, read_metrics
from ..recipe import Recipe

# Maps the name of each run to its recipes, one for each seed.
Runs = dict[str, list[Recipe]]
# Maps the `output_dir` of each ended training to the content of results.json, or to an error message.
Outcomes = dict[str, dict[str, Any] | str]

# Prefixes of the recipe keys that `vaswani ablate` itself sets. The comparison of two recipes ignores keys
# with the prefixes in `_OF_THE_PLACE`.
_OF_THE_PLACE = ("output_dir", "data.test_", "training.resume")
# Marks a config field whose value comes from the model in `init_from`.
_OF_THE_BASE = "value of the model in init_from"
# Maps each score in the comparison table to its title.
_SCORES = {"perplexity": "validation perplexity", "bleu": "BLEU", "chrf": "chrF"}


@dataclass(frozen=True, kw_only=True)
class FinishedTraining:
    """The cost and the scores of a finished training. The perplexity is per token."""

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
    """A training that an error has ended."""

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
        mean: Maps each score to its mean over the seeds, or to None if no finished training has the score.
        std: Maps each score to its sample standard deviation (N - 1), or to None if fewer than two finished
            trainings have the score.
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
    """Compare the runs of an ablation. Leave out a run if none of its trainings has finished or failed."""
    (first, *_), *_ = runs.values()
    compared: list[RunComparison] = []
    for name, recipes in runs.items():
        seeds = [
            _training_result(recipe, outcomes[recipe.output_dir])
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


def _training_result(recipe: Recipe, outcome: dict[str, Any] | str) -> FinishedTraining | FailedTraining:
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
    return json.dumps({"runs": finite(runs)}, indent=2)


def changes(recipe: Recipe, first: Recipe) -> str:
    """Return the keys whose values differ between `recipe` and `first`, with the values in `recipe`. `first`
    is the first recipe of the list.
    """
    keys = {**recipe.values(), **first.values()}
    # `init_from` can have the keys "encoder" and "decoder".
    if not any(key.startswith("model.init_from.") for key in keys):
        keys["model.init_from"] = None
    changed: dict[str, Any] = {}
    for key in keys:
        value = _value(recipe, key)
        if key.startswith(_OF_THE_PLACE) or value in (_value(first, key), _OF_THE_BASE):
            continue
        if value and key.startswith("model.init_from"):
            value = _name_of_base(value)
        changed[key] = value
    last = [key.removeprefix("model.") if "init_from" in key else key.rpartition(".")[2] for key in changed]
    # Name the section if keys of two sections have the same name.
    names = [name if last.count(name) == 1 else key for key, name in zip(changed, last, strict=True)]
    words = ["null" if value is None else value for value in changed.values()]
    return ", ".join(f"{name} {word}" for name, word in zip(names, words, strict=True))


def _name_of_base(folder: str) -> str:
    path = Path(folder)
    return path.parent.name if re.fullmatch(r"seed_\d+", path.name) else path.name


def _value(recipe: Recipe, key: str) -> Any:
    """Return the value of a recipe key. If the recipe lacks the key, return the default of the config field.
    If the recipe lacks the key but has `init_from`, return `_OF_THE_BASE`, because the value comes from the
    model in `init_from`.
    """
    if recipe.model.init_from and key not in recipe.values():
        return _OF_THE_BASE
    return recipe.values(with_model_defaults=True).get(key)


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
    """Draw the mean BLEU of each run as a bar. For each seed of each run, draw a curve of the validation loss
    over time.
    """
    # Import matplotlib here, because only the picture needs matplotlib.
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
            # Show each run only once in the legend. matplotlib leaves labels that begin with "_" out of the
            # legend.
            label = "_"
    scores = [score for run in ended if (score := run.mean["bleu"]) is not None]
    # Begin the axis near the smallest score, because an axis from 0 would hide small differences.
    margin = max(max(scores) - min(scores), 0.5)
    left.set_xlim(max(0, min(scores) - margin), max(scores) + 0.4 * margin)
    left.invert_yaxis()
    left.set_xlabel("validation BLEU of the final weights (the axis need not begin at 0)")
    right.set(xlabel="minutes of training", ylabel="validation loss, nats per token", yscale="log")
    for axis_format in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        axis_format("{x:.3g}")
    # Put the legend outside the panel, because many curves leave no room inside the panel.
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)
