"""Controls how much memory this process keeps: pages of memory-mapped corpus files, and freed memory that
the C library does not return to the operating system.

The functions do nothing on systems other than Linux.
"""

import ctypes
import os
from pathlib import Path
from typing import Any

# The number of bytes of memory-mapped files that can stay in physical memory.
_MAX_MAPPED_BYTES = 2**28
_MADV_DONTNEED = 4


def c_function(name: str) -> Any:
    """Return a function of the C library on Linux, or None on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if os.path.exists("/proc/self/statm") else None


def return_free_memory() -> None:
    """Return freed memory to the system, such as half a gigabyte after the training of a tokenizer."""
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)


class MappedFiles:
    """The memory-mapped Arrow files of this process."""

    def __init__(self) -> None:
        self._shared_bytes_after_release = 0
        self._advise = c_function("madvise")

    def release(self) -> None:
        """Remove the pages of Arrow files from memory if the pages need more than `_MAX_MAPPED_BYTES`.

        At the next access to a removed page, the operating system reads the page from the file again.
        """
        limit = self._shared_bytes_after_release + _MAX_MAPPED_BYTES
        if self._advise is None or _shared_bytes() < limit:
            return
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            if line.endswith(".arrow") and line.split()[1].startswith("r--"):
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                self._advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
        # The code of shared libraries also counts as shared memory. After the removal of Arrow pages, store
        # the size of the shared memory. The next call then counts only pages that were loaded later.
        self._shared_bytes_after_release = _shared_bytes()


def _shared_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2]) * os.sysconf("SC_PAGE_SIZE")


mapped_files = MappedFiles()
