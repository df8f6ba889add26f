"""Computes the numeric examples of lecture notes on the Transformer with this package, and prints Markdown.

Run `python scripts/examples/worked_numbers.py > worked_numbers.md`. tests/scripts/test_worked_numbers.py
compares the numbers with plain arithmetic.
"""

import argparse
import math
import signal
from collections.abc import Sequence

import torch

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.attention_vaswani import VaswaniAttention
from vaswani_hf.model.loss_vaswani import smoothed_cross_entropy, target_probabilities
from vaswani_hf.model.masks_vaswani import self_attention_masks
from vaswani_hf.model.modeling_vaswani import VaswaniEncoderLayer, sinusoids
from vaswani_hf.optimization.schedules import learning_rate

QUERY = [[0.5, 0.6, 0.1]]
KEYS = [[0.8, 0.4, 0.2], [0.4, 0.3, 0.7]]
VALUES = [[1.2, 0.3, 0.2], [0.4, 0.3, 0.7]]
SCORES = [[0.2, 0.1, 0.1], [0.4, 0.3, 0.7], [0.9, 0.2, 0.3]]
PROBABILITIES = [0.5, 0.25, 0.125, 0.125]
SMOOTHING = 0.1
NORMALIZED = [1.0, 2.0, 3.0, 4.0]
D_MODEL, WARMUP_STEPS = 512, 4000
POSITIONS, WIDTH, SHIFT = 4, 4, 2


def attention_of(width: int, is_causal: bool = False) -> VaswaniAttention:
    """Create an attention layer of the package with one head. `width` is the width of queries, keys and
    values.
    """
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "d_k": width, "d_v": width}
    return VaswaniAttention(
        VaswaniConfig(d_model=2, **heads, attn_implementation="eager"), 1, 0, is_causal
    ).eval()


def attention_example() -> dict[str, torch.Tensor]:
    """Return scores [1, 2], scaled scores [1, 2], weights [1, 2] and context [1, 3] of one query, two keys
    and two values.
    """
    query, key, value = (torch.tensor(rows)[None, None] for rows in (QUERY, KEYS, VALUES))
    attention = attention_of(len(QUERY[0]))
    scaled = attention.scores(query, key)
    context, weights = attention.attend(query, key, value)[0], attention.weights(query, key, None)
    found = {"scores": scaled / attention.scaling, "scaled": scaled, "weights": weights, "context": context}
    return {name: tensor.reshape(1, -1) for name, tensor in found.items()}


def masked_softmax_example() -> dict[str, torch.Tensor]:
    """Return the causal mask, the masked scores and the weights for the scores in SCORES, each [3, 3]."""
    table = torch.tensor(SCORES)
    length = len(SCORES)
    attention = attention_of(length, is_causal=True)
    mask = self_attention_masks([attention], torch.zeros(1, length, attention.config.d_model), None)[0]
    # Use unit vectors as keys, and divide the queries by the scaling, so that the attention scores are
    # exactly the numbers in SCORES.
    query, key = table[None, None] / attention.scaling, torch.eye(length)[None, None]
    weights = attention.weights(query, key, mask)[0, 0]
    return {"mask": mask[0, 0], "masked": table.masked_fill(mask[0, 0] != 0, -math.inf), "weights": weights}


def smoothing_example(form: str) -> dict[str, torch.Tensor]:
    """Return target probabilities, log-probabilities and their products [1, 4], and the loss [1, 1], for a
    value of `label_smoothing_form`.
    """
    gold, other = target_probabilities(SMOOTHING, form, len(PROBABILITIES))
    target = torch.tensor([[gold, *[other] * (len(PROBABILITIES) - 1)]])
    log_probs = torch.tensor([PROBABILITIES]).log()
    # Use log-probabilities as logits, because the softmax of log-probabilities gives the probabilities.
    loss = smoothed_cross_entropy(log_probs, torch.tensor([0]), None, SMOOTHING, form)
    return {
        "target": target,
        "log_probs": log_probs,
        "products": -target * log_probs,
        "loss": loss.reshape(1, 1),
    }


