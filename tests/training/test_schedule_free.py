"""Schedule-Free AdamW: averages, exact resuming, and a missing library."""

import math
import sys

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import metrics, same, weights

from vaswani_hf.optimization.optimizers import OPTIMIZERS
from vaswani_hf.optimization.section import EncoderDecoderTraining
from vaswani_hf.publish.model_card import model_card
from vaswani_hf.training.moving_average import OptimizerAverage

SCHEDULE_FREE = {"optimizer": "schedule_free_adamw", "lr_scheduler_type": "constant", "learning_rate": 0.01}
OPTIONS = " ".join(f"--{key}={value}" for key, value in SCHEDULE_FREE.items()) + " --average_checkpoints=0"


def settings(**keys):
    return EncoderDecoderTraining(max_steps=8, average_checkpoints=0, **SCHEDULE_FREE, **keys)


def test_a_missing_library_is_named_before_the_data_is_prepared(train_command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    code, _, error = train_command(OPTIONS)
    assert code == 2
    assert error.startswith(
        "`training.optimizer` schedule_free_adamw needs the library schedulefree; install the library with `pip install "
    )
    assert not (tmp_path / "run").exists()


def test_the_average_is_that_of_the_paper_and_leaves_the_training_unchanged():
    """Compare with Algorithm 1 of Defazio et al. 2024 in float64."""
    pytest.importorskip("schedulefree")
    model = torch.nn.Linear(1, 100, bias=False)
    start = model.weight.detach().double()
    beta1, beta2, epsilon, rate = 0.9, 0.98, 1e-9, 0.5
    optimizer = OPTIMIZERS["schedule_free_adamw"].build(model, settings(), bf16=False)
    average = OptimizerAverage(model, optimizer)
    optimizer.param_groups[0]["lr"] = rate
    z = x = y = start
    squares = total = 0.0
    for step in range(1, 6):
        gradient = math.sin(step)
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.step()
        squares = beta2 * squares + (1 - beta2) * gradient**2
        z = z - rate * gradient / (math.sqrt(squares / (1 - beta2**step)) + epsilon)
        total += rate**2
        share = rate**2 / total
        x = (1 - share) * x + share * z
        y = (1 - beta1) * z + beta1 * x
        trained = model.weight.detach().clone()
        torch.testing.assert_close(trained.double(), y, rtol=0, atol=1e-5)
        with average.in_place():
            torch.testing.assert_close(model.weight.double(), x, rtol=0, atol=1e-5)
        assert torch.equal(model.weight, trained)


def test_a_run_validates_and_publishes_the_average_and_resumes_exactly(whole, run):
    pytest.importorskip("schedulefree")
    folder = whole(OPTIONS)
    last = folder / "checkpoint-8"
    assert same(weights(folder), load_file(last / "moving_average.safetensors"))
    assert not same(weights(folder), weights(last))
    rows = [row for row in metrics(folder) if "eval_loss" in row]
    assert rows
    said = "| average of the weights by the optimizer schedule_free_adamw: the average after the last step |"
    assert said in str(model_card(folder, "user/new"))
    assert all(row["eval_loss"] != row["eval_raw_loss"] for row in rows)
    # Save after step 3 in addition, because a save must not change the training.
    run("run", OPTIONS, "--max_steps=3")
    part = run("run", OPTIONS, "--resume=true")
    assert same(weights(part), weights(folder))
    assert same(weights(part / "checkpoint-8"), weights(last))
