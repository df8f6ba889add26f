"""Graceful shutdown of a run: a process that receives SIGINT or SIGTERM forwards the signal to all processes
of the run on the machine.

During the training, the trainer saves a checkpoint after a signal, and then ends (see callbacks.py). Before
and after the training, a signal ends the run immediately, because there is nothing to save. After a signal, a
run must end quickly, because launchers and schedulers kill a process about half a minute after the signal.
"""

import contextlib
import enum
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import multiprocess

from ..checkpoint.files import checkpoints_in
from ..exit_codes import FAILURE, INTERRUPTED
from ..messages import say
from .processes import Processes

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Signals that arrive within `SECONDS_OF_ONE_SIGNAL` seconds count as one signal, because a scheduler and a
# launcher can each send a signal.
SECONDS_OF_ONE_SIGNAL = 2.0
# The seconds from `ShutdownRequested` until `GracefulShutdown` kills the process. The kill can be necessary,
# because Python cannot raise an exception while C code runs or while the process waits for another process.
SECONDS_TO_END = 5.0
# The seconds from a signal until `GracefulShutdown` kills the process. While the process saves a checkpoint,
# `GracefulShutdown` does not kill the process.
SECONDS_TO_SAVE = 22.0
# Matches the error messages that gloo and NCCL raise after another process of the run has ended.
_LOST_PROCESS = "[Cc]onnection (closed|reset) by peer|third_party/gloo|NCCL"


class ShutdownRequested(BaseException):
    """Raised if a signal arrives while a run has nothing to save. The class does not derive from Exception,
    because an `except Exception` in a library must not catch `ShutdownRequested`.
    """


class Phase(enum.Enum):
    """A part of a run. The phase determines what `GracefulShutdown` does after a signal."""

    # Raise ShutdownRequested in the main thread.
    INTERRUPTIBLE = enum.auto()
    # Only store the signal, because the trainer first saves a checkpoint.
    TRAINING = enum.auto()
    # Only store the signal, and do not kill the process, because the process writes a checkpoint.
    SAVING = enum.auto()


class RunError(Exception):
    """Raised if a training run fails or is interrupted. The error message is a complete sentence."""

    exit_code = FAILURE


class InterruptedRunError(RunError):
    """Raised if a signal ended a run. The error message says how to continue the run."""

    exit_code = INTERRUPTED


class LostProcessError(RunError):
    """Raised if another process of the run has ended."""


