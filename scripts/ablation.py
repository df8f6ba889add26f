"""Variations of one recipe, trained one after the other and compared on the validation split: a table and a picture.

Run `python scripts/ablation.py LIST.yaml OUTPUT [--key value …]`. The list names a recipe and what each run of it changes:

    recipe: ../multi30k_en_de.yaml            # relative to the list
    all: {max_steps: 1000}                    # for all runs; may be left out
    runs:
      plain: {}
      simcut: {simcut_alpha: 3}
      further: {init_from: simcut, learning_rate: 0.001}     # begins with the model of an earlier run of the list

Each run is in OUTPUT/NAME; keys of the command line hold for all runs. The same command goes on where an earlier one ended,
in the middle of a run too. What a run is scored on is the validation split, with the recipe's search: no choice is made on a
test split, and none is read. Table and picture are written after each run, to OUTPUT/ablation.md and OUTPUT/ablation.png.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from vaswani_hf.checkpoint.files import METRICS_FILE, write_whole
from vaswani_hf.recipe import Recipe, load_recipe
from vaswani_hf.training import train
from vaswani_hf.training.callbacks import read_metrics
from vaswani_hf.training.run import InterruptedRunError

# The keys that say where a run is and what it reads, and not what it tries.
_OF_THE_PLACE = ("output_dir", "data.test_", "training.resume")


def planned_runs(path: Path, output: Path, overrides: list[str]) -> dict[str, Recipe]:
    """The recipes of a list by name, each to be scored on its validation split.

    Args:
        path (Path): The list.
        output (Path): The folder of all runs.
        overrides (list): `["--key", "value", …]`, for all of them.

    Returns:
        dict: Recipes, checked.

    Raises:
        ValueError: If the list, a run or a key is not as it must be.
    """
    content = _list(path)
    recipes: dict[str, Recipe] = {}
    for name, keys in content["runs"].items():
        if not re.fullmatch(r"\w[\w.-]*", str(name)) or not isinstance(keys, dict):
            raise ValueError(
                f"A run in '{path}' must have a name for its folder and a mapping of keys, but has {name}: {keys}."
            )
        if keys.get("init_from") in recipes:
            keys = {**keys, "init_from": str(output / keys["init_from"])}
        keys = content["all"] | keys
        words = [word for key, value in keys.items() for word in (f"--{key}", _word(value))]
        place = ["--output_dir", str(output / name), "--resume", "true"]
        try:
            recipe = load_recipe(path.parent / content["recipe"], [*words, *overrides, *place])
        except ValueError as error:
            raise ValueError(f"The run `{name}` in '{path}': {error}") from None
        recipes[name] = _scored_on_validation(recipe)
    return recipes


def _list(path: Path) -> dict[str, Any]:
    """The content of a list.

    Raises:
        ValueError: If it is none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"The list '{path}' cannot be read: {' '.join(str(error).split())}.") from None
    whole = {"all": {}, **content} if isinstance(content, dict) else {}
    kinds = {"recipe": str, "all": dict, "runs": dict}
    if whole.keys() != kinds.keys() or not all(isinstance(whole[key], kind) for key, kind in kinds.items()):
        raise ValueError(
            f"The list '{path}' must have the keys `recipe`, a file, `runs`, a mapping of names to keys, and perhaps `all`, keys for "
            "all of them, and no other."
        )
    return whole


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scored_on_validation(recipe: Recipe) -> Recipe:
    data = recipe.data
    kinds = ("source", "target", "pairs", "split")
    data = replace(data, **{f"test_{kind}": getattr(data, f"validation_{kind}") for kind in kinds})
    if not data.files("validation") and data.dataset is None:
        raise ValueError(
            "there must be a validation split to compare runs by, but `data.validation_source` is not given."
        )
    return replace(recipe, data=data)


def run_all(recipes: dict[str, Recipe], output: Path) -> dict[str, dict[str, Any] | str]:
    """Trains what is not trained yet, and writes table and picture after each run.

    Args:
        recipes (dict): Recipes by name.
        output (Path): The folder of all runs.

    Returns:
        dict: By name the results of a run, or the sentence that says why it has none.

    Raises:
        InterruptedRunError: If a signal ended a run early.
    """
    results: dict[str, dict[str, Any] | str] = {}
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        print(f"run {number} of {len(recipes)}: {name}", file=sys.stderr, flush=True)
        try:
            results[name] = train(recipe)
        except InterruptedRunError:
            raise
        except Exception as error:  # The runs after it say nothing about this one.
            results[name] = " ".join(str(error).split())
            print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
        write_whole(output / "ablation.md", "\n".join(table(recipes, results)) + "\n")
        draw(recipes, results, output / "ablation.png")
    return results


