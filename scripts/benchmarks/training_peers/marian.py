"""Trains Marian (C++) for the benchmark training.py. The trainer of `pymarian` runs in a process that is
paused while other toolkits train.

Run this file with a Python interpreter in which pymarian is installed. PyTorch need not be installed. Marian
prints the number of target tokens after each update. Marian does not report padding, so the benchmark prints
"not reported" for the share of positions that are tokens.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pymarian  # noqa: F401

from training_peers.turns import NoMoreTurnsError, PeerSettings, Turns, read_settings, resident

# The pattern matches the total number of target tokens, which follows the word "after" in a line of Marian's
# log.
_UPDATE = re.compile(r" : Up\. .* after ([\d,]+) :")


def model_options(settings: PeerSettings) -> list[str]:
    """Return the options that training and scoring share."""
    folder = Path(settings.folder)
    vocabulary = str(folder / "vocabulary.marian")
    files = ["--model", str(folder / "marian.npz"), "--vocabs", vocabulary, vocabulary]
    return [*files, "--cpu-threads", str(settings.threads), "--max-length", "1000"]


def training_options(settings: PeerSettings) -> list[str]:
    """Return the options of the training."""
    folder = Path(settings.folder)
    shape = settings.shape
    warmup = settings.warmup_steps
    options = f"""
        --type transformer --dim-emb {shape.width} --transformer-dim-ffn {shape.ffn}
        --enc-depth {shape.layers} --dec-depth {shape.layers} --transformer-heads {shape.heads}
        --transformer-postprocess-emb d --transformer-postprocess dan
        --transformer-ffn-activation relu --transformer-dropout 0.1 --tied-embeddings-all --label-smoothing 0.1
        --optimizer adam --optimizer-params 0.9 0.98 1e-09 --clip-norm 0 --cost-type ce-sum
        --learn-rate {settings.learning_rate} --lr-warmup {warmup} --lr-decay-inv-sqrt {warmup}
        --mini-batch-words {shape.tokens} --mini-batch 1000 --maxi-batch 1000 --maxi-batch-sort trg --shuffle-in-ram
        --workspace 1000 --disp-freq 1u --disp-label-counts true --save-freq 1000000u --seed 1 --overwrite
    """.split()
    sets = [str(folder / f"train.pieces.{side}") for side in ("source", "target")]
    return [*model_options(settings), *options, "--train-sets", *sets]


def updates(process: subprocess.Popen) -> Iterator[int]:
    """Yield the total number of target tokens after each update."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", file=sys.stderr, flush=True)
        if found := _UPDATE.search(line):
            yield int(found[1].replace(",", ""))
        elif " : Up. " in line:
            break
    raise RuntimeError("Marian ended too early, or the log of Marian contains no number of tokens.")


def train(turns: Turns, training: subprocess.Popen, per_target_token: float) -> None:
    """Continue the paused training for one turn at a time, until the benchmark ends the training
    (`NoMoreTurnsError`).

    Marian reports only target tokens. `per_target_token` is the factor from target tokens to source and
    target tokens: the number of source and target tokens of the corpus divided by its number of target
    tokens.
    """
    before = resident("VmRSS")
    done = updates(training)
    turns.ready()
    while True:
        command = turns.next_command()
        steps = turns.steps + command.get("steps", 0)
        tokens = command.get("tokens", 0)
        began = time.perf_counter()
        training.send_signal(signal.SIGCONT)
        while turns.steps < steps or turns.tokens < tokens:
            turns.tokens = next(done) * per_target_token
            turns.steps += 1
        seconds = time.perf_counter() - began
        training.send_signal(signal.SIGSTOP)
        turns.turn_ended(seconds, resident("VmHWM", training.pid) - before)


def validation_loss(settings: PeerSettings) -> float:
    """Return the cross-entropy of the validation set in nats per token, without label smoothing."""
    sets = [str(Path(settings.folder) / f"validation.pieces.{side}") for side in ("source", "target")]
    words = [*model_options(settings), "--train-sets", *sets, "--summary", "ce-mean-words", "--quiet"]
    code = "import _pymarian, json, sys; _pymarian.main(['score', *json.loads(sys.argv[1])])"
    command = [sys.executable, "-c", code, json.dumps(words)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


def start_training(settings: PeerSettings) -> subprocess.Popen:
    """Start the training in a new process, and pause the process."""
    code = "import json, pymarian, sys; pymarian.Trainer(' '.join(json.loads(sys.argv[1]))).train()"
    command = [sys.executable, "-c", code, json.dumps(training_options(settings))]
    # Limit OpenMP and MKL to one thread, so that Marian uses only the threads that the option `--cpu-threads`
    # of Marian asks for.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    training = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    training.send_signal(signal.SIGSTOP)
    return training


def main() -> None:
    """Train in turns."""
    settings = read_settings()
    turns = Turns()
    # Raise an exception after a SIGTERM, so that the `finally` block ends Marian.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    facts = json.loads((Path(settings.folder) / "facts.json").read_text(encoding="utf-8"))
    training = start_training(settings)
    try:
        train(turns, training, facts["tokens_per_target_token"])
    except NoMoreTurnsError:
        # Send SIGTERM to end the training, because Marian saves the model after a SIGTERM.
        training.send_signal(signal.SIGTERM)
        training.send_signal(signal.SIGCONT)
        training.communicate()
        turns.finish(validation_loss(settings))
    finally:
        training.kill()


if __name__ == "__main__":
    main()
