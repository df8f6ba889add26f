"""Functions that the benchmarks share: measure functions alternately, compute medians and ratios of times,
measure the peak memory, and print the conditions of a measurement.
"""

import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from training_peers.turns import resident

from vaswani_hf.training.hardware import hardware_name


def print_header(device: str = "cpu") -> None:
    """Print the date, the command, the hardware of `device` and the versions of a measurement."""
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers")]
    print(f"{date.today()}: python {shlex.join(sys.argv)}")
    hardware = hardware_name(torch.device(device), 1)
    print(", ".join([hardware, f"Python {platform.python_version()}", *versions]), flush=True)


def seconds_of(work: Callable[[], Any]) -> float:
    """Call `work`, and return the wall-clock time in seconds, including work that the call has started on a
    GPU.
    """
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def synchronize() -> None:
    """If there is a GPU, wait until the GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_turns(
    ways: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 1,
    measure: Callable[[Callable[[], Any]], float] = seconds_of,
) -> dict[str, list[float]]:
    """Call the functions in `ways` alternately, and return the time in seconds that each function takes in
    each round.

    Every round measures every function once, so that other programs on the machine slow down all functions to
    the same extent. Every second round measures the functions in reverse order, so that no function is always
    the first. The times of the first `warm_up` rounds are ignored.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm_up + rounds):
        order = list(ways)
        if number % 2:
            order.reverse()
        for name in order:
            taken = measure(ways[name])
            if number >= warm_up:
                times[name].append(taken)
    return times


class Ratio(NamedTuple):
    """The median, the smallest and the largest ratio of two times or speeds, with one ratio per round."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f})"


def ratio(numerators: list[float], denominators: list[float]) -> Ratio:
    """Divide each number in one list by the number of the same round in another list."""
    found = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))


def print_times(times: Mapping[str, list[float]], baseline: str, label: str = "") -> None:
    """Print the median milliseconds of each measured function, and the time of the baseline divided by the
    time of the function.
    """
    for name, values in times.items():
        line = f"{label}{name:28} {1000 * statistics.median(values):11.2f} ms"
        if name != baseline:
            line += f"  {baseline} takes {ratio(times[baseline], values)} times as long"
        print(line, flush=True)


def peak_memory(work: Callable[[], Any], device: str) -> float:
    """Return the peak of the memory of `device` (MiB) during a call, minus the memory before the call. Call
    this function in a new process, because memory that earlier calls have freed would make the result too
    small.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
        work()
        return torch.cuda.max_memory_allocated() / 2**20 - before
    # Reset the recorded peak of the resident memory. On Linux, writing 5 to /proc/self/clear_refs resets the
    # peak.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


# The lines that new processes have written to standard error.
_printed_errors: set[str] = set()


def from_fresh_process(arguments: list[str]) -> float:
    """Run the same script in a new process with additional command-line arguments. Return the number that the
    new process prints. Print the warnings and errors of the new process, but not the lines that an earlier
    process has also written.
    """
    command = [sys.executable, *sys.argv, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    for line in lines:
        if line not in _printed_errors:
            print(line, file=sys.stderr, flush=True)
    _printed_errors.update(lines)
    done.check_returncode()
    return float(done.stdout.split()[-1])
