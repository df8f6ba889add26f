"""Compares the time and the memory of restricted self-attention (Section 4 of the paper) with full attention.

    python scripts/benchmarks/window.py [--window 128 …]

Measures a forward and a backward pass of one attention layer with its mask, for several sequence lengths.
Prints and draws the median seconds and the memory. Also fits a power law to each curve, and prints the
exponent of the sequence length.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from timing import from_fresh_process, in_turns, peak_memory, print_header

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.attention_vaswani import VaswaniAttention
from vaswani_hf.model.masks_vaswani import self_attention_masks

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def build(window: int, arguments: argparse.Namespace) -> VaswaniAttention:
    """Return self-attention restricted to `window` positions on each side. If `window` is 0, the attention is
    not restricted.
    """
    config = VaswaniConfig(
        d_model=arguments.width,
        encoder_attention_heads=arguments.heads,
        decoder_attention_heads=arguments.heads,
        attention_window=window or None,
    )
    config._attn_implementation = arguments.implementation
    return VaswaniAttention(config, arguments.heads, 0, is_causal=arguments.causal).to(arguments.device)


def run(attention: VaswaniAttention, length: int) -> None:
    """Run a forward and a backward pass on one sentence of random states [1, n, d]."""
    weight = attention.q_proj.weight
    states = torch.randn(1, length, weight.shape[1], device=weight.device, requires_grad=True)
    mask = self_attention_masks([attention], states, None)[0]
    attention(states, attention_mask=mask)[0].sum().backward()


def slope(lengths: list[int], values: list[float]) -> float:
    """Fit a power law of the length to measured values, by linear regression of the logarithms. Return the
    exponent.
    """
    return float(np.polyfit(np.log(lengths), np.log(np.maximum(values, 1e-9)), 1)[0])


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Measure the time (seconds) and the memory (MiB) of both kinds of attention at each length."""
    windows = {"full": 0, "window": arguments.window}
    found: dict[str, dict[str, list[float]]] = {"seconds": {}, "MiB": {}}
    for length in arguments.lengths:
        attentions = {name: build(window, arguments) for name, window in windows.items()}
        ways = {name: partial(run, built, length) for name, built in attentions.items()}
        line = f"n = {length:6,}"
        for name, times in in_turns(ways, arguments.repetitions).items():
            seconds = statistics.median(times)
            memory = from_fresh_process(["--memory_of", str(windows[name]), str(length)])
            found["seconds"].setdefault(name, []).append(seconds)
            found["MiB"].setdefault(name, []).append(memory)
            line += f"  {name} {seconds:9.4f} s {memory:9,.1f} MiB"
        print(line, flush=True)
    return found


def draw(lengths: list[int], found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw the time and the memory as functions of the length."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.8))
    for panel, (quantity, by_name) in zip(panels, found.items(), strict=True):
        for name, values in by_name.items():
            panel.plot(lengths, values, marker="o", label=f"{name}: slope {slope(lengths, values):.2f}")
        panel.set(xscale="log", yscale="log", xlabel="n (tokens)", ylabel=quantity)
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(words: list[str] | None = None) -> None:
    """Run the benchmark: measure, print the results, and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in {"window": 128, "width": 512, "heads": 8, "repetitions": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--implementation", choices=["eager", "sdpa"], default="sdpa")
    parser.add_argument("--causal", action="store_true", help="measure the self-attention of the decoder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("window.png"), help="the picture")
    parser.add_argument("--memory_of", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if min(arguments.window, arguments.repetitions, *arguments.lengths) < 1:
        parser.error("--window, --repetitions and --lengths must be positive")
    if len(set(arguments.lengths)) < 2:
        parser.error(
            "--lengths must have at least two different lengths, because a fitted curve needs two points"
        )
    if not arguments.output.resolve().parent.is_dir():
        parser.error(f"--output must be in a folder that exists, but is '{arguments.output}'")
    if arguments.memory_of:
        window, length = arguments.memory_of
        attention = build(window, arguments)
        run(attention, LENGTHS[0])
        print(peak_memory(lambda: run(attention, length), arguments.device))
        return
    print_header(arguments.device)
    found = measure(arguments)
    for quantity, by_name in found.items():
        slopes = {name: round(slope(arguments.lengths, values), 3) for name, values in by_name.items()}
        print(f"slope of {quantity}: {slopes}")
    draw(arguments.lengths, found, arguments.output)
    print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
