"""The callbacks of a run: its log, its end by a signal, and its complete checkpoints.

The callback that pushes checkpoints is in publish/during_training.py.
"""

import json
import signal
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..checkpoint.files import METRICS_FILE, STREAM_FILE
from ..checkpoint.tokenizers import save_tokenizers
from .trainer import EndlessStream, VaswaniTrainer


class RunLogCallback(TrainerCallback):
    """Writes one line of JSON into metrics.jsonl and one line on the screen per log step, with speed and time left."""

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer
        self.path = Path(trainer.args.output_dir) / METRICS_FILE

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        # Rows after the checkpoint that the run continues from will be logged again.
        rows = [row for row in read_metrics(self.path) if row["step"] <= state.global_step]
        self.trainer.target_tokens_seen = max((row.get("target_tokens", 0) for row in rows), default=0)
        self.seconds_before = max((row.get("seconds", 0.0) for row in rows), default=0.0)
        self.first_step = self.last_step = state.global_step
        self.start = time.perf_counter()
        self.last_tokens, self.last_time = self.trainer.target_tokens_seen, self.start
        if state.is_world_process_zero:
            self.path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        now, tokens = time.perf_counter(), self.trainer.target_tokens_seen
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
        progress: dict[str, float] = {"target_tokens": self.trainer.target_tokens_seen}
        progress["seconds"] = round(self.seconds_before + time.perf_counter() - self.start, 2)
        batches_per_epoch = self.trainer.train_batches.batches_per_epoch
        if batches_per_epoch is not None:
            progress["epoch"] = round(state.global_step * self.trainer.batches_per_step / batches_per_epoch, 3)
        return progress

    def _write(self, row: dict[str, Any]) -> None:
        self.last_step = row["step"]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


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
    """The rows of a metrics.jsonl, without a last line that an interruption has cut off.

    Args:
        path (Path): The file; it may be missing.

    Returns:
        list: One dict per log step.
    """
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


class StopOnSignalCallback(TrainerCallback):
    """Ends the training with a checkpoint after the step of the first SIGINT or SIGTERM, and at once at the second."""

    def __init__(self):
        self.received: str | None = None
        self.handlers: dict[int, Any] = {}

    def _handle(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number).name
        print(f"{self.received}: saving a checkpoint after this step …", flush=True)
        signal.signal(number, self.handlers[number])

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._handle)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if self.received:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args, state, control, **kwargs) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


class CompleteCheckpointCallback(TrainerCallback):
    """Adds the tokenizers and the place in a stream to each checkpoint, so that it can be loaded and resumed."""

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer

    def on_save(self, args, state, control, **kwargs) -> None:
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        save_tokenizers(self.trainer.corpus.source_tokenizer, self.trainer.corpus.target_tokenizer, folder)
        if isinstance(self.trainer.train_batches, EndlessStream):
            batches = state.global_step * self.trainer.batches_per_step
            text = json.dumps(self.trainer.train_batches.state_dict(batches))
            (folder / STREAM_FILE).write_text(text, encoding="utf-8")
