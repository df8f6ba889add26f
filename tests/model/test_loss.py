"""The loss: aligned, smoothed as tensor2tensor or PyTorch do, divided by all tokens, and the same in
chunks.
"""

import math
import subprocess
from unittest.mock import patch

import pytest
import torch
from factories import tiny_model
from reference import Reference
from torch import nn

from vaswani_hf.model import loss_vaswani
from vaswani_hf.model.loss_vaswani import EXCLUDED_LOGIT, chunked_cross_entropy, smoothed_cross_entropy

PAD, EOS = 1, 2
FORMS = ["t2t", "torch"]


def close(actual, expected, atol=1e-5, rtol=1e-5):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)


def random_batch(num_rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Sentence pairs of 2 to 9 tokens."""
    generator = torch.Generator().manual_seed(seed)
    batch = {"input_ids": torch.full((num_rows, 9), PAD), "labels": torch.full((num_rows, 9), -100)}
    for ids in batch.values():
        for row in ids:
            length = int(torch.randint(2, 10, (), generator=generator))
            row[:length] = torch.randint(3, 23, (length,), generator=generator)
            row[length - 1] = EOS
    return batch


def gradients(model, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_decoder_inputs_from_labels():
    model = tiny_model(decoder_start_token_id=EOS)
    labels = torch.tensor([[7, 4, EOS, -100], [9, EOS, -100, -100]])
    expected = [[EOS, 7, 4, EOS], [EOS, 9, EOS, PAD]]
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == expected
    assert labels.tolist() == [[7, 4, EOS, -100], [9, EOS, -100, -100]]
    model.config.decoder_start_token_id = None
    assert (
        model.prepare_decoder_input_ids_from_labels(labels)[:, 0].tolist() == [model.config.bos_token_id] * 2
    )
    model.config.bos_token_id = None
    with pytest.raises(
        ValueError, match="^`decoder_start_token_id` must be set in the config to make the decoder"
    ):
        model.prepare_decoder_input_ids_from_labels(labels)


# Two forms of one target distribution over four classes: 0.7 for the label and 0.1 for each other class.
@pytest.mark.parametrize(("smoothing", "form"), [(0.3, "t2t"), (0.4, "torch")])
def test_smoothing_on_a_table_to_check_by_hand(smoothing, form):
    logits = torch.tensor([[1 / 2, 1 / 4, 1 / 8, 1 / 8], [1 / 4, 1 / 4, 1 / 4, 1 / 4]]).log()
    labels = torch.tensor([0, 3])
    # Cross-entropy in bits: 0.7 * 1 + 0.1 * 2 + 0.1 * 3 + 0.1 * 3 = 1.5, and 2 with any targets.
    bits = (1.5 + 2) / 2
    for num_items, factor in ((None, 1), (7, 2 / 7)):
        expected = torch.tensor(bits * math.log(2) * factor)
        close(smoothed_cross_entropy(logits, labels, num_items, smoothing, form), expected)
        close(smoothed_cross_entropy(logits + 3, labels, num_items, smoothing, form), expected)
        # With the identity as output projection the states are the logits.
        close(chunked_cross_entropy(logits, torch.eye(4), labels, num_items, smoothing, form, None), expected)
    unsmoothed = torch.tensor((1 + 2) / 2 * math.log(2))
    close(smoothed_cross_entropy(logits, labels, None, 0.0, form), unsmoothed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_loss_is_that_of_the_logits(form, smoothing):
    model = tiny_model(label_smoothing=smoothing, label_smoothing_form=form).train()
    batch = random_batch(4)
    outputs = model(**batch, skip_logits=False)
    kept = batch["labels"] != -100
    logits, labels = outputs.logits[kept], batch["labels"][kept]
    num_classes = logits.shape[-1]
    target = torch.full_like(logits, smoothing / (num_classes - 1 if form == "t2t" else num_classes))
    target[range(len(labels)), labels] += 1 - target.sum(dim=-1)
    close(outputs.loss, nn.functional.cross_entropy(logits, target))
    if form == "torch":
        close(outputs.loss, nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing))
    skipped = model(**batch)
    assert skipped.logits is None and skipped.past_key_values is None
    close(skipped.loss, outputs.loss)


def test_padding_is_no_label():
    model = tiny_model(label_smoothing=0.1)
    batch = random_batch(4)
    padded = batch | {"labels": batch["labels"].masked_fill(batch["labels"] == -100, PAD)}
    longer = {name: nn.functional.pad(ids.int(), (0, 3), value=PAD) for name, ids in padded.items()}
    for training in (True, False):
        model.train(training)
        expected = model(**batch).loss
        for other in (padded, longer):
            close(model(**other).loss, expected)
        close(model(**batch, skip_logits=training is False).loss, expected)
        none = model(input_ids=batch["input_ids"], labels=torch.full((4, 9), -100)).loss
        assert none == 0


def test_the_evaluation_loss_is_not_smoothed():
    model, batch = tiny_model(label_smoothing=0.1), random_batch(3)
    rows = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
    pairs = [(source[: source.index(EOS) + 1], labels[: labels.index(EOS) + 1]) for source, labels in rows]
    expected = Reference(model.state_dict(), model.config).loss(pairs, 0.0, "t2t", excluded_class=PAD)
    for skip_logits in (None, True):
        close(model(**batch, skip_logits=skip_logits).loss, expected)


def test_accumulated_batches_give_the_gradient_of_one():
    model = tiny_model(label_smoothing=0.1).train()
    batch = random_batch(64)
    num_items = (batch["labels"] != -100).sum()
    whole = model(**batch).loss
    expected = gradients(model, whole)
    parts = [{name: ids[start : start + 16] for name, ids in batch.items()} for start in range(0, 64, 16)]
    losses = [model(**part, num_items_in_batch=num_items).loss for part in parts]
    close(sum(losses), whole)
    close(gradients(model, sum(losses)), expected)
    # The mean of the means of the batches differs, so the test can detect a wrong divisor.
    means = [model(**part).loss / 4 for part in parts]
    assert not torch.allclose(gradients(model, sum(means))[0], expected[0], atol=1e-5)


# Smoothing and an excluded class never occur together, because the class would dominate the loss.
@pytest.mark.parametrize(
    ("smoothing", "form", "excluded"),
    [(0.0, "t2t", None), (0.0, "t2t", PAD), (0.1, "t2t", None), (0.1, "torch", None)],
)
@pytest.mark.parametrize(("logits_per_chunk", "num_chunks"), [(1, 25), (4 * 23 + 5, 7), (2**20, 1)])
def test_chunks_change_nothing(monkeypatch, smoothing, form, excluded, logits_per_chunk, num_chunks):
    torch.manual_seed(0)
    states = torch.randn(5, 7, 16, requires_grad=True)
    weight = torch.randn(23, 16, requires_grad=True)
    labels = torch.randint(2, 23, (5, 7))
    labels[:, 5:] = -100
    logits = states @ weight.T
    if excluded is not None:
        logits[..., excluded] = EXCLUDED_LOGIT
    expected = smoothed_cross_entropy(logits, labels, 9, smoothing, form)
    expected_gradients = torch.autograd.grad(3 * expected, [states, weight])

    monkeypatch.setitem(loss_vaswani.LOGITS_PER_CHUNK, "cpu", logits_per_chunk)
    arguments = (labels, 9, smoothing, form, excluded)
    with patch.object(torch, "softmax", wraps=torch.softmax) as softmax:
        loss = chunked_cross_entropy(states, weight, *arguments)
    assert softmax.call_count == num_chunks
    close(loss, expected)
    close(torch.autograd.grad(3 * loss, [states, weight]), expected_gradients)
    # Cases with a frozen matrix, with frozen states, and with neither.
    frozen = chunked_cross_entropy(states, weight.detach(), *arguments)
    close(torch.autograd.grad(3 * frozen, states)[0], expected_gradients[0])
    frozen = chunked_cross_entropy(states.detach(), weight, *arguments)
    close(torch.autograd.grad(3 * frozen, weight)[0], expected_gradients[1])
    close(chunked_cross_entropy(states.detach(), weight.detach(), *arguments), expected)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_chunks_change_nothing_in_a_model_under_autocast(monkeypatch, norm_position):
    monkeypatch.setitem(loss_vaswani.LOGITS_PER_CHUNK, "cpu", 5 * 23)
    model = tiny_model(label_smoothing=0.1, norm_position=norm_position).train()
    batch = random_batch(6)
    exact = gradients(model, model(**batch).loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [model(**batch, skip_logits=skip).loss for skip in (True, False)]
    assert losses[0].dtype == torch.float32
    close(losses[0], losses[1], rtol=1e-3)
    rounded = [gradients(model, loss) for loss in losses]
    assert all(gradient.dtype == torch.float32 for gradient in rounded[0])
    # bfloat16 has errors of some percent; chunks must not increase the errors.
    errors = []
    for result in rounded:
        squares = [(found - expected).square().sum() for found, expected in zip(result, exact, strict=True)]
        errors.append(sum(squares).sqrt())
    assert 0 < errors[0] < 1.2 * errors[1] + 1e-3


def test_masks_of_numbers_in_bfloat16_weights():
    model = tiny_model().train().to(torch.bfloat16)
    ids = torch.randint(4, 20, (2, 5))
    hidden = torch.zeros(2, 1, 5, 5, dtype=torch.bfloat16)
    hidden[..., 3:] = torch.finfo(torch.bfloat16).min
    torch.manual_seed(0)
    loss = model(input_ids=ids, labels=ids, attention_mask=hidden, decoder_attention_mask=hidden).loss
    torch.manual_seed(0)
    seen = hidden == 0
    close(loss, model(input_ids=ids, labels=ids, attention_mask=seen, decoder_attention_mask=seen).loss)
    loss.backward()


def test_dropout_of_everything_leaves_nothing():
    assert not loss_vaswani.dropout(torch.ones(1000, 1000), 1.0, True).any()
    with pytest.raises(ValueError, match="dropout probability"):
        loss_vaswani.dropout(torch.ones(3), 1.5, True)


class Doubled(nn.Linear):
    def forward(self, states):
        return 2 * super().forward(states)


def test_adapted_output_projections_are_called():
    model, batch = tiny_model(tie_word_embeddings=False).train(), random_batch(3)
    expected = model(**batch).loss
    head = Doubled(16, 23, bias=False)
    head.weight = nn.Parameter(model.lm_head.weight / 2)
    model.lm_head = head
    close(model(**batch).loss, expected)


@pytest.mark.parametrize(("smoothing", "skip_logits"), [(0.0, None), (0.1, None), (0.1, False)])
def test_hooks_of_the_output_projection_are_called(smoothing, skip_logits):
    model, batch, called = tiny_model(label_smoothing=smoothing).train(), random_batch(3), []
    expected = model(**batch).loss
    model.lm_head.register_forward_hook(lambda *_: called.append("forward"))
    model.lm_head.register_full_backward_hook(lambda *_: called.append("backward"))
    loss = model(**batch, skip_logits=skip_logits).loss
    close(loss, expected)
    loss.backward()
    assert called == ["forward", "backward"]


PEAK_MEMORY = """
import resource, sys, torch
from vaswani_hf.model.loss_vaswani import chunked_cross_entropy
def peak():
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return maximum if sys.platform == "darwin" else maximum * 1024
tokens = int(sys.argv[1])
states = torch.randn(tokens, 8, requires_grad=True)
weight = torch.randn(37_000, 8, requires_grad=True)
labels = torch.randint(37_000, (tokens,))
before = peak()
chunked_cross_entropy(states, weight, labels, None, 0.1, "t2t", None).backward()
print(peak() - before)
"""


def test_peak_memory_of_a_batch_of_the_paper(python):
    pytest.importorskip("resource", reason="Windows does not tell the peak memory of a process")
    # The logits of a batch of Section 5.1 take 3.7 GB, and several copies exist. Use a fifth of the tokens.
    tokens = 5_000
    command = [python, "-c", PEAK_MEMORY, str(tokens)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < int(result.stdout) < tokens * 37_000 * 4
