"""Sends valid and invalid requests to `vaswani serve`, cancels some requests, and checks each answer and the
memory.

Run `python scripts/benchmarks/serving_soak.py CHECKPOINT SOURCE --languages en:de [--requests 10000]`. SOURCE
is a file with one text per line. The exit code is 1 in three cases: a valid request gets a wrong answer or no
answer; an invalid request gets an HTTP status other than 400 or 413; the memory grows by more than 10 % in
the second half of the requests.
"""

import argparse
import asyncio
import contextlib
import random
import shlex
import sys
from collections import Counter
from pathlib import Path

import httpx
from serving import Served, served
from timing import print_header

from vaswani_hf.translation import Translator

# Maps descriptions to request bodies that the service must refuse.
INVALID = {
    "malformed JSON": b'{"q": "x", "source": ',
    "invalid UTF-8": b'{"q": "\xff\xfe", "source": "auto", "target": "de"}',
    "half a character": b'{"q": "\\ud800", "source": "auto", "target": "de"}',
    "a text of 1 MB": b'{"q": "' + b"a" * 1_000_000 + b'", "source": "auto", "target": "de"}',
    "a wrong type": b'{"q": 5, "source": "auto", "target": "de"}',
    "an unknown language": b'{"q": "x", "source": "auto", "target": "xx"}',
}
JSON = {"Content-Type": "application/json"}
# The proportion of valid requests, and the proportion of requests that the client cancels. The remaining
# requests are invalid.
VALID, CANCELLED = 0.6, 0.2


class Soak:
    """Sends random requests to a service, and counts right and wrong answers.

    Args:
        service (Served): The service.
        target (str): The target language.
        expected (dict): Maps each text to its expected translation.
    """

    def __init__(self, service: Served, target: str, expected: dict[str, str]):
        self.service = service
        self.counts: Counter[str] = Counter()
        self.memory: list[float] = []
        self._target = target
        self._expected = expected
        self._texts = list(expected)

    async def run(self, num_requests: int, num_clients: int) -> None:
        """Send all requests, and record the memory of the service at the start and after each tenth of the
        requests.
        """
        numbers = iter(range(num_requests))
        limits = httpx.Limits(max_connections=num_clients)
        async with httpx.AsyncClient(base_url=self.service.address, timeout=600, limits=limits) as client:

            async def one_client() -> None:
                for number in numbers:
                    if number % max(1, num_requests // 10) == 0:
                        self.memory.append(self.service.memory)
                    await self._send_one(client, random.Random(number))

            await asyncio.gather(*(one_client() for _ in range(num_clients)))
        self.memory.append(self.service.memory)

    async def _send_one(self, client: httpx.AsyncClient, chance: random.Random) -> None:
        kind = chance.random()
        texts = chance.sample(self._texts, chance.randint(1, min(3, len(self._texts))))
        if kind < VALID:
            await self._send_valid(client, texts)
        elif kind < VALID + CANCELLED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._post(client, texts), chance.random() / 20)
            self.counts["cancelled"] += 1
        else:
            name = chance.choice(list(INVALID))
            await self._send_invalid(client, name)

    async def _send_valid(self, client: httpx.AsyncClient, texts: list[str]) -> None:
        try:
            answer = await self._post(client, texts)
            while answer.status_code == 429:
                self.counts["sent again after the status 429"] += 1
                await asyncio.sleep(float(answer.headers["Retry-After"]))
                answer = await self._post(client, texts)
        except httpx.HTTPError:
            self.counts["lost"] += 1
            return
        expected = [self._expected[text] for text in texts]
        is_right = answer.status_code == 200 and answer.json()["translatedText"] == expected
        self.counts["right" if is_right else "wrong"] += 1

    async def _post(self, client: httpx.AsyncClient, texts: list[str]) -> httpx.Response:
        fields = {"q": texts, "source": "auto", "target": self._target}
        return await client.post("/translate", json=fields)

    async def _send_invalid(self, client: httpx.AsyncClient, name: str) -> None:
        try:
            answer = await client.post("/translate", content=INVALID[name], headers=JSON)
        except httpx.HTTPError:
            # An HTTPError is allowed here, because the service may close the connection while the client
            # sends a body that is too large.
            self.counts[f"{name}: connection closed"] += 1
            return
        self.counts[f"{name}: {answer.status_code}"] += 1
        if answer.status_code not in (400, 413):
            self.counts["invalid request with another status"] += 1


def main() -> int:
    """Run the test, and print the number of each kind of answer and the memory of the service. Return the
    exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument("source", type=Path, help="a file with one text per line")
    parser.add_argument("--languages", default="en:de", help="the languages of the checkpoint")
    parser.add_argument("--requests", type=int, default=10_000, help="default: 10,000")
    parser.add_argument("--clients", type=int, default=16, help="default: 16")
    parser.add_argument(
        "--serve",
        default="",
        help="options of `vaswani serve` that do not change translations, quoted as one argument",
    )
    arguments = parser.parse_args()
    print_header()
    texts = list(dict.fromkeys(arguments.source.read_text(encoding="utf-8").splitlines()))[:1000]
    translator = Translator.from_pretrained(arguments.checkpoint, "cpu")
    # By default, `vaswani serve` uses the repetition guard, but `Translator.translate` does not.
    translations = translator.translate(texts, split_sentences=True, repetition_guard=True)
    expected = dict(zip(texts, translations, strict=True))
    words = [arguments.checkpoint, "--languages", arguments.languages, "--device", "cpu"]
    with served([*words, *shlex.split(arguments.serve)]) as service:
        soak = Soak(service, arguments.languages.partition(":")[2], expected)
        asyncio.run(soak.run(arguments.requests, arguments.clients))
    for name, number in sorted(soak.counts.items()):
        print(f"{number:7,} {name}")
    print(f"MiB after each tenth of the requests: {', '.join(f'{size:.0f}' for size in soak.memory)}")
    growth = soak.memory[-1] / soak.memory[len(soak.memory) // 2]
    print(f"memory at the end / memory after half of the requests: {growth:.3f}")
    faults = [soak.counts[name] for name in ("wrong", "lost", "invalid request with another status")]
    return int(any(faults) or growth > 1.1)


if __name__ == "__main__":
    sys.exit(main())
