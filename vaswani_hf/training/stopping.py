"""The wish to stop: SIGINT or SIGTERM to any process of a run, known to all on its machine, and heeded in time.

Launchers and schedulers kill half a minute after they have asked. In training the trainer saves first (see callbacks.py);
before and after it nothing is to be saved, and the run ends where it is.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import multiprocess

from .processes import Processes, say

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A scheduler signals all processes of a job, and a launcher among them passes the signal on: that is one wish, not two.
SECONDS_OF_ONE_SIGNAL = 2.0
SECONDS_TO_PASS_ON = 1.0
# A library in another language may not give back before, nor a process that waits for another one.
SECONDS_TO_END = 5.0
# A step may be longer; a save that has begun is always ended.
SECONDS_TO_SAVE = 22.0
INTERRUPTED = 130


class Interrupt(BaseException):
    """A signal came where nothing is to be saved; no `except Exception` of a library takes it."""


class Stop:
    """Receives the signals of a process, passes them on to the others on its machine, and ends it if it does not end itself.

    Attributes:
        received (int): The signal, 0 before one came.
        sentence (Callable): Gives what to say where the process has to be ended.
        is_saving (bool): A checkpoint is being written, which is not cut off.
    """

    def __init__(self) -> None:
        self.received = 0
        self.is_saving = False
        self._is_first = True
        self._peers: list[int] = []
        self._raises = False
        self._first_came = 0.0
        self._handlers: dict[int, Any] = {}
        self.sentence: Callable[[], str] = lambda: "Interrupted."

    @contextlib.contextmanager
    def listening(self, processes: Processes) -> Iterator[None]:
        """Receives signals inside; does nothing in a thread, where Python handles none.

        Args:
            processes (Processes): All processes of the run.
        """
        self._is_first = processes.is_first
        here = (_machine(), os.getpid())
        self._peers = [pid for machine, pid in processes.gather(here) if machine == here[0] and pid != here[1]]
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            # `nohup`, and a script's `vaswani train … &`, ask to ignore one.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._handle)
        _LISTENING.append(self)
        watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._raises = False
            if self.received and self._peers:
                # They pass it on too, which would end this process before it has said anything.
                time.sleep(SECONDS_TO_PASS_ON)
            self.restore()
            _LISTENING.remove(self)
            signal.set_wakeup_fd(before)
            # Ends the thread, also where children, such as those that load data, still hold copies of the socket.
            writer.shutdown(socket.SHUT_RDWR)
            watcher.join()
            writer.close()
            reader.close()

    @contextlib.contextmanager
    def ending_at_once(self, sentence: Callable[[], str]) -> Iterator[None]:
        """Raises Interrupt inside when a signal comes, or has come.

        Args:
            sentence (Callable): Gives what to say where the process does not come to it.

        Raises:
            Interrupt: In the main thread, anywhere inside.
        """
        before, self.sentence, self._raises = (self.sentence, self._raises), sentence, True
        try:
            if self.received:
                raise Interrupt
            yield
        finally:
            self.sentence, self._raises = before

    @contextlib.contextmanager
    def saving_first(self) -> Iterator[None]:
        """Leaves it to the trainer inside to heed a signal."""
        before, self._raises = self._raises, False
        try:
            yield
        finally:
            self._raises = before

    def restore(self) -> None:
        """Gives the signals back to whom they were."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if not self.received:
            self.received, self._first_came = number, time.monotonic()
            if self._raises:
                raise Interrupt
            if self._is_first:
                name = signal.Signals(number).name
                # Python refuses to print where the signal came in the middle of a line that is printed.
                with contextlib.suppress(RuntimeError):
                    say(f"{name}: saving a checkpoint after this step … (once more ends at once)")
        elif time.monotonic() - self._first_came > SECONDS_OF_ONE_SIGNAL:
            self.restore()
            signal.raise_signal(number)

    def _watch(self, reader: socket.socket) -> None:
        """In a thread of its own, which works where the main one waits outside of Python."""
        while (numbers := reader.recv(1)) and numbers[0] not in SIGNALS:
            pass
        if not numbers:
            return
        for pid in self._peers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, numbers[0])
        if numbers[0] == signal.SIGINT and hasattr(sys, "ps1"):
            # Of a notebook or a prompt that somebody has open, Ctrl-C ends the run and never the process.
            return
        came, at_once_since = time.monotonic(), None
        while self in _LISTENING:
            time.sleep(0.1)
            now = time.monotonic()
            at_once_since = (at_once_since or now) if self._raises else None
            is_late = now - came > SECONDS_TO_SAVE or now - (at_once_since or now) > SECONDS_TO_END
            if is_late and not self.is_saving:
                self._end()

    def _end(self) -> NoReturn:
        if self._is_first:
            print(f"vaswani: {self.sentence()}", file=sys.stderr, flush=True)
        for child in (*multiprocessing.active_children(), *multiprocess.active_children()):
            child.kill()
        os._exit(INTERRUPTED)


def _machine() -> str:
    """Names where the number of a process means that process: several machines, or containers of one, may have one name."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"),
            os.readlink("/proc/self/ns/pid"),
        ]
    return " ".join(parts)


_LISTENING: list[Stop] = []


def _forget_in_a_child() -> None:
    # Those that load data, and those of `datasets`, are ended by their parents, with signals that are no wish of anybody.
    for stop in _LISTENING:
        signal.set_wakeup_fd(-1)
        for number in stop._handlers:
            signal.signal(number, signal.SIG_DFL)
    _LISTENING.clear()


os.register_at_fork(after_in_child=_forget_in_a_child)
