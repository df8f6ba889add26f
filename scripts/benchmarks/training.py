"""Training speed, memory and utilisation of this package and of its competitors, interleaved, as one table per shape.

    python scripts/benchmarks/training.py --source train.en.gz --target train.de.gz \
        [--joeynmt PYTHON] [--pymarian PYTHON] [--shapes tiny d256 base]

Each competitor is a process that trains for some tokens while the others wait, then the next one does; all see the same
pairs as the same tokens, in batches of their own kind. Speeds are medians over the turns, ratios medians over the rounds.
`--same_batch` measures single steps on one random batch instead, beside MarianMT: see training_peers/same_batch.py.
"""

import argparse
import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

SCRIPTS = Path(__file__).resolve().parent
# Transformer-Tiny, the next size, and the paper's base; `tokens` are the positions of a batch on each side, `turn` the source
# and target tokens of a turn. "toy" is for tests.
SHAPES = {
    "toy": {"width": 16, "ffn": 32, "layers": 1, "heads": 2, "vocabulary": 300, "tokens": 512, "turn": 3000},
    "tiny": {
        "width": 128,
        "ffn": 256,
        "layers": 4,
        "heads": 4,
        "vocabulary": 10000,
        "tokens": 4096,
        "turn": 40000,
    },
    "d256": {
        "width": 256,
        "ffn": 1024,
        "layers": 4,
        "heads": 4,
        "vocabulary": 10000,
        "tokens": 8192,
        "turn": 32000,
    },
    "base": {
        "width": 512,
        "ffn": 2048,
        "layers": 6,
        "heads": 8,
        "vocabulary": 37000,
        "tokens": 2048,
        "turn": 8000,
    },
}
# An accelerator takes the batches of the paper.
ACCELERATOR_TOKENS, ACCELERATOR_TURN = 25000, 10**6
# Steps before anything is measured.
WARM_UP = 2
VALIDATION_PAIRS = 500
PACKAGE = "vaswani_hf, by recipe"
# How many times as fast as a competitor the package should be, and the share of the float32 rate that it should reach.
BARS = {
    "MarianMT, Seq2SeqTrainer": {"tiny": 3.0, "d256": 3.0},
    "MarianMT, group_by_length": {"tiny": 1.6, "d256": 1.6},
    "JoeyNMT": {"tiny": 1.5, "d256": 1.5, "base": 1.5},
    "Marian (C++)": {"tiny": 1.0, "d256": 1.0, "base": 1.0},
}
UTILISATION_BARS = {"base": 0.6}


