"""The validation of a run. Each process runs the model on a part of the validation split."""

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from ..data.batching import PairRows, cut_into_batches
from ..data.columns import pair_lengths
from ..data.corpus import Corpus
from ..data.corpus_cache import hash_of_texts
from ..evaluation.bleu import RECIPE_KEYS
from ..evaluation.evaluate import perplexity
from ..model.loss_vaswani import IGNORED_LABEL
from ..tasks import Task
from .losses import TrainingLosses
from .processes import Processes
from .sharding import sharded_autocast, unsharded_model
from .stopping import GracefulShutdown, Phase, ShutdownRequested


class Validation:
    """Computes the scores of a model on the validation split, in all processes of a run."""

    def __init__(
        self,
        corpus: Corpus,
        task: Task,
        losses: TrainingLosses,
        processes: Processes,
        stop: GracefulShutdown,
    ):
        self.corpus = corpus
        self.task = task
        self.losses = losses
        self.processes = processes
        self.stop = stop

    @cached_property
    def comparison_key(self) -> dict[str, Any] | None:
        """The hash of the validation texts, and the recipe keys that change the scores. Early stopping can
        compare two scores of the task only if all these values are equal, and two losses only if the texts
        are equal. None without a validation split.
        """
        pairs = self.corpus.texts["validation"]
        if pairs is None:
            return None
        keys = {f"evaluation.{key}": getattr(self.task.evaluation, key, None) for key in RECIPE_KEYS}
        return {"texts": hash_of_texts(pairs), **keys}

    def scores(self, model: PreTrainedModel, accelerator: Accelerator, step: int) -> dict[str, float] | None:
        """Return the loss per token (nats) without label smoothing, the perplexity, and the scores of the
        task. Return None if a signal arrived in any process. Raise a DivergedRunError if the loss is not
        finite.
        """
        # Use the model without DistributedDataParallel, because `forward` of DistributedDataParallel can wait
        # for the other processes. The processes can have different numbers of validation batches.
        scored = unsharded_model(accelerator.unwrap_model(model))
        with sharded_autocast(accelerator):
            sums = self._gather(model, lambda: negative_log_likelihood(scored, self._batches(accelerator)))
        if sums is None:
            return None
        loss = sum(nats for nats, _ in sums) / sum(tokens for _, tokens in sums)
        if not math.isfinite(loss):
            first_bad = self.losses.suspect_since or step
            raise self.losses.error(
                f"The validation loss of step {step:,} is not finite", step, good_until=first_bad - 1
            )
        scores = {"loss": loss, "perplexity": perplexity(loss)}
        pairs = self.corpus.texts["validation"]
        names = self.task.validation_metrics()
        if not names or pairs is None:
            return scores
        shares = self._gather(model, lambda: self._outputs(scored, pairs, accelerator))
        if shares is None:
            return None
        outputs = [output for _, output in sorted(pair for share in shares for pair in share)]
        found = self.task.score_outputs(outputs, list(pairs["target"]))
        return scores | {name: float(found[name]) for name in names}

    def _batches(self, accelerator: Accelerator) -> DataLoader:
        """Return this process's share of the validation batches."""
        budget = max(self.task.evaluation.tokens_per_batch, self.corpus.max_length)
        batches = cut_into_batches(*pair_lengths(self.corpus.validation), budget, budget)
        return DataLoader(
            PairRows(self.corpus.validation),
            batch_sampler=batches[accelerator.process_index :: accelerator.num_processes],
            collate_fn=self.corpus.validation_collator,
        )

    def _outputs(
        self, model: Any, pairs: datasets.Dataset, accelerator: Accelerator
    ) -> list[tuple[int, str]]:
        """Return (index of the sentence, output) for each sentence that this process handles."""
        rows = range(accelerator.process_index, len(pairs), accelerator.num_processes)
        outputs = self.task.validation_outputs(model, self.corpus, pairs[rows]["source"])
        return list(zip(rows, outputs, strict=True))

    def _gather(self, model: PreTrainedModel, compute: Callable[[], Any]) -> list[Any] | None:
        """Return the results of `compute` in all processes, or None if a signal arrived in any process."""
        was_training = model.training
        try:
            with self.stop.phase(Phase.INTERRUPTIBLE):
                share = compute()
        except ShutdownRequested:
            share = None
        model.train(was_training)
        shares = self.processes.gather(share)
        return None if any(share is None for share in shares) else shares


@torch.inference_mode()
def negative_log_likelihood(
    model: PreTrainedModel, batches: Iterable[dict[str, torch.Tensor]]
) -> tuple[float, int]:
    """Return the total negative log-likelihood of all labels in nats, without label smoothing, and the number
    of labels. The model runs in eval mode. Afterwards, the function restores the previous mode (train or
    eval).
    """
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    try:
        for batch in batches:
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            total += model(**batch, num_items_in_batch=1).loss.item()
            tokens += int((batch["labels"] != IGNORED_LABEL).sum())
    finally:
        model.train(was_training)
    return total, tokens
