"""Runs Marian (C++) in a separate process, because an error in Marian ends its process.

The Python package `pymarian` must be installed. Marian reads and writes one sentence per line, with spaces
between the tokens.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..model.configuration_vaswani import decoder_start_token_id, eos_token_ids
from .comparison import largest_difference_of_rows, log_probs_of

# The program imports `_pymarian` instead of `pymarian`, because `_pymarian` needs no other library.
_PROGRAM = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"
# The lengths, in tokens, of the random sentences for the comparison of Marian with a model of this package.
_SAMPLE_LENGTHS = (10, 7, 1)


def run_marian(command: str, words: list[str], text: str = "") -> list[str]:
    """Run a command of Marian, such as "decode", and return the lines of the output. Raise a RuntimeError if
    the command fails.
    """
    words = [command, *words, "--cpu-threads", str(torch.get_num_threads()), "--quiet"]
    # Limit OpenMP and MKL to one thread each, because Marian starts its own threads (`--cpu-threads`).
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"The command `marian {command}` failed with the exit code {done.returncode}: "
            f"{done.stderr[-1000:]}"
        )
    return done.stdout.removesuffix("\n").split("\n")


def lines_of(rows: list[list[int]], names: list[str]) -> str:
    """Return one line of text for each row of token ids, without the end token, because Marian adds the end
    token.
    """
    return "".join(" ".join(names[number] for number in row[:-1]) + "\n" for row in rows)


def marian_log_probs(
    model_file: Path,
    source_ids: list[list[int]],
    target_ids: list[list[int]],
    sizes: tuple[int, int],
    num_positions: int | None = None,
) -> list[list[float]]:
    """Return the log-probability (nats) of each target token. `source_ids` and `target_ids` end with the end
    token. `sizes` are the source and the target vocabulary size. `num_positions` is necessary if the model
    has learned positions and the file does not contain their number.
    """
    longest = num_positions or max(len(row) for row in (*source_ids, *target_ids))
    words = ["--model", str(model_file), "--max-length", str(longest), "--word-scores"]
    # Use batches of one sentence, because in larger batches, Marian 1.12.42 gives some sentences the scores
    # of other sentences.
    words += ["--mini-batch", "1", "--maxi-batch", "1"]
    with TemporaryDirectory() as folder:
        vocabularies, texts = [], []
        for side, rows, size in zip(("source", "target"), (source_ids, target_ids), sizes, strict=True):
            # Replace each token by a name such as "t0", because tokens can contain spaces, and Marian splits
            # lines at spaces.
            names = [f"t{number}" for number in range(size)]
            end = rows[0][-1]
            ids = {"</s>": end, "<unk>": end, **{name: number for number, name in enumerate(names)}}
            vocabulary, text = Path(folder) / f"{side}.yml", Path(folder) / side
            vocabulary.write_text(json.dumps(ids), encoding="utf-8")
            text.write_text(lines_of(rows, names), encoding="utf-8")
            vocabularies.append(str(vocabulary))
            texts.append(str(text))
        output = run_marian("score", [*words, "--vocabs", *vocabularies, "--train-sets", *texts])
    return [[float(word) for word in line.split("WordScores=")[1].split()] for line in output]


def marian_difference(
    model_file: Path, model: Any, sizes: tuple[int, int], source_end: int, num_positions: int | None = None
) -> float:
    """Return the largest difference (nats) between log-probabilities of Marian and of `model` on random
    sentences. `source_end` is the id of the source end token.
    """
    (end,) = eos_token_ids(model.config)
    generator = torch.Generator().manual_seed(0)
    sources, targets = (
        [[*torch.randint(size, (n,), generator=generator).tolist(), last] for n in _SAMPLE_LENGTHS]
        for size, last in zip(sizes, (source_end, end), strict=True)
    )
    log_probs = marian_log_probs(model_file, sources, targets, sizes, num_positions)
    expected = log_probs_of(model, sources, targets, decoder_start_token_id(model.config))
    return largest_difference_of_rows(log_probs, expected)
