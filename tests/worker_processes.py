"""The worker processes of a command, found in /proc."""

import os
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are looked for in /proc")


def processes_of(parent: int) -> list[int]:
    """The children of a process."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            status = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(status[1]) == parent:
            found.append(int(name))
    return found


def is_worker(pid: int) -> bool:
    """True for a living process that is not the resource tracker of multiprocessing."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
