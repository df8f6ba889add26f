"""The score functions of attention side by side: why dot products are scaled, and what each learns and costs.

`python scripts/examples/score_functions.py scaling`: entropy and gradient of the softmax over the width of keys; seconds.
`python scripts/examples/score_functions.py training`: the quick start with each score function, exact match on its held-out
numbers, and the time of a training step against that of scaled dot products. About 40 minutes on 2 CPU cores; a run that
was interrupted goes on. Tables are printed, the picture and the checkpoints are in the folder `--output`.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import torch

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.model.attention_vaswani import attention_class
from vaswani_hf.model.configuration_vaswani import ATTENTION_SCORES
from vaswani_hf.recipe import load_recipe

RECIPE = Path(__file__).parents[2] / "configuration" / "numbers.yaml"
# Formula and source of each; the letters are those of attention_vaswani.
SOURCES = {
    "scaled_dot": ("q k / sqrt(d_k)", "Vaswani et al. 2017, 3.2.1, Eq. (1)"),
    "dot": ("q k", "Luong et al. 2015, 3.1"),
    "dot_mean": ("q k / d_k", "Yang et al. 2022, Definition 4.1"),
    "general": ("q W k", "Luong et al. 2015, 3.1"),
    "additive_linear": ("w_q q + w_k k", "Veličković et al. 2018, Eq. (3), linear"),
    "additive": ("v tanh(W q + U k)", "Bahdanau et al. 2015, A.1.2"),
}
# Dot products with another factor.
FACTORS = ("dot", "scaled_dot", "dot_mean")
WIDTHS = (1, 4, 16, 64, 256, 1024)
NUM_KEYS = 64


def scaling_row(score: str, d_k: int, num_queries: int = 2000) -> dict[str, float]:
    """What the softmax over 64 keys makes of scores, for queries and keys of independent features of variance 1.

    Args:
        score (str): The score function.
        d_k (int): Width of queries and keys.
        num_queries (int): Queries that the means are over.

    Returns:
        dict: The deviation of the scores, the mean entropy of the weights (nats; 4.16 where they are all equal), and the
        mean norm of the softmax's Jacobian.
    """
    generator = torch.Generator().manual_seed(0)
    config = VaswaniConfig(d_model=2 * d_k, d_k=d_k, d_v=d_k, attention_score=score)
    attention = attention_class(config)(config, 1, 0)
    query = torch.randn(1, 1, num_queries, d_k, generator=generator)
    scores = attention.scores(query, torch.randn(1, 1, NUM_KEYS, d_k, generator=generator))[0, 0]
    weights = torch.softmax(scores.double(), dim=-1)
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
    return {
        "deviation": scores.std().item(),
        "entropy": entropy.mean().item(),
        "gradient": jacobian.flatten(1).norm(dim=1).mean().item(),
    }


def compare_scaling(output: Path) -> dict[str, list[dict[str, float]]]:
    """Print and draw `scaling_row` over the width, for each factor."""
    rows = {score: [scaling_row(score, width) for width in WIDTHS] for score in FACTORS}
    names = {
        "deviation": "deviation of scores",
        "entropy": "entropy of weights",
        "gradient": "norm of the Jacobian",
    }
    for quantity, name in names.items():
        print(f"{name:24}" + "".join(f"d_k={width:<7}" for width in WIDTHS))
        for score in FACTORS:
            print(f"{score:24}" + "".join(f"{row[quantity]:<11.3g}" for row in rows[score]))
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for panel, (quantity, name) in zip(panels, names.items(), strict=True):
        for score in FACTORS:
            panel.plot(WIDTHS, [row[quantity] for row in rows[score]], marker="o", label=SOURCES[score][0])
        panel.set(
            xscale="log", xlabel="$d_k$", title=name, yscale="linear" if quantity == "entropy" else "log"
        )
    panels[1].axhline(math.log(NUM_KEYS), color="grey", linestyle=":")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(output / "scaling.png", dpi=150)
    print(f"picture: {output / 'scaling.png'}")
    return rows


def step_seconds(scores: list[str], repetitions: int) -> dict[str, float]:
    """The median time of a training step of the recipe's model, of all score functions in turn."""
    fields = load_recipe(RECIPE).model.config_fields()
    models = {
        score: VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=500, **fields, attention_score=score)).train()
        for score in scores
    }
    tokens = torch.randint(4, 500, (32, 16))
    seconds: dict[str, list[float]] = {score: [] for score in scores}
    for repetition in range(repetitions + 2):
        for score, model in models.items():
            start = time.perf_counter()
            model(input_ids=tokens, labels=tokens).loss.backward()
            # The first two steps find memory.
            if repetition > 1:
                seconds[score].append(time.perf_counter() - start)
    return {score: statistics.median(values) for score, values in seconds.items()}


def exact_match(score: str, output: Path, overrides: list[str]) -> float:
    """Train the recipe with a score function, or go on with it."""
    folder = output / score
    arguments = ["--output_dir", str(folder), "--attention_score", score, "--resume", "true", *overrides]
    subprocess.run([sys.executable, "-m", "vaswani_hf.cli", "train", str(RECIPE), *arguments], check=True)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["test"]["exact_match"]


def compare_training(arguments: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Train with each score function, and print the table."""
    overrides = [] if arguments.max_steps is None else ["--max_steps", str(arguments.max_steps)]
    found = {score: exact_match(score, arguments.output, overrides) for score in arguments.scores}
    seconds = step_seconds(list(dict.fromkeys(["scaled_dot", *arguments.scores])), arguments.repetitions)
    print("| score | formula | source | exact match | seconds per step | ratio |\n|---|---|---|---|---|---|")
    for score in arguments.scores:
        formula, source = SOURCES[score]
        time_and_ratio = f"{seconds[score]:.4f} | {seconds[score] / seconds['scaled_dot']:.2f}"
        print(f"| `{score}` | {formula} | {source} | {found[score]:.1f} % | {time_and_ratio} |")
    return {score: (seconds[score], found[score]) for score in arguments.scores}


def main(given: list[str] | None = None) -> None:
    """Compare what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["scaling", "training"])
    parser.add_argument("--output", type=Path, default=Path("checkpoints/score_functions"), help="folder")
    parser.add_argument("--scores", nargs="+", choices=ATTENTION_SCORES, default=list(ATTENTION_SCORES))
    parser.add_argument("--max_steps", type=int, help="steps of each run; the recipe's by default")
    parser.add_argument("--repetitions", type=int, default=40, help="steps that are timed")
    arguments = parser.parse_args(given)
    if arguments.repetitions < 1:
        parser.error(f"--repetitions must be positive, but is {arguments.repetitions}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.what == "scaling":
        compare_scaling(arguments.output)
    else:
        compare_training(arguments)


if __name__ == "__main__":
    main()
