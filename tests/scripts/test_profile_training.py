"""The shares of a training step add up to it."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmarks" / "profile_training.py"


def test_shares_add_up_to_the_step(monkeypatch, capsys):
    small = "--width 32 --ffn 64 --heads 2 --layers 1 --vocabulary 2000 --tokens 512 --repetitions 2".split()
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *small])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = {line[:22].strip(): float(line.split()[-3]) for line in capsys.readouterr().out.splitlines()}
    whole = rows.pop("whole step")
    assert sum(rows.values()) == pytest.approx(whole, rel=0.02, abs=3e-4)
    assert rows["products of matrices"] > 0
    assert rows["softmax of the loss"] > 0
    assert rows["dropout's masks"] > 0
