"""Compares OpenMP settings by the speed of training and translation, with and without a busy process.

    python scripts/benchmarks/threads.py [--work train translate --shapes tiny base --ways one before after]

The option `--ways` names the settings. Each setting is a set of environment variables. The script starts a
separate process for each setting, because the OpenMP library reads the environment variables only once. The
processes work one after the other. In every round, each process works once alone and once beside another
process that keeps one core busy. The table shows the medians over the rounds.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from timing import print_header, ratio
from training import SHAPES
from training_peers.turns import Shape
from training_peers.vaswani import sizes

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.training.measure import measure_speed
from vaswani_hf.training.planned_step import PlannedRun

# Maps each setting of the threads to its environment variables. GNU's OpenMP library reads OMP_WAIT_POLICY
# and GOMP_SPINCOUNT. The command `vaswani` uses the setting `after`.
WAYS = {
    "one": {"OMP_NUM_THREADS": "1"},
    "before": {"OMP_NUM_THREADS": "2"},
    "passive": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "after": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"},
    "longer": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "10000"},
}
LENGTH = 16
BUSY = "while :; do :; done"


def train(shape: Shape, tokens: int) -> Callable[[float], float]:
    """Return a function that trains for a number of seconds, and returns the target tokens per second."""
    config = VaswaniConfig(vocab_size=shape.vocabulary, **sizes(shape))
    training = EncoderDecoderTraining(
        source_tokens_per_batch=tokens, target_tokens_per_batch=tokens, bf16=False
    )
    run = PlannedRun(config, training)
    return lambda seconds: measure_speed(run, LENGTH, seconds)[0]


def translate(shape: Shape, tokens: int) -> Callable[[float], float]:
    """Return a function that translates for a number of seconds, and returns the target tokens per second."""
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=shape.vocabulary, **sizes(shape))).eval()
    source = torch.randint(4, shape.vocabulary, (tokens // LENGTH, LENGTH))
    search: dict[str, Any] = {"num_beams": 4, "min_new_tokens": LENGTH, "max_new_tokens": LENGTH}

    def speed(seconds: float) -> float:
        tokens = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            model.generate(source, **search)
            tokens += source.numel()
        return tokens / elapsed

    return speed


WORK = {"train": train, "translate": translate}


def serve(work: str, shape: str, tokens: int) -> None:
    """Read numbers of seconds from the standard input. Work for each number of seconds, and print the target
    tokens per second.
    """
    measure = WORK[work](SHAPES[shape], tokens)
    measure(0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        print(measure(float(line)), flush=True)


class Worker:
    """A process that measures training or translation with one setting of the threads."""

    def __init__(self, way: str, work: str, shape: str, tokens: int):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--tokens", str(tokens), "--serve", work, shape],
            env=os.environ | WAYS[way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def speed(self, seconds: float) -> float:
        """Let the process work, and return its target tokens per second."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class BusyProcess:
    """A process that keeps one core busy inside a `with` block."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sh", "-c", BUSY], stdout=subprocess.DEVNULL)
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def compare(work: str, shape: str, arguments: argparse.Namespace) -> None:
    """Measure the work with each setting of the threads in turn, and print a table."""
    workers: dict[str, Worker] = {}
    busy = BusyProcess()
    alone: dict[str, list[float]] = {way: [] for way in arguments.ways}
    beside: dict[str, list[float]] = {way: [] for way in arguments.ways}
    try:
        for way in arguments.ways:
            workers[way] = Worker(way, work, shape, arguments.tokens)
        for number in range(arguments.rounds):
            for way in arguments.ways if number % 2 == 0 else reversed(arguments.ways):
                alone[way].append(workers[way].speed(arguments.seconds))
                with busy:
                    beside[way].append(workers[way].speed(arguments.seconds))
    finally:
        busy.end()
        for worker in workers.values():
            worker.end()
    first = arguments.ways[0]
    print(f"\n{work}, {shape}: target tokens/s, and the ratio to `{first}` alone")
    print("| way | alone | ratio | beside a busy process | ratio |\n|---|---|---|---|---|")
    for way in arguments.ways:
        cells = [way]
        for speeds in (alone[way], beside[way]):
            cells += [f"{statistics.median(speeds):,.0f}", str(ratio(speeds, alone[first]))]
        print(f"| {' | '.join(cells)} |", flush=True)


def main(words: list[str] | None = None) -> None:
    """Measure training, translation or both for each shape (model size)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny", "base"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["one", "before", "after"])
    parser.add_argument(
        "--tokens",
        type=int,
        default=512,
        help="number of source (and target) positions of a batch",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of each measurement")
    parser.add_argument("--serve", nargs=2, metavar=("WORK", "SHAPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.serve:
        work, shape = arguments.serve
        serve(work, shape, arguments.tokens)
        return
    print_header()
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f}")
    # Raise an exception after a SIGTERM, so that the `finally` block ends the worker processes.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    for shape in arguments.shapes:
        for work in arguments.work:
            compare(work, shape, arguments)


if __name__ == "__main__":
    main()
