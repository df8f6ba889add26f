"""Trains variations of one recipe and compares their validation scores (`vaswani ablate`).

A YAML file lists the runs (`AblationList`). `vaswani ablate` trains each run once for each seed, in the
folder OUTPUT/NAME/seed_N. A finished training is not repeated, and an interrupted training continues from its
newest checkpoint. The scores are scores of the validation split, because a test split must not influence the
choice of a model. After each training, `vaswani ablate` writes OUTPUT/LIST.md, OUTPUT/LIST.png and
OUTPUT/LIST.json.
"""

import json
import re
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pydantic import Field

from ..checkpoint.files import write_whole
from ..checkpoint.results import read_results
from ..data.corpus_cache import hash_of_texts
from ..model.errors_vaswani import InvalidValueError
from ..packaged import find_recipe
from ..recipe import Recipe, load_recipe
from ..recipe.key_names import FullName, full_name_of_option
from ..recipe.overrides import parse_overrides
from ..recipe.yaml_files import read_mapping
from ..settings.base import Settings
from ..settings.data import is_on_hub
from ..settings.sections import InitFrom
from ..tasks import TASKS
from .ablation_comparison import Outcomes, Runs, as_json, comparison, draw, table
from .resume import is_finished, refuse_another_run, saved_recipe
from .run import resolve, train
from .stopping import InterruptedRunError, RunError


class FailedRunsError(RunError):
    """Raised after all trainings of a list if some of the trainings have failed."""


class AblationList(Settings):
    """The content of the YAML file that lists the runs of `vaswani ablate`."""

    recipe: str
    """The recipe that all runs vary: a path relative to the folder of the YAML file, or the name of a recipe
    of the package.
    """
    seeds: int = Field(1, ge=1)
    """The number of trainings of each run. The first training uses the seed in the recipe, and each
    additional training uses the next larger seed.
    """
    all: dict[str, Any] = {}
    """The recipe keys, with their values, that all runs set."""
    runs: dict[str, dict[str, Any]] = Field(min_length=1)
    """Maps the name of each run to the recipe keys, with their values, that this run sets. The name of the
    run is also the name of its folder.
    """


def plan_runs(path: Path, output: Path, overrides: list[str], seeds: int | None = None) -> Runs:
    """For each run, return one recipe per seed. Each returned recipe uses the validation split as the test
    split, so that the final scores are scores of the validation split.

    `overrides` are command-line arguments, such as "--max_steps", "100", that override keys in the section
    `all` of the file. Raise a ValueError if the file or a recipe is invalid, or if a folder contains another
    run.
    """
    content = _read_list(path)
    if output.exists() and not output.is_dir():
        raise InvalidValueError(f"`--output` must be a folder, but '{output}' is a file.")
    given = parse_overrides(overrides)
    runs: Runs = {}
    for name, keys in content.runs.items():
        try:
            for_all = {key: value for key, value in _by_full_name(content.all).items() if key not in given}
            of_run = _by_full_name(keys)
            if both := [key for key in of_run if key in given]:
                raise InvalidValueError(
                    f"`{both[0]}` must not be given as an option, because this run of the list sets "
                    f"`{both[0]}` to {of_run[both[0]]!r}; leave the option out, or change the list."
                )
            words = []
            for key, value in (for_all | of_run).items():
                words += [f"--{key}", value if isinstance(value, str) else json.dumps(value, default=str)]
            base = find_recipe(content.recipe, path.parent)
            recipe = load_recipe(base, [*words, *overrides])
            recipe = _scored_on_validation(recipe)
            runs[name] = [
                _with_seed(recipe, number, output / name, list(content.runs), runs)
                for number in range(seeds or content.seeds)
            ]
        except ValueError as error:
            raise InvalidValueError(f"The run `{name}` in '{path}': {error}") from None
    return runs


def _read_list(path: Path) -> AblationList:
    content = read_mapping(path)
    try:
        runs = AblationList.load(content)
    except ValueError as error:
        raise InvalidValueError(f"The list '{path}': {error}") from None
    for name in runs.runs:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise InvalidValueError(
                f"The list '{path}': the name of a run must be valid as a folder name (letters, digits, `_`, "
                f"`.` and `-`), but is {name!r}."
            )
    return runs


def _by_full_name(keys: dict[str, Any]) -> dict[FullName, Any]:
    return {full_name_of_option(key): value for key, value in keys.items()}


def _scored_on_validation(recipe: Recipe) -> Recipe:
    data = recipe.data
    if "bleu" not in TASKS[recipe.task].metrics:
        raise InvalidValueError(
            f"runs are compared by BLEU, but `task: {recipe.task}` has no BLEU; list recipes of translation."
        )
    if not data.files("validation") and (data.dataset is None or data.validation_split is None):
        raise InvalidValueError(
            "runs are compared on a validation split that the recipe names; give `data.validation_source` "
            "and `data.validation_target`, `data.validation_pairs`, or a `data.dataset` with a "
            "`data.validation_split`."
        )
    changes: dict[str, Any] = {"test_size": None, "test_name": None, "test_dataset": None}
    for kind in ("source", "target", "pairs", "split"):
        changes[f"test_{kind}"] = getattr(data, f"validation_{kind}")
    return recipe.replace(data=data.replace(**changes))


