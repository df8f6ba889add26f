"""Lets the C library keep freed memory for the next training step, and limits the number of oneDNN primitives
in the cache.
"""

import os

from ..data.memory import c_function

# The numbers of three `mallopt` options in malloc.h. `_MALLOC_OPTIONS` maps each option to its value in
# bytes.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MALLOC_OPTIONS = {_M_MMAP_THRESHOLD: 2**25, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26}
# The number of primitives that oneDNN caches in a training: enough for the layers of one batch.
_CACHED_PRIMITIVES = 16


def keep_free_memory() -> None:
    """Let the C library keep freed memory for the next training step, because all steps allocate memory
    blocks of the same sizes. Otherwise the operating system provides 20,000 new memory pages in each step,
    and a step of a small model takes 4 % longer. The function does nothing on systems other than Linux.
    """
    set_option = c_function("mallopt")
    if set_option is not None:
        for option, value in _MALLOC_OPTIONS.items():
            set_option(option, value)


def limit_primitive_cache() -> None:
    """Limit the number of primitives that oneDNN caches. A primitive is an operation that oneDNN has prepared
    for tensors of one shape.

    By default, oneDNN caches 1,024 primitives. The batches of a training have many different shapes.
    Therefore oneDNN can rarely use a cached primitive again in the next batch. Without the limit, the memory
    of a small bfloat16 training grew from 0.9 GiB to 4.5 GiB (scripts/benchmarks/training.md). oneDNN reads
    `ONEDNN_PRIMITIVE_CACHE_CAPACITY` when it prepares its first primitive. If the user has set this
    environment variable, the function does not change its value.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_CACHED_PRIMITIVES))
