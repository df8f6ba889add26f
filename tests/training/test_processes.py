"""Runs of several processes on one machine."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from in_two_processes import fail_in_first, fail_in_second, in_two_processes, validate, wait_for_the_first
from tiny_runs import metrics, names, same, torchrun, weights

from vaswani_hf.patches import accept_numbered_cpus
from vaswani_hf.training import batches


def test_validation_works_in_a_group_without_the_cpu(python, finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    first, second = in_two_processes(python, validate, folder, backend="cuda:gloo")
    assert first == second
    assert first == pytest.approx(validate(0, folder), rel=1e-5)


def test_processes_wait_for_the_first_and_end_where_one_fails(python, tmp_path):
    folders = [tmp_path / name for name in ("wait", "first", "second")]
    for folder in folders:
        folder.mkdir()
    answers = in_two_processes(python, wait_for_the_first, folders[0], backend="gloo")
    assert answers == [[0, "prepared0"], [0, "prepared1"]]
    # One process prints the error, and the other process ends without a message.
    assert in_two_processes(python, fail_in_first, folders[1], backend="gloo") == ["The corpus is empty.", 1]
    assert in_two_processes(python, fail_in_second, folders[2], backend="gloo") == [
        1,
        "No space left on device",
    ]


STOPPED = """
import os, signal, sys
from vaswani_hf.cli import main
from vaswani_hf.training.trainer import VaswaniTrainer
import vaswani_hf.data.toy_corpora
import vaswani_hf.training.batches

vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT = 20
vaswani_hf.training.batches.MAX_PART_SIZE = 300 * 16
step = VaswaniTrainer.training_step

def interrupted(self, *args, **kwargs):
    if self.state.global_step == 4 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, *args, **kwargs)

VaswaniTrainer.training_step = interrupted
sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_and_one_process_goes_on(python, run, tmp_path, monkeypatch):
    """A step of two batches gives equal results with two processes and with one process that accumulates."""
    monkeypatch.setattr(batches, "MAX_PART_SIZE", 300 * 16)
    before = signal.getsignal(signal.SIGTERM)
    # Use a large epsilon, because Adam would amplify rounding errors of gradients near 0.
    exact = "--model.dropout=0.3 --label_smoothing=0 --learning_rate_factor=0.02 --adam_epsilon=1e-4"
    whole = run("whole", exact)
    (tmp_path / "stopped.py").write_text(STOPPED)
    words = [run.recipe, f"--output_dir={tmp_path / 'part'}", "--gradient_accumulation_steps=1"]
    outcome = torchrun(python, tmp_path / "stopped.py", *words, *exact.split())
    assert names(tmp_path / "part") == ["checkpoint-4", "checkpoint-5"]
    assert outcome.stderr.count("Interrupted after step 5, which is saved in") == 1
    assert json.loads((tmp_path / "part" / "checkpoint-5" / "manifest.json").read_text())["processes"] == 2
    sentence = "is 1 with 1 process, so a step has 1 batches, .* has 2 batches in a step; set the key to 2."
    with pytest.raises(ValueError, match=sentence):
        run("part", exact, "--gradient_accumulation_steps=1 --resume=true")
    part = run("part", exact, "--resume=true")
    counts = [{row["step"]: row["target_tokens"] for row in metrics(folder)} for folder in (whole, part)]
    assert counts[0].items() <= counts[1].items()
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(part)[name], tensor, rtol=0, atol=1e-5)
    assert not same(weights(whole), weights(whole / "checkpoint-4"))
    # The first process prints the message after the second process has forwarded the signal.
    assert outcome.stdout.count("SIGTERM: saving a checkpoint") == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_several_processes_on_a_cpu_can_load_the_state_of_the_optimizer(tmp_path):
    torch.save({"step": torch.ones(2)}, tmp_path / "optimizer.pt")
    accept_numbered_cpus()
    # A second call must not fail.
    accept_numbered_cpus()
    loaded = torch.load(tmp_path / "optimizer.pt", map_location=torch.device("cpu:0"), weights_only=True)
    assert torch.equal(loaded["step"], torch.ones(2))
