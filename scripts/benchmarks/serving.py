"""Measures the speed, the latency and the memory of `vaswani serve` under load.

The script compares batches of several requests with batches of one request. With `--other`, the script also
measures a running service of another program that has the interface of LibreTranslate.

Run `python scripts/benchmarks/serving.py CHECKPOINT SOURCE --languages en:de [--clients 1 8 64] [--serve
"--engine ctranslate2"]`. SOURCE is a file with one text per line. Each client waits for an answer before the
client sends its next text. The clients connect over the loopback interface, and all clients run in one
process. With `--sentence`, the script also measures the latency of one sentence.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from timing import in_turns, print_header, print_times
from training_peers.turns import resident

# The options of `vaswani serve` for batches of one request, and for batches of several requests (the
# default).
WAYS = {
    "one request at a time": ["--max_batch", "1", "--batch_wait", "0"],
    "batches": [],
}


class Served(NamedTuple):
    """A running service: its address, its process id, and the time in seconds that its start took."""

    address: str
    process: int
    seconds: float

    @property
    def memory(self) -> float:
        """The resident memory in MiB."""
        return resident("VmRSS", self.process)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of the service since its start, in seconds. The load of other programs has little
        effect on this CPU time.
        """
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def served(words: list[str]) -> Iterator[Served]:
    """Context manager that runs `vaswani serve` with the arguments `words` on a free port. The service is
    stopped at the end.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "vaswani_hf.cli", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        address = next(
            (found[0] for found in (re.search(r"http://\S+", line) for line in lines) if found), ""
        )
        if not address:
            raise SystemExit(f"The command `vaswani serve {shlex.join(words)}` has not started a service.")
        yield Served(address, process.pid, time.perf_counter() - start)
    finally:
        process.terminate()
        process.communicate()


async def load(
    address: str, languages: str, texts: list[str], num_clients: int, latencies: list[float]
) -> None:
    """Send all texts to the service, with `num_clients` clients at the same time. `languages` are the source
    language and the target language, such as en:de. Append the duration of each request in seconds to
    `latencies`.
    """
    source, _, target = languages.partition(":")
    remaining = iter(texts)
    place = urlsplit(address)

    async def one_client() -> None:
        # Do not use httpx, because httpx needs 2.5 ms of CPU time for a request, and a translation with a
        # small model needs less CPU time.
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for text in remaining:
            start = time.perf_counter()
            body = json.dumps({"q": text, "source": source, "target": target}).encode()
            head = f"POST /translate HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"The service answered {answer.decode()}")
            await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", answer)[1]))  # type: ignore[index]
            latencies.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(one_client() for _ in range(num_clients)))


def milliseconds(seconds: list[float]) -> str:
    """Format the median and the 99th percentile of latencies in milliseconds."""
    percentiles = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {1000 * percentiles[49]:.1f} ms, p99 {1000 * percentiles[98]:.1f} ms"


def measure_load(
    addresses: dict[str, str], languages: str, texts: list[str], num_clients: int, rounds: int
) -> None:
    """Measure the service at each address with `num_clients` clients, and print the speed and the latency."""
    latencies: dict[str, list[float]] = {name: [] for name in addresses}

    def work(name: str) -> None:
        asyncio.run(load(addresses[name], languages, texts, num_clients, latencies[name]))

    times = in_turns({name: partial(work, name) for name in addresses}, rounds)
    print_times(times, "one request at a time", f"{num_clients} clients: ")
    for name in addresses:
        speed = len(texts) / statistics.median(times[name])
        # The first round warms up the services and is not measured.
        measured = latencies[name][len(texts) :]
        print(
            f"{num_clients} clients: {name:28} {speed:9.1f} sentences/s, {milliseconds(measured)}", flush=True
        )


def measure_sentence(service: Served, languages: str, sentence: str, num_requests: int) -> None:
    """Send one sentence several times, one request after the other, and print the latency and the CPU
    time.
    """
    asyncio.run(load(service.address, languages, [sentence] * 10, 1, []))
    latencies: list[float] = []
    before = service.cpu_seconds
    asyncio.run(load(service.address, languages, [sentence] * num_requests, 1, latencies))
    cpu = 1000 * (service.cpu_seconds - before) / num_requests
    print(
        f"one sentence, no wait for a batch: {milliseconds(latencies)}, {cpu:.1f} ms of CPU time", flush=True
    )


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument("source", type=Path, help="a file with one text per line")
    parser.add_argument("--languages", default="en:de", help="the languages of the checkpoint")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="default: 1 8 64")
    parser.add_argument(
        "--requests", type=int, default=256, help="number of requests per round; default: 256"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of measurements of each service; default: 3"
    )
    parser.add_argument(
        "--other",
        default=[],
        nargs="+",
        metavar="NAME=URL",
        help="services of other programs to compare with",
    )
    parser.add_argument("--sentence", help="a sentence whose latency is measured")
    parser.add_argument(
        "--serve", default="", help="additional options of `vaswani serve`, quoted as one argument"
    )
    arguments = parser.parse_args()
    lines = arguments.source.read_text(encoding="utf-8").splitlines()
    texts = [lines[number % len(lines)] for number in range(arguments.requests)]
    common = [arguments.checkpoint, "--languages", arguments.languages, *shlex.split(arguments.serve)]
    print_header()
    with contextlib.ExitStack() as stack:
        services = {name: stack.enter_context(served([*common, *words])) for name, words in WAYS.items()}
        for name, service in services.items():
            print(f"{name:28} ready after {service.seconds:.1f} s, {service.memory:.0f} MiB", flush=True)
        addresses = {name: service.address for name, service in services.items()}
        addresses |= dict(entry.split("=", 1) for entry in arguments.other)
        for num_clients in arguments.clients:
            measure_load(addresses, arguments.languages, texts, num_clients, arguments.rounds)
        if arguments.sentence is not None:
            measure_sentence(
                services["one request at a time"],
                arguments.languages,
                arguments.sentence,
                arguments.requests,
            )
        for name, service in services.items():
            print(f"{name:28} {service.memory:.0f} MiB at the end")


if __name__ == "__main__":
    main()
