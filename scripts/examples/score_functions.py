"""Compares the score functions of attention: the effect of scaling, the accuracy and the training speed.

`python scripts/examples/score_functions.py scaling` prints and draws the standard deviation of the scores,
and the entropy and the gradient of the softmax, for several widths of the keys. The comparison `scaling`
takes a few seconds. `python scripts/examples/score_functions.py training` trains the quick start model with
each score function, and prints the exact match on held-out numbers, and the time of the forward and backward
pass of a training step. The comparison `training` takes about 40 minutes on 2 CPU cores. To continue an
interrupted training, repeat the command. The picture and the checkpoints are written to `--output`.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import matplotlib
import torch
from timing import in_turns, print_header, ratio

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.model.attention_vaswani import attention_class
from vaswani_hf.model.extension_vaswani import ATTENTIONS
from vaswani_hf.recipe import load_recipe

RECIPE = Path(__file__).parents[2] / "configuration" / "numbers.yaml"
# The formula of each score function, and the paper that defines the formula. The formulas use the letters
# that attention_vaswani.py uses.
SOURCES = {
    "scaled_dot": ("q k / sqrt(d_k)", "Vaswani et al. 2017, 3.2.1, Equation 1"),
    "dot": ("q k", "Luong et al. 2015, 3.1"),
    "dot_mean": ("q k / d_k", "Yang et al. 2022, Definition 4.1"),
    "general": ("q W k", "Luong et al. 2015, 3.1"),
    "additive_linear": ("w_q q + w_k k", "Veličković et al. 2018, Equation 3, linear"),
    "additive": ("v tanh(W q + U k)", "Bahdanau et al. 2015, A.1.2"),
}
# The score functions that are the dot product times a factor.
FACTORS = ("dot", "scaled_dot", "dot_mean")
WIDTHS = (1, 4, 16, 64, 256, 1024)
NUM_KEYS = 64
QUANTITIES = {
    "deviation": "deviation of scores",
    "entropy": "entropy of weights",
    "gradient": "norm of the Jacobian",
}


def scaling_row(score: str, d_k: int, num_queries: int) -> dict[str, float]:
    """Compute statistics of the softmax over 64 random keys. The features of queries and keys are independent
    random numbers with variance 1.

    Returns the standard deviation of the scores, the mean entropy of the weights in nats (4.16 if all weights
    are equal), and the mean norm of the Jacobian of the softmax.
    """
    generator = torch.Generator().manual_seed(0)
    config = VaswaniConfig(d_model=2 * d_k, d_k=d_k, d_v=d_k, attention_score=score)
    attention = attention_class(config)(config, 1, 0)
    query = torch.randn(1, 1, num_queries, d_k, generator=generator)
    key = torch.randn(1, 1, NUM_KEYS, d_k, generator=generator)
    scores = attention.scores(query, key)[0, 0]  # [num_queries, NUM_KEYS]
    weights = torch.softmax(scores.double(), dim=-1)
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None]
    return {
        "deviation": scores.std().item(),
        "entropy": entropy.mean().item(),
        "gradient": jacobian.flatten(1).norm(dim=1).mean().item(),
    }


def compare_scaling(output: Path, num_queries: int = 2000) -> dict[str, list[dict[str, float]]]:
    """Print and draw the results of `scaling_row` for each score function in FACTORS and each width."""
    rows = {score: [scaling_row(score, width, num_queries) for width in WIDTHS] for score in FACTORS}
    for quantity, name in QUANTITIES.items():
        print(f"{name:24}" + "".join(f"d_k={width:<7}" for width in WIDTHS))
        for score in FACTORS:
            print(f"{score:24}" + "".join(f"{row[quantity]:<11.3g}" for row in rows[score]))
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for panel, (quantity, name) in zip(panels, QUANTITIES.items(), strict=True):
        for score in FACTORS:
            panel.plot(WIDTHS, [row[quantity] for row in rows[score]], marker="o", label=SOURCES[score][0])
        yscale = "linear" if quantity == "entropy" else "log"
        panel.set(xscale="log", xlabel="$d_k$", title=name, yscale=yscale)
    panels[1].axhline(math.log(NUM_KEYS), color="grey", linestyle=":")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(output / "scaling.png", dpi=150)
    print(f"picture: {output / 'scaling.png'}")
    return rows


def step_times(scores: list[str], repetitions: int) -> dict[str, list[float]]:
    """Measure the seconds of the forward and backward pass of the recipe's model with each score function.
    The score functions are measured alternately.
    """
    fields = load_recipe(RECIPE).model.config_fields()
    tokens = torch.randint(4, 500, (32, 16))
    ways = {}
    for score in scores:
        config = VaswaniConfig(vocab_size=500, **fields, attention_score=score)
        model = VaswaniForSeq2SeqLM(config).train()
        ways[score] = lambda model=model: model(input_ids=tokens, labels=tokens).loss.backward()
    return in_turns(ways, repetitions, warm_up=2)


def exact_match(score: str, output: Path, overrides: list[str]) -> float:
    """Train the model of the recipe with a score function, or continue the training, and return the exact
    match in percent.
    """
    folder = output / score
    arguments = ["--output_dir", str(folder), "--attention_score", score, "--resume", "true", *overrides]
    subprocess.run([sys.executable, "-m", "vaswani_hf.cli", "train", str(RECIPE), *arguments], check=True)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["test"]["exact_match"]


def compare_training(arguments: argparse.Namespace) -> None:
    """Train a model with each score function, and print the table of results."""
    overrides = [] if arguments.max_steps is None else ["--max_steps", str(arguments.max_steps)]
    found = {score: exact_match(score, arguments.output, overrides) for score in arguments.scores}
    times = step_times(list(dict.fromkeys(["scaled_dot", *arguments.scores])), arguments.repetitions)
    print_header()
    print("| score | formula | source | exact match | seconds per step | ratio |")
    print("|---|---|---|---|---|---|")
    for score in arguments.scores:
        formula, source = SOURCES[score]
        seconds = f"{statistics.median(times[score]):.4f}"
        factor = f"{ratio(times[score], times['scaled_dot']).median:.2f}"
        print(f"| `{score}` | {formula} | {source} | {found[score]:.1f} % | {seconds} | {factor} |")


def main(given: list[str] | None = None) -> None:
    """Run the comparison ("scaling" or "training") that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["scaling", "training"])
    parser.add_argument("--output", type=Path, default=Path("checkpoints/score_functions"), help="folder")
    parser.add_argument("--scores", nargs="+", choices=ATTENTIONS.built_in, default=list(ATTENTIONS.built_in))
    parser.add_argument(
        "--max_steps", type=int, help="steps of each training; default: `max_steps` of the recipe"
    )
    parser.add_argument(
        "--repetitions", type=int, default=40, help="number of steps whose time is measured; default: 40"
    )
    arguments = parser.parse_args(given)
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.what == "scaling":
        compare_scaling(arguments.output)
    else:
        compare_training(arguments)


if __name__ == "__main__":
    main()