def layer_norm_example() -> dict[str, torch.Tensor]:
    """Return the layer normalization of NORMALIZED: mean, variance and eps [1, 1], deviations and results [1,
    4].
    """
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    layer = VaswaniEncoderLayer(VaswaniConfig(d_model=len(NORMALIZED), **heads), layer_idx=0)
    norm = layer.self_attn_layer_norm
    numbers = torch.tensor([NORMALIZED])
    mean, variance = numbers.mean(-1, keepdim=True), numbers.var(-1, correction=0, keepdim=True)
    found = {
        "mean": mean,
        "deviations": numbers - mean,
        "variance": variance,
        "eps": torch.tensor([[norm.eps]]),
    }
    return {**found, "normalized": norm(numbers).detach()}


def schedule_example() -> dict[int, float]:
    """Return the learning rate of the paper's base model at steps around the last step of warmup, because the
    rate is highest at that step.
    """
    steps = (1, WARMUP_STEPS // 2, WARMUP_STEPS - 1, WARMUP_STEPS, WARMUP_STEPS + 1, 4 * WARMUP_STEPS)
    return {step: learning_rate(step, D_MODEL, WARMUP_STEPS) for step in steps}


def rotation(shift: int, width: int) -> torch.Tensor:
    """Return the matrix M [D, D] with PE(pos + shift) = M PE(pos) for every pos. M is block-diagonal. The
    blocks of M are 2x2 rotation matrices, whose entries are entries of PE(shift), some with the opposite
    sign.
    """
    encoding = sinusoids(torch.tensor(shift), width)
    blocks = [
        torch.stack([torch.stack([cos, sin]), torch.stack([-sin, cos])])
        for sin, cos in encoding.unflatten(0, (-1, 2))
    ]
    return torch.block_diag(*blocks)


def table_of(
    rows: Sequence[Sequence[float]] | torch.Tensor,
    names: Sequence[str],
    columns: Sequence[str],
    form: str = ".4f",
) -> str:
    """Return a table in Markdown with a header and a name before each row. `form` is the format specification
    of the numbers.
    """
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name} | " + " | ".join(f"{float(number):{form}}" for number in row) + " |"
        for name, row in zip(names, rows, strict=True)
    ]
    return "\n".join(lines)


def attention_page() -> str:
    """Return the section on Equation 1."""
    found = attention_example()
    scores = table_of(
        torch.cat([found["scores"], found["scaled"], found["weights"]]),
        ("scores q·k", "scaled by 1/sqrt(3)", "weights, their softmax"),
        ("k1", "k2"),
    )
    terms = found["weights"].T * torch.tensor(VALUES)
    context = table_of(
        torch.cat([terms, found["context"]]),
        ("weight of k1 · v1", "weight of k2 · v2", "context"),
        ("1", "2", "3"),
    )
    return f"""## Attention (Section 3.2.1, Equation 1)

q = {QUERY[0]}, K = {KEYS}, V = {VALUES}, d_k = 3

{scores}

{context}

The lecture notes print the context [0.82 0.30 0.44]. The last number is {found["context"][0, 2]:.4f}, which rounds to 0.43. Rounded weights
give 0.53 · 0.2 + 0.47 · 0.7 = 0.435, which rounds to 0.44."""


def masked_softmax_page() -> str:
    """Return the section on the decoder's mask."""
    found = masked_softmax_example()
    rows, columns = [f"position {row}" for row in (1, 2, 3)], ["key 1", "key 2", "key 3"]
    exponentials = found["masked"].exp()
    sums = table_of(
        torch.cat([exponentials, exponentials.sum(-1, keepdim=True)], dim=1),
        rows,
        [*columns, "sum of the row"],
    )
    return f"""## Masked softmax (Section 3.2.3)

A position attends to itself and to earlier positions. Masked scores are -inf here. The package adds the smallest number of the
dtype instead, {found["mask"].min():.4g}, which gives the same weights:

{table_of(found["masked"], rows, columns)}

Exponentials:

{sums}

Weights, each exponential divided by the sum of its row:

{table_of(found["weights"], rows, columns)}

The lecture notes print weights that do not come from a softmax: the second row is 0.7 0.3, but the softmax of 0.4 and 0.3 is
{found["weights"][1, 0]:.2f} {found["weights"][1, 1]:.2f}. The weights 0.7 and 0.3 need scores that differ by ln(7/3) = {math.log(7 / 3):.2f}, not by 0.1."""


