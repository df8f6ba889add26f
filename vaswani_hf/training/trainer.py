"""`VaswaniTrainer`: transformers' Seq2SeqTrainer with token-budget batches and the paper's schedule.

run.py builds the trainer. The methods `_train_batches` and `get_train_dataloader` make batches from the
encoded corpus with data/batching.py. `training_step` computes the loss and the gradients of a batch with
`compute_loss`. `compute_loss` calls `forward` of the model (model/modeling_vaswani.py), and `forward` returns
the loss.
"""

import contextlib
import dataclasses
import json
import math
import re
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from ..checkpoint.files import STREAM_FILE, step_of
from ..checkpoint.manifest import metadata_of
from ..checkpoint.tokenizers import save_tokenizers
from ..data.batching import EndlessSampler, EpochPairs, PairRows, TokenBudgetSampler, cut_into_parts
from ..data.columns import pair_lengths
from ..data.corpus import Corpus
from ..data.streams import EndlessStream
from ..evaluation.evaluate import negative_log_likelihood, perplexity
from ..model.errors_vaswani import InvalidValueError
from ..optimization.entries import RegularizedLoss
from ..optimization.optimizers import OPTIMIZERS
from ..optimization.regularizers import num_passes, regularizer_of
from ..optimization.schedules import SCHEDULES, scheduled_rate, scheduler_of
from ..optimization.section import AnyTraining
from ..settings.sections import EvaluationSettings, PublishingSettings
from ..tasks import Task
from .checkpoints import (
    STAGING_FOLDER,
    checkpoints_until,
    publish_checkpoint,
    put_back_replaced,
    refuse_vanished_folder,
    rotate_checkpoints,
)
from .moving_average import MovingAverage, OptimizerAverage, WeightAverage
from .processes import Processes
from .sharding import prepare_sharding, sharded_autocast, unsharded_model
from .stopping import GracefulShutdown, RunError, ShutdownRequested
from .training_step import enable_gradient_checkpointing

# On a CPU, the trainer divides a large batch into smaller batches, called parts. `MAX_PART_SIZE` is the
# largest size of a part of a batch. The size is the number of source positions (or target positions) times
# `d_model`. If a batch is divided into smaller parts, the batch needs less padding and less memory, but each
# additional forward and backward pass costs time.
MAX_PART_SIZE = 2**19

# Register the device "cpu:0", because `torch.load` does not know "cpu:0". If several processes train on a
# CPU, transformers 5.17 loads the optimizer to "cpu:0".
try:
    torch.serialization.default_restore_location(torch.UntypedStorage(), "cpu:0")
except RuntimeError:
    torch.serialization.register_package(
        11,
        lambda storage: None,
        lambda storage, device: storage if re.fullmatch(r"cpu:\d+", device) else None,
    )


class DivergedRunError(RunError):
    """Raised if the loss or the gradient became infinite or NaN, or if the loss exploded.

    The error message names the step and a remedy.
    """


def largest_part(training: AnyTraining, d_model: int) -> int | None:
    """On a CPU, the trainer divides a large batch into parts (see `MAX_PART_SIZE`). Return the largest number
    of source positions in a part of a batch, which is also the largest number of target positions. Return
    None if the trainer does not divide batches into parts.
    """
    positions = MAX_PART_SIZE // d_model // num_passes(training)
    is_large = max(training.source_tokens_per_batch, training.target_tokens_per_batch) > positions
    # Do not divide batches for a compiled model, because parts have many different shapes, and each shape
    # needs a compilation.
    return positions if is_large and not training.torch_compile else None


