"""The processes of a run, and what they tell each other over a group of their own on the CPU.

The default group may serve another kind of device only, and gives up after some minutes. This one waits while the first
process prepares a corpus, downloads checkpoints or scores a test set.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TextIO, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState

_T = TypeVar("_T")


def say(line: str) -> None:
    """Prints a line at once; a run outlives the reader of its output, such as `head`.

    Args:
        line (str): The line.
    """
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _send_nowhere(sys.stdout)


def _send_nowhere(stream: TextIO) -> None:
    # What comes after it too, of all threads and children.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Outliving:
    """A stream whose reader may go away, for the progress bars of other libraries.

    Args:
        stream (TextIO): A standard stream.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes the text, or nothing."""
        return self._unless_broken(self._stream.write, text) or len(text)

    def flush(self) -> None:
        """Flushes the stream, if somebody reads it."""
        self._unless_broken(self._stream.flush)

    def _unless_broken(self, call: Callable[..., _T], *args: Any) -> _T | None:
        try:
            return call(*args)
        except BrokenPipeError:
            _send_nowhere(self._stream)
            return None


class Processes:
    """All processes of a run, which make this object and call its methods in the same order.

    Args:
        patience (timedelta): The time that one of them waits for the others.
    """

    def __init__(self, patience: timedelta = timedelta(days=7)):
        # transformers starts no process group without an accelerator unless `cpu` is given.
        self._state = PartialState(cpu=not torch.accelerator.is_available())
        self.count = self._state.num_processes
        self.is_first = self._state.is_main_process
        self._is_first_here = self._state.is_local_main_process
        self._group: Any = dist.new_group(backend="gloo", timeout=patience) if self.count > 1 else None

    def gather(self, item: _T) -> list[_T]:
        """The items of all processes.

        Args:
            item: Anything that pickle takes.

        Returns:
            list: By the number of the process.
        """
        items = [item]
        if self._group is not None:
            items = [item] * self.count
            dist.all_gather_object(items, item, group=self._group)
        return items

    def by_first(self, function: Callable[[], _T]) -> _T:
        """What a function gives that the first process calls while the others wait; they end where it fails.

        Args:
            function (Callable): Its result goes through pickle.
        """
        return self._after_first(function, share=True)[0]

    def first_alone(self, function: Callable[[], _T]) -> _T:
        """What a function gives that the first process calls, and after it the others, which find what it has written.

        On another machine they may find nothing: its first process goes before its neighbours.

        Args:
            function (Callable): Called once in each process.
        """
        made = self._after_first(function, share=False)
        if not made:
            made = self.together(lambda: [function()] if self._is_first_here else [])
        elif self._group is not None:
            self.together(lambda: None)
        return made[0] if made else function()

    def together(self, function: Callable[[], _T]) -> _T:
        """What a function gives in this process; where it fails in any, all processes end.

        Args:
            function (Callable): Called once in each process.
        """
        try:
            result = function()
        except Exception:
            self.gather(True)
            raise
        if any(self.gather(False)):
            # The process where it failed says why.
            sys.exit(1)
        return result

    def _after_first(self, function: Callable[[], _T], *, share: bool) -> list[_T]:
        made: list[_T] = []
        error = None
        if self.is_first:
            try:
                made = [function()]
            except Exception as raised:
                error = raised
        if self._group is not None:
            message: list[Any] = [error is not None, made if share else []]
            dist.broadcast_object_list(message, src=0, group=self._group)
            if message[0] and error is None:
                # The first process says why.
                sys.exit(1)
            made = made or message[1]
        if error is not None:
            raise error
        return made
