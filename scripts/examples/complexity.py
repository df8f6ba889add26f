"""Measures the complexity, the sequential operations and the path lengths in the paper's Table 1.

Run `python scripts/examples/complexity.py [--quick] [--picture complexity.png]`. The script counts the FLOPs
and measures the seconds of each type of layer. The script prints a table and writes a picture.

torch.utils.flop_counter counts matrix products and convolutions, with two FLOPs for a multiplication and an
addition. The counter ignores softmax, gates, masks and biases. A linear regression of log(FLOPs) or
log(seconds) on the logarithms of n, d, k and r gives the exponents. In formulas, n is the number of
positions, d the width, k the kernel width of a convolution and r the number of neighbours on each side.
"""

import argparse
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import numpy as np
import torch
from timing import in_turns, print_header
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.attention_vaswani import VaswaniAttention
from vaswani_hf.model.masks_vaswani import self_attention_masks

# Each head has 64 dimensions, as in the paper. A wider layer has more heads, so that the cost of the softmax
# is also proportional to n^2 d.
HEAD_WIDTH = 64
# The sizes at which the sequential operations and the maximum path lengths are measured.
PATH_LENGTH, PATH_WIDTH, PATH_KERNEL, PATH_WINDOW = 257, 16, 3, 16


@dataclass(frozen=True, order=True)
class Size:
    """The size of a layer. k is 0 for layers without a kernel, and r is 0 for layers without a
    restriction.
    """

    n: int
    d: int
    k: int = 0
    r: int = 0


