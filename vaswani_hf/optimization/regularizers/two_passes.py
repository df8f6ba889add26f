"""Computes the loss of two forward passes over the same sentence pairs.

The loss includes the divergence between the token probabilities of the two passes.

r_drop.py and simcut.py define the regularisers. In SimCut, the second pass reads changed embeddings. In
R-Drop, only the dropout of the two passes differs. The model computes the two
passes as one forward pass over a batch that contains each sentence pair twice. In tensor shapes, B is the
number of sentence pairs, S the source length, T the target length, N the number of target tokens, D the model
width (`d_model`) and V the size of the target vocabulary.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.autograd.function import once_differentiable
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import is_tracing

from ...model.fast_path_vaswani import needs_sync
from ...model.loss_vaswani import EXCLUDED_LOGIT, IGNORED_LABEL, rows_per_chunk
from ...model.modeling_vaswani import VaswaniForSeq2SeqLM


@dataclass
class TwoPassLoss:
    """Computes the loss of two forward passes over the same sentence pairs.

    CE is the cross-entropy, and KL the divergence. If `is_symmetric` is False, the loss is CE(first) + alpha
    * KL(first || second). If `is_symmetric` is True, the loss is (CE(first) + CE(second)) / 2 + alpha / 4 *
    (KL(first || second) + KL(second || first)). For both values of `is_symmetric`, the gradients of KL flow
    into both passes.

    Attributes:
        model (VaswaniForSeq2SeqLM): The model without a wrapper for distributed training.
        alpha (float): The weight of the divergence.
        autocast (Callable): Returns the autocast context in which the divergence is computed.
    """

    model: VaswaniForSeq2SeqLM
    alpha: float
    autocast: Callable[[], AbstractContextManager] = nullcontext
    is_symmetric: ClassVar[bool]

    def second_pass(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of the second pass: [B, S, D] in the encoder, and [B, T, D] in the decoder.
        The first pass uses `states`, the token embeddings of `ids`.
        """
        return states

    def __call__(
        self, wrapped: Any, num_items_in_batch: torch.Tensor | int | None = None, **batch: Any
    ) -> Seq2SeqLMOutput:
        """Return the output of the model for a batch. `loss` combines the cross-entropy and the divergence of
        the two passes, in nats per token.
        """
        labels = batch["labels"]
        num_items = num_items_in_batch
        if num_items is None:
            num_items = (labels != IGNORED_LABEL).sum()
        if self.is_symmetric:
            second_labels = labels
            divisor = 2 * num_items
        else:
            second_labels = torch.full_like(labels, IGNORED_LABEL)
            divisor = num_items
        encoder = self.model.get_encoder()
        decoder = self.model.get_decoder()
        decoder_input_ids = self.model.prepare_decoder_input_ids_from_labels(labels)
        inputs_embeds = self._embedded_twice(encoder, batch["input_ids"])
        decoder_inputs_embeds = self._embedded_twice(decoder, decoder_input_ids)
        # A forward hook stores `last_hidden_state` of the decoder for the divergence, because the output of
        # the model lacks `last_hidden_state` of the decoder.
        last_states: list[torch.Tensor] = []
        hook = decoder.register_forward_hook(
            lambda module, given, output: last_states.append(output.last_hidden_state)
        )
        try:
            outputs = wrapped(
                inputs_embeds=inputs_embeds,
                decoder_inputs_embeds=decoder_inputs_embeds,
                attention_mask=torch.cat([batch["attention_mask"]] * 2),
                labels=torch.cat([labels, second_labels]),
                num_items_in_batch=divisor,
            )
        finally:
            hook.remove()
        with self.autocast():
            divergence = self._divergence(last_states[-1], labels)
        outputs.loss = outputs.loss + self.alpha * divergence / num_items
        return outputs

    def _embedded_twice(self, stack: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        states = stack.embed_tokens(ids)
        return torch.cat([states, self.second_pass(states, ids)])  # [2B, S or T, D]

    def _divergence(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        valid = (labels != IGNORED_LABEL).flatten()
        first, second = (half.flatten(0, -2) for half in states.chunk(2))  # [B * T, D]
        if needs_sync(states) or is_tracing(states):
            # Set the decoder states of padding to 0 in both passes, so that padding adds neither divergence
            # nor gradients. Do not index the states with the mask `valid`, because boolean indexing would
            # force a CUDA synchronisation.
            first = first.masked_fill(~valid[:, None], 0.0)
            second = second.masked_fill(~valid[:, None], 0.0)
        else:
            first = first[valid]  # [N, D]
            second = second[valid]
        excluded = self.model.excluded_class(self.model.config.label_smoothing, labels)
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        first, weight = self.model.output_product(first)
        second, _ = self.model.output_product(second)
        return _ChunkedDivergence.apply(first, second, weight, excluded, self.is_symmetric, dtype)


class _ChunkedDivergence(torch.autograd.Function):
    """Computes the divergence between the token probabilities of the two passes, summed over N tokens.

    To save memory, the forward pass computes the logits of one chunk of tokens at a time. The forward pass
    also computes the gradients, so that the backward pass only multiplies the stored gradients by
    `grad_output`.
    """

    @staticmethod
    def forward(ctx, first, second, weight, excluded, is_symmetric, dtype):
        total = first.new_zeros((), dtype=torch.float32)
        matrix = weight.to(dtype)
        grad_first = torch.zeros_like(first, dtype=torch.float32)
        grad_second = torch.zeros_like(second, dtype=torch.float32)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        rows = rows_per_chunk(first, len(weight))
        for start in range(0, len(first), rows):
            chunk = slice(start, start + rows)
            first_states = first[chunk].to(dtype)
            second_states = second[chunk].to(dtype)
            p = (first_states @ matrix.T).float()  # [rows, V]
            q = (second_states @ matrix.T).float()
            if excluded is not None:
                p[:, excluded] = EXCLUDED_LOGIT
                q[:, excluded] = EXCLUDED_LOGIT
            divergence, for_p, for_q = _divergence_and_gradients(p, q, is_symmetric)
            total += divergence
            for_p = for_p.to(dtype)
            grad_first[chunk] = for_p @ matrix
            grad_weight += for_p.T @ first_states
            for_q = for_q.to(dtype)
            grad_second[chunk] = for_q @ matrix
            grad_weight += for_q.T @ second_states
        ctx.save_for_backward(grad_first, grad_second, grad_weight)
        ctx.dtypes = first.dtype, second.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        scaled = [
            (grad * grad_output).to(dtype) for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None, None


def _divergence_and_gradients(
    first: torch.Tensor, second: torch.Tensor, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the divergence, summed over N tokens, and its gradients [N, V] with respect to the logits of the
    first and the second pass.

    p and q are the softmax of the logits `first` and `second` [N, V]. If `is_symmetric` is true, the
    divergence is (KL(p || q) + KL(q || p)) / 4, otherwise KL(p || q). The factor 1/4 is the factor 1/2 of
    R-Drop, multiplied by 1/2, because `RDropLoss` halves the whole loss of R-Drop.
    """
    log_p = torch.log_softmax(first, dim=-1)
    log_q = torch.log_softmax(second, dim=-1)
    difference = log_p - log_q
    # Use in-place operations where possible, because reading and writing the logits takes most of the time.
    p = log_p.exp_()
    q = log_q.exp_()
    p_to_q = (p * difference).sum(dim=-1, keepdim=True)
    if not is_symmetric:
        return p_to_q.sum(), difference.sub_(p_to_q).mul_(p), q.sub_(p)
    q_to_p = -(q * difference).sum(dim=-1, keepdim=True)
    for_p = p * (difference - p_to_q) + p - q
    for_q = q - p - q * (difference + q_to_p)
    return (p_to_q + q_to_p).sum() / 4, for_p / 4, for_q / 4
