"""What the competitors on transformers' Trainer share: the counts, the turns, and the validation loss."""

import torch
import torch.nn.functional as F
from transformers import TrainerCallback

from training_peers.turns import Turns
from vaswani_hf.data.batching import PairCollator, PairRows, TokenBudgetSampler
from vaswani_hf.data.columns import pair_lengths
from vaswani_hf.data.corpus import Corpus
from vaswani_hf.model.loss_vaswani import IGNORED_LABEL


class TurnsCallback(TrainerCallback):
    """Ends a turn after its last step.

    Args:
        turns (Turns): The turns.
    """

    def __init__(self, turns: Turns):
        self.turns = turns

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.turns.start()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.turns.step_ended()


class Counting:
    """What a trainer class derives from first, to count what it trains on, in parts of a batch where it computes those."""

    turns: Turns

    def compute_loss(self, model, inputs, *args, **kwargs):
        labels = inputs["labels"]
        tokens = inputs["attention_mask"].sum() + (labels != IGNORED_LABEL).sum()
        self.turns.count(tokens, inputs["input_ids"].numel() + labels.numel())
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]


@torch.inference_mode()
def validation_loss(model: torch.nn.Module, corpus: Corpus) -> float:
    """The nats per token of the validation set, not smoothed, computed in the same way for every model."""
    model.eval()
    pairs, total, tokens = PairRows(corpus.validation), 0.0, 0
    collator, device = PairCollator(corpus.source_tokenizer.pad_token_id), next(model.parameters()).device
    budget = max(2048, corpus.max_length)
    for batch in TokenBudgetSampler(*pair_lengths(corpus.validation), budget, budget, seed=None):
        inputs = {name: tensor.to(device) for name, tensor in collator(pairs.__getitems__(batch)).items()}
        logits, labels = model(**inputs).logits.float(), inputs["labels"]
        summed = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
        )
        total, tokens = total + summed.item(), tokens + int((labels != IGNORED_LABEL).sum())
    return total / tokens
