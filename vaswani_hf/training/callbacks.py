"""The callbacks of a training run. The callbacks write the log, end the run after a signal or a diverged
loss, and stop the run early.

The callback that pushes checkpoints is in publish/during_training.py.
"""

import json
import math
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl

from ..checkpoint.files import METRICS_FILE, finite, read_metrics, write_whole
from ..messages import say
from ..model.fast_path_vaswani import DelayedValues
from ..optimization.section import AnyTraining
from .checkpoints import CheckpointRecord, delete_between, reason_to_stop, refuse_vanished_folder
from .losses import DivergenceDetector
from .trainer import VaswaniTrainer

# A run estimates its duration after at least `LEAST_SECONDS` seconds and `LEAST_STEPS` steps. The first step
# does not count, because the first step is slower.
LEAST_SECONDS = 10.0
LEAST_STEPS = 3


class RunLogCallback(TrainerCallback):
    """Writes metrics.jsonl and log lines, and prints an estimate of the duration after the first steps."""

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer
        self.path = Path(trainer.args.output_dir) / METRICS_FILE

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        # Remove the rows of steps after the checkpoint, because a resumed run logs these steps again.
        rows = [row for row in read_metrics(self.path) if row["step"] <= state.global_step]
        self.seconds_before = max((row.get("seconds", 0.0) for row in rows), default=0.0)
        self.first_step = self.last_step = state.global_step
        self.start = time.perf_counter()
        self.last_tokens = int(self.trainer.target_tokens_seen)
        self.last_time = self.start
        self.end_of_first_step: float | None = None
        self.has_estimated = False
        if state.is_world_process_zero:
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step >= state.max_steps:
            # Log the last step, because the final message of a run contains the loss of the last step.
            control.should_log = True
        if not state.is_world_process_zero or self.has_estimated:
            return
        now = time.perf_counter()
        if self.end_of_first_step is None:
            self.end_of_first_step = now
            return
        steps = state.global_step - self.first_step - 1
        seconds = now - self.end_of_first_step
        if steps < LEAST_STEPS or seconds < LEAST_SECONDS:
            return
        self.has_estimated = True
        left = (state.max_steps - state.global_step) * seconds / steps
        total = self.seconds_before + now - self.start + left
        say(
            f"estimated time: {total / 3600:,.2f} hours in total, {left / 3600:,.2f} hours left, because a "
            f"step takes {seconds / steps:.3g} s (mean of {steps:,} steps); validations and the scores at "
            "the end take more time"
        )

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        now = time.perf_counter()
        tokens = int(self.trainer.target_tokens_seen)
        progress = self._progress(args, state)
        own_logs = {name: value for name, value in logs.items() if name != "epoch"}
        row = {"step": state.global_step, **own_logs, **progress}
        if "loss" in logs:
            row["tokens_per_second"] = round((tokens - self.last_tokens) / max(now - self.last_time, 1e-9))
            self.last_tokens = tokens
            self.last_time = now
        else:
            # Leave the time of the validation out of the tokens per second.
            self.last_time += logs.get("eval_seconds", 0.0)
        self._write(row)
        steps = state.global_step - self.first_step
        left = (state.max_steps - state.global_step) * (now - self.start) / max(steps, 1)
        say(_log_line(row, state.max_steps, left, self.trainer.losses.name))

    def on_save(self, args, state, control, **kwargs) -> None:
        # A resumed run reads the earlier training time (in seconds) from the rows of metrics.jsonl up to its
        # checkpoint. Therefore write a row for the step of each checkpoint.
        if state.is_world_process_zero and state.global_step != self.last_step:
            self._write({"step": state.global_step, **self._progress(args, state)})

    def _progress(self, args, state) -> dict[str, float]:
        progress: dict[str, float] = {"target_tokens": int(self.trainer.target_tokens_seen)}
        progress["seconds"] = round(self.seconds_before + time.perf_counter() - self.start, 2)
        batches = self.trainer.batches
        if batches.per_epoch is not None:
            progress["epoch"] = round(state.global_step * batches.per_step / batches.per_epoch, 3)
        return progress

    def _write(self, row: dict[str, Any]) -> None:
        self.last_step = row["step"]
        refuse_vanished_folder(self.path.parent)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(row)) + "\n")


