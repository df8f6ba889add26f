"""Translates texts in this process or in several worker processes. Each process loads its own translator."""

import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ..model.inputs_vaswani import TranslationOptions
from ..model.requests_vaswani import Request
from ..user_code import executed_files, run_user_code
from .translator import Translator

# The maximum number of unfinished windows (groups of requests) per worker process. A window is unfinished
# from the time when the window is sent to a worker process until all its translations are yielded. With only
# one unfinished window, a worker process would be idle until all earlier windows are translated.
_WINDOWS_PER_WORKER = 2


def translate_remaining(
    load: Callable[..., Translator],
    requests: Iterable[Any],
    options: TranslationOptions,
    done: int,
    *,
    num_workers: int,
    dtype: str | None,
) -> Generator[Any, None, None]:
    """Yield the translations of all requests after the first `done` requests. The caller must close the
    generator to end the worker processes.

    If at most one window (group of requests) remains, the calling process translates the requests, because
    starting worker processes would take longer. Without a seed, a window has `options.window / num_workers`
    requests. `load` is a picklable function that loads the translator. `load(dtype=...)` loads the translator
    with another dtype. With the dtype "auto", the calling process chooses the dtype for all worker processes.
    """
    window = options.window
    if num_workers > 1 and options.seed is None:
        window = -(-window // num_workers)
    # With a seed, do not divide `options.window` by the number of worker processes, because the sampled
    # tokens depend on the window size. A resumed run translates the whole unfinished window again, because
    # the rounding errors of a sentence depend on the other sentences of its batch.
    begin = done - done % window
    translator = None
    if num_workers == 1 or dtype == "auto":
        translator = load()
        # A resumed run also chooses the dtype from the first requests of the input, so that all processes and
        # runs use the same dtype.
        requests = translator.after_choosing_dtype(requests, options)
    options = replace(options, window=window)
    remaining: Iterator[Any] = islice(requests, begin, None)
    starts_processes = False
    if num_workers > 1:
        # Start worker processes only if more than `window` requests remain.
        first = list(islice(remaining, window + 1))
        remaining = chain(first, remaining)
        starts_processes = len(first) > window
    translations: Any
    if starts_processes:
        if translator is not None:
            load = partial(load, dtype=translator.model.dtype)
        translations = translate_in_processes(
            load, remaining, options, num_workers=num_workers, first_line=begin + 1
        )
    else:
        translator = translator or load()
        translations = translator.translate_requests(remaining, options, begin + 1)
    with closing(translations):
        yield from islice(translations, done - begin, None)


def translate_in_processes(
    load: Callable[[], Translator],
    requests: Iterable[Request],
    options: TranslationOptions,
    *,
    num_workers: int,
    first_line: int = 1,
) -> Iterator[Any]:
    """Translate windows (groups of requests) in several processes. Yield the translations in the order of the
    requests.

    `load` is a picklable function that each worker process calls. The worker processes share the CPU threads
    of the calling process, and end when the iterator ends or is closed. A script must call
    `translate_in_processes` under `if __name__ == "__main__":`, because each worker process imports the
    script.
    """
    windows = _windows(iter(requests), options.window, first_line)
    # Do not start more worker processes than there are windows (groups of requests).
    first = list(islice(windows, num_workers))
    if not first:
        return
    workers = _start(load, len(first))
    try:
        yield from _in_order(workers, chain(first, windows), options)
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join()


def _start(load: Callable[[], Translator], num_workers: int) -> dict[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    num_threads = max(1, torch.get_num_threads() // num_workers)
    workers: dict[Connection, BaseProcess] = {}
    # A terminal sends Ctrl-C (SIGINT) to all processes. The worker processes ignore SIGINT, because the main
    # process ends the worker processes.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        for _ in range(num_workers):
            connection, of_worker = context.Pipe()
            arguments = (of_worker, load, num_threads, executed_files())
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            # Close the main process's copy of the worker's connection, because the main process would
            # otherwise not notice the end of the worker process.
            of_worker.close()
            workers[connection] = process
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return workers


def _work(
    connection: Connection, load: Callable[[], Translator], num_threads: int, user_files: list[Path]
) -> None:
    """The main function of a worker process: translate windows (groups of requests) until the main process
    closes the connection. `user_files` are Python files that register attention functions or position
    encodings of the user.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(num_threads)
    for file in user_files:
        run_user_code(file, "--code")
    translator = None
    while True:
        try:
            requests, options, first_line = connection.recv()
        except (EOFError, ConnectionError):
            return
        # If a request fails, send the error together with the translations of the earlier requests.
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
            # A closed connection means that the main process has ended.
            return


def _picklable(error: Exception) -> Exception:
    """Return `error`, or a `ChildProcessError` with the type and the message if `error` cannot be pickled."""
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
    """Send windows (groups of requests) to idle worker processes, and yield the translations in the order of
    the windows.
    """
    idle = list(workers)
    busy: dict[Any, int] = {}
    finished: dict[int, tuple[list[Any], Exception | None]] = {}
    num_sent = num_given = 0
    is_read = False
    while not is_read or busy or finished:
        if num_given in finished:
            # Yield finished translations before reading more requests, because a read waits while a user
            # types.
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
        # With an empty list of connections, `wait` would never return.
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
        f"A worker process ended before it had translated all texts (exit code {process.exitcode}); if memory "
        "has run out, use fewer `--workers` or a smaller `--tokens_per_batch`."
    )
