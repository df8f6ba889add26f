"""Seq2SeqTrainer with the paper's batches and schedule, and its callbacks."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Seq2SeqTrainer, TrainerCallback

from ..checkpoint.tokenizers import BpeDropout, save_tokenizers
from ..data.batching import PairCollator, StreamedBatches, TokenBudgetSampler
from ..data.corpus import Corpus
from ..data.reading import pair_lengths
from ..evaluation.evaluate import negative_log_likelihood, perplexity
from ..evaluation.metric import score_translations
from ..recipe.schema import Recipe
from ..translation.translator import Translator
from .schedule import paper_schedule

METRICS_FILE = "metrics.jsonl"
STREAM_FILE = "stream_state.json"
STATE_FILE = "trainer_state.json"


def step_of(checkpoint: Path) -> int:
    """The optimizer step that a checkpoint was saved after.

    Args:
        checkpoint (Path): Its folder.

    Returns:
        int: The step.
    """
    return json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"]


class EndlessBatches(Sampler[list[tuple[int, int]]]):
    """The batches of epoch after epoch, from any batch on, as lists of (epoch, index).

    Args:
        sampler (TokenBudgetSampler): The batches of one epoch.
        start (int): Batches of this process that a resumed run has already seen.
    """

    def __init__(self, sampler: TokenBudgetSampler, start: int):
        self.sampler = sampler
        self.start = start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, skipped = divmod(self.start, len(self.sampler))
        while True:
            self.sampler.set_epoch(epoch)
            self.sampler.skip(skipped)
            for batch in self.sampler:
                yield [(epoch, index) for index in batch]
            epoch, skipped = epoch + 1, 0


class _Examples(Dataset):
    """Prepared pairs by (epoch, index); BPE-dropout depends on both."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[dict[str, Any]]:
        rows = self.pairs[[index for _, index in keys]]
        columns = zip(*rows.values(), strict=True)
        return [{**dict(zip(rows, row, strict=True)), "epoch": keys[0][0]} for row in columns]


class _EndlessStream(torch.utils.data.IterableDataset):
    """The batches of a stream, epoch after epoch."""

    def __init__(self, batches: StreamedBatches):
        self.batches = batches
        self.epoch = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.batches.load_state_dict(state)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        while True:
            self.batches.set_epoch(self.epoch)
            empty = True
            for batch in self.batches:
                empty = False
                yield batch
            # A run that was resumed at the very end of an epoch has nothing left of it.
            if empty and not self.batches.state_dict()["num_batches"]:
                raise ValueError("The stream of training pairs must hold a pair that survives cleaning, but has none.")
            self.epoch += 1


def _own_generator() -> torch.Generator:
    # A loader draws a number when it begins; from PyTorch's generator that would change the dropout of what follows.
    return torch.Generator()


class VaswaniTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with token-budget batches, the paper's schedule, and evaluation per token and by BLEU.

    Args:
        recipe (Recipe): The run.
        corpus (Corpus): Its data.
        checkpoint (Path, optional): The checkpoint that the run continues from.
        **kwargs: Passed to Seq2SeqTrainer.
    """

    control: Any
    lr_scheduler: Any

    def __init__(self, recipe: Recipe, corpus: Corpus, checkpoint: Path | None = None, **kwargs: Any):
        self.recipe = recipe
        self.corpus = corpus
        self.target_tokens_seen = 0
        self.start_step = step_of(checkpoint) if checkpoint else 0
        self.train_batches = self._train_batches(checkpoint)
        super().__init__(**kwargs)

    def _train_batches(self, checkpoint: Path | None) -> "EndlessBatches | _EndlessStream":
        training, state = self.recipe.training, PartialState()
        budgets = (training.source_tokens_per_batch, training.target_tokens_per_batch)
        shares = {"num_processes": state.num_processes, "process_index": state.process_index}
        if not self.recipe.data.streaming:
            sampler = TokenBudgetSampler(*pair_lengths(self.corpus.train), *budgets, seed=self.recipe.seed, **shares)
            return EndlessBatches(sampler, self.start_step * training.gradient_accumulation_steps)
        stream = _EndlessStream(StreamedBatches(self.corpus.train, *budgets, seed=self.recipe.seed, **shares))
        if checkpoint is not None:
            stream.load_state_dict(json.loads((checkpoint / STREAM_FILE).read_text(encoding="utf-8")))
        return stream

    def get_train_dataloader(self) -> DataLoader:
        """The endless loader of training batches.

        Returns:
            DataLoader: Batches of this process; without a length, so that the Trainer leaves epochs to the recipe.
        """
        rate = self.recipe.tokenizer.bpe_dropout
        tokenizers = (self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        dropout = (BpeDropout(tokenizers[0], rate), BpeDropout(tokenizers[1], rate)) if rate else None
        options: dict[str, Any] = {
            "collate_fn": PairCollator(
                tokenizers[0].pad_token_id,
                bpe_dropout=dropout,
                seed=self.recipe.seed,
                max_length=self.recipe.data.max_length,
            ),
            "generator": _own_generator(),
            "pin_memory": torch.cuda.is_available(),
        }
        if isinstance(self.train_batches, _EndlessStream):
            return DataLoader(self.train_batches, batch_size=None, **options)
        workers = self.recipe.training.dataloader_num_workers
        return DataLoader(
            _Examples(self.corpus.train), batch_sampler=self.train_batches, num_workers=workers, **options
        )

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The paper's schedule (Section 5.3), whatever the number of steps.

        Args:
            num_training_steps (int): Not needed.
            optimizer (Optimizer, optional): The Trainer's own by default.

        Returns:
            LambdaLR: The scheduler.
        """
        if self.lr_scheduler is None:
            training = self.recipe.training
            self.lr_scheduler = paper_schedule(
                optimizer or self.optimizer,
                self.model.config.d_model,
                training.warmup_steps,
                training.learning_rate_factor,
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_batch_samples(self, *args, **kwargs):
        """The batches of one optimizer step, whose target tokens are counted on the way.

        Args:
            *args: As Trainer gives them.
            **kwargs: As Trainer gives them.

        Returns:
            tuple: The batches and the number of their labels.
        """
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        self.target_tokens_seen += tokens * self.args.world_size
        return batches, num_items

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Tied copies are never in a checkpoint; transformers would warn of them at each resume.
        ties = self.accelerator.unwrap_model(self.model).get_expanded_tied_weights_keys(all_submodels=True)
        missing = [name for name in load_result.missing_keys if name not in ties]
        super()._issue_warnings_after_load(
            SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        )

    def evaluate(self, *args, metric_key_prefix: str = "eval", **kwargs) -> dict[str, float]:
        """Loss per token, never smoothed, and perplexity on the validation split; BLEU and chrF if the recipe says so.

        Args:
            *args: Not needed.
            metric_key_prefix (str): Put before each name.
            **kwargs: Not needed.

        Returns:
            dict: The metrics by name.
        """
        start = time.perf_counter()
        nats, tokens = negative_log_likelihood(self.model, self._validation_batches())
        total = self.accelerator.reduce(torch.tensor([nats, float(tokens)], dtype=torch.float64))
        loss = (total[0] / total[1]).item()
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        if self.recipe.evaluation.validation_bleu:
            metrics |= self._validation_scores()
        metrics["seconds"] = time.perf_counter() - start
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _validation_batches(self) -> DataLoader:
        budget = max(self.recipe.evaluation.tokens_per_batch, self.recipe.data.max_length)
        sampler = TokenBudgetSampler(
            *pair_lengths(self.corpus.validation),
            budget,
            budget,
            seed=None,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
        )
        collator = PairCollator(self.corpus.source_tokenizer.pad_token_id)
        return DataLoader(
            self.corpus.validation, batch_sampler=sampler, collate_fn=collator, generator=_own_generator()
        )

    def _validation_scores(self) -> dict[str, float]:
        evaluation, pairs = self.recipe.evaluation, self.corpus.validation_text
        if pairs is None:
            return {}
        model, was_training = self.accelerator.unwrap_model(self.model), self.model.training
        translator = Translator(model.eval(), self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        shares = range(self.args.process_index, len(pairs), self.args.world_size)
        translated = translator.translate(
            [pairs[i]["source"] for i in shares],
            tokens_per_batch=evaluation.tokens_per_batch,
            num_beams=1,
            # A model that has just begun repeats itself all the time.
            repetition_guard=False,
        )
        ordered = sorted(gather_object(list(zip(shares, translated, strict=True))))
        model.train(was_training)
        scores = score_translations(
            [translation for _, translation in ordered],
            [target.strip() for target in pairs["target"]],
            tokenize=evaluation.tokenize,
            lowercase=evaluation.lowercase,
        )
        return {name: float(scores[name]) for name in ("bleu", "chrf", "exact_match")}


class RunLog(TrainerCallback):
    """One line of JSON in metrics.jsonl and one line on the screen per log step, with speed and time left."""

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer
        self.path = Path(trainer.args.output_dir) / METRICS_FILE

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Forget what was logged after the checkpoint that the run continues from."""
        rows = [row for row in read_metrics(self.path) if row["step"] <= state.global_step]
        self.trainer.target_tokens_seen = max((row.get("target_tokens", 0) for row in rows), default=0)
        self.seconds_before = max((row.get("seconds", 0.0) for row in rows), default=0.0)
        self.first_step = self.last_step = state.global_step
        self.start = time.perf_counter()
        self.last_tokens, self.last_time = self.trainer.target_tokens_seen, self.start
        if state.is_world_process_zero:
            self.path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Write and print."""
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        now, tokens = time.perf_counter(), self.trainer.target_tokens_seen
        progress = self._progress(args, state)
        row = {"step": state.global_step, **{k: v for k, v in logs.items() if k != "epoch"}, **progress}
        if "loss" in logs:
            row["tokens_per_second"] = round((tokens - self.last_tokens) / max(now - self.last_time, 1e-9))
            self.last_tokens, self.last_time = tokens, now
        else:
            # The time of a validation is not the training's.
            self.last_time += logs.get("eval_seconds", 0.0)
        self._write(row)
        steps = state.global_step - self.first_step
        left = (state.max_steps - state.global_step) * (now - self.start) / max(steps, 1)
        print(_log_line(row, state.max_steps, left), flush=True)

    def on_save(self, args, state, control, **kwargs) -> None:
        """Write how far the run is, if nothing was logged after this step: a resumed run counts on from here."""
        if state.is_world_process_zero and state.global_step != self.last_step:
            self._write({"step": state.global_step, **self._progress(args, state)})

    def _progress(self, args, state) -> dict[str, float]:
        progress: dict[str, float] = {"target_tokens": self.trainer.target_tokens_seen}
        progress["seconds"] = round(self.seconds_before + time.perf_counter() - self.start, 2)
        batches = self.trainer.train_batches
        if isinstance(batches, EndlessBatches):
            steps_per_epoch = len(batches.sampler) / args.gradient_accumulation_steps
            progress["epoch"] = round(state.global_step / steps_per_epoch, 3)
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
    """The rows of a metrics.jsonl; a last line that was cut off by an interruption is left out.

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


class StopOnSignal(TrainerCallback):
    """At the first SIGINT or SIGTERM, end the training after the current step with a checkpoint; at the second, at once."""

    def __init__(self):
        self.received: str | None = None
        self.handlers: dict[int, Any] = {}

    def _handle(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number).name
        print(f"{self.received}: saving a checkpoint after this step …", flush=True)
        signal.signal(number, self.handlers[number])

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Listen."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._handle)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Ask for a checkpoint and the end."""
        if self.received:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Listen no more."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


class CompleteCheckpoint(TrainerCallback):
    """Puts beside the weights what makes a checkpoint loadable and resumable: tokenizers and the place in a stream."""

    def __init__(self, trainer: VaswaniTrainer):
        self.trainer = trainer

    def on_save(self, args, state, control, **kwargs) -> None:
        """Write both."""
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        save_tokenizers(self.trainer.corpus.source_tokenizer, self.trainer.corpus.target_tokenizer, folder)
        if isinstance(self.trainer.train_batches, _EndlessStream):
            text = json.dumps(self.trainer.train_batches.batches.state_dict())
            (folder / STREAM_FILE).write_text(text, encoding="utf-8")