def _ignore_signals(worker: int) -> None:
    # Ctrl-C and launchers send a signal to all processes. Data workers ignore the signal, because the trainer
    # needs its data workers to finish the current step.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class VaswaniTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with token-budget batches, the schedule of the paper, and the scores of a task.

    `checkpoint` is the checkpoint from which the run continues. `kwargs` are additional arguments of
    Seq2SeqTrainer.
    """

    control: Any
    lr_scheduler: Any
    optimizer: Any

    def __init__(
        self,
        corpus: Corpus,
        training: AnyTraining,
        evaluation: EvaluationSettings,
        checkpoint: Path | None = None,
        processes: Processes | None = None,
        stop: GracefulShutdown | None = None,
        *,
        task: Task,
        **kwargs: Any,
    ):
        self.corpus = corpus
        self.training = training
        self.evaluation = evaluation
        self.task = task
        self.processes = processes or Processes()
        self.start_step = step_of(checkpoint) if checkpoint else 0
        # The number of batches per process since the start of the run, including the steps before a resumed
        # checkpoint.
        self.num_batches = self.start_step * training.gradient_accumulation_steps
        # The target tokens, the loss and the gradient norms of a step stay tensors on the device, because
        # converting a tensor to a Python number forces a CUDA synchronisation.
        self.target_tokens_seen: Any = metadata_of(checkpoint)["target_tokens"] if checkpoint else 0
        self.loss_of_step: Any = 0.0
        self.norms_of_step: Any = 0.0
        # The first step of the latest series of steps with too high a loss (see `DivergenceDetector`); None
        # if the latest loss is not too high.
        self.suspect_since: int | None = None
        self.stop = stop or GracefulShutdown()
        # True if a signal prevented the validation at the current step.
        self.validation_is_due = False
        super().__init__(train_dataset=corpus.train, eval_dataset=corpus.validation, **kwargs)
        prepare_sharding(self.accelerator, checkpoint, training)
        self.train_batches = self._train_batches(checkpoint)
        if training.num_train_epochs is not None and self.train_batches.batches_per_epoch is not None:
            batches = training.num_train_epochs * self.train_batches.batches_per_epoch
            self.args.max_steps = max(1, round(batches / self.batches_per_step))
        regularizer = regularizer_of(training)
        self.regularized_loss: RegularizedLoss | None = None
        if regularizer is not None:
            self.regularized_loss = regularizer.build(self.model, training, self.accelerator.autocast)
        # The average of the weights; None without an average. The run validates and saves the average.
        self.weight_average: WeightAverage | None = None
        if training.ema_decay is not None:
            moving_average = MovingAverage(self.model, training.ema_decay, checkpoint)
            self.add_callback(moving_average)
            self.weight_average = moving_average
        if training.gradient_checkpointing:
            enable_gradient_checkpointing(self.model)

    @property
    def batches_per_step(self) -> int:
        """The number of batches in an optimizer step, as the sum over all processes."""
        return self.training.gradient_accumulation_steps * self.args.world_size

    @property
    def last_step(self) -> int:
        """The last step that was trained. If no step was trained, `last_step` is the step of the resumed
        checkpoint, or 0 without a checkpoint.
        """
        return self.state.global_step or self.start_step

    @property
    def loss_name(self) -> str:
        """The name of the training loss in the log.

        If the training loss includes label smoothing or a regulariser, `loss_name` mentions them, because the
        validation loss includes neither.
        """
        terms = []
        if smoothing := self.model.config.label_smoothing:
            terms.append(f"label smoothing {smoothing:g}")
        if regularizer := regularizer_of(self.training):
            terms.append(f"{regularizer.strength} {getattr(self.training, regularizer.strength):g}")
        return f"loss ({', '.join(terms)})" if terms else "loss"

    def _train_batches(self, checkpoint: Path | None) -> EndlessSampler | EndlessStream:
        """Return the training batches of this process, from a corpus on disk or from a stream. If the run is
        resumed, the first batch is the next batch after the checkpoint.
        """
        pairs = self.corpus.train
        source_tokens = self.training.source_tokens_per_batch
        target_tokens = self.training.target_tokens_per_batch
        seed = self.args.seed
        share = {"num_processes": self.args.world_size, "process_index": self.args.process_index}
        if not isinstance(pairs, datasets.Dataset):
            stream = EndlessStream(pairs, source_tokens, target_tokens, seed=seed, **share)
            if checkpoint is not None:
                state = (checkpoint / STREAM_FILE).read_text(encoding="utf-8")
                stream.load_state_dict(json.loads(state))
            return stream
        weighted = self.corpus.weighted
        lengths = (
            pair_lengths(pairs) if weighted is None else (weighted.source_lengths, weighted.target_lengths)
        )
        pairs_of = None if weighted is None else weighted.of_epoch
        sampler = TokenBudgetSampler(*lengths, source_tokens, target_tokens, seed=seed, pairs_of=pairs_of)
        return EndlessSampler(sampler, self.start_step * self.batches_per_step, **share)

    def get_train_dataloader(self) -> DataLoader:
        """Return a loader that yields training batches without end. The loader has no length, because the
        recipe sets the length of a run.
        """
        options: dict[str, Any] = {
            "collate_fn": self.corpus.train_collator,
            "pin_memory": torch.cuda.is_available(),
        }
        if isinstance(self.train_batches, EndlessStream):
            return DataLoader(self.train_batches, batch_size=None, **options)
        workers = self.training.dataloader_num_workers
        return DataLoader(
            EpochPairs(self.corpus.train),
            batch_sampler=self.train_batches,
            num_workers=workers,
            worker_init_fn=_ignore_signals,
            **options,
        )

    def get_batch_samples(self, *args, **kwargs):
        """Return the batches of one optimizer step, and add their number of target tokens to
        `target_tokens_seen`.
        """
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if num_items is not None:
            self.target_tokens_seen = self.target_tokens_seen + torch.as_tensor(num_items).max()
        return batches, num_items

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Compute the loss and the gradients of one batch. On a CPU, divide a large batch into parts."""
        self._seed_batch()
        step = super().training_step
        # Pass `non_blocking=True`, so that the copy from pinned memory runs while a GPU computes.
        inputs = {name: tensor.to(self.args.device, non_blocking=True) for name, tensor in inputs.items()}
        parts = [inputs]
        # Divide the batch into parts only if the number of target tokens in the step is known, because the
        # loss of each part is divided by this number.
        if self.max_part_positions is not None and num_items_in_batch is not None:
            parts = cut_into_parts(inputs, self.max_part_positions, self.corpus.train_collator.trim)
        loss = 0.0
        for part in parts[:-1]:
            # The processes sum their gradients once per batch: after the last part of the batch.
            with self.accelerator.no_sync(model):
                loss = loss + step(model, part, num_items_in_batch)
        loss = loss + step(model, parts[-1], num_items_in_batch)
        self.loss_of_step = self.loss_of_step + loss
        return loss

    @property
    def max_part_positions(self) -> int | None:
        """The trainer divides a large batch into parts with at most `max_part_positions` source positions and
        at most `max_part_positions` target positions. None if the trainer does not divide batches into parts.
        The division of a batch does not depend on the number of processes, because another division would
        change the dropout masks. With DeepSpeed, the trainer does not divide batches, because DeepSpeed would
        take an optimizer step after each part of a batch.
        """
        if self.args.device.type != "cpu" or self.is_deepspeed_enabled:
            return None
        return largest_part(self.training, self.model.config.d_model)

    def _seed_batch(self) -> None:
        """Seed PyTorch with the seed of the run and the index of the next batch in the run.

        Therefore the random masks of dropout and SimCut depend only on the batch. Neither the number of
        processes nor an interruption of the run changes the masks of dropout and SimCut.
        """
        number = self.num_batches * self.args.world_size + self.args.process_index
        self.num_batches += 1
        # Hash the seed of the run and the index of the batch into 32 bits, because PyTorch's CPU generator
        # uses only 32 bits of a seed.
        (seed,) = np.random.SeedSequence([self.args.seed, number]).generate_state(1)
        torch.manual_seed(int(seed))

    def compute_loss(self, model, inputs, *args, **kwargs):
        """Return the loss of a batch. During training, the regulariser of the recipe computes the loss in
        place of the model.
        """
        if self.regularized_loss is not None and self.model.training:
            model = partial(self.regularized_loss, model)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def autocast_smart_context_manager(self, *args, **kwargs):
        return sharded_autocast(self.accelerator)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the optimizer of the recipe. The default is Adam (Section 5.3)."""
        if self.optimizer is None:
            build = OPTIMIZERS[self.training.optimizer].build
            trained = self.model if model is None else model
            self.optimizer = build(trained, self.training, bf16=self.training.bf16 is True)
            if self.training.optimizer_averages_weights:
                self.weight_average = OptimizerAverage(self.model, self.optimizer)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """Return the learning rate schedule of the recipe. The default is the schedule of the paper (Section
        5.3).
        """
        if self.lr_scheduler is None:
            width = self.model.config.d_model
            self.lr_scheduler = scheduler_of(
                optimizer or self.optimizer, self.training, width, self.args.max_steps
            )
        return self.lr_scheduler

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None:
            # If the gradients are sharded, the norm is a DTensor. `full_tensor` then computes the norm over
            # all processes.
            whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self.norms_of_step = self.norms_of_step + whole
        return norm

    def take_losses(self) -> torch.Tensor:
        """Return a tensor [2] (float32, on the device of the trainer) for all batches since the last call of
        `take_losses`. Element 0 is 1.0 if a loss or gradient was not finite, otherwise 0.0. Element 1 is the
        sum of the losses.
        """
        loss = torch.as_tensor(self.loss_of_step, dtype=torch.float32, device=self.args.device)
        diverged = 1.0 - torch.isfinite(loss + self.norms_of_step).float()
        self.loss_of_step = self.norms_of_step = 0.0
        return torch.stack([diverged, loss])

    def divergence(self, what: str, step: int, good_until: int) -> DivergedRunError:
        """Return the error that ends a run whose loss or gradient is not finite, or has exploded."""
        training = self.training
        last = checkpoints_until(self.args.output_dir, good_until)[-1:]
        rate = scheduled_rate(step, training, self.model.config.d_model, self.args.max_steps)
        key = SCHEDULES[training.lr_scheduler_type].rate_key
        saved = (
            f"the last good checkpoint is '{last[0]}'" if last else "no checkpoint was saved before this step"
        )
        return DivergedRunError(
            f"{what}, at a learning rate of {rate:.2e}; {saved}. Try a lower "
            f"`training.{key}`, more `training.warmup_steps`, `training.max_grad_norm: 1`"
            f"{' or `training.bf16: false`' if training.bf16 is True else ''}, in another `--output_dir`."
        )

    def _save_checkpoint(self, model, trial) -> None:
        """Save a checkpoint into a staging folder, and move the complete checkpoint into the output folder."""
        folder = Path(self.args.output_dir)
        self.processes.run_on_main(self._make_room, folder)
        self.args.output_dir = str(folder / STAGING_FOLDER)
        self.stop.is_saving = True
        try:
            # All processes call `_save_checkpoint`, because each process writes the state of its random
            # generators.
            save = super()._save_checkpoint
            self.processes.run_all_or_exit(lambda: save(model, trial))
            self.args.output_dir = str(folder)
            self.processes.run_on_main(self._complete_checkpoint, folder)
        except Exception:
            # If the failed save was replacing an earlier checkpoint of the same step, restore the earlier
            # checkpoint. Delete the incomplete checkpoint, because it takes disk space. If the earlier
            # checkpoint cannot be restored, or the incomplete checkpoint cannot be deleted, ignore the
            # OSError, because the output folder has perhaps been deleted.
            with contextlib.suppress(OSError):
                # Do not change a folder that is no longer the folder of this run.
                refuse_vanished_folder(folder)
                put_back_replaced(folder)
                shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)
            raise
        finally:
            self.args.output_dir = str(folder)
            self.stop.is_saving = False

    def _make_room(self, folder: Path) -> None:
        refuse_vanished_folder(folder)
        shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)

    def _complete_checkpoint(self, folder: Path) -> None:
        step = self.state.global_step
        staged = folder / STAGING_FOLDER / f"checkpoint-{step}"
        save_tokenizers(self.corpus.source_tokenizer, self.corpus.target_tokenizer, staged)
        if self.weight_average is not None:
            self.weight_average.save(staged)
        if isinstance(self.train_batches, EndlessStream):
            text = json.dumps(self.train_batches.state_dict(step * self.batches_per_step))
            (staged / STREAM_FILE).write_text(text, encoding="utf-8")
        facts = {
            "step": step,
            # True if `save_steps` schedules a checkpoint at this step, and if no signal interrupted the
            # validation of the step.
            "scheduled": step % self.training.save_steps == 0 and not self.validation_is_due,
            "validated": not self.validation_is_due,
            "processes": self.args.world_size,
            "gradient_accumulation_steps": self.training.gradient_accumulation_steps,
            "threads": torch.get_num_threads(),
            "target_tokens": int(self.target_tokens_seen),
            "training_pairs": self.corpus.digest,
        }
        publish_checkpoint(staged, folder, facts)
        if self.suspect_since is None:
            # Delete old checkpoints only if the latest loss is not too high, because the new checkpoint of a
            # diverging model may be useless.
            rotate_checkpoints(folder, self.training, self.state)

    def evaluate(self, *args, metric_key_prefix: str = "eval", **kwargs) -> dict[str, float]:
        """Return the scores on the validation split: the unsmoothed loss per token (nats), the perplexity,
        and the scores of the task.

        If the run or its optimizer averages the weights, the scores are scores of the averaged weights. The
        scores of the weights before averaging have names such as `eval_raw_loss`.
        """
        start = time.perf_counter()
        metrics = self._validate()
        if metrics and self.weight_average is not None:
            raw = {f"raw_{name}": value for name, value in metrics.items()}
            with self.weight_average.in_place():
                metrics = self._validate()
            metrics = metrics and {**metrics, **raw}
        if not metrics:
            return {}
        metrics["seconds"] = time.perf_counter() - start
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _validate(self) -> dict[str, float]:
        """Return the validation scores of the current weights, or an empty dict if a signal arrived."""
        # Use the model without DistributedDataParallel, because `forward` of DistributedDataParallel can wait
        # for the other processes. The processes can have different numbers of validation batches.
        model = unsharded_model(self.accelerator.unwrap_model(self.model))
        with sharded_autocast(self.accelerator):
            shares = self._gather_shares(lambda: negative_log_likelihood(model, self._validation_batches()))
        if not shares:
            return {}
        loss = sum(nats for nats, _ in shares) / sum(tokens for _, tokens in shares)
        if not math.isfinite(loss):
            step = self.state.global_step
            what = f"The validation loss of step {step:,} is not finite"
            raise self.divergence(what, step, (self.suspect_since or step) - 1)
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        pairs = self.corpus.texts["validation"]
        names = self.task.validation_metrics(self.evaluation)
        if names and pairs is not None:
            shares = self._gather_shares(lambda: self._validation_outputs(model, pairs))
            if not shares:
                return {}
            outputs = [output for _, output in sorted(pair for share in shares for pair in share)]
            scores = self.task.score_outputs(outputs, list(pairs["target"]), self.evaluation)
            metrics |= {name: float(scores[name]) for name in names}
        return metrics

    def _validation_batches(self) -> DataLoader:
        budget = max(self.evaluation.tokens_per_batch, self.corpus.max_length)
        batches = list(TokenBudgetSampler(*pair_lengths(self.corpus.validation), budget, budget, seed=None))
        return DataLoader(
            PairRows(self.corpus.validation),
            # Divide the validation batches among the processes.
            batch_sampler=batches[self.args.process_index :: self.args.world_size],
            collate_fn=self.corpus.validation_collator,
        )

    def _gather_shares(self, compute: Callable[[], Any]) -> list[Any]:
        """Call `compute` in each process, and return the list of the results of all processes. If a signal
        arrived in any process, return an empty list. After a signal, all processes save a checkpoint and end.
        """
        was_training = self.model.training
        try:
            with self.stop.ending_at_once(self.stop.sentence):
                share = compute()
        except ShutdownRequested:
            share = None
        self.model.train(was_training)
        shares = self.processes.gather(share)
        self.validation_is_due = any(share is None for share in shares)
        if self.validation_is_due:
            self.control.should_save = self.control.should_training_stop = True
            return []
        return shares

    def _validation_outputs(self, model: Any, pairs: datasets.Dataset) -> list[tuple[int, str]]:
        """Compute the outputs for this process's part of the validation split. Return each output with the
        index of its sentence in `pairs`.
        """
        rows = range(self.args.process_index, len(pairs), self.args.world_size)
        outputs = self.task.validation_outputs(model, self.corpus, pairs[rows]["source"], self.evaluation)
        return list(zip(rows, outputs, strict=True))


def training_arguments(
    training: AnyTraining,
    output_dir: str,
    seed: int,
    *,
    validates: bool,
    publishing: PublishingSettings | None = None,
) -> Seq2SeqTrainingArguments:
    """Convert the sections `training` and `publishing` of a recipe to the arguments of transformers' Trainer."""
    publishing = publishing or PublishingSettings()
    arguments = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    for name in publishing.trackio:
        if name not in arguments:
            raise InvalidValueError(
                f"`publishing.{name}` needs a newer version of transformers than {transformers.__version__}; "
                f"install a newer version, or leave `publishing.{name}` out."
            )
    return Seq2SeqTrainingArguments(
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        max_grad_norm=training.max_grad_norm,
        torch_compile=training.torch_compile,
        logging_steps=training.logging_steps,
        eval_steps=training.eval_steps,
        save_steps=training.save_steps,
        output_dir=output_dir,
        bf16=training.bf16 is True,
        max_steps=training.max_steps or 1,
        seed=seed,
        report_to=training.report_to or "none",
        # If `hub_private_repo` is true, the reporting tool Trackio makes its Space private.
        hub_private_repo=publishing.hub_private_repo or None,
        **publishing.trackio,
        eval_strategy="steps" if validates else "no",
        save_strategy="steps",
        # Log infinite and NaN losses too, because an infinite or NaN loss ends the run.
        logging_nan_inf_filter=False,
        # The Trainer must not skip batches in a resumed run, because `get_train_dataloader` already begins
        # after the batches of the checkpoint.
        ignore_data_skip=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
    )
