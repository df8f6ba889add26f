"""The callbacks of a run: its log, and its end by a signal, by a loss that is not finite or explodes, or for want of progress.

The callback that pushes checkpoints is in publish/during_training.py.
"""

import json
import math
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl

from ..checkpoint.files import METRICS_FILE, finite, write_whole
from ..recipe.schema import TrainingSection
from .checkpoints import delete_between, has_lost_patience
from .explosion import Explosion
from .trainer import VaswaniTrainer

# A scheduler signals all processes of a job, and a launcher among them passes the signal on: that is one wish, not two.
SECONDS_OF_ONE_SIGNAL = 2.0


class RunLogCallback(TrainerCallback):
    """Writes one line of JSON into metrics.jsonl and one line on the screen per log step, with speed and time left."""

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer
        self.path = Path(trainer.args.output_dir) / METRICS_FILE

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        # Rows after the checkpoint that the run continues from will be logged again.
        rows = [row for row in read_metrics(self.path) if row["step"] <= state.global_step]
        self.seconds_before = max((row.get("seconds", 0.0) for row in rows), default=0.0)
        self.first_step = self.last_step = state.global_step
        self.start = time.perf_counter()
        self.last_tokens, self.last_time = int(self.trainer.target_tokens_seen), self.start
        if state.is_world_process_zero:
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        now, tokens = time.perf_counter(), int(self.trainer.target_tokens_seen)
        progress = self._progress(args, state)
        row = {"step": state.global_step, **{k: v for k, v in logs.items() if k != "epoch"}, **progress}
        if "loss" in logs:
            row["tokens_per_second"] = round((tokens - self.last_tokens) / max(now - self.last_time, 1e-9))
            self.last_tokens, self.last_time = tokens, now
        else:
            # Validation does not count as time of the training.
            self.last_time += logs.get("eval_seconds", 0.0)
        self._write(row)
        steps = state.global_step - self.first_step
        left = (state.max_steps - state.global_step) * (now - self.start) / max(steps, 1)
        print(_log_line(row, state.max_steps, left), flush=True)

    def on_save(self, args, state, control, **kwargs) -> None:
        # A resumed run reads the number of tokens and seconds from the last row.
        if state.is_world_process_zero and state.global_step != self.last_step:
            self._write({"step": state.global_step, **self._progress(args, state)})

    def _progress(self, args, state) -> dict[str, float]:
        progress: dict[str, float] = {"target_tokens": int(self.trainer.target_tokens_seen)}
        progress["seconds"] = round(self.seconds_before + time.perf_counter() - self.start, 2)
        batches_per_epoch = self.trainer.train_batches.batches_per_epoch
        if batches_per_epoch is not None:
            progress["epoch"] = round(state.global_step * self.trainer.batches_per_step / batches_per_epoch, 3)
        return progress

    def _write(self, row: dict[str, Any]) -> None:
        self.last_step = row["step"]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(row)) + "\n")


def _log_line(row: dict[str, Any], max_steps: int, seconds_left: float) -> str:
    parts = [f"step {row['step']:,}/{max_steps:,}"]
    if "epoch" in row:
        parts.append(f"epoch {row['epoch']:.2f}")
    if "eval_loss" in row:
        names = ("loss", "perplexity", "bleu", "chrf", "exact_match")
        parts += [f"validation {n} {row[f'eval_{n}']:.4g}" for n in names if f"eval_{n}" in row]
    else:
        parts += [f"loss {row['loss']:.4f}", f"learning rate {row['learning_rate']:.2e}"]
        parts.append(f"{row['tokens_per_second']:,} target tokens/s")
        minutes, seconds = divmod(round(seconds_left), 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left")
    return " · ".join(parts)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without lines that an interruption has cut off or that are damaged.

    Args:
        path (Path): The file; it may be missing.

    Returns:
        list: One dict per log step.
    """
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows += [row] if isinstance(row, dict) and "step" in row else []
    return rows


class StopCallback(TrainerCallback):
    """Ends the training after the first SIGINT or SIGTERM that any process gets, or at a loss that is not finite or explodes.

    All processes decide alike, from numbers that are summed over them on their device. Those of a step are read one
    step later, so that a GPU always has a step in hand, but before anything is saved.

    Args:
        trainer (VaswaniTrainer): The trainer.
    """

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer
        self.received = 0
        self.first_came = 0.0
        self.handlers: dict[int, Any] = {}
        # The steps whose flags are on their way, the flags, and the event that says that they are here.
        self.pending: deque[tuple[int, torch.Tensor, Any]] = deque()

    def _handle(self, number: int, frame: Any) -> None:
        if not self.received:
            self.received, self.first_came = number, time.monotonic()
            if self.trainer.is_world_process_zero():
                name = signal.Signals(number).name
                print(f"{name}: saving a checkpoint after this step … (once more ends at once)", flush=True)
        elif time.monotonic() - self.first_came > SECONDS_OF_ONE_SIGNAL:
            self.restore()
            signal.raise_signal(number)

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        # Python handles signals in its main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.handlers[number] = signal.signal(number, self._handle)

        logged = [row["loss"] for row in state.log_history if "loss" in row]
        uniform = math.log(self.trainer.accelerator.unwrap_model(self.trainer.model).config.decoder_vocab_size)
        self.explosion = Explosion(uniform, state.max_steps, logged)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self._send(state.global_step)
        while self.pending and (self._is_here() or self._is_due(control)):
            step, flags, arrival = self.pending.popleft()
            if arrival is not None:
                arrival.synchronize()
            diverged, loss, number = flags.tolist()
            if diverged:
                self._end(f"The loss or the gradient of step {step:,} is not finite", step)
            if self.explosion.is_at(step, loss / args.world_size):
                self._end(self.explosion.described(step), step)
            self.trainer.suspect_since = self.explosion.since
            if number:
                control.should_save = control.should_training_stop = True

    def _end(self, what: str, step: int) -> NoReturn:
        first_bad = self.explosion.since or step
        if self.trainer.is_world_process_zero():
            delete_between(Path(self.trainer.args.output_dir), first_bad, step)
        raise self.trainer.divergence(what, step, first_bad - 1)

    def _is_here(self) -> bool:
        return len(self.pending) > 1 or self.pending[0][2] is None

    def _is_due(self, control: TrainerControl) -> bool:
        return control.should_save or control.should_evaluate or control.should_log or control.should_training_stop

    def _send(self, step: int) -> None:
        losses = self.trainer.take_losses()
        flags = torch.cat([losses, torch.full_like(losses[:1], self.received)])
        if self.trainer.args.world_size > 1:
            dist.all_reduce(flags)
        arrival = None
        if flags.is_cuda:
            flags, arrival = flags.to("cpu", non_blocking=True), torch.cuda.Event()
            arrival.record()
        self.pending.append((step, flags, arrival))

    def restore(self) -> None:
        """Gives the signals back to whom they were."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


class EarlyStoppingCallback(TrainerCallback):
    """Ends the training at a scheduled checkpoint when the patience of the recipe is lost.

    That of transformers counts by itself, so that a resumed run has the patience of its checkpoint.

    Args:
        training (TrainingSection): The patience.
    """

    def __init__(self, training: TrainingSection):
        self.training = training

    def on_save(self, args, state, control, **kwargs) -> None:
        is_scheduled = state.global_step % self.training.save_steps == 0
        control.should_training_stop |= is_scheduled and has_lost_patience(state, self.training)
