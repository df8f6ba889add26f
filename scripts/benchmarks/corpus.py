"""Measures the seconds and the peak memory of each phase of a training run on a corpus of the paper's size.

    python scripts/benchmarks/corpus.py FOLDER [--pairs 4500000] [--num_proc 2]

The script generates the sentence pairs from artificial words. The frequencies of the words follow Zipf's law,
and the mean sentence length is the mean length of the sentences of WMT 2014 (about 25 words). The script
measures three runs of `vaswani train`: a first run, a second run that reuses the encoded corpus of the first
run, and a run that resumes the first run. The model is tiny, so that reading and encoding the data takes most
of the measured time.

Twice a second, the script adds up the memory of all processes of the run, from /proc/PID/smaps_rollup. The
sum of Rss counts a page once for each process that shares the page. The sum of Pss counts shared pages only
once. Pss_Anon is the part of Pss that does not belong to files.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from timing import print_header

RECIPE = """
data: {{source_language: en, target_language: de, train_source: {folder}/train.source, train_target: {folder}/train.target,
  validation_source: {folder}/validation.source, validation_target: {folder}/validation.target}}
output_dir: {folder}/first
tokenizer: {{vocab_size: 37000}}
model: {{d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2,
  encoder_ffn_dim: 16, decoder_ffn_dim: 16}}
training: {{source_tokens_per_batch: {budget}, target_tokens_per_batch: {budget}, max_steps: 20, logging_steps: 10,
  eval_steps: 1000, save_steps: 10}}
