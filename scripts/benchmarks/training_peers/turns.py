"""Turns: a competitor trains when it is told to, says what it has done, and waits while others work.

It is told by lines of JSON on its standard input, {"steps": 3}, {"tokens": 40000} or {"end": true}, and answers by lines of
JSON on its standard output. Nothing but the standard library is imported: each competitor has a Python of its own.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def read_settings() -> SimpleNamespace:
    """What is measured, from the file that the command names; the keys are those that training.py writes."""
    return SimpleNamespace(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def resident(field: str, process: int | str = "self") -> float:
    """A size of a process from Linux."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0) / 1024


class NoMoreTurnsError(Exception):
    """The last turn is over."""


class Turns:
    """The turns of this process; what was imported before counts neither as its memory nor as its time.

    Args:
        device (Any): torch.cuda where the competitor computes on it; None on a processor.
    """

    def __init__(self, device: Any = None):
        self._device = device
        # What libraries print must not come between the answers.
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.steps = self._goal = 0
        self.tokens: Any = 0
        self.positions: Any = 0
        if device is None:
            # The highest resident size counts anew after this (Linux).
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = resident("VmRSS")

    def ready(self) -> None:
        """Says that the first turn can begin."""
        self._answer({"ready": True})

    def start(self) -> None:
        """Says that the first turn can begin, and waits for it."""
        self.ready()
        self._wait()

    def count(self, tokens: Any, positions: int) -> None:
        """Counts a batch."""
        self.tokens = self.tokens + tokens
        self.positions += positions

    def step_ended(self) -> None:
        """Counts a step of the optimizer; after the last one of a turn, answers and waits for the next turn."""
        self.steps += 1
        if self.steps < self._goal:
            return
        if self._device is not None:
            self._device.synchronize()
        self.turn_ended(time.perf_counter() - self._began)
        self._wait()

    def turn_ended(self, seconds: float, memory: float | None = None) -> None:
        """Says what was done."""
        if memory is None and self._device is not None:
            memory = self._device.max_memory_allocated() / 2**20
        elif memory is None:
            memory = resident("VmHWM") - self._before
        done = {"tokens": int(self.tokens), "positions": int(self.positions), "steps": self.steps}
        self._answer({**done, "seconds": seconds, "memory": memory})

    def _wait(self) -> None:
        command = self.next_command()
        if "steps" in command:
            self._goal = self.steps + command["steps"]
        else:
            # How many tokens the next batches have is not known without waiting for the device.
            left = command["tokens"] - int(self.tokens)
            self._goal = self.steps + max(1, round(left / (int(self.tokens) / self.steps)))
        self._began = time.perf_counter()

    def next_command(self) -> dict[str, int]:
        """What the next turn is to do: `steps` more, or up to `tokens` in all."""
        command = json.loads(sys.stdin.readline() or '{"end": true}')
        if "end" in command:
            raise NoMoreTurnsError
        return command

    def finish(self, loss: float) -> None:
        """Says how good the model has become."""
        self._answer({"validation_loss": loss})

    def _answer(self, content: dict[str, Any]) -> None:
        self._answers.write(json.dumps(content) + "\n")
        self._answers.flush()