class SelfAttention(nn.Module):
    """Self-attention of this package on states [B, n, d]. If r is not 0, the attention is restricted to r
    neighbours on each side.
    """

    def __init__(self, size: Size, implementation: str = "eager"):
        super().__init__()
        heads = max(1, size.d // HEAD_WIDTH)
        shape = {"d_model": size.d, "encoder_attention_heads": heads, "decoder_attention_heads": heads}
        window = {"attention_window": size.r} if size.r else {}
        config = VaswaniConfig(**shape, **window, attn_implementation=implementation)
        self.attention = VaswaniAttention(config, heads, layer_idx=0)
        # Compute the mask here instead of in `forward`, because a model computes the mask only once for all
        # layers.
        self.mask = self_attention_masks([self.attention], torch.empty(1, size.n, size.d), None)[0]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer, which computes projections, scores, weights, a weighted sum and a
        projection.
        """
        return self.attention(states, attention_mask=self.mask)[0]


class AttentionCore(SelfAttention):
    """Self-attention without projections: only scores, weights and weighted sum. The cost n^2 d in the
    paper's Table 1 does not include the projections. The inputs of the layer are the queries, the keys and
    the values.
    """

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the weighted values, without the four projections."""
        heads = states.unflatten(-1, (-1, self.attention.d_k)).transpose(1, 2)
        return self.attention.attend(heads, heads, heads, self.mask)[0].flatten(-2)


class Recurrent(nn.Module):
    """PyTorch's LSTM or GRU over states [B, n, d]."""

    def __init__(self, kind: type[nn.RNNBase], size: Size):
        super().__init__()
        self.layer = kind(size.d, size.d, batch_first=True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the output at each position."""
        return self.layer(states)[0]


class Convolution(nn.Module):
    """A causal convolution over states [B, n, d] with k positions that are `dilation` apart."""

    def __init__(self, size: Size, dilation: int = 1):
        super().__init__()
        self.reach = (size.k - 1) * dilation
        self.layer = nn.Conv1d(size.d, size.d, size.k, dilation=dilation)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the output at each position."""
        return self.layer(nn.functional.pad(states.transpose(1, 2), (self.reach, 0))).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the table: a type of layer, the entries in the paper's Table 1, and the sizes to measure.

    `layer` builds a layer. The arguments of `layer` are the size, the number of the layer in a stack, and the
    implementation of attention. `path` computes the maximum path length of Table 1: the number of sequential
    operations between the first and the last position. `path` uses only the size of the layer, and measures
    nothing.
    """

    name: str
    layer: Callable[[Size, int, str], nn.Module]
    complexity: str
    operations: str
    longest: str
    path: Callable[[Size], int]
    base: Size
    varied: dict[str, tuple[int, ...]]


def _steps(distance: int, reach: int) -> int:
    return -(-distance // reach)


def _dilated_layers(size: Size) -> int:
    # Use integer powers, because floating-point logarithms are inexact: log(243) / log(3) is 4.999….
    return next(layers for layers in range(size.n) if size.k**layers >= size.n)


# These sizes are large enough that the leading term of the cost is much larger than the other terms. These
# sizes are small enough that one layer takes at most about a second.
LONG, WIDE, BROAD = (512, 1024, 2048, 4096), (128, 256, 512, 1024), (5, 9, 17, 33)
# Limit the width of the LSTM, so that its matrices fit into the processor cache. The time of a wider LSTM
# follows another power law.
CACHED = (128, 256, 512)
ROWS = (
    Row(
        "self-attention",
        lambda size, _, kind: AttentionCore(size, kind),
        *("O(n^2 d)", "O(1)", "O(1)"),
        lambda size: 1,
        Size(1024, 256),
        {"n": LONG, "d": WIDE},
    ),
    Row(
        "self-attention with projections",
        lambda size, _, kind: SelfAttention(size, kind),
        *("O(n^2 d + n d^2)", "O(1)", "O(1)"),
        lambda size: 1,
        Size(1024, 256),
        {"n": LONG, "d": WIDE},
    ),
    Row(
        "restricted self-attention",
        lambda size, _, kind: AttentionCore(size, kind),
        *("O(r n d)", "O(1)", "O(n/r)"),
        lambda size: _steps(size.n - 1, size.r),
        # Measure restricted self-attention only at large sizes. At smaller sizes, copying the keys and values
        # of the neighbours would take as long as the attention itself.
        Size(8192, 256, r=128),
        {"n": (4096, 8192, 16384), "d": WIDE, "r": (128, 256, 512)},
    ),
    Row(
        "recurrent (LSTM)",
        lambda size, *_: Recurrent(nn.LSTM, size),
        *("O(n d^2)", "O(n)", "O(n)"),
        lambda size: size.n,
        Size(512, 256),
        {"n": LONG, "d": CACHED},
    ),
    Row(
        "recurrent (GRU)",
        lambda size, *_: Recurrent(nn.GRU, size),
        *("O(n d^2)", "O(n)", "O(n)"),
        lambda size: size.n,
        Size(512, 256),
        {"n": LONG, "d": WIDE[1:]},
    ),
    Row(
        "convolution",
        lambda size, *_: Convolution(size),
        *("O(k n d^2)", "O(1)", "O(n/k)"),
        lambda size: _steps(size.n - 1, size.k - 1),
        Size(1024, 256, k=9),
        {"n": LONG, "d": WIDE[1:], "k": BROAD},
    ),
    Row(
        "dilated convolution",
        lambda size, depth, _: Convolution(size, size.k**depth),
        *("O(k n d^2)", "O(1)", "O(log_k n)"),
        _dilated_layers,
        Size(1024, 256, k=9),
        {"n": LONG, "d": WIDE[1:], "k": BROAD},
    ),
)


def sizes_of(row: Row, quick: bool = False) -> list[Size]:
    """Return the base size of a row, and sizes in which one of the numbers n, d, k and r differs from the
    base size. If `quick`, divide n and d of each size by 8.
    """
    others = [replace(row.base, **{name: at}) for name, values in row.varied.items() for at in values]
    sizes = dict.fromkeys([row.base, *others])
    return [replace(size, n=size.n // 8, d=size.d // 8) if quick else size for size in sizes]


@contextmanager
def without_onednn() -> Iterator[None]:
    """Context manager that turns off the kernels of oneDNN, because the FLOP counter and autograd treat each
    of these kernels as a single operation.
    """
    with warnings.catch_warnings():
        # Suppress a warning of `mkldnn.flags` about GPUs, because the function warns even if there is no GPU.
        warnings.filterwarnings("ignore", "TF32 acceleration")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def flops_of(row: Row, size: Size) -> int:
    """Count the FLOPs of a layer on one sentence.

    The function uses eager attention and the LSTM of PyTorch, because the counter does not count the matrix
    products inside fused attention and inside the LSTM of oneDNN. The layer is on the meta device, so that
    the count needs no computation.
    """
    with torch.device("meta"), torch.no_grad(), without_onednn():
        layer, states = row.layer(size, 0, "eager").eval(), torch.empty(1, size.n, size.d)
        with FlopCounterMode(display=False) as counter:
            layer(states)
    return counter.get_total_flops()


def median_seconds(cases: Sequence[tuple[Row, Size]], repetitions: int) -> dict[tuple[Row, Size], float]:
    """Measure the median seconds of a forward pass of each layer on one sentence. The layers are measured
    alternately.
    """
    ways = {}
    for row, size in cases:
        layer = row.layer(size, 0, "sdpa").eval()
        ways[f"{row.name} {size}"] = partial(layer, torch.randn(1, size.n, size.d))
    with torch.no_grad():
        times = in_turns(ways, repetitions)
    return {case: statistics.median(taken) for case, taken in zip(cases, times.values(), strict=True)}


class Fit(NamedTuple):
    """A power law, cost = factor · n^a · d^b …, fitted to the logarithms by least squares. `r_squared` is the
    coefficient of determination R² of this fit.
    """

    factor: float
    exponents: dict[str, float]
    r_squared: float

    def at(self, size: Size) -> float:
        """Return the cost that the power law predicts for a size."""
        return self.factor * math.prod(getattr(size, name) ** power for name, power in self.exponents.items())

    def __str__(self) -> str:
        return " ".join(f"{name}^{power:.2f}" for name, power in self.exponents.items())


def fit(sizes: Sequence[Size], costs: Sequence[float]) -> Fit:
    """Fit a power law to the costs. The variables of the power law are those of the numbers n, d, k and r
    that differ between the `sizes`.
    """
    names = [name for name in asdict(sizes[0]) if len({getattr(size, name) for size in sizes}) > 1]
    logs = np.log([[math.e, *(getattr(size, name) for name in names)] for size in sizes])
    targets = np.log(np.asarray(costs, dtype=float))
    solution, *_ = np.linalg.lstsq(logs, targets, rcond=None)
    left, spread = targets - logs @ solution, targets - targets.mean()
    powers = dict(zip(names, map(float, solution[1:]), strict=True))
    return Fit(math.exp(solution[0]), powers, float(1 - (left @ left) / (spread @ spread)))


def longest_chain(output: torch.Tensor) -> int:
    """Return the number of sequential operations: the length of the longest chain in the autograd graph of
    `output`.
    """
    depths: dict = {}
    stack = [output.grad_fn]
    while stack:
        node = stack[-1]
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        waiting = [parent for parent in parents if parent not in depths]
        if not waiting:
            depths[stack.pop()] = 1 + max((depths[parent] for parent in parents), default=0)
        stack += waiting
    return depths[output.grad_fn]


def sequential_operations(row: Row, size: Size) -> tuple[int, int]:
    """Return the length of the longest chain of operations in a layer, for n positions and for 2n
    positions.
    """
    chains = []
    with without_onednn():
        for length in (size.n, 2 * size.n):
            states = torch.randn(1, length, size.d, requires_grad=True)
            chains.append(longest_chain(row.layer(replace(size, n=length), 0, "eager")(states)))
    return chains[0], chains[1]


def layers_between_ends(row: Row, size: Size) -> int:
    """Return the smallest number of layers after which the last position depends on the first position."""
    torch.manual_seed(0)
    # Use float64, because the gradients of many layers are too small for float32. Take the derivative in a
    # random direction at position 0.
    states, gradient = torch.randn(2, 1, size.n, size.d, dtype=torch.float64)
    gradient[:, 1:] = 0
    for depth in range(size.n):
        layer = row.layer(size, depth, "eager").double()

        # Add the residual connection and layer normalization, as in Section 3.1 of the paper. The residual
        # connection and layer normalization do not connect different positions, so the length of the path
        # does not change.
        def sublayer(states: torch.Tensor, layer: nn.Module = layer) -> torch.Tensor:
            return nn.functional.layer_norm(states + layer(states), (size.d,))

        with torch.no_grad(), without_onednn():
            states, gradient = torch.func.jvp(sublayer, (states,), (gradient,))
        if gradient[0, -1].any():
            return depth + 1
    raise ValueError(
        f"{row.name}: after {size.n} layers the last of {size.n} positions does not depend on the first."
    )


def path_length(row: Row, size: Size) -> int:
    """Return the number of sequential operations between the first and the last position: the number of
    layers from `layers_between_ends`, multiplied by n if the layer is recurrent.
    """
    short, long = sequential_operations(row, size)
    return layers_between_ends(row, size) * (size.n if long > short else 1)


class Measured(NamedTuple):
    """A row of the table with its measurements."""

    row: Row
    sizes: list[Size]
    seconds: list[float]
    flops_fit: Fit
    seconds_fit: Fit


def measure(quick: bool) -> list[Measured]:
    """Measure the seconds of all rows, and fit power laws to the FLOPs and to the seconds."""
    sizes = {row.name: sizes_of(row, quick) for row in ROWS}
    cases = [(row, size) for row in ROWS for size in sizes[row.name]]
    seconds = median_seconds(cases, 1 if quick else 7)
    found = []
    for row in ROWS:
        # Count the FLOPs at the small sizes of `--quick` in every run, because FLOPs follow exact power laws.
        # For restricted attention, always count the FLOPs at the full sizes. Restricted attention computes
        # blocks of queries. A short sequence does not fill the blocks, so the FLOPs of short sequences do not
        # follow the power law.
        timed, counted = sizes[row.name], sizes_of(row, quick="r" not in row.varied)
        times = [seconds[row, size] for size in timed]
        flops = fit(counted, [flops_of(row, size) for size in counted])
        found.append(Measured(row, timed, times, flops, fit(timed, times)))
    return found


def table(found: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield (
        "| layer | per layer | FLOPs | seconds | R² | sequential operations | chain at n, 2n | longest path | "
        f"by construction, by gradient (n = {PATH_LENGTH}) |"
    )
    yield "|---" * 9 + "|"
    for row, _, _, flops, seconds in found:
        size = Size(
            PATH_LENGTH,
            PATH_WIDTH,
            PATH_KERNEL if "k" in row.varied else 0,
            PATH_WINDOW if "r" in row.varied else 0,
        )
        chains = ", ".join(map(str, sequential_operations(row, size)))
        yield (
            f"| {row.name} | {row.complexity} | {flops} | {seconds} | {seconds.r_squared:.3f} | {row.operations} | {chains} | "
            f"{row.longest} | {row.path(size)}, {path_length(row, size)} |"
        )


def draw(found: Sequence[Measured], path: str) -> None:
    """Draw the measured seconds and the fitted power laws as functions of n, d, k and r."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = {
        "n": "n, positions",
        "d": "d, width",
        "k": "k, kernel width of a convolution",
        "r": "r, neighbours on each side",
    }
    figure, axes = pyplot.subplots(1, len(labels), figsize=(18, 6), layout="constrained")
    for axis, (letter, label) in zip(axes, labels.items(), strict=True):
        for number, (row, sizes, seconds, _, fitted) in enumerate(found):
            like_base = replace(sizes[0], **{letter: 0})
            line = sorted(
                (size, second)
                for size, second in zip(sizes, seconds, strict=True)
                if replace(size, **{letter: 0}) == like_base
            )
            if len(line) < 2:
                continue
            places = [getattr(size, letter) for size, _ in line]
            name = f"{row.name}: {letter}^{fitted.exponents[letter]:.2f}"
            axis.loglog(places, [second for _, second in line], f"C{number}o", label=name)
            axis.loglog(places, [fitted.at(size) for size, _ in line], f"C{number}-")
        ticks = sorted(
            {getattr(size, letter) for _, sizes, *_ in found for size in sizes if getattr(size, letter)}
        )
        axis.set(xlabel=label, ylabel="seconds per layer")
        axis.set_xticks(ticks, map(str, ticks), fontsize="small")
        axis.set_xticks([], minor=True)
        axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(words: Sequence[str] | None = None) -> None:
    """Run all measurements, print the table, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--picture", default="complexity.png", help="the file of the picture (complexity.png)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure small sizes once; the seconds are not reliable"
    )
    arguments = parser.parse_args(words)
    # Check the folder before the measurement, because the measurement takes minutes.
    if not Path(arguments.picture).parent.is_dir():
        parser.error(f"`--picture` must be a file in an existing folder, but is '{arguments.picture}'.")
    torch.manual_seed(0)
    found = measure(arguments.quick)
    print_header()
    print("float32, one sentence; seconds are medians\n")
    print("\n".join(table(found)))
    draw(found, arguments.picture)
    print(f"\nPicture: {arguments.picture}")


if __name__ == "__main__":
    main()