def _log_line(row: dict[str, Any], max_steps: int, seconds_left: float, loss_name: str) -> str:
    parts = [f"step {row['step']:,}/{max_steps:,}"]
    if "epoch" in row:
        parts.append(f"epoch {row['epoch']:.2f}")
    if "eval_loss" in row:
        names = [key.removeprefix("eval_") for key in row if key.startswith("eval_")]
        names = [name for name in names if name != "seconds" and not name.startswith("raw_")]
        parts += [f"validation {name} {row[f'eval_{name}']:.4g}" for name in names]
    else:
        parts += [f"{loss_name} {row['loss']:.4f}", f"learning rate {row['learning_rate']:.2e}"]
        parts.append(f"{row['tokens_per_second']:,} target tokens/s")
        minutes, seconds = divmod(round(seconds_left), 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left")
    return " · ".join(parts)


class NoStepsLeftError(Exception):
    """Raised if a resumed run has no steps left after its checkpoint."""


class StopCallback(TrainerCallback):
    """Ends the training if a SIGINT or SIGTERM arrives, or if the loss is not finite or has exploded.

    In each step, the callback sums the losses over all processes. The callback also sums the numbers of
    received signals (15 for SIGTERM) over all processes. All processes read the same sums, and therefore end
    the training at the same step. On a GPU, the callback reads the sums over the processes one step later,
    because an earlier read would make the CPU wait for the GPU. Before a save, a validation or a log line,
    the callback reads all remaining sums.
    """

    def __init__(self, trainer: VaswaniTrainer, checkpoint: Path | None):
        self.trainer = trainer
        self.checkpoint = checkpoint
        # A queue of the sums that the callback has not read yet. Each sum adds the values of all processes.
        # Each entry contains the step, and the values [3] of the sums that `_send` computes.
        self.pending: deque[tuple[int, DelayedValues]] = deque()

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Create the detector. If a signal prevented the validation of the checkpoint, validate now."""
        logged = [row["loss"] for row in state.log_history if "loss" in row]
        uniform = math.log(
            self.trainer.accelerator.unwrap_model(self.trainer.model).config.decoder_vocab_size
        )
        self.detector = DivergenceDetector(uniform, state.max_steps, logged)
        if self.checkpoint is not None and not CheckpointRecord.of(self.checkpoint).validated:
            self._validate_again(args, state, control)
            if state.global_step >= state.max_steps or control.should_training_stop:
                raise NoStepsLeftError

    def _validate_again(self, args, state, control) -> None:
        trainer = self.trainer
        step = state.global_step
        trainer._load_rng_state(str(self.checkpoint))
        trainer.evaluate()
        is_due = step % trainer.training.save_steps == 0 or step >= state.max_steps
        if is_due or trainer.validation_is_due:
            trainer._save_checkpoint(trainer.model, None)
            trainer.callback_handler.on_save(args, state, control)
        control.should_training_stop |= trainer.validation_is_due

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self._send(state.global_step)
        while self.pending and (self._can_be_read() or self._must_be_read(control)):
            step, numbers = self.pending.popleft()
            is_not_finite, loss, signals = numbers.tolist()
            if is_not_finite:
                self._end(f"The loss or the gradient of step {step:,} is not finite", step)
            if self.detector.update(step, loss / args.world_size):
                self._end(self.detector.message(step), step)
            self.trainer.losses.suspect_since = self.detector.since
            if signals:
                control.should_save = True
                control.should_training_stop = True

    def _end(self, what: str, step: int) -> NoReturn:
        first_bad = self.detector.since or step
        if self.trainer.is_world_process_zero():
            delete_between(Path(self.trainer.args.output_dir), first_bad, step)
        raise self.trainer.losses.error(what, step, first_bad - 1)

    def _can_be_read(self) -> bool:
        """Return True if the CPU can read the first entry of `pending` without waiting for the GPU."""
        _, numbers = self.pending[0]
        return len(self.pending) > 1 or numbers.copied is None

    def _must_be_read(self, control: TrainerControl) -> bool:
        return (
            control.should_save
            or control.should_evaluate
            or control.should_log
            or control.should_training_stop
        )

    def _send(self, step: int) -> None:
        """Sum three numbers over all processes. The first number is 1 if a loss or gradient is not finite,
        else 0. The second number is the sum of the training losses of the process. The third number is the
        number of the signal that the process has received, such as 15 for SIGTERM (0 without a signal). On a
        GPU, start the copy of the three sums to the CPU.
        """
        losses = self.trainer.losses.take()  # [2]
        received = torch.full_like(losses[:1], self.trainer.stop.received)
        numbers = torch.cat([losses, received])  # [3]
        if self.trainer.args.world_size > 1:
            dist.all_reduce(numbers)
        self.pending.append((step, DelayedValues(numbers)))


class EarlyStoppingCallback(TrainerCallback):
    """Ends the training at a scheduled checkpoint if `reason_to_stop` returns a reason. The early-stopping
    callback of transformers counts validations in an attribute, which a resumed run does not restore by
    default. This class counts the validations in the log, so that a resumed run continues the count.
    """

    def __init__(self, training: AnyTraining):
        self.training = training

    def on_save(self, args, state, control, **kwargs) -> None:
        is_scheduled = state.global_step % self.training.save_steps == 0
        reason = reason_to_stop(state, self.training) if is_scheduled else ""
        if reason:
            control.should_training_stop = True
            if state.is_world_process_zero and state.global_step < state.max_steps:
                say(
                    f"stopped early at step {state.global_step:,}: {reason}; the final weights are the "
                    "weights of the best checkpoint"
                )
