"""Locks: one process holds a lock, no fork, rename or deletion loses a lock, and no files remain."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

import vaswani_hf
from vaswani_hf.checkpoint import locks
from vaswani_hf.checkpoint.files import new_folder
from vaswani_hf.checkpoint.locks import InUseError, check_not_in_use, is_replaced, locked_output, locked_run

PACKAGE = Path(vaswani_hf.__file__).parent
# Replace the packages by empty packages with the same files, because their `__init__.py` would import torch.
HOLD = f"""
import os, sys, time, types
from pathlib import Path
for name in ("vaswani_hf", "vaswani_hf.checkpoint", "vaswani_hf.model"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join({str(PACKAGE)!r}, *name.split(".")[1:])]
from vaswani_hf.checkpoint import locks
with getattr(locks, sys.argv[1])(Path(sys.argv[2]), *sys.argv[3:]):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Start a process that takes a lock and forks a child; the child lives longer than the process. Both wait
    for the end of their standard input.
    """
    started = []

    def hold(kind, *arguments):
        command = [sys.executable, "-c", HOLD, kind, *map(str, arguments)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def check_in_use(monkeypatch):
    """Check that a lock is refused with a sentence, without the usual wait."""

    def check(lock, sentence):
        with monkeypatch.context() as patch:
            patch.setattr(locks, "SECONDS_TO_WAIT", 0.0)
            with pytest.raises(InUseError, match=sentence), lock:
                pass

    return check


def test_a_locked_folder_is_refused_with_the_name_of_the_holder_until_that_is_killed(
    tmp_path, holder, check_in_use
):
    folder = tmp_path / "new" / "run"
    process = holder("locked_run", folder)
    (tmp_path / "other").symlink_to(folder)
    for name in (folder, tmp_path / "other"):
        sentence = (
            rf"^`output_dir` '{name}' is in use by process {process.pid} on \S+ since \d{{4}}-[\d: +-]+; wait until it ends, "
            "or choose another `--output_dir`.$"
        )
        check_in_use(locked_run(name), sentence)
    # Kill the process, but not its child.
    process.kill()
    process.wait()
    assert (folder / ".lock").exists()
    with locked_run(folder):
        assert (folder / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    assert list(folder.iterdir()) == []


def test_an_output_is_locked_beside_it(tmp_path, holder, check_in_use):
    output = tmp_path / "out.txt"
    process = holder("locked_output", output, "`--output` out.txt")
    sentence = (
        f"^`--output` out.txt is being written by process {process.pid} on .* since .*; wait until it ends"
    )
    check_in_use(locked_output(output, "`--output` out.txt"), sentence)
    with pytest.raises(InUseError, match=sentence):
        check_not_in_use(output, "`--output` out.txt")
    process.kill()
    process.wait()
    check_not_in_use(output, "`--output` out.txt")
    assert list(tmp_path.iterdir()) == []


def test_folders_that_a_lock_has_made_are_deleted_if_they_are_empty(tmp_path):
    (tmp_path / "old").mkdir()
    with locked_run(tmp_path / "old" / "a" / "b"):
        assert (tmp_path / "old" / "a" / "b" / ".lock").exists()
    assert list((tmp_path / "old").iterdir()) == []
    with locked_run(tmp_path / "old"):
        pass
    with locked_run(tmp_path / "old" / "a"):
        (tmp_path / "old" / "a" / "file").touch()
    assert [path.name for path in (tmp_path / "old" / "a").iterdir()] == ["file"]
    (tmp_path / "file").touch()
    sentence = "^`output_dir` must be a folder, but '.*/file' is a file.$"
    with pytest.raises(ValueError, match=sentence), locked_run(tmp_path / "file"):
        pass


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_a_folder_that_is_replaced_has_a_lock_of_its_own(tmp_path, check_in_use, how):
    folder, moved = tmp_path / "run", tmp_path / "moved"
    with locked_run(folder):
        assert not is_replaced(folder)
        if how == "deleted":
            (folder / ".lock").unlink()
            folder.rmdir()
        else:
            folder.rename(moved)
        assert is_replaced(folder)
        folder.mkdir()
        assert is_replaced(folder)
        (folder / ".lock").write_text("of another run")
        if how == "renamed":
            check_in_use(locked_run(moved), f"by process {os.getpid()} ")
    # The lock file of the other run is not deleted.
    assert (folder / ".lock").read_text() == "of another run"
    assert not is_replaced(folder)


def test_a_lock_file_that_its_holder_deletes_at_this_moment_is_no_lock(tmp_path, monkeypatch):
    path, opened = tmp_path / ".lock", []
    open_before = locks._open

    def open_and_lose(path, access):
        descriptor = open_before(path, access)
        if not opened:
            path.unlink()
        opened.append(descriptor)
        return descriptor

    monkeypatch.setattr(locks, "_open", open_and_lose)
    with locked_run(tmp_path):
        assert len(opened) == 2
        assert path.exists()


def test_a_folder_that_other_processes_delete_again_and_again_is_in_use(tmp_path, monkeypatch, check_in_use):
    folder = tmp_path / "run"
    open_before = locks._open

    def delete_and_open(path, access):
        folder.rmdir()
        return open_before(path, access)

    monkeypatch.setattr(locks, "_open", delete_and_open)
    check_in_use(
        locked_run(folder), f"^`output_dir` '{folder}' is in use by another process; wait until it ends"
    )


def test_a_folder_that_another_process_deletes_at_this_moment_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()

    def delete(path):
        monkeypatch.undo()
        folder.rmdir()
        return False

    monkeypatch.setattr(Path, "is_dir", delete)
    with locked_run(folder):
        assert (folder / ".lock").exists()


def test_a_file_system_that_locks_files_for_writing_only_has_locks(tmp_path, monkeypatch, check_in_use):
    lock = filelock.lock_descriptor

    def lock_as_nfs(descriptor, blocking):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return lock(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", lock_as_nfs)
    with locked_run(tmp_path):
        check_in_use(locked_run(tmp_path), f"by process {os.getpid()} ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_and_used(tmp_path, monkeypatch, caplog, number):
    def refuse(descriptor, blocking):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    with locked_run(tmp_path):
        assert list(tmp_path.iterdir()) == []
    (warning,) = caplog.messages
    assert re.fullmatch(
        rf"'{tmp_path}' has no file locks \(.*\): make sure that no other process writes into this folder",
        warning,
    )
    left = tmp_path / ".out.0a1b2c3d.vaswani-unfinished"
    left.mkdir()
    with new_folder(tmp_path / "other") as folder:
        folder.mkdir()
    # The folder stays, because another process may still use the folder.
    assert left.exists()


def test_a_folder_in_which_no_lock_file_can_be_made_is_used_without_one(tmp_path, monkeypatch):
    def refuse(path, flags, mode=0o777):
        if str(path).endswith(".lock") and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_before(path, flags, mode)

    open_before = os.open
    monkeypatch.setattr(os, "open", refuse)
    with locked_run(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_have_left_of_a_new_folder_is_deleted(tmp_path, holder, check_in_use):
    process = holder("locked_output", tmp_path / "busy", "")
    busy, dead = (tmp_path / f".{name}.0a1b2c3d.vaswani-unfinished" for name in ("busy", "dead"))
    for left in (busy, dead):
        left.mkdir()
        (left / "model.safetensors").touch()
    with new_folder(tmp_path / "new") as folder:
        folder.mkdir()
        assert busy.exists() and not dead.exists()
        sentence = rf"^`output` '.*/new' is being written by process {os.getpid()} on "
        check_in_use(new_folder(tmp_path / "new"), sentence)
    check_in_use(new_folder(tmp_path / "busy"), f"by process {process.pid} ")
    process.kill()
    process.wait()
    with new_folder(tmp_path / "busy") as folder:
        folder.mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "new"]


def test_a_new_folder_takes_the_place_of_one_that_has_a_lock_file_only(tmp_path, holder, check_in_use):
    process = holder("locked_run", tmp_path / "run")
    check_in_use(new_folder(tmp_path / "run"), f"is in use by process {process.pid} ")
    process.kill()
    process.wait()
    with new_folder(tmp_path / "run") as folder:
        folder.mkdir()
        (folder / "file").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["a" * 255, "日" * 85])
def test_an_output_with_a_long_name_is_locked(tmp_path, name):
    with locked_output(tmp_path / name, "output") as is_locked:
        assert is_locked
        assert len(list(tmp_path.glob(".*.lock"))) == 1
