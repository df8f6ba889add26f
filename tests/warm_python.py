"""A Python that has already imported torch, transformers and the package: commands of tests start in it by a fork.

`with warm_python(folder) as python:` gives the path of an executable that is used as `python` is: `python -c CODE …`,
`python -m MODULE …` or `python SCRIPT …`, with environment, folder, streams, signals and exit code of its own. Where a
test is about what is imported, or about a fresh interpreter, it takes `sys.executable`. What such a process starts itself
with its own `sys.executable`, by a launcher or by multiprocessing, is forked likewise.
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
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

# What every command line, training run and launcher imports.
PRELOADED = """
    accelerate.commands.launch torch.distributed.run torch.distributed.fsdp transformers.distributed
    matplotlib.backends.backend_agg matplotlib.figure sacrebleu
    vaswani_hf.cli vaswani_hf.training.run vaswani_hf.convert.export vaswani_hf.publish.push
""".split()

# Told with nothing but the standard library, and without `site`, so that it starts in an instant.
CLIENT = """#!{python} -IS
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
def warm_python(folder: Path) -> Iterator[str]:
    """The executable, which lies in a folder; its server ends with the block.

    Args:
        folder: A folder with a short path, for a socket.
    """
    address, executable = str(folder / "socket"), folder / "python"
    executable.write_text(CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    executable.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    # Commands may not inherit that the tests have more threads, nor wait for a server that has gone.
    server = subprocess.Popen(
        [sys.executable, __file__, str(listener.fileno()), str(executable)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    listener.close()
    try:
        # The imports take minutes on a busy machine, which are not to count for the first command of a test.
        subprocess.run([str(executable), "-c", "pass"], check=True)
        yield str(executable)
    finally:
        server.stdin.close()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()


def serve(listener: socket.socket) -> list[str]:
    """The arguments of a command, in a process that was forked for it; the server itself never returns."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
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


def answer(connection: socket.socket) -> list[str]:
    """Forks the process of a command, in which this returns its arguments, and tells the client how it ends."""
    header, streams, _, _ = socket.recv_fds(connection, 8, 253)
    length, request = int.from_bytes(header, "big"), b""
    while len(request) < length:
        request += connection.recv(length - len(request))
    arguments, environment, folder, numbers, deaf = json.loads(request)
    process = os.fork()
    if process == 0:
        connection.close()
        # Out of the way first, because a number may be that of another stream here.
        moved = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 256) for stream in streams]
        for stream in streams:
            os.close(stream)
        for number, stream in zip(numbers, moved, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        # Python has nothing where a stream was closed before it began.
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
        # The client was killed, and its command is to be as dead.
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(code.to_bytes(8, "big", signed=True))
    os._exit(0)


def run(arguments: list[str]) -> None:
    """Runs what the arguments of Python ask for, in this process."""
    while arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        # Of the interpreter's options, of which launchers and multiprocessing pass on theirs, this one matters.
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
        # It is run as `__main__` now, as if it had not been imported.
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


def end(arguments: list[str]) -> NoReturn:
    """Runs a command and ends the process as Python does, without taking its thousands of modules to pieces."""
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
    sys.executable = sys.argv[2]
    multiprocessing.set_executable(sys.executable)
    end(serve(socket.socket(fileno=int(sys.argv[1]))))
