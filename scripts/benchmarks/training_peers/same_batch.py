"""Time and memory of a training step against MarianMT of the same shape, on the same random batches, in one run.

Prints medians over interleaved repetitions, and ratios: `python scripts/benchmarks/training.py --same_batch [--width 128 …]`.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel

from training_peers.turns import resident
from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.model.loss_vaswani import IGNORED_LABEL


def build(name: str, arguments: argparse.Namespace) -> torch.nn.Module:
    """The model that is measured, in training mode."""
    shape = {f"{side}_layers": arguments.layers for side in ("encoder", "decoder")}
    shape |= {f"{side}_attention_heads": arguments.heads for side in ("encoder", "decoder")}
    shape |= {f"{side}_ffn_dim": arguments.ffn for side in ("encoder", "decoder")}
    shape |= {"vocab_size": arguments.vocabulary, "d_model": arguments.width, "dropout": 0.1}
    if name == "vaswani":
        return VaswaniForSeq2SeqLM(VaswaniConfig(**shape, label_smoothing=0.1)).train()
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": 2}
    config = MarianConfig(
        **shape, **ids, activation_function="relu", scale_embedding=True, attn_implementation="sdpa"
    )
    return MarianMTModel(config).train()


def batch(arguments: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Random sentences of one length, one in seven of them a token shorter.

    Args:
        arguments (Namespace): The size.

    Returns:
        dict: `input_ids`, `attention_mask` and `labels`, [B, L] int64.
    """
    shape = (max(1, arguments.tokens // arguments.length), arguments.length)
    input_ids, labels = (torch.randint(4, arguments.vocabulary, shape) for _ in range(2))
    mask = torch.ones_like(input_ids)
    input_ids[::7, -1], mask[::7, -1], labels[::7, -1] = 1, 0, IGNORED_LABEL
    inputs = {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
    return {name: tensor.to(arguments.device) for name, tensor in inputs.items()}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, arguments: argparse.Namespace) -> float:
    """One step of training."""
    inputs = batch(arguments)
    start = time.perf_counter()
    with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.bf16):
        model(**inputs).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if arguments.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(name: str, arguments: argparse.Namespace) -> float:
    """The memory of two steps beyond that before them, in MiB, measured in this process, which must be fresh."""
    model = build(name, arguments).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if arguments.device == "cpu":
        # The highest resident size counts anew after this (Linux).
        Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    for _ in range(2):
        step(model, optimizer, arguments)
    if arguments.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resident("VmHWM") - before


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    numbers = {
        "width": 128,
        "ffn": 256,
        "heads": 4,
        "layers": 4,
        "vocabulary": 10000,
        "tokens": 4096,
        "length": 16,
    }
    for name, default in {**numbers, "repetitions": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--same_batch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.memory_of:
        print(peak_memory(arguments.memory_of, arguments))
        return
    names = ("vaswani", "marian")
    models = {name: build(name, arguments).to(arguments.device) for name in names}
    optimizers = {name: torch.optim.AdamW(model.parameters(), fused=True) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(arguments.repetitions + 1):
        for name in names:
            seconds = step(models[name], optimizers[name], arguments)
            # The first one warms up.
            times[name] += [seconds] if repetition else []
    memory = {}
    for name in names:
        command = [
            sys.executable,
            str(Path(__file__).parents[1] / "training.py"),
            *words,
            "--memory-of",
            name,
        ]
        memory[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name in names:
        median = statistics.median(times[name])
        print(
            f"{name:8} {median:8.3f} s/step  {arguments.tokens / median:10,.0f} target positions/s  {memory[name]:8,.0f} MiB"
        )
    ratios = [theirs / ours for ours, theirs in zip(times["vaswani"], times["marian"], strict=True)]
    print(
        f"marian/vaswani: time {statistics.median(ratios):.2f}, memory {memory['marian'] / memory['vaswani']:.2f}"
    )


if __name__ == "__main__":
    main()
