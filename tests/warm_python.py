"""Python interpreters that have already imported modules. Commands of tests start as forks of these
interpreters.

`with warm_python(path, modules) as python:` writes an executable to the path. Tests call the executable as
they call `python`: `python -c CODE …`, `python -m MODULE …` or `python SCRIPT …`. Each command has its own
environment, folder, streams, signals and exit code.

* The fixture `python` has imported the package and the libraries of the commands. `python` has read the
  environment variables of the local Hub.
* The fixture `fresh_python` has imported torch only. Use it for programs that need other variables of
  huggingface_hub, or that must not have imported the package. All test processes share one `fresh_python`.

A test that needs an interpreter without any import uses `sys.executable`. Processes that a command starts
with its own `sys.executable` (launchers, multiprocessing) are forked too.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

# These parts of torch take most of the time of `import transformers`, and read no variable of
# huggingface_hub.
TORCH = "torch torch._dynamo torch.distributed.tensor torch.fx.experimental.symbolic_shapes".split()
# Modules that every command line, training run and launcher imports.
PACKAGE = """
    accelerate.commands.launch torch.distributed.run torch.distributed.fsdp transformers.distributed
    matplotlib.backends.backend_agg matplotlib.figure num2words sacrebleu
    vaswani_hf.cli vaswani_hf.training.run vaswani_hf.convert.export vaswani_hf.publish.push
""".split()

# The client imports only the standard library, without `site`, so that the client starts fast. The second
# line is a command for sh and a string for Python, because the first line may contain no space.
CLIENT = """#!/bin/sh
''''exec "{python}" -IS "$0" "$@" # '''
import json, os, signal, socket, sys
streams = [number for number in map(int, os.listdir("/dev/fd")) if os.path.exists(f"/dev/fd/{{number}}")]
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
deaf = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), streams, deaf]).encode()
socket.send_fds(server, [len(request).to_bytes(8, "big")], streams)
server.sendall(request)
process = int.from_bytes(server.recv(8), "big")
for number in set(numbers) - set(deaf):
    signal.signal(number, lambda number, frame: os.kill(process, number))
code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextlib.contextmanager
def warm_python(path: Path, modules: Sequence[str], start: str = sys.executable) -> Iterator[str]:
    """Yield an executable whose commands find these modules imported by the interpreter `start`."""
    address = f"{path}.socket"
    path.write_text(CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        # Commands must not inherit the number of threads, nor wait for a dead server.
        server = subprocess.Popen(
            [start, __file__, str(listener.fileno()), str(path), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    try:
        yield str(path)
    finally:
        server.stdin.close()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()


def serve(listener: socket.socket) -> list[str]:
    """The arguments of a command in its forked process; the server itself never returns."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [], 1.0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            os._exit(0)
        if listener in ready:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return answer(connection)
            connection.close()


def start_server(listener: socket.socket, executable: str, modules: list[str]) -> list[str]:
    """Import the modules and start the server. The function returns in the process of a command only."""
    # See conftest.py.
    os.fsync = lambda descriptor: None
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    sys.executable = executable
    multiprocessing.set_executable(executable)
    return serve(listener)


def answer(connection: socket.socket) -> list[str]:
    """Fork the process of a command and return its arguments there; tell the client the exit code."""
    header, streams, _, _ = socket.recv_fds(connection, 8, 253)
    length, request = int.from_bytes(header, "big"), b""
    while len(request) < length:
        request += connection.recv(length - len(request))
    arguments, environment, folder, numbers, deaf = json.loads(request)
    process = os.fork()
    if process == 0:
        connection.close()
        # Move the streams to high numbers first, because a number may be in use for another stream.
        moved = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 256) for stream in streams]
        for stream in streams:
            os.close(stream)
        for number, stream in zip(numbers, moved, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        # Python sets a stream to None if the stream was closed before Python started.
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if number not in numbers:
                os.close(number)
                setattr(sys, name, None)
        for number in deaf:
            signal.signal(number, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        return arguments
    for stream in {*streams, 0, 1, 2}:
        os.close(stream)
    connection.send(process.to_bytes(8, "big"))
    ended = os.pidfd_open(process)
    if ended not in select.select([connection, ended], [], [])[0]:
        # The client was killed, so kill its command, too.
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(code.to_bytes(8, "big", signed=True))
    os._exit(0)


def run(arguments: list[str]) -> None:
    """Run the code, module or script that Python's arguments name, in this process."""
    while arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        # Launchers and multiprocessing pass options of the interpreter; only `-u` has an effect here.
        if arguments.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind, *rest = arguments
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(module))
    elif kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        # Forget the imported module, because the module now runs as `__main__`.
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


def end(arguments: list[str]) -> NoReturn:
    """Run a command, and end the process as Python does, but without deleting its thousands of modules."""
    code: object = 0
    try:
        run(arguments)
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    status = code or 0 if isinstance(code, int | None) else 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            print(f"Exception ignored on flushing {stream.name}: {error}", file=sys.stderr)
            status = 120
    os._exit(status)


if __name__ == "__main__":
    sys.path.pop(0)
    descriptor, executable, *modules = sys.argv[1:]
    end(start_server(socket.socket(fileno=int(descriptor)), executable, modules))
