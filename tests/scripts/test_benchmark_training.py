"""The benchmark of training: all who take part take turns, train on equally many tokens, and stand in one table."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peer(monkeypatch):
    """A function from the name of a competitor's file to its module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benchmarks"))

    def load(name):
        return __import__(f"training_peers.{name}", fromlist=[name])

    return load


def cells(line):
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def test_it_lets_them_take_turns_and_prints_a_table(python, tmp_path):
    words = "--shapes toy --pairs 1000 --turns 2 --turn 4000 --threads 1 --dtype float32 --python".split()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    command = [
        python,
        str(ROOT / "scripts" / "benchmarks" / "training.py"),
        *words,
        python,
        "--pymarian",
        str(broken),
    ]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    rows = {cells(line)[0]: cells(line)[1:] for line in done.stdout.splitlines() if line.startswith("| ")}
    assert rows.pop("JoeyNMT") == ["not measured: no --joeynmt PYTHON"]
    assert rows.pop("Marian (C++)") == ["not measured: no such module"]
    header = rows.pop("")
    assert list(rows) == ["vaswani_hf, by recipe", "MarianMT, Seq2SeqTrainer", "MarianMT, group_by_length"]
    table = [dict(zip(header, row, strict=True)) for row in rows.values()]
    for row in table:
        assert float(row["tokens/s"].replace(",", "")) > 0
        assert 0.2 < float(row["filled"].rstrip("%")) / 100 <= 1
        assert 0 < float(row["peak MiB"].replace(",", "")) < 2000
        assert 0 < float(row["of float32 rate"].rstrip("%")) < 100
        # A model that knows nothing of 300 classes has 5.7.
        assert 3 < float(row["validation loss"]) < 8
    seen = [int(row["after tokens"].replace(",", "")) for row in table]
    # The batches of 128 pairs have up to 4,000 tokens, and turns end with batches.
    assert max(seen) - min(seen) < 4500
    assert table[0]["ours is faster"] == "1.00"
    # Each in its turn, in the same order.
    turns = re.findall(r"^turn (\d): (.*?) {2,}", done.stdout, re.MULTILINE)
    assert turns == [(turn, name) for turn in "12" for name in rows]
    assert list(tmp_path.iterdir()) == [broken]


def test_a_competitor_waits_between_its_turns_and_counts_its_own_batches(tmp_path):
    code = """
import sys
from training_peers.turns import NoMoreTurnsError, Turns
turns = Turns()
print("what a library prints")
try:
    turns.start()
    for step in range(1000):
        turns.count(10, 16)
        turns.step_ended()
except NoMoreTurnsError:
    turns.finish(1.5)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts" / "benchmarks")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )

    def answer(command=None):
        if command:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        return json.loads(process.stdout.readline())

    assert answer() == {"ready": True}
    done = [answer(command) for command in ({"steps": 3}, {"tokens": 70}, {"tokens": 72}, {"tokens": 96})]
    # At least one step, else as many as come nearest.
    assert [turn["steps"] for turn in done] == [3, 7, 8, 10]
    assert [turn["tokens"] for turn in done] == [30, 70, 80, 100]
    assert done[-1]["positions"] == 160 and all(turn["seconds"] > 0 for turn in done)
    assert answer({"end": True}) == {"validation_loss": 1.5}
    assert process.wait(20) == 0


def test_the_flops_are_those_that_pytorch_counts(peer):
    shape = {"width": 16, "ffn": 24, "layers": 2, "heads": 2, "vocabulary": 50}
    tokenizer = SimpleNamespace(pad_token_id=1, eos_token_id=2, bos_token_id=0)
    model = peer("marian_mt").marian(shape, tokenizer)
    model.set_attn_implementation("eager")
    # With one target position there is nothing that a causal mask hides, and that is multiplied all the same.
    inputs = {
        "input_ids": torch.arange(4, 11)[None],
        "decoder_input_ids": torch.zeros(1, 1, dtype=torch.int64),
    }
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs, use_cache=False)
    flops = peer("preparation").training_flops(shape, np.array([7]), np.array([1]))
    assert flops == 3 * counter.get_total_flops()


def test_bars_are_judged_by_the_median_of_the_rounds(script):
    benchmark = script("training")

    def competitor(title, *speeds):
        turns = [{"tokens": 0, "seconds": 1.0}]
        for speed in speeds:
            turns.append({"tokens": turns[-1]["tokens"] + speed, "seconds": 1.0})
        return benchmark.Competitor(title, [], None, turns=turns)

    ours = competitor("vaswani_hf, by recipe", 30, 60, 90)
    others = [
        competitor("MarianMT, Seq2SeqTrainer", 10, 10, 100),
        competitor("MarianMT, group_by_length", 20, 50, 90),
    ]
    assert benchmark.median_ratio(ours.speeds(), others[0].speeds()) == 3.0
    assert benchmark.reached("tiny", [ours, *others], 0.01) == [
        "- 3 times MarianMT, Seq2SeqTrainer: 3.00, reached",
        "- 1.6 times MarianMT, group_by_length: 1.20, missed",
    ]
    assert benchmark.reached("base", [ours], 0.01) == ["- 60% of the float32 rate: 60.0%, reached"]


def test_texts_of_unequal_lengths_are_refused(script, tmp_path):
    (tmp_path / "source").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "target").write_text("eins\n", encoding="utf-8")
    files = SimpleNamespace(source=str(tmp_path / "source"), target=str(tmp_path / "target"))
    with pytest.raises(ValueError, match="must have equally many lines, but have 2 and 1"):
        script("training").write_texts(files, tmp_path)


def test_the_step_on_the_same_batch_is_still_measured(script, peer, capsys, monkeypatch):
    benchmark, same_batch = script("training"), peer("same_batch")

    def in_this_process(command, **kwargs):
        # A fresh process takes its time to import, and this one has the memory already.
        before = capsys.readouterr().out
        benchmark.main(command[2:])
        assert float(capsys.readouterr().out) >= 0
        sys.stdout.write(before)
        return SimpleNamespace(stdout=f"{100 + 50 * command[-1].startswith('marian')}")

    monkeypatch.setattr(same_batch.subprocess, "run", in_this_process)
    shape = "--width 16 --ffn 16 --heads 2 --layers 1 --vocabulary 100 --tokens 64 --repetitions 2".split()
    benchmark.main(["--same_batch", *shape])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["vaswani", "marian", "marian/vaswani:"]
    assert lines[-1].endswith("memory 1.50")
