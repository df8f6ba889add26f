"""Regularization by consistency: two passes over the same pairs shall give the same probabilities.

R-Drop (Liang et al. 2021, Section 2.1) has two passes with other masks of dropout, SimCut (Gao et al. 2022, Section 3) a second one
without some of the tokens. Both passes are one forward pass of twice the pairs.
Letters of shapes: B pairs, S source and T target length, N target tokens, D model width, V target vocabulary.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import is_tracing

from ..model.attention_vaswani import needs_sync
from ..model.loss_vaswani import IGNORED_LABEL, rows_per_chunk
from ..model.modeling_vaswani import EXCLUDED_LOGIT, VaswaniForSeq2SeqLM
from ..recipe.schema import TrainingSection


@dataclass
class Consistency:
    """The loss of two passes, in place of the model's loss of one.

    Attributes:
        model (VaswaniForSeq2SeqLM): The model itself, whatever is wrapped around it.
        alpha (float): The weight of the divergence.
        cut_rate (float, optional): SimCut's p; R-Drop where it is None.
        autocast (Callable): Gives the context in which the divergence is computed, as the model's own loss is.
    """

    model: VaswaniForSeq2SeqLM
    alpha: float
    cut_rate: float | None = None
    autocast: Callable[[], AbstractContextManager] = nullcontext

    def __call__(self, wrapped: Any, num_items_in_batch: torch.Tensor | int | None = None, **batch) -> Seq2SeqLMOutput:
        """The output for a batch whose loss has the divergence in it.

        SimCut's is CE(first) + alpha * KL(first || second), with gradients into both passes. R-Drop's is
        (CE(first) + CE(second)) / 2 + alpha / 4 * (KL(first || second) + KL(second || first)). That is half of the paper's sum, so
        that it is the loss of one token; Adam does not see the factor.

        Args:
            wrapped (Any): The model as it is called in training.
            num_items_in_batch (torch.Tensor or int, optional): Divides all sums; the target tokens of the batch by default.
            **batch: `input_ids` [B, S] int64, `attention_mask` [B, S], `labels` [B, T] int64.

        Returns:
            Seq2SeqLMOutput: Without logits; the loss in nats per token.
        """
        labels, is_cut = batch["labels"], self.cut_rate is not None
        num_items = (labels != IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
        # SimCut's second pass has no loss of its own.
        second_labels = torch.full_like(labels, IGNORED_LABEL) if is_cut else labels
        ids = {
            "inputs_embeds": (self.model.get_encoder(), batch["input_ids"]),
            "decoder_inputs_embeds": (
                self.model.get_decoder(),
                self.model.prepare_decoder_input_ids_from_labels(labels),
            ),
        }
        embedded = {name: self._embedded_twice(stack, of_side) for name, (stack, of_side) in ids.items()}
        states: list[torch.Tensor] = []
        hook = self.model.get_decoder().register_forward_hook(
            lambda module, given, output: states.append(output.last_hidden_state)
        )
        try:
            outputs = wrapped(
                **embedded,
                attention_mask=torch.cat([batch["attention_mask"]] * 2),
                labels=torch.cat([labels, second_labels]),
                num_items_in_batch=num_items if is_cut else 2 * num_items,
            )
        finally:
            hook.remove()
        with self.autocast():
            divergence = self._divergence(states[-1], labels)
        outputs.loss = outputs.loss + self.alpha * divergence / num_items
        return outputs

    def _embedded_twice(self, stack: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        states = stack.embed_tokens(ids)
        if self.cut_rate is None:
            return torch.cat([states, states])
        kept = torch.rand(ids.shape, device=ids.device) >= self.cut_rate
        # The end of the source, and the start of the target, are no words.
        kept |= (ids == self.model.config.eos_token_id) | (ids == self.model.config.decoder_start_token_id)
        return torch.cat([states, states * kept[..., None]])

    def _divergence(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        valid = (labels != IGNORED_LABEL).flatten()
        first, second = (half.flatten(0, -2) for half in states.chunk(2))
        if needs_sync(states) or is_tracing(states):
            # Two states of zeros have no divergence and give no gradient. Counting the tokens would force a synchronisation.
            first, second = (half.masked_fill(~valid[:, None], 0.0) for half in (first, second))
        else:
            first, second = first[valid], second[valid]
        smoothing = self.model.config.label_smoothing
        excluded = self.model.excluded_class(smoothing, labels)
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        is_symmetric = self.cut_rate is None
        return _ChunkedDivergence.apply(first, second, self.model.lm_head.weight, excluded, is_symmetric, dtype)


def consistency_of(
    model: VaswaniForSeq2SeqLM, training: TrainingSection, autocast: Callable[[], AbstractContextManager]
) -> Consistency | None:
    """The regulariser that a recipe asks for; None if it asks for none."""
    if training.simcut_alpha:
        return Consistency(model, training.simcut_alpha, training.simcut_p, autocast)
    if training.r_drop_alpha:
        return Consistency(model, training.r_drop_alpha, autocast=autocast)
    return None


class _ChunkedDivergence(torch.autograd.Function):
    """The divergence of the probabilities p and q at two states [N, D] of each of N tokens, summed over the tokens.

    The logits of some tokens are held at a time; their gradients are computed in the forward pass, which backward scales.
    """

    @staticmethod
    def forward(ctx, first, second, weight, excluded, is_symmetric, dtype):
        total, matrix = first.new_zeros((), dtype=torch.float32), weight.to(dtype)
        grads = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (first, second, weight)]
        rows = rows_per_chunk(first.device.type, len(weight))
        for start in range(0, len(first), rows):
            chunk = slice(start, start + rows)
            states = [of_pass[chunk].to(dtype) for of_pass in (first, second)]
            p, q = ((of_pass @ matrix.T).float() for of_pass in states)
            if excluded is not None:
                for logits in (p, q):
                    logits[:, excluded] = EXCLUDED_LOGIT
            divergence, differences = _divergence_and_gradients(p, q, is_symmetric)
            total += divergence
            for of_pass, state, difference in zip(grads, states, differences, strict=False):
                difference = difference.to(dtype)
                of_pass[chunk] = difference @ matrix
                grads[-1] += difference.T @ state
        ctx.save_for_backward(*grads)
        ctx.dtypes = first.dtype, second.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        scaled = [(grad * grad_output).to(dtype) for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return *scaled, None, None, None


def _divergence_and_gradients(
    first: torch.Tensor, second: torch.Tensor, is_symmetric: bool
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The sum of KL(p || q), or of a quarter of KL(p || q) + KL(q || p), and its gradients for the logits [N, V] of p and of q."""
    p, q = (torch.log_softmax(logits, dim=-1) for logits in (first, second))
    difference, p, q = p - q, p.exp_(), q.exp_()
    p_to_q = (p * difference).sum(dim=-1, keepdim=True)
    if not is_symmetric:
        # In place: beside the products, passes over the logits are the cost.
        return p_to_q.sum(), [difference.sub_(p_to_q).mul_(p), q.sub_(p)]
    q_to_p = -(q * difference).sum(dim=-1, keepdim=True)
    for_p = p * (difference - p_to_q) + p - q
    for_q = q - p - q * (difference + q_to_p)
    return (p_to_q + q_to_p).sum() / 4, [for_p / 4, for_q / 4]