"""
# WMT 2014 English-German has about 4.5 million pairs. A sentence has about 25 words on average, and most
# sentences have 5 to 60 words.
MEAN_LENGTH = 25
# Use Zipf's law with the two exponents that Gerlach and Altmann 2013 (Section III) measured for large corpora
# of written language.
NUM_WORDS = 1_500_000
NUM_COMMON_WORDS, EXPONENT_BEYOND = 7873, 1.77
GENERATED_AT_ONCE = 20_000
SECONDS_BETWEEN_SAMPLES = 0.5


def words_of_language(syllables: list[str]) -> np.ndarray:
    """Return `NUM_WORDS` artificial words of a language, in order of decreasing frequency. The word with the
    index n is the number n + 1, written with syllables instead of digits.
    """
    words = []
    base = len(syllables)
    for number in range(1, NUM_WORDS + 1):
        word = ""
        while number:
            number, digit = divmod(number, base)
            word = syllables[digit] + word
        words.append(word)
    return np.array(words, dtype=object)


def generate(folder: Path, name: str, count: int, seed: int) -> None:
    """Write `count` sentence pairs to NAME.source and NAME.target, unless the files exist."""
    if (folder / f"{name}.target").exists():
        return
    rng = np.random.default_rng(seed)
    source_words = words_of_language([a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "ai")])
    target_words = words_of_language([a + b + c for a in "bdgklmnrst" for b in "aeioüä" for c in ("", "n")])
    ranks_of_words = np.arange(1, NUM_WORDS + 1)
    shares = 1 / np.minimum(ranks_of_words, NUM_COMMON_WORDS)
    shares *= (np.maximum(ranks_of_words, NUM_COMMON_WORDS) / NUM_COMMON_WORDS) ** -EXPONENT_BEYOND
    limits = np.cumsum(shares) / shares.sum()
    unfinished = folder / f"{name}.unfinished"
    with (
        open(folder / f"{name}.source", "w", encoding="utf-8") as source_file,
        open(unfinished, "w", encoding="utf-8") as target_file,
    ):
        for start in range(0, count, GENERATED_AT_ONCE):
            sizes = np.clip(
                rng.gamma(3, MEAN_LENGTH / 3, min(GENERATED_AT_ONCE, count - start)), 1, 150
            ).astype(int)
            ends = np.cumsum(sizes)
            ranks = np.searchsorted(limits, rng.random(ends[-1]))
            # Make each translation zero to three words shorter than the source sentence, but at least one
            # word long.
            kept = np.maximum(1, sizes - rng.integers(0, 4, len(sizes)))
            sources = source_words[ranks].tolist()
            targets = target_words[ranks].tolist()
            for end, size, length in zip(ends.tolist(), sizes.tolist(), kept.tolist(), strict=True):
                source_file.write(" ".join(sources[end - size : end]) + ".\n")
                target_file.write(" ".join(targets[end - size : end - size + length]) + ".\n")
    unfinished.rename(folder / f"{name}.target")


def record(function: Any, phase: str, places: list[Any]) -> None:
    """In each module or class of `places`, replace the function with the name `function` by a wrapper. The
    wrapper prints the start time and the end time of each call to stderr as JSON.
    """
    before = getattr(places[0], function)

    @functools.wraps(before)
    def timed(*args, **kwargs):
        start = time.monotonic()
        try:
            return before(*args, **kwargs)
        finally:
            print(
                json.dumps({"phase": phase, "start": start, "end": time.monotonic()}),
                file=sys.stderr,
                flush=True,
            )

    for place in places:
        setattr(place, function, timed)


def run_recorded(arguments: list[str]) -> int:
    """Run `vaswani train` in this process, and print the times of its phases to stderr."""
    main_began = time.monotonic()
    from vaswani_hf.cli import main
    from vaswani_hf.data import corpus
    from vaswani_hf.tasks import base
    from vaswani_hf.training import batches, trainer

    print(json.dumps({"phase": "imports", "start": main_began, "end": time.monotonic()}), file=sys.stderr)
    record("load_splits", "read", [base.Task])
    record("write_tokenizers", "train the tokenizer", [base])
    record("prepare_pairs", "tokenise", [corpus])
    record("cached_digest", "digest", [corpus])
    record("__init__", "pack", [batches.TokenBudgetSampler])
    record("get_batch_samples", "batch", [trainer.VaswaniTrainer])
    record("training_step", "step", [trainer.VaswaniTrainer])
    return main(["train", *arguments])


def resident(pid: int) -> np.ndarray:
    """Return Rss, Pss and Pss_Anon [3] in kB, each summed over a process and all its descendant processes."""
    sizes = np.zeros(3)
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        sizes += [kilobytes[name] for name in ("Rss", "Pss", "Pss_Anon")]
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                sizes += resident(int(child))
    except (OSError, ValueError):
        # Ignore the error, because a process may end while the script reads its files in /proc.
        pass
    return sizes


def watch(
    command: list[str], environment: dict[str, str], log: Path
) -> tuple[list[dict], list[tuple], float]:
    """Start a training run, and wait until the run ends. Return the phases of the run, tuples (time, Rss,
    Pss, Pss_Anon) with the memory of the run, and the start time of the run.
    """
    began = time.monotonic()
    samples = []
    with open(log, "w+", encoding="utf-8") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        while process.poll() is None:
            samples.append((time.monotonic(), *resident(process.pid).tolist()))
            time.sleep(SECONDS_BETWEEN_SAMPLES)
        file.seek(0)
        lines = file.read().splitlines()
    if process.returncode:
        sys.exit("\n".join(lines[-20:]))
    return [json.loads(line) for line in lines if line.startswith('{"phase"')], samples, began


def table(name: str, phases: list[dict], samples: list[tuple], began: float) -> list[str]:
    """Return the rows of the Markdown table of results that describe one run."""
    first_step = next(phase["end"] for phase in phases if phase["phase"] == "step")
    imports = next(phase["end"] for phase in phases if phase["phase"] == "imports")
    spans: dict[str, list[tuple[float, float]]] = {}
    for phase in phases:
        spans.setdefault(phase["phase"], []).append((phase["start"], phase["end"]))
    steps = spans.pop("step")
    spans["first batch"] = spans.pop("batch")[:1]
    spans[f"{len(steps)} steps"] = [(steps[0][0], steps[-1][1])]
    spans["from the start to the end of the first step"] = [(began, first_step)]
    spans["from the end of the imports to the end of the first step"] = [(imports, first_step)]
    spans["whole run"] = [(began, samples[-1][0])]
    rows = []
    for label, times in spans.items():
        inside = [
            sample[1:]
            for sample in samples
            if any(start <= sample[0] <= end + SECONDS_BETWEEN_SAMPLES for start, end in times)
        ]
        memory = [f"{max(sizes) / 2**20:.2f}" for sizes in zip(*inside, strict=True)] or ["", "", ""]
        seconds = sum(end - start for start, end in times)
        rows.append(f"| {name} | {label} | {seconds:.1f} | {' | '.join(memory)} |")
    return rows


def main() -> None:
    """Generate the corpus, measure the three runs, and print a table."""
    if sys.argv[1:2] == ["--recorded"]:
        sys.exit(run_recorded(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", type=Path, help="the folder of the corpus, the runs and the cache of `datasets`"
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=4_500_000,
        help="number of sentence pairs in the corpus; default: 4,500,000",
    )
    parser.add_argument(
        "--num_proc",
        type=int,
        default=2,
        help="number of processes that encode the sentence pairs; default: 2",
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=1024,
        help="maximum number of source tokens and of target tokens in a batch; default: 1,024",
    )
    arguments = parser.parse_args()
    # Use a separate folder for each size, because `generate` keeps a corpus that exists.
    folder = arguments.folder.resolve() / str(arguments.pairs)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("first", "second", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    print_header()
    start = time.monotonic()
    generate(folder, "train", arguments.pairs, seed=1)
    generate(folder, "validation", 100, seed=2)
    print(f"{arguments.pairs:,} pairs, generated in {time.monotonic() - start:.0f} s\n", flush=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=folder, budget=arguments.budget), encoding="utf-8")
    command = [sys.executable, os.path.abspath(__file__), "--recorded", str(recipe)]
    command += ["--num_proc", str(arguments.num_proc)]
    environment = os.environ | {"HF_DATASETS_CACHE": str(folder / "cache")}
    print("| run | phase | seconds | Rss, GiB | Pss | Pss_Anon |\n|---|---|---|---|---|---|", flush=True)
    for name, more in (
        ("first", []),
        ("prepared corpus", ["--output_dir", str(folder / "second"), "--seed", "2"]),
        ("resumed", ["--resume", "true", "--max_steps", "30"]),
    ):
        rows = table(name, *watch([*command, *more], environment, folder / f"{name.split()[0]}.log"))
        print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
