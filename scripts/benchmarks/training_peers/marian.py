"""Marian (C++) as a competitor: the trainer of `pymarian`, a process that is stopped while it is not its turn.

Run by an interpreter that has pymarian, which need not have PyTorch. Marian says what it has trained on after each update,
from which the tokens are known; it does not say how much padding there was.
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
from types import SimpleNamespace

import pymarian  # noqa: F401

from training_peers.turns import NoMoreTurnsError, Turns, read_settings, resident

# "Ep. 1 : Up. 5 : Sen. 160 : Cost 4.1 * 1,664 @ 352 after 1,664 : Time …": target tokens so far.
_UPDATE = re.compile(r" : Up\. .* after ([\d,]+) :")


def model_options(settings: SimpleNamespace) -> list[str]:
    """What training and scoring are both told."""
    folder = Path(settings.folder)
    vocabulary = str(folder / "vocabulary.marian")
    files = ["--model", str(folder / "marian.npz"), "--vocabs", vocabulary, vocabulary]
    return [*files, "--cpu-threads", str(settings.threads), "--max-length", "1000"]


def training_options(settings: SimpleNamespace) -> list[str]:
    """The command line of the training."""
    folder, shape, warmup = Path(settings.folder), settings.shape, settings.warmup_steps
    options = f"""
        --type transformer --dim-emb {shape["width"]} --transformer-dim-ffn {shape["ffn"]}
        --enc-depth {shape["layers"]} --dec-depth {shape["layers"]} --transformer-heads {shape["heads"]}
        --transformer-postprocess-emb d --transformer-postprocess dan
        --transformer-ffn-activation relu --transformer-dropout 0.1 --tied-embeddings-all --label-smoothing 0.1
        --optimizer adam --optimizer-params 0.9 0.98 1e-09 --clip-norm 0 --cost-type ce-sum
        --learn-rate {settings.learning_rate} --lr-warmup {warmup} --lr-decay-inv-sqrt {warmup}
        --mini-batch-words {shape["tokens"]} --mini-batch 1000 --maxi-batch 1000 --maxi-batch-sort trg --shuffle-in-ram
        --workspace 1000 --disp-freq 1u --disp-label-counts true --save-freq 1000000u --seed 1 --overwrite
    """.split()
    sets = [str(folder / f"train.pieces.{side}") for side in ("source", "target")]
    return [*model_options(settings), *options, "--train-sets", *sets]


def updates(process: subprocess.Popen) -> Iterator[int]:
    """The target tokens so far, after each update."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", file=sys.stderr, flush=True)
        if found := _UPDATE.search(line):
            yield int(found[1].replace(",", ""))
        elif " : Up. " in line:
            break
    raise RuntimeError("Marian ended before its time, or does not say after how many tokens it is.")


def train(turns: Turns, training: subprocess.Popen, per_target_token: float) -> None:
    """Lets the training go on in turns.

    Args:
        turns (Turns): The turns.
        training (Popen): The process, stopped.
        per_target_token (float): Source and target tokens of the corpus for each target token.

    Raises:
        NoMoreTurnsError: After the last turn.
    """
    before, done = resident("VmRSS"), updates(training)
    turns.ready()
    while True:
        command = turns.next_command()
        steps, tokens = turns.steps + command.get("steps", 0), command.get("tokens", 0)
        began = time.perf_counter()
        training.send_signal(signal.SIGCONT)
        while turns.steps < steps or turns.tokens < tokens:
            turns.tokens = next(done) * per_target_token
            turns.steps += 1
        seconds = time.perf_counter() - began
        training.send_signal(signal.SIGSTOP)
        turns.turn_ended(seconds, resident("VmHWM", training.pid) - before)


def validation_loss(settings: SimpleNamespace) -> float:
    """The nats per token of the validation set, not smoothed."""
    sets = [str(Path(settings.folder) / f"validation.pieces.{side}") for side in ("source", "target")]
    words = [*model_options(settings), "--train-sets", *sets, "--summary", "ce-mean-words", "--quiet"]
    code = "import _pymarian, json, sys; _pymarian.main(['score', *json.loads(sys.argv[1])])"
    command = [sys.executable, "-c", code, json.dumps(words)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


def start_training(settings: SimpleNamespace) -> subprocess.Popen:
    """The training in a process of its own."""
    code = "import json, pymarian, sys; pymarian.Trainer(' '.join(json.loads(sys.argv[1]))).train()"
    command = [sys.executable, "-c", code, json.dumps(training_options(settings))]
    # Its threads are those of the option.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    training = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    training.send_signal(signal.SIGSTOP)
    return training


def main() -> None:
    """Takes turns."""
    settings, turns = read_settings(), Turns()
    # Whoever ends this process ends Marian, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    facts = json.loads((Path(settings.folder) / "facts.json").read_text(encoding="utf-8"))
    training = start_training(settings)
    try:
        train(turns, training, facts["tokens_per_target_token"])
    except NoMoreTurnsError:
        # It saves the model at this signal.
        training.send_signal(signal.SIGTERM)
        training.send_signal(signal.SIGCONT)
        training.communicate()
        turns.finish(validation_loss(settings))
    finally:
        training.kill()


if __name__ == "__main__":
    main()