def changes(recipe: Recipe, first: Recipe) -> str:
    """What a run has in another way than the first one.

    Args:
        recipe (Recipe): The run.
        first (Recipe): The first one.

    Returns:
        str: Keys with values; empty for the first one itself.
    """
    values, others = (
        entry.values() | {f"model.{key}": value for key, value in entry.model.items()} for entry in (recipe, first)
    )
    values.pop("model", None)
    changed = {
        key.rpartition(".")[2]: value
        for key, value in values.items()
        if value != others.get(key) and not key.startswith(_OF_THE_PLACE)
    }
    if "init_from" in changed:
        changed["init_from"] = Path(changed["init_from"]).name
    return ", ".join(f"{key} {value}" for key, value in changed.items())


def table(recipes: dict[str, Recipe], results: dict[str, dict[str, Any] | str]) -> list[str]:
    """The runs that have ended as lines of Markdown.

    Args:
        recipes (dict): All recipes by name.
        results (dict): Those of `run_all`.

    Returns:
        list: The head first, what they were scored with last.
    """
    lines = [
        "| run | differs from the first by | parameters, millions | steps | epochs | minutes | validation perplexity | BLEU | chrF |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    first, signature = next(iter(recipes.values())), ""
    for name, result in results.items():
        what = changes(recipes[name], first)
        if isinstance(result, str):
            lines.append(f"| {name} | {what} | has not ended: {result} |||||||")
            continue
        training, scores = result["training"], result["test"]
        signature = (
            f"Scored on the validation split, {recipes[name].decoding.num_beams} beams, {scores['bleu_signature']}; {training['hardware']}. "
            "Perplexity is per token of each run's own vocabulary."
        )
        cells = [
            name,
            what,
            f"{training['parameters'] / 1e6:.2f}",
            f"{training['steps']:,}",
            f"{training['epochs'] or 0:.1f}",
            f"{training['seconds'] / 60:.1f}",
            f"{scores['perplexity'] or float('nan'):.2f}",
            f"{scores['bleu']:.2f}",
            f"{scores['chrf']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", signature]


def draw(recipes: dict[str, Recipe], results: dict[str, dict[str, Any] | str], path: Path) -> None:
    """Draws the BLEU of each run as a bar, and its validation loss over the minutes of its training.

    Args:
        recipes (dict): All recipes by name.
        results (dict): Those of `run_all`.
        path (Path): The PNG, which is not written where no run has ended.
    """
    ended = {name: result for name, result in results.items() if not isinstance(result, str)}
    if not ended:
        return
    figure = Figure(figsize=(11, 2.5 + 0.25 * len(ended)), layout="constrained")
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
    # Near scores can be told apart, and no bar vanishes.
    margin = max(max(scores) - min(scores), 0.5)
    left.set_xlim(max(0, min(scores) - margin), max(scores) + 0.4 * margin)
    left.invert_yaxis()
    left.set_xlabel("validation BLEU of the final weights (the axis need not begin at 0)")
    right.set(xlabel="minutes of training", ylabel="validation loss, nats per token", yscale="log")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the list and prints the table.

    Args:
        argv (list, optional): Words after the name of the script; those of the process by default.

    Returns:
        int: 0 if all runs have ended, 1 if one has not, 130 after an interruption.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="a YAML file, such as configuration/ablations/multi30k_en_de.yaml")
    parser.add_argument("output", type=Path, help="the folder of all runs")
    arguments, overrides = parser.parse_known_args(argv)
    try:
        recipes = planned_runs(arguments.list, arguments.output, overrides)
        arguments.output.mkdir(parents=True, exist_ok=True)
        results = run_all(recipes, arguments.output)
    except InterruptedRunError as error:
        print(f"{error} The same command goes on.", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"ablation.py: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(recipes, results)))
    return int(any(isinstance(result, str) for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
