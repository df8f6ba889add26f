"""A new optimizer, schedule or regulariser needs only its own file and one line in a table."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from factories import write_recipe
from test_language_model_runs import write_text_recipe
from tiny_runs import metrics

from vaswani_hf.optimization.optimizers import OPTIMIZERS
from vaswani_hf.optimization.regularizers import REGULARIZERS
from vaswani_hf.optimization.schedules import SCHEDULES


def test_new_entries_train(python, tmp_path):
    recipes = [write_recipe(tmp_path / "recipe.yaml"), write_text_recipe(tmp_path, "causal_lm")]
    script = Path(__file__).with_name("new_entries.py")
    done = subprocess.run([python, script, *recipes, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    folder, seen = tmp_path / "run", json.loads((tmp_path / "seen.json").read_text())
    recorded = yaml.safe_load((folder / "recipe.yaml").read_text())["training"]
    # The optimizer: for each weight, Adam stores two numbers, and SGD with momentum stores one.
    state = torch.load(folder / "checkpoint-8" / "optimizer.pt", weights_only=True)["state"]
    assert all(set(of_weight) == {"momentum_buffer"} for of_weight in state.values())
    assert seen["state"] == pytest.approx([2, 1], rel=0.01)
    assert (recorded["optimizer"], recorded["sgd_momentum"]) == ("sgd", 0.5)
    assert seen["sharded"][0] == "`training.optimizer` must be adam or adamw with FSDP, but is sgd."
    # The schedule.
    rates = [row["learning_rate"] for row in metrics(folder) if "learning_rate" in row]
    assert rates == pytest.approx([0.01 - 0.001 * (step - 1) for step in (2, 4, 6, 8)])
    assert "Try a lower `training.learning_rate`," in seen["diverged"]
    # The regulariser: 8 steps have 2 batches each, and a batch may be computed in parts.
    assert seen["calls"] >= 16
    assert (recorded["z_alpha"], recorded["z_power"]) == (0.5, 1.0)
    assert seen["sharded"][1] == "`training.z_alpha` must be 0.0 with FSDP, but is 0.5."
    assert seen["parts"] == [1024, 1024 // 3]
    assert seen["language_model"] == 0.5


def test_entries_that_share_a_key_inherit_it_from_one_class():
    classes = {}
    for entry in (*OPTIMIZERS.values(), *SCHEDULES.values(), *REGULARIZERS.values()):
        for name in entry.settings.model_fields:
            declaring = [of for of in entry.settings.__mro__ if name in vars(of).get("__annotations__", {})]
            classes.setdefault(name, declaring[-1])
            assert classes[name] is declaring[-1], name