@dataclass
class Competitor:
    """One row of a table.

    Attributes:
        title (str): Its name.
        words (list): The module and its own arguments.
        python (str, optional): The interpreter that has it.
        missing (str): Why it is not measured, if it is not.
        turns (list): The answers after the turns, the warm-up first.
        validation_loss (float, optional): Nats per token at the end.
    """

    title: str
    words: list[str]
    python: str | None
    missing: str = ""
    turns: list[dict[str, Any]] = field(default_factory=list)
    validation_loss: float | None = None
    process: Any = None
    log: Path = Path()

    def start(self, settings: Path, environment: dict[str, str]) -> None:
        """Starts the process, if there is an interpreter."""
        if self.python is None:
            return
        self.log = settings.parent / f"{self.words[0]}{len(self.words)}.log"
        command = [self.python, "-m", f"training_peers.{self.words[0]}", str(settings), *self.words[1:]]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def answer(self, command: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the process says next; where it has ended, the reason is kept in `missing`."""
        if self.missing or self.process is None:
            return {}
        try:
            if command is not None:
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        self.missing = next(
            (line.strip() for line in reversed(lines) if line.strip()), "it ended without a word"
        )
        return {}

    def end(self) -> None:
        """Ends the process, whatever it does."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def speeds(self) -> list[float]:
        """Source and target tokens per second of each turn after the warm-up."""
        pairs = zip(self.turns, self.turns[1:], strict=False)
        return [(now["tokens"] - before["tokens"]) / now["seconds"] for before, now in pairs]


def competitors(arguments: argparse.Namespace) -> list[Competitor]:
    """Everybody who is measured, this package first."""
    everybody = [
        Competitor(PACKAGE, ["vaswani"], arguments.python),
        Competitor("MarianMT, Seq2SeqTrainer", ["marian_mt"], arguments.python),
        Competitor("MarianMT, group_by_length", ["marian_mt", "grouped"], arguments.python),
        Competitor(
            "JoeyNMT", ["joeynmt"], arguments.joeynmt, "" if arguments.joeynmt else "no --joeynmt PYTHON"
        ),
        Competitor(
            "Marian (C++)",
            ["marian"],
            arguments.pymarian,
            "" if arguments.pymarian else "no --pymarian PYTHON",
        ),
    ]
    if arguments.device != "cpu":
        everybody[-1].python, everybody[-1].missing = None, "its wheel is for processors"
    return everybody


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """The rate at which this machine multiplies matrices now."""
    best, middle = 0.0, 0.0
    for size in (512, 1024, 2048) if device == "cpu" else (4096, 8192):
        if middle > 0.1:
            # A type without hardware takes long, and does not become faster.
            break
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        end, seconds = time.perf_counter() + 0.5, []
        while time.perf_counter() < end:
            start = time.perf_counter()
            left @ right
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        middle = statistics.median(seconds)
        best = max(best, 2 * size**3 / middle)
    return best


def write_texts(arguments: argparse.Namespace, folder: Path) -> None:
    """The texts as plain files, of which the last pairs are the validation set."""
    if arguments.source:
        sides = [read_lines(Path(path)) for path in (arguments.source, arguments.target)]
    else:
        from vaswani_hf.data.toy_corpora import number_pairs

        pairs = number_pairs(arguments.pairs, 1, "train")
        sides = [[pair[side] for pair in pairs] for side in ("source", "target")]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"`--source` and `--target` must have equally many lines, but have {len(sides[0]):,} and {len(sides[1]):,}."
        )
    held_out = min(VALIDATION_PAIRS, len(sides[0]) // 10)
    for side, lines in zip(("source", "target"), sides, strict=True):
        for split, part in (("train", lines[:-held_out]), ("validation", lines[-held_out:])):
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def measure(
    name: str, arguments: argparse.Namespace, folder: Path
) -> tuple[list[Competitor], dict[str, Any]]:
    """The turns of all competitors at one shape."""
    shape = dict(SHAPES[name])
    if arguments.device != "cpu" and name != "toy":
        shape |= {"tokens": ACCELERATOR_TOKENS, "turn": ACCELERATOR_TURN}
    shape |= {key: getattr(arguments, key) for key in ("tokens", "turn") if getattr(arguments, key)}
    settings = {key: getattr(arguments, key) for key in ("device", "dtype", "learning_rate", "warmup_steps")}
    settings |= {"shape": shape, "folder": str(folder), "threads": arguments.threads, "pairs_per_batch": 128}
    path = folder / "settings.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parents[1])]),
        "OMP_NUM_THREADS": str(arguments.threads),
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    subprocess.run(
        [arguments.python, "-m", "training_peers.preparation", str(path)], env=environment, check=True
    )
    everybody = competitors(arguments)
    try:
        for competitor in everybody:
            competitor.start(path, environment)
        rates = take_turns(everybody, shape["turn"], arguments)
    finally:
        for competitor in everybody:
            competitor.end()
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return everybody, facts | {"shape": shape, "rates": rates}


def take_turns(everybody: list[Competitor], tokens: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Lets each train for as many tokens as the others, in turns."""
    rates: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for competitor in everybody:
        # All have begun, and compute nothing any more.
        competitor.answer()
    for competitor in everybody:
        warm_up = competitor.answer({"steps": WARM_UP})
        competitor.turns += [warm_up] if warm_up else []
    # Batches are of different sizes, and from here on all go to the same number of tokens.
    begun = max((competitor.turns[-1]["tokens"] for competitor in everybody if competitor.turns), default=0)
    for turn in range(1, arguments.turns + 1):
        # Machines that others use too are not equally fast all the time.
        for dtype, found in rates.items():
            found.append(matrix_rate(arguments.device, getattr(torch, dtype)))
        for competitor in everybody:
            done = competitor.answer({"tokens": begun + turn * tokens})
            if done:
                competitor.turns.append(done)
                print(
                    f"turn {turn}: {competitor.title:28} {competitor.speeds()[-1]:10,.0f} tokens/s",
                    flush=True,
                )
    for competitor in everybody:
        competitor.validation_loss = competitor.answer({"end": True}).get("validation_loss")
    return {dtype: statistics.median(found) for dtype, found in rates.items()}


def table(name: str, everybody: list[Competitor], facts: dict[str, Any]) -> str:
    """The results of a shape."""
    shape, flops, rates, ours = (
        facts["shape"],
        facts["flops_per_token"],
        facts["rates"],
        everybody[0].speeds(),
    )
    lines = [
        f"## {name}: d {shape['width']}, feed-forward {shape['ffn']}, {shape['layers']}+{shape['layers']} layers, "
        f"{shape['heads']} heads, {shape['vocabulary']:,} classes, {shape['tokens']:,} positions a side",
        "",
        f"{facts['pairs']:,} pairs, {facts['tokens']:,} source and target tokens, {flops / 1e6:,.2f} MFLOP per token; "
        + "products of matrices: "
        + ", ".join(f"{dtype} {rate / 1e9:,.0f} GFLOP/s" for dtype, rate in rates.items()),
        "",
        "| | tokens/s | ours is faster | filled | peak MiB | of float32 rate | of bfloat16 rate | validation loss | after tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for competitor in everybody:
        if competitor.missing or not competitor.speeds():
            lines.append(f"| {competitor.title} | not measured: {competitor.missing} |")
            continue
        speed, last = statistics.median(competitor.speeds()), competitor.turns[-1]
        ratio = median_ratio(ours, competitor.speeds())
        filled = f"{last['tokens'] / last['positions']:.1%}" if last["positions"] else "not said"
        cells = [
            competitor.title,
            f"{speed:,.0f}",
            f"{ratio:.2f}" if ratio else "",
            filled,
            f"{last['memory']:,.0f}",
        ]
        # Without hardware for bfloat16 nobody computes in it.
        shares = {dtype: speed * flops / rate for dtype, rate in rates.items() if rate >= rates["float32"]}
        cells += [
            f"{shares[dtype]:.1%}" if dtype in shares else "no hardware" for dtype in ("float32", "bfloat16")
        ]
        cells += [
            f"{competitor.validation_loss:.3f}" if competitor.validation_loss else "",
            f"{last['tokens']:,}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *reached(name, everybody, flops / rates["float32"])])


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """How many times as fast we are, as a median over the rounds."""
    ratios = [our / their for our, their in zip(ours, theirs, strict=False)]
    return statistics.median(ratios) if ratios else 0.0


def reached(name: str, everybody: list[Competitor], share_of_a_token: float) -> list[str]:
    """The bars of a shape, and what was reached."""
    ours, lines = everybody[0].speeds(), []
    for competitor in everybody[1:]:
        bar, ratio = BARS[competitor.title].get(name), median_ratio(ours, competitor.speeds())
        if bar and ratio:
            verdict = "reached" if ratio >= bar else "missed"
            lines.append(f"- {bar:g} times {competitor.title}: {ratio:.2f}, {verdict}")
    if (bar := UTILISATION_BARS.get(name)) and ours:
        share = statistics.median(ours) * share_of_a_token
        lines.append(
            f"- {bar:.0%} of the float32 rate: {share:.1%}, {'reached' if share >= bar else 'missed'}"
        )
    return lines


def parsed(words: list[str] | None) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--same_batch", action="store_true", help="single steps on one random batch, beside MarianMT"
    )
    parser.add_argument("--source", help="source sentences, one a line, plain or .gz; default: number words")
    parser.add_argument("--target", help="their translations")
    parser.add_argument("--pairs", type=int, default=30000, help="how many number words there are")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny", "d256", "base"])
    parser.add_argument("--turns", type=int, default=4, help="turns of each competitor after the warm-up")
    parser.add_argument("--turn", type=int, help="source and target tokens of a turn; default: by shape")
    parser.add_argument("--tokens", type=int, help="positions of a batch on each side; default: by shape")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter of this package and of MarianMT"
    )
    parser.add_argument("--joeynmt", metavar="PYTHON", help="an interpreter that has JoeyNMT")
    parser.add_argument("--pymarian", metavar="PYTHON", help="an interpreter that has pymarian")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    types = "recipe: the package by what it finds, the others float32 on a processor, bfloat16 on a GPU"
    parser.add_argument("--dtype", choices=["recipe", "float32", "bfloat16"], default="recipe", help=types)
    parser.add_argument(
        "--learning_rate", type=float, default=1e-3, help="the highest of the paper's schedule"
    )
    parser.add_argument("--warmup_steps", type=int, default=100)
    arguments = parser.parse_args(words)
    if bool(arguments.source) != bool(arguments.target):
        parser.error("--source and --target belong together")
    if min(arguments.turns, arguments.threads, arguments.warmup_steps) < 1:
        parser.error("--turns, --threads and --warmup_steps must be positive")
    return arguments


def main(words: list[str] | None = None) -> None:
    """Measures and prints."""
    if "--same_batch" in (sys.argv[1:] if words is None else words):
        from training_peers.same_batch import main as same_batch

        same_batch(words)
        return
    arguments = parsed(words)
    # Whoever ends this process ends the competitors, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    torch.set_num_threads(arguments.threads)
    print(
        torch.cuda.get_device_name() if arguments.device == "cuda" else f"{arguments.threads} threads",
        flush=True,
    )
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory(prefix="benchmark_training_", ignore_cleanup_errors=True) as folder:
            write_texts(arguments, Path(folder))
            results = table(name, *measure(name, arguments, Path(folder)))
            means = Path(folder, "vaswani", "means.json")
            said = f"{PACKAGE}: {json.loads(means.read_text(encoding='utf-8'))}\n" if means.exists() else ""
            print(f"\n{results}\n\n{said}", flush=True)


if __name__ == "__main__":
    main()
