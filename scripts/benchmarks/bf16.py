"""Speed of bfloat16 against float32 on this machine: whole training steps by shape, and Muon's products by the shape of a matrix.

    python scripts/benchmarks/bf16.py [--threads 1 2] [--pairs 7] [--shapes numbers.yaml d256] [--part steps products]

Prints one line per measurement: the medians of both times, and the median and the range of the ratios float32 / bfloat16. Each
ratio is that of two measurements that follow each other, because other work may run on the machine. The steps are those of the
trainer of `vaswani train`, on the corpus of number words. Logs are in bf16.md.
"""

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.utils import logging

from vaswani_hf.data.corpus import Corpus
from vaswani_hf.data.memory import keep_free_memory
from vaswani_hf.optimization.optimizers.muon import orthogonalized
from vaswani_hf.recipe import Recipe, make_recipe
from vaswani_hf.tasks import TASKS
from vaswani_hf.training.run import build_model, run_training
from vaswani_hf.training.trainer import VaswaniTrainer, training_arguments

# The steps of a training before its steps are measured.
WARM_UP = 3
# A measurement takes about this many seconds.
SECONDS = 0.5


@dataclass
class Shape:
    """The shape of a model, the positions of a batch on each side, and the batches of a step."""

    name: str
    d_model: int
    ffn_dim: int
    layers: int
    vocab_size: int
    positions: int
    accumulation: int = 1


def shapes() -> list[Shape]:
    """The shapes that are measured: those of two recipes, and a grid of widths, vocabularies and batches."""
    found = [
        Shape("numbers.yaml", 128, 256, 2, 500, 512, accumulation=2),
        Shape("multi30k_en_de.yaml", 128, 256, 4, 10000, 4096, accumulation=2),
    ]
    for d_model in (32, 64, 128, 256, 512):
        for vocab_size in (500, 10000):
            for positions in (512, 4096):
                name = f"d{d_model}_v{vocab_size}_b{positions}"
                found.append(Shape(name, d_model, 4 * d_model, 2, vocab_size, positions))
    return found


class _EnoughStepsError(Exception):
    """All steps of a measurement are done."""


class _StepTimes(TrainerCallback):
    """The seconds of the steps of a training after its warm-up; it ends the training when they add up to `SECONDS`."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notes the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        if len(self.ends) > WARM_UP + 1 and self.ends[-1] - self.ends[WARM_UP - 1] > SECONDS:
            raise _EnoughStepsError

    def median(self) -> float:
        """The median of the steps, in seconds."""
        ends = self.ends[WARM_UP - 1 :]
        return statistics.median(end - start for start, end in zip(ends, ends[1:], strict=False))


def recipe_of(shape: Shape, folder: Path) -> Recipe:
    """The recipe of a shape, which trains on number words."""
    model: dict[str, Any] = {"d_model": shape.d_model, "dropout": 0.1, "label_smoothing": 0.1}
    for stack in ("encoder", "decoder"):
        model[f"{stack}_layers"] = shape.layers
        model[f"{stack}_attention_heads"] = shape.d_model // 32
        model[f"{stack}_ffn_dim"] = shape.ffn_dim
    training = {
        "max_steps": 10**6,
        "save_steps": 10**6,
        "eval_steps": 10**6,
        "source_tokens_per_batch": shape.positions,
        "target_tokens_per_batch": shape.positions,
        "gradient_accumulation_steps": shape.accumulation,
    }
    data = {
        "source_language": "en",
        "target_language": "de",
        "corpus": "numbers",
        "numbers_train_size": 10000,
    }
    return make_recipe(
        {
            "output_dir": str(folder),
            "data": {**data, "max_length": 64},
            "tokenizer": {"vocab_size": 500},
            "model": model,
            "training": training,
        }
    )


def step_seconds(shape: Shape, corpus: Corpus, recipe: Recipe, in_bfloat16: bool) -> float:
    """The median seconds of the steps of a new training."""
    model = build_model(recipe, corpus)
    if shape.vocab_size != model.config.vocab_size:
        model.resize_token_embeddings(shape.vocab_size, mean_resizing=False)
    training = recipe.training.replace(bf16=in_bfloat16, dataloader_num_workers=0)
    arguments = training_arguments(training, recipe.output_dir, recipe.seed, validates=False)
    task = TASKS[recipe.task]
    trainer = VaswaniTrainer(corpus, training, recipe.evaluation, task=task, model=model, args=arguments)
    times = _StepTimes()
    trainer.add_callback(times)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(_EnoughStepsError):
        run_training(trainer, None)
    return times.median()


def product_seconds(rows: int, columns: int, device: str, in_bfloat16: bool) -> float:
    """The median seconds in which Muon orthogonalizes a matrix."""
    matrix = torch.randn(rows, columns, device=device)
    seconds: list[float] = []
    while sum(seconds) < SECONDS / 2:
        start = time.perf_counter()
        orthogonalized(matrix, in_bfloat16)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measured(seconds_of: Callable[[bool], float], num_pairs: int) -> str:
    """Measures both in turn, and returns the medians of their times and of their ratios, in words."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(num_pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        for in_bfloat16 in order:
            times[in_bfloat16].append(seconds_of(in_bfloat16))
    ratios = [slow / fast for slow, fast in zip(times[False], times[True], strict=True)]
    float32, bfloat16 = (1000 * statistics.median(times[kind]) for kind in (False, True))
    return (
        f"float32 {float32:8.2f} ms  bfloat16 {bfloat16:8.2f} ms  ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main(words: list[str] | None = None) -> None:
    """Measures and prints."""
    names = [shape.name for shape in shapes()]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=7, help="ratios per measurement")
    parser.add_argument(
        "--shapes", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--part", nargs="+", choices=("steps", "products"), default=["steps", "products"])
    arguments = parser.parse_args(sys.argv[1:] if words is None else words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logging.set_verbosity_error()
    keep_free_memory()
    print(f"torch {torch.__version__} on {device}")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for shape in shapes() if "steps" in arguments.part else []:
            if shape.name not in arguments.shapes:
                continue
            with tempfile.TemporaryDirectory() as folder:
                recipe = recipe_of(shape, Path(folder))
                data = TASKS[recipe.task].load_corpus(
                    recipe.data, recipe.tokenizer, recipe.seed, Path(folder), new_tokenizers=True
                )
                result = measured(lambda kind: step_seconds(shape, data, recipe, kind), arguments.pairs)  # noqa: B023
            print(f"threads {threads}  step     {shape.name:20} {result}", flush=True)
        for rows in (32, 64, 128, 256, 512) if "products" in arguments.part else ():
            for columns in (rows, 4 * rows):
                result = measured(lambda kind: product_seconds(rows, columns, device, kind), arguments.pairs)  # noqa: B023
                print(f"threads {threads}  products {f'{rows} x {columns}':20} {result}", flush=True)


if __name__ == "__main__":
    main()
