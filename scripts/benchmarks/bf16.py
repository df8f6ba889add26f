"""Compares the speed of bfloat16 with float32, for training steps and for the matrix products of Muon.

    python scripts/benchmarks/bf16.py [--threads 1 2] [--rounds 7] [--shapes numbers.yaml d256] \
        [--part steps products]

Prints the median time with each dtype, and the ratio float32 time / bfloat16 time (median, smallest,
largest). The training steps are those of `vaswani train` on the corpus of number words. The file bf16.md
contains the results.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import in_turns, print_header, print_times, seconds_of, synchronize
from training_peers.turns import Shape
from training_peers.vaswani import sizes
from transformers import TrainerCallback
from transformers.utils import logging

from vaswani_hf.data.corpus import Corpus
from vaswani_hf.data.memory import keep_free_memory
from vaswani_hf.optimization.optimizers.muon import orthogonalized
from vaswani_hf.recipe import Recipe, make_recipe
from vaswani_hf.training.loop import run_training
from vaswani_hf.training.recipe_model import build_model
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments

WARM_UP_STEPS = 3
# A measurement of training steps ends this number of seconds after the warm-up.
SECONDS = 0.5
# The number of batches per optimizer step, as in the recipes with these names. A shape that is not listed
# here uses one batch per optimizer step.
ACCUMULATION = {"numbers.yaml": 2, "multi30k_en_de.yaml": 2}


def shapes() -> dict[str, Shape]:
    """Return the model sizes and batch sizes to measure: those of two recipes, and all combinations of
    several widths, vocabulary sizes and batch sizes.
    """
    found = {
        "numbers.yaml": Shape(128, 256, 2, 4, 500, 512, turn=0),
        "multi30k_en_de.yaml": Shape(128, 256, 4, 4, 10000, 4096, turn=0),
    }
    for width in (32, 64, 128, 256, 512):
        for vocabulary in (500, 10000):
            for tokens in (512, 4096):
                shape = Shape(width, 4 * width, 2, width // 32, vocabulary, tokens, turn=0)
                found[f"d{width}_v{vocabulary}_b{tokens}"] = shape
    return found


class _EnoughStepsError(Exception):
    """Raised to end the training when a measurement of training steps is complete."""


class _StepTimes(TrainerCallback):
    """Records the time at the end of each step, and ends the training `SECONDS` seconds after the warm-up."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        synchronize()
        self.ends.append(time.perf_counter())
        if len(self.ends) > WARM_UP_STEPS + 1 and self.ends[-1] - self.ends[WARM_UP_STEPS - 1] > SECONDS:
            raise _EnoughStepsError

    def median(self) -> float:
        """Return the median seconds of the steps after the warm-up."""
        ends = self.ends[WARM_UP_STEPS - 1 :]
        return statistics.median(end - start for start, end in zip(ends, ends[1:], strict=False))


def recipe_of(shape: Shape, accumulation: int, folder: Path) -> Recipe:
    """Return a recipe that trains a model with the sizes in `shape` on number words. The tokenizer has at
    most 500 tokens, and `step_seconds` resizes the embedding to the vocabulary size in `shape`.
    """
    data = {
        "source_language": "en",
        "target_language": "de",
        "corpus": "numbers",
        "numbers_train_size": 10000,
    }
    training = {
        "max_steps": 10**6,
        "save_steps": 10**6,
        "eval_steps": 10**6,
        "source_tokens_per_batch": shape.tokens,
        "target_tokens_per_batch": shape.tokens,
        "gradient_accumulation_steps": accumulation,
    }
    return make_recipe(
        {
            "output_dir": str(folder),
            "data": {**data, "max_length": 64},
            "tokenizer": {"vocab_size": 500},
            "model": {**sizes(shape), "dropout": 0.1, "label_smoothing": 0.1},
            "training": training,
        }
    )


def step_seconds(shape: Shape, corpus: Corpus, recipe: Recipe, *, bf16: bool) -> float:
    """Start a new training, and return the median seconds of its steps."""
    task = recipe.make_task()
    model = build_model(recipe.model, task.model_class, corpus, recipe.decoding.settings(), recipe.seed)
    if shape.vocabulary != model.config.vocab_size:
        model.resize_token_embeddings(shape.vocabulary, mean_resizing=False)
    training = recipe.training.replace(bf16=bf16, dataloader_num_workers=0)
    arguments = training_arguments(training, recipe.output_dir, recipe.seed, validates=False)
    trainer = VaswaniTrainer(corpus, training, task=task, model=model, args=arguments)
    times = _StepTimes()
    trainer.add_callback(times)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(_EnoughStepsError):
        run_training(trainer, None)
    return times.median()


def product_seconds(matrix: torch.Tensor, *, bf16: bool) -> float:
    """Return the median seconds that Muon takes to orthogonalize a matrix."""
    seconds: list[float] = []
    while sum(seconds) < SECONDS / 2:
        seconds.append(seconds_of(lambda: orthogonalized(matrix, bf16)))
    return statistics.median(seconds)


def compare(label: str, measure: Callable[..., float], rounds: int) -> None:
    """Call `measure` with `bf16=False` and `bf16=True` alternately, and print the median times and the
    ratio.
    """
    ways = {"float32": partial(measure, bf16=False), "bfloat16": partial(measure, bf16=True)}
    times = in_turns(ways, rounds, warm_up=0, measure=lambda way: way())
    print_times(times, baseline="float32", label=f"{label:40} ")


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    known = shapes()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--rounds", type=int, default=7, help="how many times both dtypes are measured; default: 7"
    )
    parser.add_argument(
        "--shapes", nargs="+", choices=known, default=[*known], metavar="NAME", help=", ".join(known)
    )
    parser.add_argument("--part", nargs="+", choices=("steps", "products"), default=["steps", "products"])
    arguments = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logging.set_verbosity_error()
    keep_free_memory()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print_header(device)
        for name in arguments.shapes if "steps" in arguments.part else ():
            shape = known[name]
            with tempfile.TemporaryDirectory() as folder:
                recipe = recipe_of(shape, ACCUMULATION.get(name, 1), Path(folder))
                corpus = recipe.make_task().load_corpus(Path(folder), new_tokenizers=True)
                label = f"{threads} threads, step of {name}"
                compare(label, partial(step_seconds, shape, corpus, recipe), arguments.rounds)
        for rows in (32, 64, 128, 256, 512) if "products" in arguments.part else ():
            for columns in (rows, 4 * rows):
                matrix = torch.randn(rows, columns, device=device)
                label = f"{threads} threads, matrix of {rows} x {columns}"
                compare(label, partial(product_seconds, matrix), arguments.rounds)


if __name__ == "__main__":
    main()
