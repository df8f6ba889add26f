"""Functions that change a run, read the folder of a run, or damage its files."""

import json
import os
import random

import torch
from safetensors.torch import load_file

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.training.trainer import VaswaniTrainer


def weights(folder):
    """The weights in a folder."""
    return load_file(folder / "model.safetensors")


def same(left, right):
    """True if two models are bitwise equal."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def metrics(folder):
    """The rows of a run's log."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def eval_steps(folder, key="eval_loss"):
    """The steps whose rows in the log have this key."""
    return [row["step"] for row in metrics(folder) if key in row]


def results(folder):
    """The results of a run; NaN and infinity are errors because JSON has none."""
    return json.loads((folder / "results.json").read_text(), parse_constant=_refuse)


def _refuse(constant):
    raise AssertionError(f"results.json contains {constant}.")


def names(folder):
    """The names of the numbered checkpoints."""
    return [path.name for path in checkpoints_in(folder)]


def contents(folder):
    """The bytes of the files directly in a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def unfinished(folder):
    """Change the folder of a finished run as if the run had been killed between its last checkpoint and its
    results.
    """
    for name in ("manifest.json", "results.json", "model.safetensors"):
        (folder / name).unlink()
    return folder


def call_before(step, function, method="training_step", set_attribute=setattr):
    """Call a function once with the trainer, before a method is called at this global step."""
    original, called = getattr(VaswaniTrainer, method), []

    def changed(self, *args, **kwargs):
        if self.state.global_step == step and not called:
            called.append(True)
            function(self)
        return original(self, *args, **kwargs)

    set_attribute(VaswaniTrainer, method, changed)


def write_pairs(path, pairs, source="en", target="de"):
    """Write pairs of the corpus of numbers as JSON lines."""
    rows = [{source: pair["source"], target: pair["target"]} for pair in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _flip(path):
    content = bytearray(path.read_bytes())
    place = random.Random(path.name).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def _replace_by_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "a folder": _replace_by_folder,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": _flip,
    "unreadable": lambda path: (path.unlink(), path.symlink_to(path.name)),
}
