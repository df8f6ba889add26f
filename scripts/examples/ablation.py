"""Trains variations of one recipe and compares their scores on the validation split in a table and a picture.

Run `python scripts/examples/ablation.py LIST.yaml OUTPUT [--key value …]`. The list names a recipe and the
keys of each run:

    recipe: ../multi30k_en_de.yaml            # relative to the list
    all: {max_steps: 1000}                    # keys of all runs; may be left out
    runs:
      plain: {}
      simcut: {simcut_alpha: 3}
      further: {init_from: simcut, learning_rate: 0.001}     # starts from the model of an earlier run of the list

Each run is written to OUTPUT/NAME. Keys of the command line replace keys of `all`. To continue after an
interruption, also in the middle of a run, repeat the command. Runs are scored on the validation split,
because choices must not be made on a test split. The search for translations uses the settings of the recipe.
The table OUTPUT/LIST.md and the picture OUTPUT/LIST.png are written after each run.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vaswani_hf import VaswaniConfig
from vaswani_hf.checkpoint.files import METRICS_FILE, write_whole
from vaswani_hf.recipe import Recipe, load_recipe
from vaswani_hf.recipe.loading import read_mapping
from vaswani_hf.settings.data import is_on_hub
from vaswani_hf.settings.sections import InitFrom
from vaswani_hf.training import train
from vaswani_hf.training.callbacks import read_metrics
from vaswani_hf.training.results import read_results
from vaswani_hf.training.run import (
    InterruptedRunError,
    earlier_recipe,
    has_ended,
    refuse_another_run,
    resolve,
)

# The column of differences leaves out keys with these beginnings, because the values of these keys depend on
# the folder or the split.
_OF_THE_PLACE = ("output_dir", "data.test_", "training.resume")
# The placeholder for a value that comes from the model in `init_from`.
_OF_THE_BASE = "that of the model"


def planned_runs(path: Path, output: Path, overrides: list[str]) -> dict[str, Recipe]:
    """Return the recipe of each run of a list, by the name of the run. Each recipe scores its model on the
    validation split.
    """
    content = _list(path)
    if output.exists() and not output.is_dir():
        raise ValueError(f"OUTPUT must be a folder, but '{output}' is a file.")
    given = {word.partition("=")[0] for word in overrides}
    for_all = {key: value for key, value in content["all"].items() if f"--{key}" not in given}
    recipes: dict[str, Recipe] = {}
    for name, keys in content["runs"].items():
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name) or not isinstance(keys, dict):
            raise ValueError(
                f"A run in '{path}' must have a name for its folder, as text, and a mapping of keys, but has {name!r}: {keys!r}."
            )
        words = [word for key, value in (for_all | keys).items() for word in (f"--{key}", _word(value))]
        place = ["--output_dir", str(output / name), "--resume", "true"]
        try:
            recipe = load_recipe(path.parent / content["recipe"], [*words, *overrides, *place])
            recipe = _scored_on_validation(_with_base(recipe, list(content["runs"]), list(recipes), output))
            if recipe.model.init_from is None:
                # If the folder already contains a run, that run must have the same recipe. A run with
                # `init_from` is checked later, when the model in `init_from` exists.
                earlier = earlier_recipe(output / name)
                refuse_another_run(resolve(recipe, earlier) if earlier else recipe, earlier)
        except ValueError as error:
            raise ValueError(f"The run `{name}` in '{path}': {error}") from None
        recipes[name] = recipe
    return recipes


def _list(path: Path) -> dict[str, Any]:
    """The content of the YAML file that lists the runs."""
    content = {"all": {}, **read_mapping(path)}
    kinds = {"recipe": str, "all": dict, "runs": dict}
    if content.keys() != kinds.keys() or not all(
        isinstance(content[key], kind) for key, kind in kinds.items()
    ):
        raise ValueError(
            f"The list '{path}' must have the keys `recipe` (a file), `runs` (a mapping of names to keys) and, if needed, "
            "`all` (keys of all runs), and no other keys."
        )
    if not content["runs"]:
        raise ValueError(f"`runs` in the list '{path}' must name at least one run, but is empty.")
    return content


def _with_base(recipe: Recipe, names: list[str], earlier: list[str], output: Path) -> Recipe:
    """Replace the names of runs in `init_from` by the folders of these runs."""
    given = recipe.model.init_from
    places = {base: _place_of(base, names, earlier, output) for base in recipe.model.bases()}
    if not places:
        return recipe
    begun: Any = places[given] if isinstance(given, str) else {}
    if isinstance(given, InitFrom):
        begun = given.replace(**{part: places[base] for part, base in given.by_stack().items()})
    return recipe.replace(model=recipe.model.replace(init_from=begun))


def _place_of(base: str, names: list[str], earlier: list[str], output: Path) -> str:
    """Return the folder of the run `base`; return `base` if `base` is a checkpoint folder or a repository of
    the Hub.
    """
    if base in names and base not in earlier:
        raise ValueError(
            f"`init_from: {base}` must be an earlier run of the list, but is this run or a later run; change the order."
        )
    if base in names:
        return str(output / base)
    if not Path(base).is_dir() and not is_on_hub(base):
        raise ValueError(
            f"`init_from: {base}` must be a run of the list, a checkpoint folder or user/name on the Hub."
        )
    return base


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scored_on_validation(recipe: Recipe) -> Recipe:
    data = recipe.data
    if recipe.task != "translation":
        raise ValueError(
            f"runs are compared by BLEU, but `task: {recipe.task}` has no BLEU; list recipes of translation."
        )
    if not data.files("validation") and (data.dataset is None or data.validation_split is None):
        raise ValueError(
            "runs are compared on the validation split; give `data.validation_source` and `data.validation_target`, "
            "`data.validation_pairs`, or a `data.dataset` with a `data.validation_split`."
        )
    kinds = ("source", "target", "pairs", "split")
    return recipe.replace(
        data=data.replace(**{f"test_{kind}": getattr(data, f"validation_{kind}") for kind in kinds})
    )


def run_all(recipes: dict[str, Recipe], output: Path, stem: str) -> dict[str, dict[str, Any] | str]:
    """Train the runs that are not finished, and write the table and the picture after each run."""
    # Read the results of finished runs first, so that these results stay in the table if a run is
    # interrupted.
    results: dict[str, dict[str, Any] | str] = {
        name: read_results(output / name) for name, recipe in recipes.items() if _has_ended(recipe)
    }
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        print(f"run {number} of {len(recipes)}: {name}", file=sys.stderr, flush=True)
        try:
            # Redirect the output of the training, because the standard output is only for the table.
            with redirect_stdout(sys.stderr):
                results[name] = train(recipe)
        except InterruptedRunError:
            raise
        except Exception as error:  # A failed run must not stop the other runs.
            results[name] = " ".join(str(error).split())
            print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
        results = {name: results[name] for name in recipes if name in results}
        write_whole(output / f"{stem}.md", "\n".join(table(recipes, results)) + "\n")
        draw(recipes, results, output / f"{stem}.png")
    return results


def _has_ended(recipe: Recipe) -> bool:
    """True if the output folder has the results of this run, and not the results of another run."""
    try:
        earlier = earlier_recipe(Path(recipe.output_dir))
        if earlier is None:
            return False
        refuse_another_run(resolve(recipe, earlier), earlier)
    except (OSError, ValueError):
        return False
    return has_ended(recipe, earlier)


def changes(recipe: Recipe, first: Recipe) -> str:
    """Return the keys whose values differ from the first run, with their values in this run."""
    keys = {**recipe.values(), **first.values()}
    # If the parts of a model start from different models, `init_from` has one key per part.
    keys |= {} if any(key.startswith("model.init_from.") for key in keys) else {"model.init_from": None}
    changed = {
        key: Path(value).name if value and key.startswith("model.init_from") else value
        for key in keys
        if (value := _value(recipe, key)) not in (_value(first, key), _OF_THE_BASE)
        and not key.startswith(_OF_THE_PLACE)
    }
    last = [key.removeprefix("model.") if "init_from" in key else key.rpartition(".")[2] for key in changed]
    # Write the section before a key that two sections have, such as `lowercase`.
    names = [name if last.count(name) == 1 else key for key, name in zip(changed, last, strict=True)]
    words = ["null" if value is None else value for value in changed.values()]
    return ", ".join(f"{name} {word}" for name, word in zip(names, words, strict=True))


def _value(recipe: Recipe, key: str) -> Any:
    """The value of a key. A missing key has the value of the base model, or the default of the config if
    there is no base model.
    """
    values = recipe.values()
    if key in values:
        return values[key]
    return (
        _OF_THE_BASE if recipe.model.init_from else getattr(VaswaniConfig, key.removeprefix("model."), None)
    )


def table(recipes: dict[str, Recipe], results: dict[str, dict[str, Any] | str]) -> list[str]:
    """The finished and failed runs as lines of Markdown."""
    lines = [
        "| run | differs from the first run by | parameters, millions | steps | epochs | minutes | validation perplexity | BLEU | chrF |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    first = next(iter(recipes.values()))
    rulers: dict[str, list[str]] = {}
    for name, result in results.items():
        what = changes(recipes[name], first)
        if isinstance(result, str):
            lines.append(f"| {name} | {_cell(what)} | failed: {_cell(result)} |||||||")
            continue
        training, scores = result["training"], result["test"]
        decoding: Any = recipes[name].decoding
        ruler = f"{decoding.num_beams} beams, {scores['bleu_signature']}; {training['hardware']}"
        rulers.setdefault(ruler, []).append(name)
        cells = [
            name,
            _cell(what),
            f"{training['parameters'] / 1e6:.2f}",
            f"{training['steps']:,}",
            f"{training['epochs'] or 0:.1f}",
            f"{training['seconds'] / 60:.1f}",
            f"{scores['perplexity'] or float('nan'):.2f}",
            f"{scores['bleu']:.2f}",
            f"{scores['chrf']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    means = (
        [f"{', '.join(names)}: {ruler}." for ruler, names in rulers.items()]
        if len(rulers) > 1
        else [f"{ruler}." for ruler in rulers]
    )
    of_table = "Scores of the validation split. Perplexity is per token of the vocabulary of the run."
    return [*lines, "", " ".join([of_table, *means])]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def draw(recipes: dict[str, Recipe], results: dict[str, dict[str, Any] | str], path: Path) -> None:
    """Draw BLEU as a bar for each run, and the validation loss over the minutes of training."""
    ended = {name: result for name, result in results.items() if not isinstance(result, str)}
    if not ended:
        return
    figure = Figure(figsize=(13, 2.5 + 0.25 * len(ended)), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = [(f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]) for number in range(len(ended))]
    for (name, result), (color, style) in zip(ended.items(), styles, strict=True):
        bar = left.barh([name], [result["test"]["bleu"]], color=color)
        left.bar_label(bar, fmt="%.2f", padding=2)
        rows = [
            row
            for row in read_metrics(Path(recipes[name].output_dir, METRICS_FILE))
            if row.get("eval_loss") is not None
        ]
        minutes, losses = [row["seconds"] / 60 for row in rows], [row["eval_loss"] for row in rows]
        right.plot(minutes, losses, label=name, color=color, linestyle=style)
    scores = [result["test"]["bleu"] for result in ended.values()]
    # Start the axis near the lowest score, so that small differences are visible.
    margin = max(max(scores) - min(scores), 0.5)
    left.set_xlim(max(0, min(scores) - margin), max(scores) + 0.4 * margin)
    left.invert_yaxis()
    left.set_xlabel("validation BLEU of the final weights (the axis need not begin at 0)")
    right.set(xlabel="minutes of training", ylabel="validation loss, nats per token", yscale="log")
    for axis_format in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        axis_format("{x:.3g}")
    # Put the legend next to the panel, because many curves leave no room in the panel.
    right.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the list and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "list", type=Path, help="a YAML file, such as configuration/ablations/multi30k_en_de.yaml"
    )
    parser.add_argument("output", type=Path, help="the folder of the runs")
    arguments, overrides = parser.parse_known_args(argv)
    try:
        recipes = planned_runs(arguments.list, arguments.output, overrides)
        arguments.output.mkdir(parents=True, exist_ok=True)
        results = run_all(recipes, arguments.output, arguments.list.stem)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        print(f"{error or 'Interrupted.'} To continue, repeat the command.", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"ablation.py: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(recipes, results)))
    return int(any(isinstance(result, str) for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
