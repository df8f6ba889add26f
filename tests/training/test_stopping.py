"""A signal to any process of a run saves a checkpoint if necessary and ends all processes in time."""

import contextlib
import io
import multiprocessing
import os
import signal
import socket
import subprocess
import time

import pytest
from factories import write_recipe
from mortal_runs import PATIENCE, fail_at, live, slow_at, stuck_at
from test_killed import assert_same_run
from tiny_runs import names

from vaswani_hf.training.processes import Processes
from vaswani_hf.training.stopping import GracefulShutdown

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("recipe") / "recipe.yaml")


def ended(life):
    """The output of processes that end although their interrupted function takes longer than `Life.wait`."""
    codes = life.wait()
    said = life.said()
    assert codes == [130] * len(codes), said
    assert "Traceback" not in said
    assert said.count("vaswani: ") == 1, said
    return said


CORPUS = ("vaswani_hf.training.run", "_load_corpus")
VALIDATION = ("vaswani_hf.training.validation", "negative_log_likelihood")
BLEU = ("vaswani_hf.training.validation:Validation", "_outputs")
SCORES = ("vaswani_hf.tasks.translation", "translate_and_measure")
KEYS = "--validation_bleu=true --save_steps=4 --average_checkpoints=2 --max_steps=6".split()


def interrupted(recipe, folder, moment, rank, processes):
    """Send a signal to this process; return the output of all processes."""
    keys = (*KEYS, f"--gradient_accumulation_steps={2 // processes}")
    life = live(recipe, folder, *keys, processes=processes, moment=moment)
    slow = folder.with_name(f"{folder.name}.slow")
    end = time.monotonic() + 2 * PATIENCE.total_seconds()
    while not slow.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert slow.exists(), life.said()
    time.sleep(0.2)
    os.kill(life.processes[rank].pid, signal.SIGTERM)
    return ended(life)


PLACES = {
    "data": (CORPUS, []),
    "validation": (VALIDATION, ["checkpoint-4"]),
    "bleu": (BLEU, ["checkpoint-4"]),
    "scores": (SCORES, ["checkpoint-4", "checkpoint-6"]),
}
# The rank of the process that gets the signal, and the number of processes.
RANKS = [(0, 1), (0, 2), (1, 2)]
FAST = [("data", 0, 1), ("scores", 0, 1), ("bleu", 1, 2)]
CASES = [(place, *rank) for place in PLACES for rank in RANKS]
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("place", "rank", "processes"),
    [pytest.param(*case, marks=[] if case in FAST else SLOW) for case in CASES],
)
def test_a_signal_ends_all_processes_and_the_run_goes_on_later(recipe, tmp_path, place, rank, processes):
    folder, (function, saved) = tmp_path / "run", PLACES[place]
    said = interrupted(recipe, folder, slow_at(*function), rank, processes)
    assert names(folder) == saved
    assert "continue with `--resume true`" in said
    if processes == 1 and place != "data":
        whole = tmp_path / "whole"
        for one in (whole, folder):
            assert live(recipe, one, *KEYS).wait() == [0]
        assert_same_run(folder, whole)


@pytest.mark.parametrize(("rank", "processes"), [(0, 1), pytest.param(1, 2, marks=SLOW)])
def test_a_library_that_gives_nothing_back_is_no_reason_to_stay(recipe, tmp_path, rank, processes):
    said = interrupted(recipe, tmp_path / "run", stuck_at(*CORPUS), rank, processes)
    assert "The run was interrupted, before its first checkpoint; continue with `--resume true`." in said


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=SLOW)])
def test_a_killed_process_ends_the_other_with_a_sentence(recipe, tmp_path, rank):
    life = live(recipe, tmp_path / "run", processes=2, moment=fail_at(rank, 5))
    assert sorted(life.wait()) == [-9, 1]
    said = f"vaswani: Another process of the run in '{tmp_path}/run' has ended"
    assert said in life.said()


def test_a_run_does_not_wait_for_processes_that_it_has_begun():
    # The traceback of an error keeps the processes alive that load data.
    with GracefulShutdown().listening(Processes()):
        # `sleep` takes longer than the time limit of a test.
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(10_000,), daemon=True)
        child.start()
    assert child.is_alive()
    child.kill()
    child.join()


def test_a_signal_may_come_while_a_line_is_printed(monkeypatch):
    class Screen(io.RawIOBase):
        def writable(self):
            return True

        def write(self, content):
            if b"step" in bytes(content):
                os.kill(os.getpid(), signal.SIGTERM)
            return len(content)

    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(Screen())))
    stop = GracefulShutdown()
    with stop.listening(Processes()):
        print("step 1/10", flush=True)
    assert stop.received == signal.SIGTERM


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = GracefulShutdown()
        with stop.listening(Processes()):
            signal.raise_signal(signal.SIGINT)
            child = multiprocessing.get_context("fork").Process(
                target=signal.raise_signal, args=(signal.SIGINT,)
            )
            child.start()
            child.join()
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert child.exitcode == 0
    assert stop.received == signal.SIGTERM


def test_processes_have_their_handlers_before_a_signal_is_passed_on():
    handlers = []

    class Group:
        is_first = True

        def gather(self, item):
            handlers.append(signal.getsignal(signal.SIGTERM))
            return [item]

    before = signal.getsignal(signal.SIGTERM)
    with GracefulShutdown().listening(Group()):
        inside = signal.getsignal(signal.SIGTERM)
    assert before != inside
    assert handlers == [before, inside]


def test_a_signal_that_is_passed_on_late_ends_no_process(monkeypatch):
    class Pair:
        """A group of this process and a child."""

        is_first = True

        def gather(self, item):
            return [item, item and (item[0], child.pid)]

    later = []
    before = signal.signal(signal.SIGTERM, lambda *_: later.append("signal"))
    try:
        with subprocess.Popen(["sleep", "120"]) as child, GracefulShutdown().listening(Pair()):
            signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr("vaswani_hf.training.stopping.SECONDS_OF_ONE_SIGNAL", 10_000)
        signal.raise_signal(signal.SIGTERM)
        assert later == []
        # The next signal has its earlier effect.
        monkeypatch.setattr("vaswani_hf.training.stopping.SECONDS_OF_ONE_SIGNAL", -1)
        signal.raise_signal(signal.SIGTERM)
        assert later == ["signal"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_is_passed_on_to_processes_of_this_machine_alone():
    class Two:
        """A group of this process and one of another machine with the process number of a child."""

        is_first = True

        def __init__(self, place):
            self.place = place

        def gather(self, here):
            if here is None:
                return [None, None]
            return [here, (self.place or here[0], child.pid)]

    for place in (socket.gethostname(), None):
        # A fork of this process, which has threads, may hang before it can be ended.
        with subprocess.Popen(["sleep", "120"]) as child:
            with GracefulShutdown().listening(Two(place)):
                os.kill(os.getpid(), signal.SIGTERM)
                with pytest.raises(subprocess.TimeoutExpired) if place else contextlib.nullcontext():
                    assert child.wait(0.5 if place else 60) == -signal.SIGTERM
            child.kill()