def _with_seed(recipe: Recipe, number: int, folder: Path, names: list[str], earlier: Runs) -> Recipe:
    """Return a copy of `recipe` with the seed `recipe.seed + number` and with `training.resume`. `folder` is
    the folder of the run. The copy pushes nothing to the Hub, because all runs would push to the same
    repository.
    """
    seed = recipe.seed + number
    publishing = recipe.publishing.replace(push_to_hub=False, hub_strategy="end", hub_model_id=None)
    recipe = recipe.replace(
        seed=seed,
        output_dir=str(folder / f"seed_{seed}"),
        training=recipe.training.replace(resume=True),
        publishing=publishing,
    )
    bases = {base: _place_of(base, number, names, earlier) for base in recipe.model.bases()}
    if bases:
        init_from: Any = recipe.model.init_from
        if isinstance(init_from, InitFrom):
            stacks = {part: bases[base] for part, base in init_from.by_stack().items()}
            init_from = init_from.replace(**stacks)
        else:
            init_from = bases[init_from]
        return recipe.replace(model=recipe.model.replace(init_from=init_from))
    # If the output folder already contains a run, the run must have the same recipe. Recipes with `init_from`
    # are not checked here, because the model in `init_from` perhaps does not exist yet.
    saved = saved_recipe(recipe.folder)
    refuse_another_run(resolve(recipe, saved) if saved else recipe, saved)
    return recipe


def _place_of(base: str, number: int, names: list[str], earlier: Runs) -> str:
    """If `base` names an earlier run of the list, return the earlier run's output folder for the seed with
    the index `number`. Otherwise return `base`.
    """
    if base in earlier:
        return earlier[base][number].output_dir
    if base in names:
        raise InvalidValueError(
            f"`init_from: {base}` must be an earlier run of the list, but is this run or a later run; change "
            "the order."
        )
    if not Path(base).is_dir() and not is_on_hub(base):
        raise InvalidValueError(
            f"`init_from: {base}` must be a run of the list, a checkpoint folder or user/name on the Hub."
        )
    return base


def run_all(runs: Runs, output: Path, stem: str) -> Outcomes:
    """Train all unfinished runs, and write the comparison (the files `stem`.md, .png and .json) after each
    training. Raise an InterruptedRunError if a signal ended a training.
    """
    output.mkdir(parents=True, exist_ok=True)
    trainings = [(name, recipe) for name, recipes in runs.items() for recipe in recipes]
    # Read the results of finished trainings first, so that the table contains these results even if a
    # training is interrupted.
    outcomes: Outcomes = {
        recipe.output_dir: read_results(recipe.folder).as_json()
        for _, recipe in trainings
        if _is_finished(recipe)
    }
    remaining = [(name, recipe) for name, recipe in trainings if recipe.output_dir not in outcomes]
    started = time.monotonic()
    for number, (name, recipe) in enumerate(remaining):
        progress = f"training {len(trainings) - len(remaining) + number + 1} of {len(trainings)}"
        text = f"{progress}: {name}, seed {recipe.seed}{_time_left(started, number, len(remaining))}"
        print(text, file=sys.stderr, flush=True)
        try:
            # The standard output of `vaswani ablate` must contain only the table.
            with redirect_stdout(sys.stderr):
                outcomes[recipe.output_dir] = train(recipe)
        except InterruptedRunError as error:
            raise InterruptedRunError(f"{error} To continue the trainings, repeat the command.") from None
        except Exception as error:
            # A failed training must not stop the other trainings.
            message = " ".join(str(error).split())
            outcomes[recipe.output_dir] = message
            print(f"{name}, seed {recipe.seed}: {message}", file=sys.stderr, flush=True)
        _write_files(runs, outcomes, output, stem)
    if not remaining:
        _write_files(runs, outcomes, output, stem)
    return outcomes


def _time_left(started: float, num_done: int, num_trainings: int) -> str:
    """Describe the estimated time for the remaining trainings, or return "" before the first training has
    ended.
    """
    if num_done == 0:
        return ""
    seconds = (time.monotonic() - started) / num_done * (num_trainings - num_done)
    return (
        f" (about {seconds / 3600:.1f} hours left)"
        if seconds > 5400
        else f" (about {seconds / 60:.1f} minutes left)"
    )


def _write_files(runs: Runs, outcomes: Outcomes, output: Path, stem: str) -> None:
    numbers = comparison(runs, outcomes)
    write_whole(output / f"{stem}.md", table(numbers) + "\n")
    write_whole(output / f"{stem}.json", as_json(numbers) + "\n")
    draw(numbers, output / f"{stem}.png")


def _is_finished(recipe: Recipe) -> bool:
    """Return True if the output folder has the results of a finished run with this recipe, on the test texts
    of this recipe.
    """
    try:
        saved = saved_recipe(recipe.folder)
        if saved is None or not is_finished(recipe, saved):
            return False
        recipe = resolve(recipe, saved)
        refuse_another_run(recipe, saved)
    except (OSError, ValueError):
        return False
    try:
        texts: Any = recipe.make_task().load_texts("test")
    except (OSError, ValueError):
        # Keep the scores of a finished run whose test texts cannot be loaded any more.
        return True
    # A results.json of an earlier version of the package has no hash of the test texts.
    return read_results(recipe.folder).test_sha256 in (None, hash_of_texts(texts))
