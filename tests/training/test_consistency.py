"""R-Drop and SimCut equal slow implementations, and the moving average equals values by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from factories import tiny_model
from safetensors.torch import load_file
from tiny_runs import metrics, same, weights

from vaswani_hf.optimization.regularizers import two_passes
from vaswani_hf.optimization.regularizers.r_drop import RDropLoss
from vaswani_hf.optimization.regularizers.simcut import SimCutLoss
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.training.checkpoints import CheckpointRecord
from vaswani_hf.training.moving_average import MovingAverage
from vaswani_hf.training.resume import keep_number_of_threads

INPUT_IDS = torch.tensor([[5, 6, 7, 2], [9, 8, 2, 1]])
ATTENTION_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
LABELS = torch.tensor([[11, 12, 2], [13, 2, -100]])
BATCH = {"input_ids": INPUT_IDS, "attention_mask": ATTENTION_MASK, "labels": LABELS}


def loss_by_hand(logits, alpha, smoothing, is_cut):
    """Return the loss of the two passes in `logits` [2B, T, V], computed token by token and class by
    class.
    """
    log_probs, (pairs, length), classes = torch.log_softmax(logits, dim=-1), LABELS.shape, logits.shape[-1]
    total, tokens = 0.0, 0
    for row in range(pairs):
        for place in range(length):
            label = LABELS[row, place]
            if label == -100:
                continue
            tokens += 1
            passes = log_probs[row, place], log_probs[row + pairs, place]
            losses = []
            for of_pass in passes:
                others = sum(of_pass[index] for index in range(classes) if index != label)
                losses.append(-(1 - smoothing) * of_pass[label] - smoothing / (classes - 1) * others)
            p, q = passes
            p_to_q = sum(p[index].exp() * (p[index] - q[index]) for index in range(classes))
            q_to_p = sum(q[index].exp() * (q[index] - p[index]) for index in range(classes))
            if is_cut:
                total = total + losses[0] + alpha * p_to_q
            else:
                total = total + (losses[0] + losses[1]) / 2 + alpha / 4 * (p_to_q + q_to_p)
    return total / tokens


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("cut_rate", [None, 0.4])
@pytest.mark.parametrize(
    "fields", [{"label_smoothing": 0.1}, {"label_smoothing": 0.0, "norm_position": "pre"}]
)
@pytest.mark.parametrize("keeps_ignored", [False, True])
def test_the_loss_of_two_passes_is_what_its_paper_says(fields, cut_rate, keeps_ignored, monkeypatch):
    # On a GPU the loss keeps ignored positions, because counting would force a synchronisation.
    monkeypatch.setattr(
        "vaswani_hf.optimization.regularizers.two_passes.needs_sync", lambda states: keeps_ignored
    )
    # Use two rows per chunk, so that the loss has more than one chunk.
    monkeypatch.setattr(
        "vaswani_hf.optimization.regularizers.two_passes.rows_per_chunk", lambda device, classes: 2
    )
    model = tiny_model(dropout=0.3, **fields).train()
    torch.manual_seed(3)
    compute = RDropLoss(model, 1.5) if cut_rate is None else SimCutLoss(model, 1.5, cut_rate=cut_rate)
    loss = compute(model, **BATCH).loss
    found = gradients(model, loss)

    torch.manual_seed(3)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(LABELS)
    embedded = []
    for stack, ids in ((model.get_encoder(), INPUT_IDS), (model.get_decoder(), decoder_input_ids)):
        states = stack.embed_tokens(ids)
        cut = states.clone()
        if cut_rate is not None:
            numbers = torch.rand(ids.shape)
            for row, column in torch.cartesian_prod(*map(torch.arange, ids.shape)).tolist():
                if numbers[row, column] < cut_rate and ids[row, column] not in (0, 2):
                    cut[row, column] = 0.0
        embedded.append(torch.cat([states, cut]))
    logits = model(
        inputs_embeds=embedded[0],
        decoder_inputs_embeds=embedded[1],
        attention_mask=torch.cat([ATTENTION_MASK] * 2),
    ).logits
    if not fields["label_smoothing"]:
        logits = logits.index_fill(-1, torch.tensor(model.config.pad_token_id), -1e3)
    expected = loss_by_hand(logits, 1.5, fields["label_smoothing"], cut_rate is not None)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(found, gradients(model, expected), rtol=1e-5, atol=1e-5)


def test_nothing_diverges_without_dropout_and_the_loss_is_that_of_one_pass():
    model = tiny_model(dropout=0.0, label_smoothing=0.1).train()
    alone = model(**BATCH)
    for num_items in (None, torch.tensor(7)):
        twice = RDropLoss(model, 5.0)(model, num_items_in_batch=num_items, **BATCH)
        share = 1 if num_items is None else 5 / 7
        assert twice.loss.item() == pytest.approx(alone.loss.item() * share, rel=1e-5)


def test_the_moving_average_is_that_of_the_weights_after_each_step():
    model = tiny_model()
    weight = model.lm_head.weight
    start = weight[0, 0].item()
    average = MovingAverage(model, 0.5)
    expected = start
    for step in range(1, 12):
        with torch.no_grad():
            weight.fill_(float(step))
        average.on_step_end(None, SimpleNamespace(global_step=step), None)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with average.in_place():
        assert weight[0, 0].item() == pytest.approx(expected)
    assert weight[0, 0].item() == 11.0


def test_a_run_ends_with_its_moving_average_and_validates_it_beside_the_weights(whole):
    folder = whole("--ema_decay=0.8")
    assert same(weights(folder), load_file(folder / "checkpoint-8" / "moving_average.safetensors"))
    assert not same(weights(folder), weights(folder / "checkpoint-8"))
    losses = [(row["eval_loss"], row["eval_raw_loss"]) for row in metrics(folder) if "eval_loss" in row]
    assert len(losses) == 2 and all(math.isfinite(raw) and raw != loss for loss, raw in losses)
    said = "| moving average (decay 0.8) of the weights: the average after the last step |"
    assert said in str(model_card(folder, "user/new"))


def test_a_resumed_run_uses_the_number_of_threads_of_the_earlier_run(whole, monkeypatch):
    checkpoint = whole() / "checkpoint-8"
    assert CheckpointRecord.of(checkpoint).threads == 1
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    # The tests set OMP_NUM_THREADS, so the function must not change the number of threads.
    keep_number_of_threads(checkpoint)
    assert chosen == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    keep_number_of_threads(checkpoint)
    assert chosen == [1]
    monkeypatch.undo()


def test_a_run_with_a_cosine_is_not_made_longer(run):
    options = "--lr_scheduler_type=cosine --learning_rate=0.01 --save_steps=1"
    folder = run("run", options, "--max_steps=1")
    before = weights(folder)
    sentence = r"^`training.max_steps` is 2, but the run in '.*' that is to be resumed has 1, and the schedule 'cosine' depends"
    with pytest.raises(ValueError, match=sentence):
        run("run", options, "--resume=true --max_steps=2")
    assert same(before, weights(folder))


def test_the_divergence_is_computed_in_the_type_of_the_run(run, monkeypatch):
    seen, compute = set(), two_passes._ChunkedDivergence.apply
    watched = SimpleNamespace(apply=lambda *args: (seen.add(args[-1]), compute(*args))[1])
    monkeypatch.setattr(two_passes, "_ChunkedDivergence", watched)
    run("run", "--r_drop_alpha=2 --bf16=true --max_steps=1 --save_steps=1 --eval_steps=9")
    assert seen == {torch.bfloat16}
