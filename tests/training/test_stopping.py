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
import torch
from factories import write_recipe
from mortal_runs import Moment, fail_at, live, slow_at
from test_killed import assert_same_run
from tiny_runs import names, same, weights

from vaswani_hf.training import batches
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
# Places of a run, and the checkpoints that the run has saved before each place.
PLACES = {
    "data": (CORPUS, []),
    "validation": (("vaswani_hf.training.validation", "negative_log_likelihood"), ["checkpoint-4"]),
    "bleu": (("vaswani_hf.training.validation:Validation", "_outputs"), ["checkpoint-4"]),
    "scores": (
        ("vaswani_hf.tasks.translation", "translate_and_measure"),
        ["checkpoint-4", "checkpoint-6"],
    ),
}
KEYS = "--validation_bleu=true --save_steps=4 --average_checkpoints=2 --max_steps=6".split()


def interrupted(recipe, folder, moment, rank, processes):
    """Send a signal to this process; return the output of all processes."""
    keys = (*KEYS, f"--gradient_accumulation_steps={2 // processes}")
    life = live(recipe, folder, *keys, processes=processes, moment=moment)
    life.wait_for_slow(folder)
    time.sleep(0.2)
    os.kill(life.processes[rank].pid, signal.SIGTERM)
    return ended(life)


# The rank of the process that gets the signal, and the number of processes.
RANKS = [(0, 1), (0, 2), (1, 2)]
FAST = [("data", 0, 1), ("scores", 0, 1), ("bleu", 1, 2)]
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("place", "rank", "processes"),
    [
        pytest.param(place, *rank, marks=[] if (place, *rank) in FAST else SLOW)
        for place in PLACES
        for rank in RANKS
    ],
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


def cut_batches(folder):
    """Compute batches in parts; the second of two processes gets a signal in its fifth step."""
    batches.MAX_PART_SIZE = 300 * 16
    if os.environ.get("RANK") == "1":
        fail_at(1, 5, signal.SIGTERM).arrange(folder)


@SLOW
def test_a_signal_to_one_process_stops_all_and_one_process_goes_on(recipe, tmp_path):
    """A step of two batches gives equal results with two processes and with one process that accumulates."""
    # Use a large epsilon, because Adam would amplify rounding errors of gradients near 0.
    exact = "--model.dropout=0.3 --label_smoothing=0 --learning_rate_factor=0.02 --adam_epsilon=1e-4".split()
    part, whole = tmp_path / "part", tmp_path / "whole"
    in_parts = Moment(None, cut_batches)
    said = ended(live(recipe, part, *exact, "--gradient_accumulation_steps=1", processes=2, moment=in_parts))
    # The first process prints the message after the second process has forwarded the signal.
    assert said.count("SIGTERM: saving a checkpoint") == 1
    assert "Interrupted after step 5, which is saved in" in said
    assert names(part) == ["checkpoint-4", "checkpoint-5"]
    for folder in (part, whole):
        assert live(recipe, folder, *exact, moment=in_parts).wait() == [0]
    torch.testing.assert_close(weights(part), weights(whole), rtol=0, atol=1e-5)
    assert not same(weights(whole), weights(whole / "checkpoint-4"))


@pytest.mark.parametrize(("rank", "processes"), [(0, 1), pytest.param(1, 2, marks=SLOW)])
def test_a_library_that_gives_nothing_back_is_no_reason_to_stay(recipe, tmp_path, rank, processes):
    moment = slow_at(*CORPUS, is_stuck=True)
    said = interrupted(recipe, tmp_path / "run", moment, rank, processes)
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
            subprocess.run(["sh", "-c", "kill -INT $$"], check=True)
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.received == signal.SIGTERM


class Group:
    """A group of this process and of another process, which may be on another machine."""

    is_first = True

    def __init__(self, pid, machine=None):
        self.pid = pid
        self.machine = machine
        self.handlers = []

    def gather(self, item):
        self.handlers.append(signal.getsignal(signal.SIGTERM))
        return [item, item and (self.machine or item[0], self.pid)]


def test_processes_have_their_handlers_before_a_signal_is_passed_on():
    before, group = signal.getsignal(signal.SIGTERM), Group(os.getpid())
    with GracefulShutdown().listening(group):
        inside = signal.getsignal(signal.SIGTERM)
    assert before != inside
    assert group.handlers == [before, inside]


def test_a_signal_that_is_passed_on_late_ends_no_process(monkeypatch):
    later = []
    before = signal.signal(signal.SIGTERM, lambda *_: later.append("signal"))
    try:
        with subprocess.Popen(["sleep", "120"]) as child, GracefulShutdown().listening(Group(child.pid)):
            signal.raise_signal(signal.SIGTERM)
        # The first number makes all signals one signal. With the second number, the next signal has its
        # earlier effect.
        for seconds, effect in ((10_000, []), (-1, ["signal"])):
            monkeypatch.setattr("vaswani_hf.training.stopping.SECONDS_OF_ONE_SIGNAL", seconds)
            signal.raise_signal(signal.SIGTERM)
            assert later == effect
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("machine", "code"), [(socket.gethostname(), None), (None, -signal.SIGTERM)])
def test_a_signal_is_passed_on_to_processes_of_this_machine_alone(machine, code):
    # A fork of this process, which has threads, may hang before it can be ended.
    with subprocess.Popen(["sleep", "120"]) as child:
        with GracefulShutdown().listening(Group(child.pid, machine)):
            os.kill(os.getpid(), signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60 if code else 0.5)
        assert child.poll() == code
        child.kill()
