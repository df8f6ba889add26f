"""Measures the training speed, the memory and the hardware utilisation of this package and of other toolkits.
Prints one table for each shape (model size and batch size).

    python scripts/benchmarks/training.py --source train.en.gz --target train.de.gz \
        [--joeynmt PYTHON] [--pymarian PYTHON] [--shapes tiny d256 base]

Each toolkit (competitor) runs in its own process. The competitors train alternately: one competitor trains on
a number of tokens while the other competitors wait. All competitors train on the same pairs with the same
subword vocabulary, but each competitor builds its batches by its own rules. In each round, every competitor
trains once (its turn). The speed of a competitor is the median over its turns, and a ratio of speeds is the
median over the rounds.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import print_header, ratio, seconds_of
from training_peers.turns import PeerSettings, Shape

from vaswani_hf.data.lines import read_lines
from vaswani_hf.data.toy_corpora import number_pairs

FOLDER = Path(__file__).resolve().parent
SHAPES = {
    # For tests.
    "toy": Shape(width=16, ffn=32, layers=1, heads=2, vocabulary=300, tokens=512, turn=3000),
    # Transformer-Tiny.
    "tiny": Shape(width=128, ffn=256, layers=4, heads=4, vocabulary=10000, tokens=4096, turn=40000),
    "d256": Shape(width=256, ffn=1024, layers=4, heads=4, vocabulary=10000, tokens=8192, turn=32000),
    # The shape of the paper's base model.
    "base": Shape(width=512, ffn=2048, layers=6, heads=8, vocabulary=37000, tokens=2048, turn=8000),
}
# On a GPU, use batches of the paper's size.
GPU_TOKENS = 25000
GPU_TURN = 10**6
WARM_UP_STEPS = 2
VALIDATION_PAIRS = 500
COLUMNS = (
    "competitor",
    "tokens/s",
    "speed of this package / speed of the competitor",
    "filled",
    "peak MiB",
    "of float32 rate",
    "of bfloat16 rate",
    "validation loss",
    "after tokens",
)


@dataclass
class Competitor:
    """A competitor: a toolkit whose training speed is measured. The table of results has one row for each
    competitor.

    `words` contains the name of a module in the folder training_peers, and then the arguments of the module.
    `python` is the Python interpreter that runs the module. If the competitor cannot run, `missing` contains
    the reason. `turns` contains the measurements that the competitor prints after the warm-up and after each
    turn.
    """

    title: str
    words: list[str]
    python: str | None
    missing: str = ""
    turns: list[dict[str, Any]] = field(default_factory=list)
    validation_loss: float | None = None
    process: subprocess.Popen | None = None
    log: Path = Path()

    def start(self, settings: Path, environment: dict[str, str]) -> None:
        """Start the process of the competitor. Do nothing if there is no Python interpreter for the
        competitor.
        """
        if self.python is None:
            return
        self.log = settings.parent / f"{'_'.join(self.words)}.log"
        command = [self.python, "-m", f"training_peers.{self.words[0]}", str(settings), *self.words[1:]]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def answer(self, command: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send `command` to the process, and return the answer. If the process has ended, store the last line
        of its log in `missing`.
        """
        if self.missing or self.process is None:
            return {}
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            if command is not None:
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        self.missing = lines[-1].strip() if lines else "its log is empty"
        return {}

    def end(self) -> None:
        """End the process."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def speeds(self) -> list[float]:
        """Return the source and target tokens per second of each turn after the warm-up."""
        pairs = zip(self.turns, self.turns[1:], strict=False)
        return [(now["tokens"] - before["tokens"]) / now["seconds"] for before, now in pairs]


def competitors(arguments: argparse.Namespace) -> list[Competitor]:
    """Return all competitors. The first competitor is this package."""
    joeynmt = Competitor("JoeyNMT", ["joeynmt"], arguments.joeynmt)
    marian = Competitor("Marian (C++)", ["marian"], arguments.pymarian)
    if joeynmt.python is None:
        joeynmt.missing = "no --joeynmt PYTHON"
    if marian.python is None:
        marian.missing = "no --pymarian PYTHON"
    if arguments.device != "cpu":
        marian.python = None
        marian.missing = "the wheel of pymarian is for CPUs"
    return [
        Competitor("vaswani_hf, by recipe", ["vaswani"], arguments.python),
        Competitor("MarianMT, Seq2SeqTrainer", ["marian_mt"], arguments.python),
        Competitor("MarianMT, group_by_length", ["marian_mt", "grouped"], arguments.python),
        joeynmt,
        marian,
    ]


def product_rate(device: str, dtype: torch.dtype) -> float:
    """Measure the rate of large matrix products (FLOP/s)."""
    best = 0.0
    for size in (512, 1024, 2048) if device == "cpu" else (4096, 8192):
        left = torch.randn(size, size, device=device, dtype=dtype)
        right = torch.randn(size, size, device=device, dtype=dtype)
        product = partial(torch.matmul, left, right)
        seconds = [seconds_of(product)]
        while sum(seconds) < 0.5:
            seconds.append(seconds_of(product))
        best = max(best, 2 * size**3 / statistics.median(seconds))
        # If a product takes more than 0.1 s, skip larger matrices: the hardware probably does not support the
        # dtype, so larger products would not reach a higher rate.
        if statistics.median(seconds) > 0.1:
            break
    return best


def write_texts(arguments: argparse.Namespace, folder: Path) -> None:
    """Write the sentence pairs to uncompressed text files. The last sentence pairs are the validation set."""
    if arguments.source:
        sides = {"source": list(read_lines(arguments.source)), "target": list(read_lines(arguments.target))}
    else:
        pairs = number_pairs(arguments.pairs, 1, "train")
        sides = {side: [pair[side] for pair in pairs] for side in ("source", "target")}
    sizes = [len(lines) for lines in sides.values()]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"`--source` and `--target` must have equally many lines, but have {sizes[0]:,} and {sizes[1]:,}."
        )
    held_out = min(VALIDATION_PAIRS, sizes[0] // 10)
    for side, lines in sides.items():
        for split, part in (("train", lines[:-held_out]), ("validation", lines[-held_out:])):
            text = "".join(line.rstrip("\n") + "\n" for line in part)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")


def take_turns(everybody: list[Competitor], tokens: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Let the competitors train one after the other. In each turn, a competitor trains on `tokens` tokens.
    Also measure large matrix products in each round, and return their median rate (FLOP/s) for each dtype.
    """
    rates: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for competitor in everybody:
        # Wait for the first answer of each competitor, because the answer means that the competitor is ready.
        competitor.answer()
    for competitor in everybody:
        warm_up = competitor.answer({"steps": WARM_UP_STEPS})
        if warm_up:
            competitor.turns.append(warm_up)
    # In the warm-up, the competitors train on different numbers of tokens. Count the tokens of the turns from
    # the largest of these numbers, so that each turn ends at the same total number of tokens for all
    # competitors.
    begun = max((competitor.turns[-1]["tokens"] for competitor in everybody if competitor.turns), default=0)
    for turn in range(1, arguments.turns + 1):
        # Measure the speed of matrix products in each round, because the speed of a shared machine changes.
        for dtype, found in rates.items():
            found.append(product_rate(arguments.device, getattr(torch, dtype)))
        for competitor in everybody:
            done = competitor.answer({"tokens": begun + turn * tokens})
            if done:
                competitor.turns.append(done)
                speed = f"{competitor.speeds()[-1]:10,.0f} tokens/s"
                print(f"turn {turn}: {competitor.title:28} {speed}", flush=True)
    for competitor in everybody:
        competitor.validation_loss = competitor.answer({"end": True}).get("validation_loss")
    return {dtype: statistics.median(found) for dtype, found in rates.items()}


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> str:
    """Train models of one shape with all competitors, and return the table of the results."""
    shape = SHAPES[name]
    if arguments.device != "cpu" and name != "toy":
        shape = replace(shape, tokens=GPU_TOKENS, turn=GPU_TURN)
    if arguments.tokens:
        shape = replace(shape, tokens=arguments.tokens)
    if arguments.turn:
        shape = replace(shape, turn=arguments.turn)
    settings = PeerSettings(
        shape=shape,
        folder=str(folder),
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        learning_rate=arguments.learning_rate,
        warmup_steps=arguments.warmup_steps,
    )
    path = folder / "settings.json"
    settings.write(path)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(FOLDER), str(FOLDER.parents[1])]),
        "OMP_NUM_THREADS": str(arguments.threads),
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    prepare = [arguments.python, "-m", "training_peers.preparation", str(path)]
    subprocess.run(prepare, env=environment, check=True)
    everybody = competitors(arguments)
    try:
        for competitor in everybody:
            competitor.start(path, environment)
        rates = take_turns(everybody, shape.turn, arguments)
    finally:
        for competitor in everybody:
            competitor.end()
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return table(f"{name}: {shape}", everybody, facts, rates)


