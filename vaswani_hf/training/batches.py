"""Defines the training batches of a run: the pairs and the seed of each batch. Also computes the maximum size
of the parts into which the trainer divides a batch on a CPU.
"""

import json
import signal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from ..checkpoint.files import STREAM_FILE, step_of
from ..data.batching import EndlessSampler, EpochPairs, TokenBudgetSampler
from ..data.columns import pair_lengths
from ..data.corpus import Corpus
from ..data.streams import EndlessStream
from ..optimization.regularizers import num_passes
from ..optimization.section import AnyTraining

# On a CPU, the trainer divides a large batch into parts whose size is at most `MAX_PART_SIZE`. The size of a
# part of a batch is `d_model` times the number of its source or target positions, whichever is larger. If a
# regulariser needs several forward passes, the size includes the positions of all passes. Smaller parts need
# less padding and less memory, but each additional forward and backward pass costs time.
MAX_PART_SIZE = 2**19


def largest_part(training: AnyTraining, d_model: int) -> int | None:
    """Return the maximum number of source positions of a part if the trainer divides a batch on a CPU. The
    returned number is also the maximum number of target positions of a part. Return None if the trainer does
    not divide batches into parts.
    """
    positions = MAX_PART_SIZE // d_model // num_passes(training)
    is_large = max(training.source_tokens_per_batch, training.target_tokens_per_batch) > positions
    # Do not divide batches for a compiled model, because the parts would have many different shapes, and each
    # shape needs a compilation.
    return positions if is_large and not training.torch_compile else None


class TrainingBatches:
    """The unlimited training batches of one process, from a corpus on disk or from a stream. If the run
    continues from a checkpoint, the first batch is the next batch after the checkpoint.
    """

    def __init__(
        self, corpus: Corpus, training: AnyTraining, args: TrainingArguments, checkpoint: Path | None
    ):
        self.corpus = corpus
        self.training = training
        self.args = args
        start_step = step_of(checkpoint) if checkpoint else 0
        # The number of batches on which this process has trained so far. In a resumed run, `num_batches`
        # includes the batches before the checkpoint.
        self.num_batches = start_step * training.gradient_accumulation_steps
        self._sequence: EndlessSampler | EndlessStream
        if isinstance(corpus.train, datasets.Dataset):
            self._sequence = self._sampler(start_step)
        else:
            self._sequence = self._stream(checkpoint)

    @property
    def per_step(self) -> int:
        """The number of batches in an optimizer step, as the sum over all processes."""
        return self.training.gradient_accumulation_steps * self.args.world_size

    @property
    def per_epoch(self) -> int | None:
        """The number of batches in an epoch, as the sum over all processes; None for a stream."""
        return self._sequence.batches_per_epoch

    def _sampler(self, start_step: int) -> EndlessSampler:
        weighted = self.corpus.weighted
        if weighted is None:
            source_lengths, target_lengths = pair_lengths(self.corpus.train)
        else:
            source_lengths, target_lengths = weighted.source_lengths, weighted.target_lengths
        sampler = TokenBudgetSampler(
            source_lengths,
            target_lengths,
            self.training.source_tokens_per_batch,
            self.training.target_tokens_per_batch,
            seed=self.args.seed,
            pairs_of=None if weighted is None else weighted.of_epoch,
        )
        return EndlessSampler(
            sampler,
            start_step * self.per_step,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
        )

    def _stream(self, checkpoint: Path | None) -> EndlessStream:
        stream = EndlessStream(
            self.corpus.train,
            self.training.source_tokens_per_batch,
            self.training.target_tokens_per_batch,
            seed=self.args.seed,
            num_processes=self.args.world_size,
            process_index=self.args.process_index,
        )
        if checkpoint is not None:
            state = (checkpoint / STREAM_FILE).read_text(encoding="utf-8")
            stream.load_state_dict(json.loads(state))
        return stream

    def save(self, folder: Path, step: int) -> None:
        """Write the position of a stream into the folder of a checkpoint. For a corpus that is not a stream,
        write no file, because the step number determines the position in the corpus.
        """
        if isinstance(self._sequence, EndlessStream):
            text = json.dumps(self._sequence.state_dict(step * self.per_step))
            (folder / STREAM_FILE).write_text(text, encoding="utf-8")

    def loader(self) -> DataLoader:
        """Return a loader that yields the batches without end."""
        options: dict[str, Any] = {
            "collate_fn": self.corpus.train_collator,
            "pin_memory": torch.cuda.is_available(),
        }
        if isinstance(self._sequence, EndlessStream):
            return DataLoader(self._sequence, batch_size=None, **options)
        return DataLoader(
            EpochPairs(self.corpus.train),
            batch_sampler=self._sequence,
            num_workers=self.training.dataloader_num_workers,
            worker_init_fn=_ignore_signals,
            **options,
        )

    def seed_next(self) -> None:
        """Seed PyTorch with the seed of the run and the index of the next batch, so that the masks of dropout
        and SimCut depend neither on the number of processes nor on an interruption of the run.
        """
        number = self.num_batches * self.args.world_size + self.args.process_index
        self.num_batches += 1
        # Compute a seed of 32 bits, because PyTorch's CPU generator uses only 32 bits of a seed.
        (seed,) = np.random.SeedSequence([self.args.seed, number]).generate_state(1)
        torch.manual_seed(int(seed))


def _ignore_signals(worker: int) -> None:
    # Ctrl-C and launchers send a signal to all processes. Data workers ignore the signal, because the trainer
    # needs its data workers to finish the current step.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
