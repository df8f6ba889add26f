"""Translating in several processes. Each process loads its own translator."""

import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from ..model.inputs_vaswani import Request
from ..model.translator_vaswani import TranslationOptions
from .translator import Translator

# The largest number of windows per process that are read before their translations are returned.
_WINDOWS_PER_WORKER = 2


def translate_in_processes(
    load: Callable[[], Translator],
    requests: Iterable[Request],
    options: TranslationOptions,
    *,
    num_workers: int,
    first_line: int = 1,
) -> Iterator[Any]:
    """Translations in the order of the requests. Each window of requests goes to one of several processes.

    `load` is picklable and loads the translator in each process. The threads of this process are divided
    among the processes. The processes end with the iterator, so close an iterator that is not read to its
    end. A script must call this function under `if __name__ == "__main__":`, because the processes import the
    script.
    """
    windows = _windows(iter(requests), options.window, first_line)
    # Load no model if there is no text.
    first = next(windows, None)
    if first is None:
        return
    workers = _start(load, num_workers)
    try:
        yield from _in_order(workers, chain([first], windows), options)
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()


def _start(load: Callable[[], Translator], num_workers: int) -> dict[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    num_threads = max(1, torch.get_num_threads() // num_workers)
    workers: dict[Connection, BaseProcess] = {}
    # Ctrl-C sends SIGINT to all processes of a terminal. The started processes ignore SIGINT, because this
    # process ends them.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        for _ in range(num_workers):
            connection, of_worker = context.Pipe()
            process = context.Process(target=_work, args=(of_worker, load, num_threads), daemon=True)
            process.start()
            # Close our copy of the other end, so that the connection is closed when the process ends.
            of_worker.close()
            workers[connection] = process
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return workers


def _work(connection: Connection, load: Callable[[], Translator], num_threads: int) -> None:
    """The main function of a process: translate windows from a connection until the connection is closed."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(num_threads)
    translator = None
    while True:
        try:
            requests, options, first_line = connection.recv()
        except (EOFError, ConnectionError):
            return
        # If a request fails, also send the translations of the requests before it.
        done, failure = [], None
        try:
            translator = translator or load()
            for translation in translator.translate_requests(requests, options, first_line):
                done.append(translation)
        except Exception as error:
            failure = _picklable(error)
        try:
            connection.send((done, failure))
        except ConnectionError:
            # The main process has ended.
            return


def _picklable(error: Exception) -> Exception:
    """The error, or another error with the same message if the error cannot be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ChildProcessError(f"A worker process failed: {type(error).__name__}: {error}")
    return error


def _windows(requests: Iterator[Request], size: int, first_line: int) -> Iterator[tuple[list[Request], int]]:
    while window := list(islice(requests, size)):
        yield window, first_line
        first_line += len(window)


def _in_order(
    workers: dict[Connection, BaseProcess],
    windows: Iterator[tuple[list[Request], int]],
    options: TranslationOptions,
) -> Iterator[Any]:
    """Send windows to idle processes, and return the translations in the order of the windows."""
    idle = list(workers)
    busy: dict[Any, int] = {}
    finished: dict[int, tuple[list[Any], Exception | None]] = {}
    num_sent = num_given = 0
    is_read = False
    while not is_read or busy or finished:
        if num_given in finished:
            # Return finished translations before reading more requests, because reading may wait for a user
            # who types.
            translations, failure = finished.pop(num_given)
            yield from translations
            if failure is not None:
                raise failure
            num_given += 1
            continue
        while idle and not is_read and num_sent < num_given + _WINDOWS_PER_WORKER * len(workers):
            window, first_line = next(windows, (None, 0))
            if window is None:
                is_read = True
                break
            connection = idle.pop()
            _send(connection, workers[connection], (window, options, first_line))
            busy[connection] = num_sent
            num_sent += 1
        # `wait` never returns for an empty list.
        ready: list[Any] = wait(list(busy)) if busy else []
        for connection in ready:
            finished[busy.pop(connection)] = _receive(connection, workers[connection])
            idle.append(connection)


def _send(connection: Connection, process: BaseProcess, task: Any) -> None:
    try:
        connection.send(task)
    except ConnectionError:
        raise _error_of_dead_process(process) from None


def _receive(connection: Connection, process: BaseProcess) -> tuple[list[Any], Exception | None]:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        raise _error_of_dead_process(process) from None


def _error_of_dead_process(process: BaseProcess) -> ChildProcessError:
    process.join(timeout=5)
    return ChildProcessError(
        f"A worker process has ended before its work (exit code {process.exitcode}); if memory has run out, "
        "use fewer `--workers` or a smaller `--tokens_per_batch`."
    )
