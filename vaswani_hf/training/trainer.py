"""The trainer: Seq2SeqTrainer with the paper's batches and schedule, and its arguments.

The run around it is in run.py, its log in callbacks.py.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import torch
from accelerate.utils import gather_object
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from ..checkpoint.files import STREAM_FILE, step_of
from ..data.batching import PairCollator, StreamedBatches, TokenBudgetSampler
from ..data.corpus import Corpus
from ..data.preparation import pair_lengths
from ..evaluation.bleu import score_translations
from ..evaluation.evaluate import negative_log_likelihood, perplexity
from ..model.loss_vaswani import IGNORED_LABEL
from ..model.modeling_vaswani import VaswaniForSeq2SeqLM
from ..recipe.schema import EvaluationSection, TrainingSection
from ..translation.translator import Translator
from .schedule import paper_schedule
from .sharding import prepare_sharding, whole_model


class EndlessSampler(Sampler[list[tuple[int, int]]]):
    """The batches of epoch after epoch, from any batch on, as lists of (epoch, index).

    Args:
        sampler (TokenBudgetSampler): The batches of one epoch.
        start (int): The number of batches of this process that a resumed run has already seen.
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


class EndlessStream(torch.utils.data.IterableDataset):
    """The batches of a stream, epoch after epoch.

    Args:
        batches (StreamedBatches): The batches of one epoch.
    """

    def __init__(self, batches: StreamedBatches):
        self.batches = batches
        self.epoch = 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration go on from a state.

        Args:
            state (dict): The state of the batches.
        """
        self.epoch = state["epoch"]
        self.batches.load_state_dict(state)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        while True:
            self.batches.set_epoch(self.epoch)
            empty = True
            for batch in self.batches:
                empty = False
                yield batch
            # An epoch has no batches left where a run was resumed at the very end of it.
            if empty and not self.batches.state_dict()["num_batches"]:
                raise ValueError("The stream of training pairs must hold a pair that survives cleaning, but has none.")
            self.epoch += 1


def _own_generator() -> torch.Generator:
    # A loader draws a number when it begins, which would change later dropout if it came from PyTorch's own generator.
    return torch.Generator()


class VaswaniTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with token-budget batches, the paper's schedule, and evaluation per token and by BLEU.

    Args:
        corpus (Corpus): The data.
        training (TrainingSection): The batches and the schedule.
        evaluation (EvaluationSection): The scores of the validation.
        checkpoint (Path, optional): The checkpoint that the run continues from.
        **kwargs: Passed to Seq2SeqTrainer.
    """

    control: Any
    lr_scheduler: Any

    def __init__(
        self,
        corpus: Corpus,
        training: TrainingSection,
        evaluation: EvaluationSection,
        checkpoint: Path | None = None,
        **kwargs: Any,
    ):
        self.corpus, self.training, self.evaluation = corpus, training, evaluation
        self.target_tokens_seen = 0
        self.start_step = step_of(checkpoint) if checkpoint else 0
        super().__init__(train_dataset=corpus.train, eval_dataset=corpus.validation, **kwargs)
        prepare_sharding(self.accelerator, checkpoint, compiled=training.torch_compile)
        self.train_batches = self._train_batches(checkpoint)
        if training.num_train_epochs is not None and isinstance(self.train_batches, EndlessSampler):
            batches = training.num_train_epochs * len(self.train_batches.sampler)
            self.args.max_steps = max(1, round(batches / training.gradient_accumulation_steps))
        if training.gradient_checkpointing:
            # transformers 5.23 deprecates the name that earlier ones know.
            enable = getattr(self.model, "activation_checkpointing_enable", None)
            (enable or self.model.gradient_checkpointing_enable)()

    def _train_batches(self, checkpoint: Path | None) -> EndlessSampler | EndlessStream:
        training, pairs = self.training, self.corpus.train
        budgets = (training.source_tokens_per_batch, training.target_tokens_per_batch)
        share: dict[str, Any] = {
            "seed": self.args.seed,
            "num_processes": self.args.world_size,
            "process_index": self.args.process_index,
        }
        if isinstance(pairs, datasets.Dataset):
            sampler = TokenBudgetSampler(*pair_lengths(pairs), *budgets, **share)
            return EndlessSampler(sampler, self.start_step * training.gradient_accumulation_steps)
        stream = EndlessStream(StreamedBatches(pairs, *budgets, **share))
        if checkpoint is not None:
            stream.load_state_dict(json.loads((checkpoint / STREAM_FILE).read_text(encoding="utf-8")))
        return stream

    def get_train_dataloader(self) -> DataLoader:
        """The endless loader of training batches, which has no length, so that the recipe alone counts epochs."""
        options: dict[str, Any] = {
            "collate_fn": self.corpus.train_collator,
            "generator": _own_generator(),
            "pin_memory": torch.cuda.is_available(),
        }
        if isinstance(self.train_batches, EndlessStream):
            return DataLoader(self.train_batches, batch_size=None, **options)
        workers = self.training.dataloader_num_workers
        return DataLoader(
            _Examples(self.corpus.train), batch_sampler=self.train_batches, num_workers=workers, **options
        )

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The paper's schedule (Section 5.3), whatever the number of steps."""
        if self.lr_scheduler is None:
            self.lr_scheduler = paper_schedule(
                optimizer or self.optimizer,
                self.model.config.d_model,
                self.training.warmup_steps,
                self.training.learning_rate_factor,
            )
        return self.lr_scheduler

    def get_batch_samples(self, *args, **kwargs):
        """The batches of one optimizer step, whose target tokens are counted on the way."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        tokens = sum(int((batch["labels"] != IGNORED_LABEL).sum()) for batch in batches)
        self.target_tokens_seen += tokens * self.args.world_size
        return batches, num_items

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A checkpoint has no tied copies; transformers would warn of them at each resume.
        ties = self.accelerator.unwrap_model(self.model).get_expanded_tied_weights_keys(all_submodels=True)
        missing = [name for name in load_result.missing_keys if name not in ties]
        super()._issue_warnings_after_load(
            SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        )

    def evaluate(self, *args, metric_key_prefix: str = "eval", **kwargs) -> dict[str, float]:
        """Loss per token, never smoothed, and perplexity on the validation split; BLEU and chrF where they are asked for."""
        start = time.perf_counter()
        # Processes may have unequally many batches, which they could not compute together.
        model = whole_model(self.accelerator.unwrap_model(self.model))
        nats, tokens = negative_log_likelihood(model, self._validation_batches())
        total = self.accelerator.reduce(torch.tensor([nats, float(tokens)], dtype=torch.float64))
        loss = (total[0] / total[1]).item()
        metrics = {"loss": loss, "perplexity": perplexity(loss)}
        if self.evaluation.validation_bleu:
            metrics |= self._validation_scores(model)
        metrics["seconds"] = time.perf_counter() - start
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _validation_batches(self) -> DataLoader:
        budget = max(self.evaluation.tokens_per_batch, self.corpus.max_length)
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

    def _validation_scores(self, model: VaswaniForSeq2SeqLM) -> dict[str, float]:
        evaluation, pairs = self.evaluation, self.corpus.validation_text
        if pairs is None:
            return {}
        was_training = model.training
        translator = Translator(model.eval(), self.corpus.source_tokenizer, self.corpus.target_tokenizer)
        shares = range(self.args.process_index, len(pairs), self.args.world_size)
        translated = translator.translate(
            [pairs[i]["source"] for i in shares],
            tokens_per_batch=evaluation.tokens_per_batch,
            num_beams=1,
            # A model at the beginning of its training repeats itself all the time.
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


def training_arguments(
    training: TrainingSection, output_dir: str, seed: int, *, validates: bool
) -> Seq2SeqTrainingArguments:
    """The arguments of transformers' Trainer for a run.

    Args:
        training (TrainingSection): The optimisation.
        output_dir (str): The output folder.
        seed (int): The seed of the run.
        validates (bool): There is a validation split.

    Returns:
        Seq2SeqTrainingArguments: Batches and schedule are left to `VaswaniTrainer`, as is the number of steps where the
        recipe gives epochs.
    """
    early_stopping = training.early_stopping_patience is not None
    same_names = """
        gradient_accumulation_steps adam_beta1 adam_beta2 adam_epsilon max_grad_norm bf16 torch_compile
        logging_steps eval_steps save_steps save_total_limit
    """.split()
    return Seq2SeqTrainingArguments(
        **{name: getattr(training, name) for name in same_names},
        output_dir=output_dir,
        max_steps=training.max_steps or 1,
        seed=seed,
        report_to=training.report_to or "none",
        # AdamW without weight decay is Adam (Section 5.3).
        optim="adamw_torch_fused",
        weight_decay=0.0,
        eval_strategy="steps" if validates else "no",
        save_strategy="steps",
        load_best_model_at_end=early_stopping,
        # A best checkpoint would be kept in place of one of the last, which are averaged.
        metric_for_best_model=training.metric_for_best_model if early_stopping else None,
        greater_is_better=training.metric_for_best_model == "bleu",
        restore_callback_states_from_checkpoint=True,
        # Batches begin where the checkpoint ended; none is replayed.
        ignore_data_skip=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
    )
