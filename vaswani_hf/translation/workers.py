"""Translating in several processes: each with a translator of its own, the translations in order."""

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

from ..model.options_vaswani import TranslationOptions
from ..model.requests_vaswani import Request
from .translator import Translator

# Windows per process that are read, or translated and not yet given, at most.
_WINDOWS_PER_WORKER = 2


def translate_in_processes(
    load: Callable[[], Translator],
    requests: Iterable[Request],
    options: TranslationOptions,
    *,
    num_workers: int,
    first_line: int = 1,
) -> Iterator[Any]:
    """Translations in the order of the requests, each window of them from one of several processes.

    The processes share the threads that this one has. They end with the iterator, which is to be closed if it is not
    used up. A script must start them below `if __name__ == "__main__":`.

    Args:
        load (Callable): Loads the translator in each process; a `functools.partial` of `Translator.from_pretrained`.
        requests (Iterable): Read as far as two windows per process at a time.
        options (TranslationOptions): How to translate; the window is what a process gets at a time.
        num_workers (int): Processes.
        first_line (int): The number of the first request, for warnings and for the seed.

    Yields:
        str or Translation: One for each request.
    """
    windows = _windows(iter(requests), options.window, first_line)
    # Without a text there is nothing to load a model for.
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
    # Ctrl-C reaches all processes of a terminal; this one ends the others, which are to say nothing.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        for _ in range(num_workers):
            connection, of_worker = context.Pipe()
            process = context.Process(target=_work, args=(of_worker, load, num_threads), daemon=True)
            process.start()
            # The connection is to end with the process.
            of_worker.close()
            workers[connection] = process
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return workers


def _work(connection: Connection, load: Callable[[], Translator], num_threads: int) -> None:
    """Translates what a connection sends until its other end is closed."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(num_threads)
    translator = None
    while True:
        try:
            requests, options, first_line = connection.recv()
        except (EOFError, ConnectionError):
            return
        # The translations before an error are given too.
        done, failure = [], None
        try:
            translator = translator or load()
            for translation in translator.translate_requests(requests, options, first_line):
                done.append(translation)
        except Exception as error:
            failure = _that_travels(error)
        try:
            connection.send((done, failure))
        except ConnectionError:
            # Whoever asked was killed.
            return


def _that_travels(error: Exception) -> Exception:
    """The error, or one with its words where it cannot be made again from what it sends."""
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
    idle = list(workers)
    busy: dict[Any, int] = {}
    finished: dict[int, tuple[list[Any], Exception | None]] = {}
    num_sent = num_given = 0
    is_read = False
    while not is_read or busy or finished:
        if num_given in finished:
            # Before more is read, which may take as long as somebody types.
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
        # To wait for nobody, after the last window, would be to wait for ever.
        ready: list[Any] = wait(list(busy)) if busy else []
        for connection in ready:
            finished[busy.pop(connection)] = _receive(connection, workers[connection])
            idle.append(connection)


def _send(connection: Connection, process: BaseProcess, task: Any) -> None:
    try:
        connection.send(task)
    except ConnectionError:
        raise _death_of(process) from None


def _receive(connection: Connection, process: BaseProcess) -> tuple[list[Any], Exception | None]:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        raise _death_of(process) from None


def _death_of(process: BaseProcess) -> ChildProcessError:
    process.join(timeout=5)
    return ChildProcessError(
        f"A worker process has ended before its work (exit code {process.exitcode}); if memory has run out, use fewer "
        "`--workers` or a smaller `--tokens_per_batch`."
    )
