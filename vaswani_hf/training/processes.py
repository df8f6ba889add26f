"""Exchanges data between the processes of a run, and calls functions in some of the processes.

The processes of a run exchange messages in a separate process group of `torch.distributed` on the CPU. The
default process group has a timeout of some minutes, and with NCCL supports only GPU tensors. A process can
wait for hours while the first process encodes a corpus or scores a test set.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState

from ..exit_codes import FAILURE

_T = TypeVar("_T")
_P = ParamSpec("_P")

LONGEST_WAIT = timedelta(days=7)


class Processes:
    """Communicates with all processes of a run. All processes must call the methods in the same order."""

    def __init__(self) -> None:
        # Set `cpu=True` on a machine without an accelerator, because PartialState would otherwise start no
        # process group.
        self._state = PartialState(cpu=not torch.accelerator.is_available())
        self.count = self._state.num_processes
        self.is_first = self._state.is_main_process
        self._is_first_here = self._state.is_local_main_process
        self._group: Any = None
        if self.count > 1:
            self._group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)

    def gather(self, item: _T) -> list[_T]:
        """Return the (picklable) items of all processes, in the order of the ranks."""
        if self._group is None:
            return [item]
        items = [item] * self.count
        dist.all_gather_object(items, item, group=self._group)
        return items

    def run_on_main(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in the first process, and return its picklable result in all processes. If the
        function fails, the first process raises the error, and the other processes exit.
        """
        result = self._call_in_first(partial(function, *args, **kwargs))
        return self._broadcast(result)

    def main_process_first(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in the first process, and then in all other processes, so that the other processes
        find the files that the first call wrote. Another machine perhaps cannot read the files that the first
        process wrote. Therefore one process of each machine finishes the function before the remaining
        processes of the machine call the function.
        """
        call = partial(function, *args, **kwargs)
        result = self._call_in_first(call)
        is_first_on_other_machine = self._is_first_here and not self.is_first
        result = self.run_all_or_exit(call if is_first_on_other_machine else lambda: result)
        return result if self._is_first_here else call()

    def run_all_or_exit(self, function: Callable[[], _T]) -> _T:
        """Call a function in all processes. If the function fails in one process, all processes end."""
        try:
            result = function()
        except Exception:
            self.gather(True)
            raise
        if any(self.gather(False)):
            # The process in which the function failed prints the error.
            sys.exit(FAILURE)
        return result

    def _call_in_first(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function in the first process, and None in the other processes. If the
        function fails, the first process raises the error, and the other processes exit.
        """
        result = None
        error = None
        if self.is_first:
            try:
                result = function()
            except Exception as raised:
                error = raised
        has_failed = self._broadcast(error is not None)
        if error is not None:
            raise error
        if has_failed:
            # The first process prints the error.
            sys.exit(FAILURE)
        return result

    def _broadcast(self, item: Any) -> Any:
        """Send the (picklable) item of the first process to all processes, and return the item."""
        if self._group is None:
            return item
        message = [item]
        dist.broadcast_object_list(message, src=0, group=self._group)
        return message[0]
