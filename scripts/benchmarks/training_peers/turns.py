"""Lets a toolkit in training.py train in turns: the toolkit trains when the benchmark sends a command,
reports its progress, and waits while the other toolkits train.

The commands are lines of JSON on the standard input of the process: {"steps": 3}, {"tokens": 40000} or
{"end": true}. The answers are lines of JSON on the standard output of the process. This file imports only the
standard library, because each toolkit has its own Python interpreter with different packages.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and of its batches.

    `tokens` is the number of source positions, and also the number of target positions, in a batch. `turn` is
    the number of source and target tokens that a toolkit trains on before the next toolkit continues.
    """

    width: int
    ffn: int
    layers: int
    heads: int
    vocabulary: int
    tokens: int
    turn: int


@dataclass(frozen=True)
class PeerSettings:
    """The settings that all toolkits share, such as the shape, the folder of the texts and the peak learning
    rate.
    """

    shape: Shape
    folder: str
    device: str
    dtype: str
    threads: int
    learning_rate: float
    warmup_steps: int

    def write(self, path: Path) -> None:
        """Write the settings as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_settings() -> PeerSettings:
    """Read the settings from the file that the first command-line argument names."""
    content = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return PeerSettings(**{**content, "shape": Shape(**content["shape"])})


def resident(field: str, process: int | str = "self") -> float:
    """Return a memory size in MiB of the process with the id `process` (default: this process). `field` is a
    name in /proc/PID/status, such as "VmRSS".
    """
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0) / 1024


class NoMoreTurnsError(Exception):
    """Raised to end the training after the last turn."""


class Turns:
    """Starts, counts and ends the turns of a toolkit. The reported times do not include the imports before
    the first turn.

    `device` is `torch.cuda` if the toolkit computes on a GPU, and otherwise None.
    """

    def __init__(self, device: Any = None):
        self._device = device
        # Write the answers to a copy of the file descriptor, because libraries may print other text to the
        # standard output.
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._goal = 0
        self.steps = 0
        self.tokens: Any = 0
        self.positions: Any = 0
        if device is None:
            # Reset the recorded peak of the resident memory. On Linux, writing 5 to /proc/self/clear_refs
            # resets the peak.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = resident("VmRSS")

    def ready(self) -> None:
        """Report that the first turn can begin."""
        self._answer({"ready": True})

    def start(self) -> None:
        """Report that the first turn can begin, and wait for the command that starts the first turn."""
        self.ready()
        self._wait()

    def count(self, tokens: Any, positions: int) -> None:
        """Count a batch."""
        self.tokens = self.tokens + tokens
        self.positions += positions

    def step_ended(self) -> None:
        """Count an optimizer step. After the last step of a turn, report the progress and wait for the next
        turn.
        """
        self.steps += 1
        if self.steps < self._goal:
            return
        if self._device is not None:
            self._device.synchronize()
        self.turn_ended(time.perf_counter() - self._began)
        self._wait()

    def turn_ended(self, seconds: float, memory: float | None = None) -> None:
        """Report the total numbers of tokens, positions and steps, the seconds of this turn, and the peak
        memory (MiB).
        """
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
            # Estimate the number of steps from the tokens of the earlier steps. Reading the number of tokens
            # after each batch would wait for the GPU and slow down the training.
            left = command["tokens"] - int(self.tokens)
            self._goal = self.steps + max(1, round(left / (int(self.tokens) / self.steps)))
        self._began = time.perf_counter()

    def next_command(self) -> dict[str, int]:
        """Wait for the next command. A command lets the toolkit train for `steps` more steps, or until the
        total number of tokens is `tokens`.
        """
        command = json.loads(sys.stdin.readline() or '{"end": true}')
        if "end" in command:
            raise NoMoreTurnsError
        return command

    def finish(self, loss: float) -> None:
        """Report the validation loss of the trained model."""
        self._answer({"validation_loss": loss})

    def _answer(self, content: dict[str, Any]) -> None:
        self._answers.write(json.dumps(content) + "\n")
        self._answers.flush()
