"""Limits the number of PyTorch's threads and their busy waiting, because other programs can use the same
processor cores (measurements: scripts/benchmarks/threads.md).
"""

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# The environment variables with which a user chooses how long waiting threads of GNU's OpenMP library spin.
_WAITING_VARIABLES = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
_STATISTICS = Path("/proc/stat")


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Let a waiting OpenMP thread spin for only 1,000 iterations, which take microseconds, instead of 300,000
    iterations, which take milliseconds. If another program uses the core of one thread, all other threads
    wait for this thread and spin. GNU's OpenMP library reads GOMP_SPINCOUNT when torch is imported, so call
    this function before the import.
    """
    if not _WAITING_VARIABLES & environment.keys():
        environment["GOMP_SPINCOUNT"] = "1000"


class ProcessorTimes(NamedTuple):
    """CPU times in seconds, summed over all cores. The processor times `total` and `idle` are counted from
    the start of the machine. `own` is the processor time that this process has used.
    """

    total: float
    idle: float
    own: float


def processor_times() -> ProcessorTimes:
    """Read the processor times from the file /proc/stat of Linux. If the file is missing or cannot be read,
    return zeros.
    """
    try:
        line = _STATISTICS.read_text(encoding="ascii").split("\n", 1)[0]
        user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = map(int, line.split()[1:9])
    except (OSError, ValueError):
        return ProcessorTimes(0, 0, 0)
    ticks = user + nice + system + idle + waiting + interrupts + soft_interrupts + stolen
    per_second = os.sysconf("SC_CLK_TCK")
    own = os.times()
    return ProcessorTimes(ticks / per_second, (idle + waiting) / per_second, own.user + own.system)


def free_cores(before: ProcessorTimes, after: ProcessorTimes, num_cores: int) -> float:
    """Return the mean number of cores that were idle or that this process used between two measurements."""
    free = after.idle - before.idle + after.own - before.own
    return num_cores * free / (after.total - before.total)


@contextmanager
def leaving_busy_cores(is_quiet: bool = False) -> Iterator[None]:
    """Limit PyTorch's threads to the number of free cores. A thread on a busy core delays all threads.

    The free cores are counted during the `with` block, in which the caller imports torch. Nothing changes if
    the user has set OMP_NUM_THREADS, if torch is already imported, or if the processor times are unknown.
    """
    if "OMP_NUM_THREADS" in os.environ or "torch" in sys.modules:
        yield
        return
    before = processor_times()
    yield
    after = processor_times()
    # Change nothing if the processor times are unknown: some sandboxes hide /proc/stat, or report only zeros.
    if after.total <= before.total:
        return
    import torch

    most = torch.get_num_threads()
    num_threads = max(1, min(most, round(free_cores(before, after, os.cpu_count() or 1))))
    if num_threads < most:
        torch.set_num_threads(num_threads)
        if not is_quiet:
            print(
                f"using {num_threads:,} of {most:,} threads, because other programs use the processor; "
                "OMP_NUM_THREADS sets another number",
                file=sys.stderr,
            )
