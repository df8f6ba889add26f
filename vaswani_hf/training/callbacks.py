"""The callbacks of a run: its log, and its end by a signal, by a loss that is not finite or explodes, or for want of progress.

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

from ..checkpoint.files import METRICS_FILE, finite, write_whole
from ..checkpoint.manifest import facts_of
from ..optimization.section import AnyTraining
from .checkpoints import delete_between, has_lost_patience, refuse_vanished
from .explosion import DivergenceDetector
from .processes import say
from .trainer import VaswaniTrainer


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
        say(_log_line(row, state.max_steps, left))

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
        refuse_vanished(self.path.parent)
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


class NothingLeftError(Exception):
    """The run ends where its checkpoint is."""


class StopCallback(TrainerCallback):
    """Ends the training after the first SIGINT or SIGTERM that any process gets, or at a loss that is not finite or explodes.

    All processes decide alike, from numbers that are summed over them on their device. Those of a step are read one
    step later, so that a GPU always has a step in hand, but before anything is saved.

    Args:
        trainer (VaswaniTrainer): The trainer.
        checkpoint (Path, optional): The checkpoint that the run continues from.
    """

    def __init__(self, trainer: VaswaniTrainer, checkpoint: Path | None = None):
        self.trainer, self.checkpoint = trainer, checkpoint
        # The steps whose numbers are on their way, the numbers, and the event that says that they are here.
        self.pending: deque[tuple[int, torch.Tensor, Any]] = deque()

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Judges the losses from here on, and validates where a signal has kept the run from it.

        Raises:
            NothingLeftError: If nothing is left to train then.
        """
        logged = [row["loss"] for row in state.log_history if "loss" in row]
        uniform = math.log(self.trainer.accelerator.unwrap_model(self.trainer.model).config.decoder_vocab_size)
        self.detector = DivergenceDetector(uniform, state.max_steps, logged)
        if self.checkpoint is not None and not facts_of(self.checkpoint).get("validated", True):
            self._validate_again(args, state, control)
            if state.global_step >= state.max_steps or control.should_training_stop:
                raise NothingLeftError

    def _validate_again(self, args, state, control) -> None:
        # What a signal has kept the run from, after the step of its checkpoint.
        trainer, step = self.trainer, state.global_step
        trainer._load_rng_state(str(self.checkpoint))
        trainer.evaluate()
        is_due = step % trainer.training.save_steps == 0 or step >= state.max_steps
        if is_due or trainer.validation_is_due:
            trainer._save_checkpoint(trainer.model, None)
            trainer.callback_handler.on_save(args, state, control)
        control.should_training_stop |= trainer.validation_is_due

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self._send(state.global_step)
        while self.pending and (self._is_here() or self._is_due(control)):
            step, flags, arrival = self.pending.popleft()
            if arrival is not None:
                arrival.synchronize()
            diverged, loss, number = flags.tolist()
            if diverged:
                self._end(f"The loss or the gradient of step {step:,} is not finite", step)
            if self.detector.update(step, loss / args.world_size):
                self._end(self.detector.described(step), step)
            self.trainer.suspect_since = self.detector.since
            if number:
                control.should_save = control.should_training_stop = True

    def _end(self, what: str, step: int) -> NoReturn:
        first_bad = self.detector.since or step
        if self.trainer.is_world_process_zero():
            delete_between(Path(self.trainer.args.output_dir), first_bad, step)
        raise self.trainer.divergence(what, step, first_bad - 1)

    def _is_here(self) -> bool:
        return len(self.pending) > 1 or self.pending[0][2] is None

    def _is_due(self, control: TrainerControl) -> bool:
        return control.should_save or control.should_evaluate or control.should_log or control.should_training_stop

    def _send(self, step: int) -> None:
        losses = self.trainer.take_losses()
        flags = torch.cat([losses, torch.full_like(losses[:1], self.trainer.stop.received)])
        if self.trainer.args.world_size > 1:
            dist.all_reduce(flags)
        arrival = None
        if flags.is_cuda:
            flags, arrival = flags.to("cpu", non_blocking=True), torch.cuda.Event()
            arrival.record()
        self.pending.append((step, flags, arrival))


class EarlyStoppingCallback(TrainerCallback):
    """Ends the training at a scheduled checkpoint when the patience of the recipe is lost.

    That of transformers counts by itself, so that a resumed run has the patience of its checkpoint.

    Args:
        training (AnyTraining): The patience.
    """

    def __init__(self, training: AnyTraining):
        self.training = training

    def on_save(self, args, state, control, **kwargs) -> None:
        is_scheduled = state.global_step % self.training.save_steps == 0
        if is_scheduled and has_lost_patience(state, self.training):
            control.should_training_stop = True
            if state.is_world_process_zero and state.global_step < state.max_steps:
                training = self.training
                say(
                    f"stopped early at step {state.global_step:,}: validation {training.metric_for_best_model} has not improved "
                    f"{training.early_stopping_patience:,} times; the best checkpoint gives the final weights"
                )