def table(title: str, everybody: list[Competitor], facts: dict[str, Any], rates: dict[str, float]) -> str:
    """Return the results of a shape as a table in Markdown."""
    flops = facts["flops_per_token"]
    products = ", ".join(f"{dtype} {rate / 1e9:,.0f} GFLOP/s" for dtype, rate in rates.items())
    lines = [
        f"## {title}",
        "",
        f"{facts['pairs']:,} pairs, {facts['tokens']:,} source and target tokens, {flops / 1e6:,.2f} MFLOP per token; "
        f"matrix products: {products}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for competitor in everybody:
        speeds = competitor.speeds()
        if competitor.missing or not speeds:
            lines.append(f"| {competitor.title} | not measured: {competitor.missing} |")
            continue
        last = competitor.turns[-1]
        speed = statistics.median(speeds)
        cells = [competitor.title, f"{speed:,.0f}", f"{ratio(everybody[0].speeds(), speeds).median:.2f}"]
        cells.append(f"{last['tokens'] / last['positions']:.1%}" if last["positions"] else "not reported")
        cells.append(f"{last['memory']:,.0f}")
        for rate in rates.values():
            # Print no utilisation for bfloat16 if matrix products are slower in bfloat16 than in float32,
            # because then the hardware does not support bfloat16.
            cells.append(f"{speed * flops / rate:.1%}" if rate >= rates["float32"] else "no hardware")
        cells.append(f"{competitor.validation_loss:.3f}" if competitor.validation_loss else "")
        cells.append(f"{last['tokens']:,}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parsed(words: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--source",
        help="a file with one source sentence per line, plain or .gz; default: generated number words",
    )
    parser.add_argument("--target", help="a file with the translations of the source sentences")
    parser.add_argument(
        "--pairs",
        type=int,
        default=30000,
        help="the number of generated pairs of number words, used without --source",
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny", "d256", "base"])
    parser.add_argument(
        "--turns", type=int, default=4, help="number of turns of each competitor after the warm-up"
    )
    parser.add_argument(
        "--turn",
        type=int,
        help="number of source and target tokens in a turn; the default depends on the shape",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        help="number of source positions and of target positions in a batch; the default depends on the shape; on a "
        "CPU, MarianMT always trains on 128 pairs per batch",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the Python interpreter for this package and MarianMT"
    )
    parser.add_argument("--joeynmt", metavar="PYTHON", help="an interpreter that has JoeyNMT")
    parser.add_argument("--pymarian", metavar="PYTHON", help="an interpreter that has pymarian")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    types = (
        "recipe: this package chooses the dtype; its competitors use float32 on a CPU and bfloat16 on a GPU"
    )
    parser.add_argument("--dtype", choices=["recipe", "float32", "bfloat16"], default="recipe", help=types)
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--warmup_steps", type=int, default=100)
    arguments = parser.parse_args(words)
    if bool(arguments.source) != bool(arguments.target):
        parser.error("--source and --target must be given together")
    if min(arguments.turns, arguments.threads, arguments.warmup_steps) < 1:
        parser.error("--turns, --threads and --warmup_steps must be positive")
    return arguments


def main(words: list[str] | None = None) -> None:
    """Measure and print one table per shape."""
    arguments = parsed(words)
    # Raise an exception after a SIGTERM, so that the `finally` block ends the processes of the competitors.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    torch.set_num_threads(arguments.threads)
    print_header(arguments.device)
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory(prefix="benchmark_training_", ignore_cleanup_errors=True) as folder:
            write_texts(arguments, Path(folder))
            print(f"\n{measure(name, arguments, Path(folder))}\n", flush=True)
            means = Path(folder, "vaswani", "means.json")
            if means.exists():
                print(f"vaswani_hf: {json.loads(means.read_text(encoding='utf-8'))}\n", flush=True)


if __name__ == "__main__":
    main()
