"""Classes and functions for the toolkits in training.py that use the Trainer of transformers: a callback that
pauses the training while other toolkits train, a mixin that counts tokens, and the validation loss.
"""

import torch
import torch.nn.functional as F
from transformers import TrainerCallback

from training_peers.turns import Turns
from vaswani_hf.data.batching import PairCollator, PairRows, cut_into_batches
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus import Corpus
from vaswani_hf.model.loss_vaswani import IGNORED_LABEL


class TurnsCallback(TrainerCallback):
    """Callback that waits for the first turn at the beginning of the training, and counts the optimizer
    steps.
    """

    def __init__(self, turns: Turns):
        self.turns = turns

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.turns.start()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.turns.step_ended()


class Counting:
    """Mixin for a `Trainer` that counts the tokens and the positions of each batch. `Counting` must be the
    first base class of the trainer, so that its method `compute_loss` is called first.
    """

    turns: Turns

    def compute_loss(self, model, inputs, *args, **kwargs):
        labels = inputs["labels"]
        tokens = inputs["attention_mask"].sum() + (labels != IGNORED_LABEL).sum()
        self.turns.count(tokens, inputs["input_ids"].numel() + labels.numel())
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]


@torch.inference_mode()
def validation_loss(model: torch.nn.Module, corpus: Corpus) -> float:
    """Compute the cross-entropy of any model on the validation set, in nats per token, without label
    smoothing.
    """
    model.eval()
    pairs = PairRows(corpus.validation)
    collator = PairCollator(corpus.source_tokenizer.pad_token_id)
    device = next(model.parameters()).device
    budget = max(2048, corpus.max_length)
    total = 0.0
    tokens = 0
    for batch in cut_into_batches(*pair_lengths(corpus.validation), budget, budget):
        inputs = {name: tensor.to(device) for name, tensor in collator(pairs.__getitems__(batch)).items()}
        labels = inputs["labels"].flatten()
        logits = model(**inputs).logits.float().flatten(0, 1)
        total += F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum").item()
        tokens += int((labels != IGNORED_LABEL).sum())
    return total / tokens
