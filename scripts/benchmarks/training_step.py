"""Compares the time and memory of a training step of this package and of MarianMT on the same random batches.

    python scripts/benchmarks/training_step.py [--width 128 …]

The steps of the two models are measured alternately. Prints the median times, their ratios, the peak memory,
and the proportion of time that a step of this package spends on each kind of operation.
"""

import argparse

import torch
from timing import from_fresh_process, in_turns, peak_memory, print_header, print_times, seconds_of
from torch.profiler import ProfilerActivity, profile
from training_peers.marian_mt import marian
from training_peers.turns import Shape
from training_peers.vaswani import sizes

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.model.loss_vaswani import IGNORED_LABEL

# Maps each kind of operation to parts of the names of PyTorch operations. An operation belongs to the first
# kind that matches its name.
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("scaled_dot_product",),
    "dropout masks": ("aten::random_", "aten::bernoulli_", "aten::native_dropout"),
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


class Step:
    """A training step of a model on a batch."""

    def __init__(self, name: str, shape: Shape, device: str, *, is_bfloat16: bool):
        if name == "vaswani":
            fields = sizes(shape)
            config = VaswaniConfig(**fields, vocab_size=shape.vocabulary, dropout=0.1, label_smoothing=0.1)
            self.model: torch.nn.Module = VaswaniForSeq2SeqLM(config)
        else:
            self.model = marian(shape, pad_token_id=1, eos_token_id=2, start_token_id=0)
        self.model.to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=is_bfloat16)

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        """Run one training step: compute the gradients and update the weights."""
        with self.autocast:
            loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def random_batch(shape: Shape, length: int, device: str) -> dict[str, torch.Tensor]:
    """Generate a batch [B, L] of random sentences with L tokens. Every seventh sentence has only L - 1
    tokens, so that the batch contains padding.
    """
    size = (max(1, shape.tokens // length), length)
    input_ids = torch.randint(4, shape.vocabulary, size)
    labels = torch.randint(4, shape.vocabulary, size)
    mask = torch.ones_like(input_ids)
    input_ids[::7, -1] = 1
    mask[::7, -1] = 0
    labels[::7, -1] = IGNORED_LABEL
    batch = {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def seconds_by_kind(step: Step, batch: dict[str, torch.Tensor], repetitions: int) -> dict[str, float]:
    """Return the CPU time in seconds that a training step spends on each kind of operation. The kind "Python"
    is the time outside PyTorch operations.
    """
    step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as record:
        whole = sum(seconds_of(lambda: step(batch)) for _ in range(repetitions))
    seconds = dict.fromkeys([*KINDS, "small operations"], 0.0)
    for event in record.key_averages():
        if not (event.key.startswith("aten::") or "Backward" in event.key or "Optimizer" in event.key):
            continue
        kinds = [kind for kind, names in KINDS.items() if any(name in event.key for name in names)]
        seconds[[*kinds, "small operations"][0]] += event.self_cpu_time_total / 1e6
    seconds["Python"] = max(0.0, whole - sum(seconds.values()))
    seconds["whole step"] = whole
    return {kind: value / repetitions for kind, value in seconds.items()}


def main(words: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    defaults = {"width": 128, "ffn": 256, "heads": 4, "layers": 4, "vocabulary": 10000, "tokens": 4096}
    for name, default in {**defaults, "length": 16, "repetitions": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--memory_of", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    shape = Shape(**{name: getattr(arguments, name) for name in defaults}, turn=0)

    def step_of(name: str) -> Step:
        return Step(name, shape, arguments.device, is_bfloat16=arguments.bf16)

    batch = random_batch(shape, arguments.length, arguments.device)
    if arguments.memory_of:
        step = step_of(arguments.memory_of)

        def two_steps() -> None:
            step(batch)
            step(batch)

        print(peak_memory(two_steps, arguments.device))
        return
    print_header(arguments.device)
    steps = {name: step_of(name) for name in ("vaswani", "marian")}
    ways = {name: (lambda step=step: step(batch)) for name, step in steps.items()}
    print_times(in_turns(ways, arguments.repetitions), baseline="marian", label="step of ")
    for name in steps:
        memory = from_fresh_process(["--memory_of", name])
        print(f"peak memory of {name:28} {memory:8,.0f} MiB", flush=True)
    found = seconds_by_kind(steps["vaswani"], batch, arguments.repetitions)
    for kind, seconds in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{kind:22} {seconds:8.4f} s  {seconds / found['whole step']:6.1%}")


if __name__ == "__main__":
    main()
