"""Controls how much memory this process keeps: pages of memory-mapped corpus files, freed memory that the C
library does not return to the operating system, and the cache of oneDNN.

On systems other than Linux, only the function for the cache of oneDNN has an effect.
"""

import ctypes
import os
from pathlib import Path
from typing import Any

# The maximum number of bytes of memory-mapped files that stay in physical memory.
_MAX_MAPPED_BYTES = 2**28
_MADV_DONTNEED = 4
# The numbers of three `mallopt` options in malloc.h, and the values (in bytes) that this file sets.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MALLOC_OPTIONS = {_M_MMAP_THRESHOLD: 2**25, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26}
# A cache of 16 oneDNN primitives (prepared operations) is enough to run all layers of a model on one batch.
_CACHED_PRIMITIVES = 16


def _c_function(name: str) -> Any:
    """Return a function of the C library on Linux, or None on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if os.path.exists("/proc/self/statm") else None


def return_free_memory() -> None:
    """Return freed memory to the operating system, for example half a gigabyte after the training of a
    tokenizer.
    """
    trim = _c_function("malloc_trim")
    if trim is not None:
        trim(0)


def keep_free_memory() -> None:
    """Let the C library keep freed memory, because all training steps allocate blocks of the same sizes.
    If the C library returns freed memory, the operating system provides 20,000 new memory pages in each
    training step, and a training step of a small model takes 4 % longer.
    """
    set_option = _c_function("mallopt")
    if set_option is not None:
        for option, value in _MALLOC_OPTIONS.items():
            set_option(option, value)


def limit_primitive_cache() -> None:
    """Limit the number of primitives (operations prepared for tensors of one shape) that oneDNN caches.

    By default, oneDNN caches 1,024 primitives, but can rarely use a cached primitive again, because batches
    have many different shapes. With a cache of 1,024 oneDNN primitives, the memory of a small bfloat16
    training grew from 0.9 GiB to 4.5 GiB (scripts/benchmarks/training.md). Call `limit_primitive_cache`
    before the model runs, because oneDNN reads the limit only when it prepares its first primitive.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_CACHED_PRIMITIVES))


class MappedFiles:
    """The memory-mapped Arrow files of this process."""

    def __init__(self) -> None:
        self._shared_bytes_after_release = 0
        self._advise = _c_function("madvise")

    def release(self) -> None:
        """Remove the pages of Arrow files from memory if the shared memory of the process has grown by at
        least `_MAX_MAPPED_BYTES` since the previous removal.

        If the process later reads a page that was removed from memory, the operating system loads the page
        from the file again.
        """
        limit = self._shared_bytes_after_release + _MAX_MAPPED_BYTES
        if self._advise is None or _shared_bytes() < limit:
            return
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            if line.endswith(".arrow") and line.split()[1].startswith("r--"):
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                self._advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
        # The code of shared libraries also counts as shared memory. Store the size of the shared memory after
        # the removal, so that the next call of `release` counts only pages that were loaded later.
        self._shared_bytes_after_release = _shared_bytes()


def _shared_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2]) * os.sysconf("SC_PAGE_SIZE")


mapped_files = MappedFiles()
