"""Where the time of a training step goes: products of matrices, attention, dropout, the loss, the optimizer, Python.

`python scripts/benchmarks/profile_training.py [--width 128 …]` takes the same model and batch as `benchmark_training.py --same_batch`.
"""

import argparse
import time

import torch
from torch.profiler import ProfilerActivity, profile

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.model.loss_vaswani import IGNORED_LABEL

# What the kinds of work are called in PyTorch, first match first; what has none of these is small.
KINDS = {
    "products of matrices": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("scaled_dot_product",),
    "dropout's masks": ("aten::random_", "aten::bernoulli_", "aten::native_dropout"),
    "softmax of the loss": (
        "aten::_softmax",
        "aten::softmax",
        "aten::exp_",
        "aten::amax",
        "aten::scatter_add",
    ),
    "layer normalization": ("layer_norm",),
    "optimizer": ("adam", "Adam"),
}


def shares(arguments: argparse.Namespace) -> dict[str, float]:
    """The seconds of a training step by kind of work, with those outside of PyTorch's operations as "Python"."""
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"layers": arguments.layers, "attention_heads": arguments.heads, "ffn_dim": arguments.ffn}.items()}  # fmt: skip
    config = VaswaniConfig(
        vocab_size=arguments.vocabulary, d_model=arguments.width, label_smoothing=0.1, **sides
    )
    model = VaswaniForSeq2SeqLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    shape = (arguments.tokens // arguments.length, arguments.length)
    input_ids, labels = (torch.randint(4, arguments.vocabulary, shape) for _ in range(2))
    mask = torch.ones_like(input_ids)
    input_ids[::7, -1], mask[::7, -1], labels[::7, -1] = 1, 0, IGNORED_LABEL

    def step() -> None:
        model(input_ids=input_ids, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        start = time.perf_counter()
        for _ in range(arguments.repetitions):
            step()
        whole = time.perf_counter() - start
    seconds = dict.fromkeys([*KINDS, "small operations"], 0.0)
    for event in record.key_averages():
        if event.key.startswith("aten::") or "Backward" in event.key or "Optimizer" in event.key:
            kind = next(
                (kind for kind, names in KINDS.items() if any(name in event.key for name in names)), None
            )
            seconds[kind or "small operations"] += event.self_cpu_time_total / 1e6
    seconds["Python"] = max(0.0, whole - sum(seconds.values()))
    return {name: value / arguments.repetitions for name, value in {**seconds, "whole step": whole}.items()}


def main() -> None:
    """Measure and print."""
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
    for name, default in {**numbers, "repetitions": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    found = shares(parser.parse_args())
    for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{name:22} {seconds:8.4f} s  {seconds / found['whole step']:6.1%}")


if __name__ == "__main__":
    main()
