"""Reduces the costs of memory allocation: `mallopt` of the C library, and the cache of oneDNN."""

import os

from ..data.memory import c_function

# The numbers that malloc.h gives three options of `mallopt`, and the values in bytes to which the options are
# set.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MALLOC_OPTIONS = {_M_MMAP_THRESHOLD: 2**25, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26}
# A cache of 16 oneDNN primitives (prepared operations) is enough to run all layers of a model on one batch.
_CACHED_PRIMITIVES = 16


def keep_free_memory() -> None:
    """Let the C library keep freed memory, because all steps allocate blocks of the same sizes. Otherwise the
    operating system provides 20,000 new memory pages in each step, and a step of a small model takes 4 %
    longer. Only Linux has `mallopt`.
    """
    set_option = c_function("mallopt")
    if set_option is not None:
        for option, value in _MALLOC_OPTIONS.items():
            set_option(option, value)


def limit_primitive_cache() -> None:
    """Limit the number of primitives (operations prepared for tensors of one shape) that oneDNN caches.

    By default, oneDNN caches 1,024 primitives, but can rarely use a cached primitive again, because batches
    have many different shapes. With 1,024 primitives, the memory of a small bfloat16 training grew from 0.9
    GiB to 4.5 GiB (scripts/benchmarks/training.md). Call this function before the model runs, because oneDNN
    reads the limit only when it prepares its first primitive.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_CACHED_PRIMITIVES))