def smoothing_page() -> str:
    """Return the section on label smoothing."""
    pages = []
    forms = {
        "t2t": "1-e for the reference, e/(V-1) for each other class",
        "torch": "e/V for each class, plus 1-e for the reference",
    }
    for form, words in forms.items():
        found = smoothing_example(form)
        rows = torch.cat(
            [torch.tensor([PROBABILITIES]), found["target"], found["log_probs"], found["products"]]
        )
        names = ("model's probability p", "target t", "ln p", "-t ln p")
        table = table_of(rows, names, ("reference", "class 2", "class 3", "class 4"))
        loss = float(found["loss"])
        pages.append(
            f'Form "{form}", {words}:\n\n{table}\n\nLoss: {loss:.4f} nats = {loss / math.log(2):.4f} · ln 2.'
        )
    return f"""## Label smoothing (Section 5.4)

V = {len(PROBABILITIES)} classes, e = {SMOOTHING}; without smoothing the loss is -ln 0.5 = {-math.log(0.5):.4f} nats.

{pages[0]}

{pages[1]}"""


def layer_norm_page() -> str:
    """Return the section on layer normalization."""
    found = layer_norm_example()
    numbers = torch.cat([torch.tensor([NORMALIZED]), found["deviations"], found["normalized"]])
    columns = [f"feature {number}" for number in range(1, len(NORMALIZED) + 1)]
    eps, variance = float(found["eps"]), float(found["variance"])
    return f"""## Layer normalization (Section 3.1)

Mean {float(found["mean"]):.4f}; variance {variance:.4f}, the sum of the squared deviations
divided by 4, not by 3; divisor sqrt(variance + eps) = {math.sqrt(variance + eps):.6f} with eps = {eps:g};
gain 1 and bias 0, their initial values.

{table_of(numbers, ("x", "x - mean", "layer norm"), columns)}"""


def schedule_page() -> str:
    """Return the section on the learning rate."""
    found = schedule_example()
    rows = [(step**-0.5, step * WARMUP_STEPS**-1.5, rate) for step, rate in found.items()]
    columns = ("step^-0.5", "step · warmup^-1.5", "learning rate")
    return f"""## The schedule's peak (Section 5.3, Equation 3)

d_model = {D_MODEL}, warmup = {WARMUP_STEPS} steps. The rate is the smaller of the first two columns, times d_model^-0.5 = {D_MODEL**-0.5:.6f}. The first two columns are
equal at the last step of warmup, where the rate is highest: d_model^-0.5 · warmup^-0.5 = {(D_MODEL * WARMUP_STEPS) ** -0.5:.6e}.

{table_of(rows, [f"step {step}" for step in found], columns, ".6e")}"""


def positions_page() -> str:
    """Return the section on sinusoids and the linear map between two positions."""
    encodings = sinusoids(torch.arange(POSITIONS), WIDTH)
    columns = ["sin(pos)", "cos(pos)", "sin(pos/100)", "cos(pos/100)"]
    matrix = rotation(SHIFT, WIDTH)
    moved = torch.cat([encodings[:1] @ matrix.T, encodings[1:2] @ matrix.T, encodings[2:4]])
    names = ("M PE(0)", "M PE(1)", "PE(2)", "PE(3)")
    return f"""## Positions (Section 3.5)

PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)),
for d_model = {WIDTH}:

{table_of(encodings, [f"PE({position})" for position in range(POSITIONS)], columns)}

PE(pos + k) is a linear map M of PE(pos). M depends on k only: for each frequency w, M has the
rotation [[cos kw, sin kw], [-sin kw, cos kw]]. Apart from zeros and signs, the entries of M are entries of PE(k). For k = {SHIFT}:

{table_of(matrix, [f"row {row}" for row in range(1, WIDTH + 1)], [f"column {column}" for column in range(1, WIDTH + 1)])}

{table_of(moved, names, columns)}"""


def page() -> str:
    """Return the text of the whole page in Markdown."""
    sections = (
        attention_page,
        masked_softmax_page,
        smoothing_page,
        layer_norm_page,
        schedule_page,
        positions_page,
    )
    return "# Worked numbers\n\n" + "\n\n".join(section() for section in sections)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    # Set the default action of SIGPIPE, so that `python worked_numbers.py | head` ends without a traceback.
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)
    print(page())