class GracefulShutdown:
    """Receives SIGINT and SIGTERM in a process of a run, and forwards the signal to the other processes. Some
    seconds after the signal, `GracefulShutdown` kills the process if the process has not ended.
    """

    def __init__(self, sentence: Callable[[], str] = lambda: "Interrupted.") -> None:
        # The number of the signal; 0 if no signal has arrived.
        self.received = 0
        # Returns the message that `GracefulShutdown` prints if the process does not end in time and must be
        # killed.
        self._sentence = sentence
        # Until the first call of `phase`, only store a signal.
        self._phase = Phase.TRAINING
        self._is_first = True
        self._peers: list[int] = []
        self._first_came = 0.0
        self._handlers: dict[int, Any] = {}

    @contextlib.contextmanager
    def listening(self, processes: Processes) -> Iterator[None]:
        """Receive signals, but only in the main thread, because Python allows signal handlers only there."""
        self._is_first = processes.is_first
        machine, own_pid = _machine(), os.getpid()
        for other_machine, pid in processes.gather((machine, own_pid)):
            if other_machine == machine and pid != own_pid:
                self._peers.append(pid)
        if threading.current_thread() is not threading.main_thread():
            processes.gather(None)
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        earlier_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            # Install no handler for a signal that the process ignores. For example, if a script runs `vaswani
            # train … &`, the shell makes the process ignore SIGINT.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._handle)
        _LISTENING.append(self)
        watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True)
        try:
            # Wait until all processes have installed the signal handlers. Without a handler, a forwarded
            # signal would end a process without a message.
            processes.gather(None)
            watcher.start()
            yield
        finally:
            self._phase = Phase.TRAINING
            # After this process has received a signal, another process can still forward the same signal to
            # this process. Leave the signal handler `_handle` installed, so that a signal from another
            # process does not end this process before this process prints its message. If a signal arrives
            # more than `SECONDS_OF_ONE_SIGNAL` seconds after the first signal, `_handle` restores the earlier
            # handlers.
            if not self.received or not self._peers:
                self.restore()
            _LISTENING.remove(self)
            signal.set_wakeup_fd(earlier_descriptor)
            # Call `shutdown`, because `close` alone does not always end the thread `watcher`: a child
            # process, such as a data worker, can have an open copy of the socket.
            writer.shutdown(socket.SHUT_RDWR)
            if watcher.is_alive():
                watcher.join()
            writer.close()
            reader.close()

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Set the phase of the run in the `with` block. If a signal has already arrived, the phase
        INTERRUPTIBLE raises ShutdownRequested immediately.
        """
        earlier = self._phase
        self._phase = phase
        try:
            if self.received and phase is Phase.INTERRUPTIBLE:
                raise ShutdownRequested
            yield
        finally:
            self._phase = earlier

    def restore(self) -> None:
        """Restore the signal handlers that the process had before `listening`."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.received:
            if time.monotonic() - self._first_came > SECONDS_OF_ONE_SIGNAL:
                self.restore()
                signal.raise_signal(number)
            return
        self.received = number
        self._first_came = time.monotonic()
        if self._phase is Phase.INTERRUPTIBLE:
            raise ShutdownRequested
        if self._is_first:
            name = signal.Signals(number).name
            # Ignore a RuntimeError: if a signal interrupts a print call, a print call in the signal handler
            # raises a RuntimeError.
            with contextlib.suppress(RuntimeError):
                say(
                    f"{name}: saving a checkpoint after this step … (a second signal ends the run "
                    "immediately)"
                )

    def _watch(self, reader: socket.socket) -> None:
        """Forward the first signal. Kill the process if the main thread does not end the process in time."""
        while (numbers := reader.recv(1)) and numbers[0] not in SIGNALS:
            pass
        if not numbers:
            return
        for pid in self._peers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, numbers[0])
        if numbers[0] == signal.SIGINT and hasattr(sys, "ps1"):
            # Do not kill the process, because Ctrl-C in a notebook or an interactive prompt must end only the
            # run.
            return
        arrival = time.monotonic()
        interrupt_raised_at = None
        while self in _LISTENING:
            time.sleep(0.1)
            now = time.monotonic()
            if self._phase is not Phase.INTERRUPTIBLE:
                interrupt_raised_at = None
            elif interrupt_raised_at is None:
                interrupt_raised_at = now
            is_late = now - arrival > SECONDS_TO_SAVE
            if interrupt_raised_at is not None and now - interrupt_raised_at > SECONDS_TO_END:
                is_late = True
            if is_late and self._phase is not Phase.SAVING:
                self._end()

    def _end(self) -> NoReturn:
        if self._is_first:
            print(f"vaswani: {self._sentence()}", file=sys.stderr, flush=True)
        for child in (*multiprocessing.active_children(), *multiprocess.active_children()):
            child.kill()
        os._exit(INTERRUPTED)


@contextlib.contextmanager
def explain_lost_processes(folder: Path, stop: GracefulShutdown) -> Iterator[None]:
    """Context manager that raises a new error if gloo or NCCL fails because another process of the run has
    ended. If no signal has arrived, the new error says how to continue the run.
    """
    try:
        yield
    except RuntimeError as error:
        if not re.search(_LOST_PROCESS, str(error)):
            raise
        if stop.received:
            # Another process of the run has ended, probably because of the same signal.
            raise ShutdownRequested from error
        raise LostProcessError(
            f"Another process of the run in '{folder}' has ended, so this process ends, too; find the cause "
            "in the output of the other process, and continue with `--resume true`."
        ) from error


def interruption_message(folder: Path) -> str:
    """Return the error message for an interrupted run. The message names the newest checkpoint."""
    newest = checkpoints_in(folder)[-1:]
    place = f"and its newest checkpoint is '{newest[0]}'" if newest else "before its first checkpoint"
    return f"The run was interrupted, {place}; continue with `--resume true`."


def _machine() -> str:
    """Return an id of the machine or container. Two machines can have equal host names."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


_LISTENING: list[GracefulShutdown] = []


def _forget_in_a_child() -> None:
    """Reset the signal handlers of a forked process, because libraries end their workers with signals."""
    for stop in _LISTENING:
        signal.set_wakeup_fd(-1)
        for number in stop._handlers:
            signal.signal(number, signal.SIG_DFL)
    _LISTENING.clear()


os.register_at_fork(after_in_child=_forget_in_a_child)
