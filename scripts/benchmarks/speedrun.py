"""Trains from text to a scored checkpoint with several seeds, and prints BLEU, minutes and FLOPs of each
seed.

    python scripts/benchmarks/speedrun.py DATA [--recipes RECIPE …] [--seeds 1 2 3] [--output speedrun]

The recipes are the stages of a training. Each stage after the first stage continues the model of the stage
before. The default recipes are the two stages of the published Multi30k model. DATA is a folder with the
files train.lc.norm.tok.en.gz and train.lc.norm.tok.de.gz, and with the same files of `val` and
`test_2016_flickr`. Every process trains with one thread. Options of `vaswani train`, such as `--max_steps
100`, change all stages. A second call with the same output folder trains only the unfinished stages, and
prints only the minutes of the second call. docs/results/speedrun.md has the results.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import print_header
from training import product_rate

from vaswani_hf.recipe import Recipe, load_recipe
from vaswani_hf.training.plan import planned_run
from vaswani_hf.training.step_cost import step_cost

REPOSITORY = Path(__file__).parents[2]
RECIPES = [
    REPOSITORY / "configuration" / name for name in ("multi30k_en_de.yaml", "multi30k_en_de_simcut.yaml")
]
# The number of batches in a training step.
BATCHES = 2
# The assumed number of tokens of a sentence, for the FLOPs of attention.
LENGTH = 16


class Attempt(NamedTuple):
    """The result of all stages with one seed: BLEU in percent, the training FLOPs, and the minutes from text
    to the scored checkpoint.
    """

    seed: int
    validation_bleu: float
    test_bleu: float
    flops: float
    minutes: float


def train_stages(arguments: argparse.Namespace, seed: int) -> tuple[Path, float]:
    """Train all stages with one seed. Return the folder of the final checkpoint, and the FLOPs of the
    training.
    """
    flops = 0.0
    options: list[str] = []
    for number, path in enumerate(arguments.recipes, 1):
        folder = arguments.output / f"seed_{seed}" / f"stage_{number}"
        # Use another seed in each stage, so that the stages do not have the same batches.
        options += ["--seed", str(seed + 1000 * (number - 1)), "--output_dir", str(folder)]
        train(arguments, [str(path), *options, "--resume", "true", *data_options(arguments.data)])
        recipe = load_recipe(folder / "recipe.yaml", is_recorded=True)
        flops += training_flops(recipe, results_of(folder)["training"]["steps"])
        options = ["--init_from", str(folder)]
    return folder, flops


def train(arguments: argparse.Namespace, words: list[str]) -> None:
    """Run scripts/train.py in processes of one thread each."""
    launcher = ["-m", "accelerate.commands.launch", "--num_cpu_threads_per_process", "1"]
    launcher += ["--config_file", str(REPOSITORY / "configuration" / "accelerate" / "ddp.yaml")]
    launcher += ["--num_processes", str(arguments.processes)]
    command = [*(launcher if arguments.processes > 1 else []), str(REPOSITORY / "scripts" / "train.py")]
    batches = ["--gradient_accumulation_steps", str(BATCHES // arguments.processes)]
    subprocess.run(
        [sys.executable, *command, *words, *batches, *arguments.options],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def data_options(folder: Path) -> list[str]:
    """Return the options that name the files of the corpus."""
    options = []
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr")):
        options += [f"--{split}_source", str(folder / f"{name}.lc.norm.tok.en.gz")]
        options += [f"--{split}_target", str(folder / f"{name}.lc.norm.tok.de.gz")]
    return options


def training_flops(recipe: Recipe, steps: int) -> float:
    """Return the FLOPs of the matrix products in `steps` training steps with BATCHES batches each. The FLOPs
    include the additional forward passes of the recipe's regulariser, such as SimCut.
    """
    cost = step_cost(planned_run(recipe), LENGTH)
    return float(steps * BATCHES * cost.batch_flops)


def record_flops() -> float:
    """Return the FLOPs of the published training: all steps of RECIPES."""
    recipes = [load_recipe(path, ["--init_from", "null"], needs_data=False) for path in RECIPES]
    return sum(training_flops(recipe, recipe.training.max_steps or 0) for recipe in recipes)


def results_of(checkpoint: Path) -> dict[str, Any]:
    """Return the content of the checkpoint's results.json."""
    content: dict[str, Any] = json.loads((checkpoint / "results.json").read_text(encoding="utf-8"))
    return content


def validation_bleu(checkpoint: Path, data: Path) -> float:
    """Translate the validation sentences with the search of the recipe, and return BLEU."""
    files = {"--source": "val.lc.norm.tok.en.gz", "--reference": "val.lc.norm.tok.de.gz"}
    words = [word for option, name in files.items() for word in (option, str(data / name))]
    command = [sys.executable, "-m", "vaswani_hf", "evaluate", str(checkpoint), *words, "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output)["bleu"])


def attempt(arguments: argparse.Namespace, seed: int) -> Attempt:
    """Train and score with one seed."""
    start = time.monotonic()
    checkpoint, flops = train_stages(arguments, seed)
    minutes = (time.monotonic() - start) / 60
    test_bleu = results_of(checkpoint)["test"]["bleu"]
    return Attempt(seed, validation_bleu(checkpoint, arguments.data), test_bleu, flops, minutes)


def main(words: list[str] | None = None) -> None:
    """Train with each seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="a folder with the files of Multi30k")
    parser.add_argument("--recipes", type=Path, nargs="+", default=RECIPES, help="one recipe per stage")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("speedrun"), help="a folder for the checkpoints")
    parser.add_argument("--processes", type=int, choices=[1, 2], default=2)
    arguments, options = parser.parse_known_args(words)
    arguments.options = options
    print_header()
    rates = {dtype: product_rate("cpu", dtype) for dtype in (torch.float32, torch.bfloat16)}
    print(", ".join(f"{str(dtype)[6:]}: {rate / 1e9:,.0f} GFLOP/s" for dtype, rate in rates.items()))
    attempts = []
    print("| seed | validation BLEU | test BLEU | training FLOPs | relative to the record | minutes |")
    print("|---|---|---|---|---|---|", flush=True)
    for seed in arguments.seeds:
        one = attempt(arguments, seed)
        attempts.append(one)
        relative = one.flops / record_flops()
        cells = (
            seed,
            f"{one.validation_bleu:.2f}",
            f"{one.test_bleu:.2f}",
            f"{one.flops:.3e}",
            f"{relative:.3f}",
        )
        print(f"| {' | '.join(map(str, cells))} | {one.minutes:.1f} |", flush=True)
    scores = [one.test_bleu for one in attempts]
    deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
    print(f"test BLEU: mean {statistics.mean(scores):.2f}, standard deviation {deviation:.2f}")


if __name__ == "__main__":
    main()
