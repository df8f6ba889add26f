"""`VaswaniTrainer`: transformers' Seq2SeqTrainer with a maximum number of tokens per batch and the paper's
schedule.

run.py builds the trainer. batches.py creates the batches. For each batch, `training_step` computes the loss
and the gradients with `compute_loss`. `compute_loss` calls `forward` of the model
(model/modeling_vaswani.py), and `forward` returns the loss. losses.py collects the losses of a step,
validation.py computes the validation scores, and checkpoints.py writes the checkpoints.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

from ..checkpoint.files import step_of
from ..checkpoint.tokenizers import save_tokenizers
from ..data.batching import cut_into_parts
from ..data.corpus import Corpus
from ..optimization.entries import RegularizedLoss
from ..optimization.optimizers import OPTIMIZERS
from ..optimization.regularizers import regularizer_of
from ..optimization.schedules import scheduler_of
from ..optimization.section import AnyTraining
from ..settings.sections import PublishingSettings
from ..tasks import Task
from .batches import TrainingBatches, largest_part
from .checkpoints import (
    STAGING_FOLDER,
    CheckpointRecord,
    discarding_failed_save,
    empty_staging_folder,
    publish_checkpoint,
    rotate_checkpoints,
)
from .losses import TrainingLosses
from .moving_average import MovingAverage, OptimizerAverage, WeightAverage
from .processes import Processes
from .recipe_model import prepare_for_training
from .sharding import prepare_sharding, sharded_autocast
from .stopping import GracefulShutdown, Phase
from .validation import Validation


class VaswaniTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with a maximum number of tokens per batch, the schedule of the paper, and the scores of
    a task. If `checkpoint` is given, the run continues from `checkpoint`. The constructor freezes the weights
    in `training.frozen`, and turns gradient checkpointing on if `training.gradient_checkpointing` is true.
    """

    control: Any
    lr_scheduler: Any
    optimizer: Any

    def __init__(
        self,
        corpus: Corpus,
        training: AnyTraining,
        checkpoint: Path | None = None,
        processes: Processes | None = None,
        stop: GracefulShutdown | None = None,
        *,
        task: Task,
        model: PreTrainedModel,
        **kwargs: Any,
    ):
        self.corpus = corpus
        self.training = training
        self.task = task
        self.processes = processes or Processes()
        self.stop = stop or GracefulShutdown()
        self.start_step = step_of(checkpoint) if checkpoint else 0
        # After the first step, `target_tokens_seen` is a tensor on the device, because converting a tensor to
        # a Python number forces a CUDA synchronisation.
        self.target_tokens_seen: Any = CheckpointRecord.of(checkpoint).target_tokens if checkpoint else 0
        # True if a signal prevented the validation at the current step.
        self.validation_is_due = False
        prepare_for_training(model, training)
        super().__init__(model=model, train_dataset=corpus.train, eval_dataset=corpus.validation, **kwargs)
        prepare_sharding(self.accelerator, checkpoint, training)
        self.batches = TrainingBatches(corpus, training, self.args, checkpoint)
        if training.num_train_epochs is not None and self.batches.per_epoch is not None:
            batches = training.num_train_epochs * self.batches.per_epoch
            self.args.max_steps = max(1, round(batches / self.batches.per_step))
        self.losses = TrainingLosses(training, self.model.config, self.args)
        self.validation = Validation(corpus, task, self.losses, self.processes, self.stop)
        regularizer = regularizer_of(training)
        self.regularized_loss: RegularizedLoss | None = None
        if regularizer is not None:
            self.regularized_loss = regularizer.build(self.model, training, self.accelerator.autocast)
        # If the run averages the weights during the training, the run also validates and saves the averaged
        # weights.
        self.weight_average: WeightAverage | None = None
        if training.ema_decay is not None:
            moving_average = MovingAverage(self.model, training.ema_decay, checkpoint)
            self.add_callback(moving_average)
            self.weight_average = moving_average

    @property
    def last_step(self) -> int:
        """The number of the last trained step. Before the first training step, `last_step` is the step of the
        resumed checkpoint, or 0.
        """
        return self.state.global_step or self.start_step

    # 1. Training steps

    def get_train_dataloader(self) -> DataLoader:
        """Return a loader that yields training batches without end."""
        return self.batches.loader()

    def get_batch_samples(self, *args, **kwargs):
        """Return the batches of one optimizer step, and add their target tokens to `target_tokens_seen`."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if num_items is not None:
            self.target_tokens_seen = self.target_tokens_seen + torch.as_tensor(num_items).max()
        return batches, num_items

    def training_step(self, model, inputs, num_items_in_batch=None) -> torch.Tensor:
        """Compute the loss and the gradients of one batch. On a CPU, divide a large batch into parts."""
        self.batches.seed_next()
        step = super().training_step
        # With `non_blocking=True`, the copy from pinned memory runs while a GPU computes.
        inputs = {name: tensor.to(self.args.device, non_blocking=True) for name, tensor in inputs.items()}
        parts = [inputs]
        # The sum of the losses of the parts is the loss of the batch, because the loss of each part is
        # divided by the number of target tokens in the training step.
        if self.max_part_positions is not None and num_items_in_batch is not None:
            parts = cut_into_parts(inputs, self.max_part_positions, self.corpus.train_collator.trim)
        loss = 0.0
        for part in parts[:-1]:
            # The processes sum their gradients at most once per batch: after the last part of the batch.
            with self.accelerator.no_sync(model):
                loss = loss + step(model, part, num_items_in_batch)
        loss = loss + step(model, parts[-1], num_items_in_batch)
        self.losses.add_loss(loss)
        return loss

    @property
    def max_part_positions(self) -> int | None:
        """The maximum number of source tokens, padding included, in each part of a divided batch, or None if
        the trainer does not divide batches. The maximum number of target tokens in a part is the same. A part
        of a batch can exceed `max_part_positions` if the part has only one sentence pair. With DeepSpeed, the
        trainer does not divide batches, because DeepSpeed would take an optimizer step after each part. The
        number of processes has no effect on the division of a batch, because another division would change
        the dropout masks.
        """
        if self.args.device.type != "cpu" or self.is_deepspeed_enabled:
            return None
        return largest_part(self.training, self.model.config.d_model)

    def compute_loss(self, model, inputs, *args, **kwargs):
        """Return the loss of a batch. In training, the regulariser of the recipe computes the loss, if the
        recipe has a regulariser.
        """
        if self.regularized_loss is not None and self.model.training:
            model = partial(self.regularized_loss, model)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def autocast_smart_context_manager(self, *args, **kwargs):
        return sharded_autocast(self.accelerator)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the optimizer of the recipe, by default Adam (Section 5.3)."""
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
            self.losses.add_gradient_norm(norm)
        return norm

    # 2. Checkpoints

    def _get_output_dir(self, trial) -> str:
        """Return the folder into which `_save_checkpoint` of transformers saves a checkpoint."""
        return str(Path(self.args.output_dir) / STAGING_FOLDER)

    def _save_checkpoint(self, model, trial) -> None:
        """Save a checkpoint into the staging folder, and move the complete checkpoint into the output
        folder.
        """
        folder = Path(self.args.output_dir)
        save = super()._save_checkpoint
        with self.stop.phase(Phase.SAVING), discarding_failed_save(folder):
            self.processes.run_on_main(empty_staging_folder, folder)
            # All processes call `save`, because each process writes the state of its random generators.
            self.processes.run_all_or_exit(lambda: save(model, trial))
            self.processes.run_on_main(self._complete_checkpoint, folder)

    def _complete_checkpoint(self, folder: Path) -> None:
        step = self.state.global_step
        staged = folder / STAGING_FOLDER / f"checkpoint-{step}"
        save_tokenizers(self.corpus.source_tokenizer, self.corpus.target_tokenizer, staged)
        self.batches.save(staged, step)
        if self.weight_average is not None:
            self.weight_average.save(staged)
        record = CheckpointRecord(
            step=step,
            scheduled=step % self.training.save_steps == 0 and not self.validation_is_due,
            validated=not self.validation_is_due,
            processes=self.args.world_size,
            gradient_accumulation_steps=self.training.gradient_accumulation_steps,
            threads=torch.get_num_threads(),
            target_tokens=int(self.target_tokens_seen),
            training_pairs=self.corpus.digest,
            validation=self.validation.comparison_key,
        )
        publish_checkpoint(staged, folder, record)
        if self.losses.suspect_since is None:
            # Delete no checkpoint while the training seems to diverge, because the new checkpoint is perhaps
            # useless.
            rotate_checkpoints(folder, self.training, self.state)

    # 3. Validation

    def evaluate(self, *args, metric_key_prefix: str = "eval", **kwargs) -> dict[str, float]:
        """Return the scores on the validation split (see `Validation.scores`), or an empty dict if a signal
        arrived.

        If the run averages the weights, `evaluate` returns the scores of the averaged weights. The scores of
        the unaveraged weights have names with `raw`, such as `eval_raw_loss`.
        """
        start = time.perf_counter()
        scores = self._validation_scores()
        self.validation_is_due = scores is None
        if scores is None:
            # After a signal, all processes save a checkpoint and end.
            self.control.should_save = True
            self.control.should_training_stop = True
            return {}
        scores["seconds"] = time.perf_counter() - start
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _validation_scores(self) -> dict[str, float] | None:
        step = self.state.global_step
        scores = self.validation.scores(self.model, self.accelerator, step)
        if scores is None or self.weight_average is None:
            return scores
        with self.weight_average.in_place():
            averaged = self.validation.scores(self.model, self.accelerator, step)
        if averaged is None:
            return None
        return averaged | {f"raw_{name}": value for name, value in scores.items()}


def training_arguments(
    training: AnyTraining,
    output_dir: str,
    seed: int,
    *,
    validates: bool,
    publishing: PublishingSettings | None = None,
) -> Seq2SeqTrainingArguments:
    """Convert the sections `training` and `publishing` of a recipe to the arguments of transformers'
    Trainer.
    """
    publishing = publishing or PublishingSettings()
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
        # Turn off the filter of transformers that replaces infinite and NaN losses in the log, because an
        # infinite or NaN loss ends the run.
        logging_nan_inf_filter=False,
        # The Trainer must not skip batches in a resumed run, because `get_train_dataloader` already begins
        # after the batches of the checkpoint.
        ignore_data_skip=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
    )
