"""Runs in separate processes that tests kill at a step, between two changes of the folder, or at any time."""

import functools
import hashlib
import io
import multiprocessing
import os
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from tiny_runs import call_before

import vaswani_hf.data.toy_corpora
import vaswani_hf.training.run
import vaswani_hf.training.stopping
from vaswani_hf.cli import main

# The time (seconds) that a process waits for another process; a test waits twice as long for a run.
PATIENCE = timedelta(seconds=90)
# The audit events that Python raises before a file or folder changes.
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "os.truncate"}


class Moment(NamedTuple):
    """The moment of a kill: the rank of a process (None: all), and a function that prepares the kill."""

    rank: int | None
    arrange: Callable[[str], None]


def fail_at(rank: int, step: int, number: int = signal.SIGKILL, method: str = "training_step") -> Moment:
    """The process of this rank gets a signal before it calls this method of VaswaniTrainer in this step of
    the optimizer.

    The first step is 1. For other methods than `training_step`, `step` is the number of finished steps.
    """
    return Moment(
        rank, functools.partial(_fail_in_method, step - (method == "training_step"), number, method)
    )


def _fail_in_method(step, number, method, folder):
    call_before(step, lambda trainer: os.kill(os.getpid(), number), method)


def fail_at_change(rank: int, change: int | str) -> Moment:
    """The process of this rank is killed before a change of the run's folder.

    `change` is the number of the change, from 1 on, or a regular expression for its description in the file
    RUN.changes, such as "open .saving/checkpoint-4/optimizer.pt".
    """
    return Moment(rank, functools.partial(_fail_at_change, change))


def _fail_at_change(change, folder):
    count, log = 0, os.open(f"{folder}.changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def watch(event, args):
        nonlocal count
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in _CHANGES:
            return
        path = str(args[0])
        if event in ("os.remove", "os.rmdir") and args[1] >= 0:
            # `rmtree` deletes files by their names in open folders.
            path = os.path.join(os.readlink(f"/proc/self/fd/{args[1]}"), path)
        if f"{path}/".startswith(f"{folder}/"):
            count += 1
            described = f"{event} {os.path.relpath(path, folder)}"
            os.write(log, f"{described}\n".encode())
            if count == change or isinstance(change, str) and change and re.fullmatch(change, described):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def slow_at(owner: str, name: str, *, is_stuck: bool = False) -> Moment:
    """At the first call of this function, all processes write a file "RUN.slow" and wait for minutes.

    If `is_stuck` is true, the wait is one call of a C library that no signal interrupts.
    """
    return Moment(None, functools.partial(_be_slow, owner, name, is_stuck))


def _be_slow(owner, name, is_stuck, folder):
    place = pkgutil.resolve_name(owner)
    before, called = getattr(place, name), []

    def slow(*args, **kwargs):
        if not called:
            called.append(True)
            Path(f"{folder}.slow").touch()
            if is_stuck:
                vaswani_hf.training.stopping.SECONDS_TO_END = 0.5
                hashlib.pbkdf2_hmac("sha512", b"", b"", 2_000_000_000)
            for _ in range(12_000):
                time.sleep(0.05)
        return before(*args, **kwargs)

    setattr(place, name, slow)


class Life(NamedTuple):
    """The processes of a run, their output file, and the store with which the processes find each other.

    The test process holds the store, as torchrun does, so no other program can take its port, and the store
    survives a kill.
    """

    processes: list
    outputs: list[Path]
    store: dist.TCPStore

    def wait_for_start(self) -> None:
        """Wait until all processes have joined their groups, because they would wait for a killed process."""
        self.store.wait([f"begun {rank}" for rank in range(len(self.processes))], PATIENCE)

    def wait_for_slow(self, folder: Path) -> None:
        """Wait until a process has called the function of `slow_at` or `stuck_at`."""
        end = time.monotonic() + 2 * PATIENCE.total_seconds()
        while not folder.with_suffix(".slow").exists():
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def wait(self, seconds: float = 2 * PATIENCE.total_seconds()) -> list[int]:
        """Return the exit codes; a killed process has the exit code -9."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        assert not late, f"still alive after {seconds} s: {self.said()}"
        return [process.exitcode for process in self.processes]

    def said(self) -> str:
        """Return the text that the processes have written so far."""
        return "".join(path.read_text() for path in self.outputs if path.exists())


def forking_server():
    """A server that has imported the modules of a run forks processes, because this process has threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_server"])
    path = os.environ.get("PYTHONPATH")
    # Before Python 3.13 a fork server does not receive `sys.path`, so set PYTHONPATH.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)
    return context


def live(
    recipe: Path, folder: Path, *overrides: str, processes: int = 1, moment: Moment | None = None
) -> Life:
    """Starts `vaswani train RECIPE --output_dir FOLDER --resume true` in processes that a server forks."""
    context = forking_server()
    words = ["train", str(recipe), f"--output_dir={folder}", "--resume=true", *overrides]
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    outputs = [folder.with_suffix(f".said-{rank}") for rank in range(processes)]
    for output in outputs:
        output.unlink(missing_ok=True)
    started = []
    for rank, output in enumerate(outputs):
        mine = moment if moment and moment.rank in (rank, None) else None
        arguments = (words, folder, output, rank, processes, store.port, mine)
        started.append(context.Process(target=_live, args=arguments))
        started[-1].start()
    return Life(started, outputs, store)


def _live(words, folder, output, rank, count, port, moment):
    torch.set_num_threads(1)
    vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT = 20
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(descriptor, "wb", 0), write_through=True)
    store = dist.TCPStore("localhost", port, timeout=PATIENCE)
    if count > 1:
        join_group("gloo", store, rank, count)
    _announce(store, rank)
    if moment:
        moment.arrange(str(folder))
    sys.exit(main(words))


def join_group(backend: str, store: dist.TCPStore, rank: int, count: int) -> None:
    """Join a group of processes, as in a process that torchrun has started."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
    os.environ.update({name: str(value) for name, value in place.items()})
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)


def _announce(store, rank):
    before = vaswani_hf.training.run._train

    def train(*args):
        store.set(f"begun {rank}", "")
        return before(*args)

    vaswani_hf.training.run._train = train
