"""The number of threads of a command beside other programs, and how the threads wait."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from vaswani_hf import cli
from vaswani_hf.cli import threads
from vaswani_hf.cli.threads import (
    ProcessorTimes,
    free_cores,
    leaving_busy_cores,
    limit_spinning,
    processor_times,
)

ROOT = Path(__file__).parents[2]
STAT = Path("/proc/stat")


@pytest.mark.parametrize("chosen", [{"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "active"}])
def test_a_user_chooses_how_threads_wait(chosen):
    environment = dict(chosen)
    limit_spinning(environment)
    assert environment == chosen


def test_waiting_threads_sleep_soon():
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run(
        [sys.executable, "-m", "vaswani_hf", "env"],
        # GNU's OpenMP library prints the values that it uses when torch loads the library.
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\nGOMP_SPINCOUNT: 1000\n" in done.stdout
    maps = Path("/proc/self/maps")
    has_gnu = maps.exists() and "libgomp" in maps.read_text()
    assert {*re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)} == ({"1000"} if has_gnu else set())


@pytest.mark.parametrize(
    ("idle", "own", "expected"),
    [(16, 4, 2.0), (6, 4, 1.0), (0, 4, 0.4), (15, 2, 1.7)],
    ids=["nobody else", "one busy program", "many busy programs", "a little work"],
)
def test_free_cores_are_those_that_other_programs_leave(idle, own, expected):
    """In 10 seconds, two cores have 20 seconds of processor time together."""
    before = ProcessorTimes(total=1000, idle=300, own=5)
    after = ProcessorTimes(total=1020, idle=300 + idle, own=5 + own)
    assert free_cores(before, after, 2) == pytest.approx(expected)


@pytest.mark.skipif(
    not (STAT.exists() and re.match("cpu .*[1-9]", STAT.read_text())), reason="the kernel counts no times"
)
def test_the_times_of_the_processor_are_those_of_the_kernel(tmp_path, monkeypatch):
    times = processor_times()
    # The times of Linux may decrease by a tick from one call to the next, so the test compares no two calls.
    assert times.total > times.idle >= 0
    assert times.own > 0
    (tmp_path / "stat").write_text("cpu  100 20 30 400 50 6 7 8 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(threads, "_STATISTICS", tmp_path / "stat")
    ticks = os.sysconf("SC_CLK_TCK")
    assert processor_times()[:2] == (621 / ticks, 450 / ticks)
    for unreadable in (tmp_path, tmp_path / "missing"):
        monkeypatch.setattr(threads, "_STATISTICS", unreadable)
        assert processor_times() == (0, 0, 0)


@pytest.fixture
def imported(monkeypatch):
    """Return a function that imports torch with free cores, and returns the numbers of threads."""

    def imported(free, total=8, **options):
        times = iter([ProcessorTimes(0, 0, 0), ProcessorTimes(total, free, 0)])
        monkeypatch.setattr(threads, "processor_times", lambda: next(times))
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        chosen = []
        monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
        monkeypatch.setattr(torch, "set_num_threads", chosen.append)
        with monkeypatch.context() as before:
            before.delitem(sys.modules, "torch")
            with leaving_busy_cores(**options):
                sys.modules["torch"] = torch
        return chosen

    return imported


@pytest.mark.parametrize(("free", "chosen"), [(8, []), (7.6, []), (7, [7]), (3.4, [3]), (0.1, [1])])
def test_a_command_uses_as_many_threads_as_cores_are_free(imported, monkeypatch, capsys, free, chosen):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert imported(free) == chosen
    said = capsys.readouterr().err
    assert said.startswith(f"using {chosen[0]} of 8 threads, ") if chosen else said == ""


def test_unknown_times_leave_the_number_of_threads(imported, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert imported(0, total=0) == []


def test_a_quiet_command_does_not_report_its_threads(imported, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert imported(1, is_quiet=True) == [1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("words", "is_quiet"), [(["-q"], True), ([], False)])
def test_the_option_quiet_reaches_the_report_of_threads(
    vaswani, copier_checkpoint, monkeypatch, words, is_quiet
):
    options = []
    monkeypatch.setattr(cli, "leaving_busy_cores", lambda **given: options.append(given) or nullcontext())
    assert vaswani("translate", copier_checkpoint, "--text", "ja?", "--device", "cpu", *words)[0] == 0
    assert options == [{"is_quiet": is_quiet}]


def test_the_number_of_the_user_has_precedence(imported, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert imported(1) == []
