"""Time and memory of restricted self-attention (Section 4) against full attention over the length, in one run.

A forward and a backward pass of one attention, its mask included. Prints medians over interleaved repetitions with the
slope of a line through their logarithms, and draws them: `python scripts/benchmarks/window.py [--window 128 …]`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
import torch

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.attention_vaswani import VaswaniAttention, attention_masks

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def build(window: int, arguments: argparse.Namespace) -> VaswaniAttention:
    """The attention that is measured."""
    config = VaswaniConfig(
        d_model=arguments.width,
        encoder_attention_heads=arguments.heads,
        decoder_attention_heads=arguments.heads,
        attention_window=window or None,
    )
    config._attn_implementation = arguments.implementation
    return VaswaniAttention(config, arguments.heads, 0, is_causal=arguments.causal).to(arguments.device)


def seconds(attention: VaswaniAttention, length: int) -> float:
    """The time of a forward and a backward pass."""
    device = attention.q_proj.weight.device
    states = torch.randn(1, length, attention.config.d_model, device=device, requires_grad=True)
    start = time.perf_counter()
    mask = attention_masks([attention], states, None)[0]
    attention(states, attention_mask=mask)[0].sum().backward()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(window: int, length: int, arguments: argparse.Namespace) -> float:
    """The memory of a pass beyond that before it, measured in this process, which must be fresh."""
    attention = build(window, arguments)
    seconds(attention, LENGTHS[0])
    if arguments.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds(attention, length)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # The highest resident size counts anew after this (Linux).
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    seconds(attention, length)
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def slope(lengths: list[int], values: list[float]) -> float:
    """The exponent of a power of the length, by least squares of logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(np.maximum(values, 1e-9)), 1)[0])


def draw(lengths: list[int], found: dict[str, dict[int, list[float]]], path: Path) -> None:
    """Draw seconds and memory over the length."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.8))
    for panel, (quantity, by_window) in zip(panels, found.items(), strict=True):
        for window, values in by_window.items():
            name = f"r = {window}" if window else "full"
            panel.plot(lengths, values, marker="o", label=f"{name}: slope {slope(lengths, values):.2f}")
        panel.set(xscale="log", yscale="log", xlabel="n (tokens)", ylabel=quantity)
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def measure(arguments: argparse.Namespace, options: list[str]) -> dict[str, dict[int, list[float]]]:
    """Measure full and restricted attention in turn, at each length, and print it."""
    attentions = {window: build(window, arguments) for window in (0, arguments.window)}
    found: dict[str, dict[int, list[float]]] = {
        name: {w: [] for w in attentions} for name in ("seconds", "MiB")
    }
    for length in arguments.lengths:
        times: dict[int, list[float]] = {window: [] for window in attentions}
        for repetition in range(arguments.repetitions + 1):
            for window, attention in attentions.items():
                taken = seconds(attention, length)
                # The first one warms up.
                times[window] += [taken] if repetition else []
        for window in attentions:
            found["seconds"][window].append(statistics.median(times[window]))
            command = [sys.executable, __file__, *options, "--memory-of", str(window), str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found["MiB"][window].append(json.loads(done.stdout))
        full, near, full_memory, near_memory = (found[name][w][-1] for name in found for w in attentions)
        print(
            f"n = {length:6,}  full {full:9.4f} s {full_memory:9,.1f} MiB  window {near:9.4f} s {near_memory:9,.1f} MiB"
        )
    return found


def main(given: list[str] | None = None) -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in {"window": 128, "width": 512, "heads": 8, "repetitions": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--implementation", choices=["eager", "sdpa"], default="sdpa")
    parser.add_argument("--causal", action="store_true", help="the decoder's self-attention")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("window.png"), help="the picture")
    parser.add_argument("--memory-of", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if (
        min(arguments.window, arguments.repetitions, *arguments.lengths) < 1
        or len(set(arguments.lengths)) < 2
    ):
        parser.error("--window, --repetitions and --lengths must be positive, and a slope needs two lengths")
    if not arguments.output.resolve().parent.is_dir():
        parser.error(f"--output must be in a folder that exists, but is '{arguments.output}'")
    if arguments.memory_of:
        window, length = arguments.memory_of
        print(json.dumps(peak_memory(window, length, arguments)))
        return
    found = measure(arguments, sys.argv[1:] if given is None else given)
    for quantity, by_window in found.items():
        slopes = {
            window or "full": round(slope(arguments.lengths, values), 3)
            for window, values in by_window.items()
        }
        print(f"slope of {quantity}: {slopes}")
    draw(arguments.lengths, found, arguments.output)
    print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
