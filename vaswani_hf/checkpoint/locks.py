"""Provides locks, so that only one process at a time writes an output or the folder of a run. An output is a
file or folder that a command writes.

A process opens a lock file, and asks the operating system to lock the file. The operating system releases the
lock when the process ends, even if the process is killed. Therefore a killed process does not block later
processes. The lock file contains the process ID and the machine of the process that has the lock. Before a
process releases a lock, the process deletes the lock file.

The lock file of a run is `.lock` inside the output folder of the run, so that the lock still works if the
folder is renamed, or if another process uses another path to the folder. The lock file of an output NAME is
`.NAME.lock` in the same folder, because NAME perhaps does not exist yet.
"""

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ..model.errors_vaswani import InvalidValueError

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
# The maximum time to wait for a lock, in seconds. A short time is enough, because waiting for a lock helps in
# only two cases: another process is checking whether the lock is free, or a killed process has not ended yet.
SECONDS_TO_WAIT = 0.5
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)

# The file descriptors that this process keeps open: the descriptors of lock files and of run folders. A
# forked process, such as a data worker, closes its copies of the file descriptors. If a data worker kept its
# copies of the file descriptors, the lock would remain after the end of the parent process.
_DESCRIPTORS: set[int] = set()
# Maps the absolute path of each locked run folder to the file descriptor of the folder.
_RUN_FOLDERS: dict[str, int] = {}


class InUseError(OSError):
    """Raised if another process writes to an output. The error message names the other process."""


def _close_in_a_child() -> None:
    for descriptor in _DESCRIPTORS:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _DESCRIPTORS.clear()
    _RUN_FOLDERS.clear()


os.register_at_fork(after_in_child=_close_in_a_child)


@contextlib.contextmanager
def locked_run(folder: Path) -> Iterator[None]:
    """Lock the output folder of a run. At the end, delete each created folder that is still empty."""
    if folder.is_file():
        raise InvalidValueError(f"`output_dir` must be a folder, but '{folder}' is a file.")
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    sentence = (
        f"`output_dir` '{folder}' is in use by {{}}; wait until it ends, or choose another `--output_dir`."
    )
    with contextlib.ExitStack() as stack:
        stack.callback(_delete_empty, new_folders)
        _enter_in_folder(stack, folder, sentence)
        opened = os.open(folder, os.O_RDONLY)
        _DESCRIPTORS.add(opened)
        stack.callback(_close_folder, folder, opened, os.getpid())
        _RUN_FOLDERS[os.path.abspath(folder)] = opened
        yield


def _enter_in_folder(stack: contextlib.ExitStack, folder: Path, sentence: str) -> None:
    """Create and lock a run folder. If another process deletes the folder before this process has locked the
    folder, try again.
    """
    end = time.monotonic() + SECONDS_TO_WAIT
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder / LOCK_FILE, sentence))
            return
        except FileExistsError:
            # Despite `exist_ok=True`, `mkdir` raises FileExistsError if another process deletes the folder
            # during the call. `mkdir` also raises FileExistsError if `folder` is a link to a missing folder.
            if time.monotonic() > end:
                raise
        except FileNotFoundError:
            if time.monotonic() > end:
                raise InUseError(sentence.format("another process")) from None


def _delete_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _close_folder(folder: Path, descriptor: int, process: int) -> None:
    if os.getpid() == process:
        _RUN_FOLDERS.pop(os.path.abspath(folder), None)
        _DESCRIPTORS.discard(descriptor)
        os.close(descriptor)


def is_replaced(folder: Path) -> bool:
    """Return True if a run folder was moved or replaced after this process had locked the folder."""
    descriptor = _RUN_FOLDERS.get(os.path.abspath(folder))
    if descriptor is None:
        return False
    try:
        return not os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return True


@contextlib.contextmanager
def locked_output(output: str | Path, name: str) -> Iterator[bool]:
    """Lock an output. Yield False if the file system has no locks, or the parent folder is not writable."""
    sentence = f"{name} is being written by {{}}; wait until it ends, or give another name."
    with _locked(_lock_file_of(output), sentence) as is_locked:
        yield is_locked


def check_not_in_use(output: str | Path, name: str) -> None:
    """Raise an error if another process writes to an output."""
    if _lock_file_of(output).exists():
        with locked_output(output, name):
            pass


def _lock_file_of(output: str | Path) -> Path:
    place = Path(os.path.realpath(output))
    # Shorten the name, because a file name can have at most 255 bytes.
    name = os.fsdecode(os.fsencode(place.name)[:200])
    return place.with_name(f".{name}.lock")


@contextlib.contextmanager
def _locked(path: Path, sentence: str) -> Iterator[bool]:
    descriptor, process = _acquire(path, sentence), os.getpid()
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and os.getpid() == process:
            _DESCRIPTORS.discard(descriptor)
            if _is_at(path, descriptor):
                # Delete the lock file before releasing the lock. A process that waits for the lock then
                # notices the missing file, and creates a new lock file.
                with contextlib.suppress(OSError):
                    path.unlink()
            os.close(descriptor)


def _acquire(path: Path, sentence: str) -> int | None:
    """Lock a lock file, and return its descriptor. Return None if the file system has no locks, or if the
    folder is not writable.
    """
    # Import filelock late, because the import is slow, and many commands lock nothing.
    from filelock import lock_descriptor

    # First open the lock file only for reading, because a disk cannot be remounted read-only while one of its
    # files is open for writing. On NFS, open the lock file for writing, because NFS locks only files that are
    # open for writing.
    access, end = os.O_RDONLY, time.monotonic() + SECONDS_TO_WAIT
    while (descriptor := _open(path, access)) is not None:
        is_taken = False
        try:
            is_taken = lock_descriptor(descriptor, blocking=False) and _is_at(path, descriptor)
            if is_taken:
                _DESCRIPTORS.add(descriptor)
                _write_holder(path)
                return descriptor
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
        except OSError as error:
            if error.errno != errno.EBADF or access == os.O_RDWR:
                _say_unlocked(path, descriptor, error)
                return None
            access = os.O_RDWR
            continue
        finally:
            if not is_taken:
                os.close(descriptor)
        if time.monotonic() > end:
            raise InUseError(sentence.format(holder or "another process"))
        time.sleep(0.02)
    return None


def _open(path: Path, access: int) -> int | None:
    """Open or create a lock file. Return None if the user has no permission to create files in the folder."""
    try:
        return os.open(path, access | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno in _NOT_WRITABLE:
            return None
        raise


def _say_unlocked(path: Path, descriptor: int, error: OSError) -> None:
    reason = (
        f"'{path.parent}' has no file locks ({error.strerror}): make sure that no other process writes into "
        "this folder"
    )
    logger.warning(reason)
    with contextlib.suppress(OSError):
        # Delete only an empty lock file, because a process that has a lock writes its id into the lock file.
        if os.fstat(descriptor).st_size == 0:
            path.unlink()


def _is_at(path: Path, descriptor: int) -> bool:
    """Return True if the opened lock file still exists at its path. The process that had the lock before has
    perhaps deleted the lock file.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _write_holder(path: Path) -> None:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    # Ignore errors, such as a full disk, because the lock also works with an empty lock file.
    with contextlib.suppress(OSError):
        path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n", encoding="utf-8")
