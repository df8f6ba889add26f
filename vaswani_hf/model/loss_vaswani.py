"""Dropout, and the cross-entropy with label smoothing (Section 5.4).

`chunked_cross_entropy` computes the loss without storing the logits of the whole batch. Let `gold` be the
target probability of the reference token, and `other` the target probability of each other token of the
vocabulary. For a position with the logits `z` and the reference token `label`, the loss is logsumexp(z) -
(gold - other) * z[label] - other * sum(z).

This file is saved with every checkpoint because the models compute dropout and the loss with this file.

In tensor shapes, N is the number of tokens (batch times length), D the model width and V the size of the
target vocabulary.
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.utils import is_tracing

from .fast_path_vaswani import needs_sync

# The loss ignores positions with the label -100, as in PyTorch and transformers.
IGNORED_LABEL = -100
# The constant that replaces the logit of `<pad>` if the loss excludes `<pad>`. With the logit
# `EXCLUDED_LOGIT`, the probability of padding is 0 in float32. With the label smoothing e and V classes, the
# label smoother of transformers adds -e/V times the logit to the evaluation loss. A logit below -1,000 would
# make the summand -e/V times the logit too large.
EXCLUDED_LOGIT = -1e3
# The maximum number of logits in a chunk, and the maximum number of rows (tokens) in a chunk. The loss keeps
# the logits of only one chunk in memory. On a CPU, a chunk has at most 2**24 logits, which take 64 MiB in
# float32. A GPU uses larger chunks, because each chunk costs a fixed time. A CPU uses chunks of few rows,
# because a small chunk stays in the processor's cache: with 10,000 classes, the loss takes 1.25 times as long
# in chunks of 1,677 rows as in chunks of 384 rows.
LOGITS_PER_CHUNK = {"cpu": 2**24, "else": 2**26}
ROWS_PER_CHUNK_ON_CPU = 384


def dropout(states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Dropout (Section 5.4). On a CPU, `dropout` draws the mask in a quarter of PyTorch's time, because one
    draw of 64 random bits serves four elements. With 16 random bits per element, the dropout rate `p` is
    rounded to a multiple of 1/65,536. The random numbers come from PyTorch's generator.
    """
    is_active = training and 0 < p < 1
    if not is_active or states.device.type != "cpu" or is_tracing(states):
        return nn.functional.dropout(states, p, training)
    # Use 16 random bits to decide whether an element is dropped. A draw of 64 bits serves four elements, and
    # takes no longer than a draw of fewer bits.
    draws = torch.empty(-(-states.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    dropped = min(round(p * 2**16), 2**16 - 1)
    kept = draws.view(torch.int16)[: states.numel()].view(states.shape) >= dropped - 2**15
    return states * kept.to(states.dtype).mul_(2**16 / (2**16 - dropped))


def target_probabilities(smoothing: float, form: str, num_classes: int) -> tuple[float, float]:
    """Return the target probabilities of the reference token and of each other token (Section 5.4).

    For `smoothing` e and `num_classes` V, the form "t2t" gives the reference token 1-e and each other token
    e/(V-1), as tensor2tensor does. The form "torch" gives the reference token 1-e+e/V and each other token
    e/V, as PyTorch does.
    """
    if form == "torch":
        return 1 - smoothing + smoothing / num_classes, smoothing / num_classes
    return 1 - smoothing, smoothing / max(1, num_classes - 1)


def rows_per_chunk(states: torch.Tensor, num_classes: int) -> int:
    """Return the number of tokens in a chunk of the decoder states."""
    if states.is_cpu:
        return min(max(1, LOGITS_PER_CHUNK["cpu"] // num_classes), ROWS_PER_CHUNK_ON_CPU)
    return max(1, LOGITS_PER_CHUNK["else"] // num_classes)


def _loss_divisor(labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor:
    if num_items is None:
        num_items = (labels != IGNORED_LABEL).sum().clamp(min=1)
    return torch.as_tensor(num_items, device=labels.device, dtype=torch.float32)


def smoothed_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items: torch.Tensor | int | None,
    smoothing: float,
    form: str,
    excluded: int | None = None,
) -> torch.Tensor:
    """Compute the same loss as `chunked_cross_entropy` (float32 scalar, nats per token), but from logits
    [..., V].

    The caller must have set the logit of the class `excluded` to `EXCLUDED_LOGIT`.
    """
    labels = labels.to(logits.device).flatten()  # [N]
    logits = logits.float().flatten(0, -2)  # [N, V]
    num_classes = logits.shape[-1] - (excluded is not None)
    gold, other = target_probabilities(smoothing, form, num_classes)
    total = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    if smoothing:
        valid = labels != IGNORED_LABEL
        log_probs = nn.functional.log_softmax(logits, dim=-1)
        if excluded is not None:
            # Leave the token `excluded` out of the sum of log-probabilities, because the target probability
            # of `excluded` is 0.
            log_probs = log_probs * (torch.arange(logits.shape[-1], device=logits.device) != excluded)
        total = (gold - other) * total - other * (log_probs.sum(dim=-1) * valid).sum()
    return total / _loss_divisor(labels, num_items)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the sum of the losses of N tokens from decoder states [N, D]. The forward pass also computes
    the gradients, so that the logits of each chunk are computed only once.

    `valid` [N, 1] is False at ignored positions. The decoder states at ignored positions must be 0.
    """

    @staticmethod
    def forward(ctx, states, weight, labels, valid, gold, other, excluded, dtype):
        """Return the sum. `gold` and `other` are the results of `target_probabilities`."""
        with_gradients = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        # Label smoothing adds `-other * (sum of all logits)` to the loss, where `other` is the target
        # probability of each token except the reference token. The sum of all logits includes the logit of
        # the reference token. The sum of all logits is the dot product of two vectors: the sum of `states`
        # over positions, and the sum of `weight` over tokens.
        state_sum = states.float().sum(dim=0)  # [D]
        weight_sum = weight.float().sum(dim=0)  # [D]
        if excluded is not None:
            # Leave the token `excluded` out of the sum of weights, because the target probability of
            # `excluded` is 0.
            weight_sum -= weight[excluded].float()
        total = -other * (state_sum * weight_sum).sum()
        if with_gradients:
            grad_states = torch.empty_like(states, dtype=torch.float32)  # [N, D]
            grad_weight = (-other * state_sum).expand_as(weight).contiguous()  # [V, D]
            if excluded is not None:
                grad_weight[excluded] = 0.0
        matrix = weight.to(dtype)
        rows = min(rows_per_chunk(states, len(weight)), len(labels))
        # Allocate the memory for logits once, because the operating system clears each newly allocated page.
        products = matrix.new_empty(rows, len(matrix))
        for start in range(0, len(labels), max(rows, 1)):
            chunk = slice(start, start + rows)
            hidden = states[chunk].to(dtype)  # [rows, D]
            index = labels[chunk, None]  # [rows, 1]
            logits = torch.mm(hidden, matrix.T, out=products[: len(hidden)]).float()  # [rows, V]
            if excluded is not None:
                logits[:, excluded] = EXCLUDED_LOGIT
            total += (other - gold) * logits.gather(-1, index).masked_fill_(~valid[chunk], 0.0).sum()
            # Read all logits as few times as possible, because each read takes much time.
            largest = logits.amax(dim=-1, keepdim=True)
            probabilities = torch.softmax(logits, dim=-1, out=logits)
            log_sums = largest - probabilities.amax(dim=-1, keepdim=True).log()  # logsumexp, [rows, 1]
            total += log_sums.masked_fill_(~valid[chunk], 0.0).sum()
            if with_gradients:
                probabilities.scatter_add_(-1, index, torch.full_like(largest, other - gold))
                difference = probabilities.to(dtype)
                grad_states[chunk] = difference @ matrix
                if dtype == torch.float32:
                    grad_weight.addmm_(difference.T, hidden)
                else:
                    grad_weight += difference.T @ hidden
        if with_gradients:
            ctx.save_for_backward(grad_states.sub_(other * weight_sum), grad_weight)
        ctx.states_dtype = states.dtype
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grad_states, grad_weight = ctx.saved_tensors
        of_states = None
        of_weight = None
        if ctx.needs_input_grad[0]:
            of_states = (grad_states * grad_output).to(ctx.states_dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (grad_weight * grad_output).to(ctx.weight_dtype)
        return of_states, of_weight, None, None, None, None, None, None


# Exclude `chunked_cross_entropy` from `torch.compile`, because the number of chunks depends on the data.
@torch.compiler.disable
def chunked_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    num_items: torch.Tensor | int | None,
    smoothing: float,
    form: str,
    excluded: int | None,
) -> torch.Tensor:
    """Compute the loss (float32 scalar, nats per token) of decoder states, one chunk of tokens at a time.

    `hidden_states` are [..., D] float, the output projection `weight` is [V, D] float, and `labels` are [...]
    int64. Positions with the label -100 are ignored. The sum of the losses is divided by `num_items`, by
    default the number of labels that are not ignored. `excluded` is None, or the id of a token whose
    probability becomes 0. PyTorch can compute only first derivatives of the loss.
    """
    device = hidden_states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_states.dtype
    states = hidden_states.flatten(0, -2)  # [N, D]
    labels = labels.to(hidden_states.device).flatten()  # [N]
    valid = labels != IGNORED_LABEL
    divisor = _loss_divisor(labels, num_items)
    if needs_sync(states) or is_tracing(states):
        states = states.masked_fill(~valid[:, None], 0.0)
        labels = labels.clamp(min=0)
    else:
        # Remove ignored positions, because computing their logits would waste time.
        states = states[valid]
        labels = labels[valid]
        valid = valid[valid]
    num_classes = weight.shape[0] - (excluded is not None)
    gold, other = target_probabilities(smoothing, form, num_classes)
    total = _ChunkedCrossEntropy.apply(states, weight, labels, valid[:, None], gold, other, excluded, dtype)
    return total / divisor
