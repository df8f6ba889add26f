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


@pytest.fixture(scope="module")
def trained(python, tmp_path_factory):
    """The folder of the run with the new entries, and what their process saw."""
    folder = tmp_path_factory.mktemp("new_entries")
    recipes = [write_recipe(folder / "recipe.yaml"), write_text_recipe(folder, "causal_lm")]
    script = Path(__file__).with_name("new_entries.py")
    done = subprocess.run([python, script, *recipes, folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "run", json.loads((folder / "seen.json").read_text())


def test_a_new_optimizer_is_one_entry(trained):
    folder, seen = trained
    state = torch.load(folder / "checkpoint-8" / "optimizer.pt", weights_only=True)["state"]
    assert all(set(of_weight) == {"momentum_buffer"} for of_weight in state.values())
    recorded = yaml.safe_load((folder / "recipe.yaml").read_text())["training"]
    assert (recorded["optimizer"], recorded["sgd_momentum"]) == ("sgd", 0.5)
    # For each weight, Adam stores two numbers, and SGD with momentum stores one.
    assert seen["state"] == pytest.approx([2, 1], rel=0.01)
    assert seen["sharded"][0] == "`training.optimizer` must be adam or adamw with FSDP, but is sgd."
    assert seen["refused"][0] == (
        "`training.sgd_momentum` belongs to `training.optimizer: sgd`, but is 0.5 with `training.optimizer: "
        "adam`; leave `training.sgd_momentum` out, or select sgd."
    )
    assert seen["refused"][4] == ("`training.sgd_momentum` must be less than 1, but is 1.")
    assert seen["refused"][5] == (
        "`training.optimizer` must be 'adam' or 'adamw' or 'muon' or 'schedule_free_adamw' or 'sgd', but is 'sgb'; the nearest "
        "name is 'sgd'."
    )


def test_a_new_schedule_is_one_entry(trained):
    folder, seen = trained
    rates = [row["learning_rate"] for row in metrics(folder) if "learning_rate" in row]
    assert rates == pytest.approx([0.01 - 0.001 * (step - 1) for step in (2, 4, 6, 8)])
    assert seen["longer"].startswith("`training.max_steps` is 10, but the run in ")
    assert "Try a lower `training.learning_rate`," in seen["diverged"]
    assert seen["refused"][1] == (
        "`training.lowest_rate` belongs to `training.lr_scheduler_type: linear`, but is 0.002 with "
        "`training.lr_scheduler_type: paper`; leave `training.lowest_rate` out, or select linear."
    )


def test_a_new_regulariser_is_one_entry(trained):
    folder, seen = trained
    # 8 steps have 2 batches each, and a batch may be computed in parts.
    assert seen["calls"] >= 16
    recorded = yaml.safe_load((folder / "recipe.yaml").read_text())["training"]
    assert (recorded["z_alpha"], recorded["z_power"]) == (0.5, 1.0)
    assert seen["sharded"][1] == "`training.z_alpha` must be 0.0 with FSDP, but is 0.5."
    assert seen["refused"][2] == (
        "`training.z_power: 1.0` needs `training.z_alpha`, but `z_alpha` is 0.0; set `z_alpha` to a positive "
        "number, or leave `z_power` out."
    )
    assert seen["refused"][3] == (
        "`training.r_drop_alpha: 1.0` and `training.z_alpha: 1.0` turn on two regularisers, but a run can have "
        "only one; set one of these keys to 0."
    )
    assert seen["parts"] == [1024, 1024 // 3]
    assert seen["language_model"] == 0.5
    assert seen["resolved"] is True


def test_entries_that_share_a_key_inherit_it_from_one_class():
    classes = {}
    for entry in (*OPTIMIZERS.values(), *SCHEDULES.values(), *REGULARIZERS.values()):
        for name in entry.settings.model_fields:
            declaring = [of for of in entry.settings.__mro__ if name in vars(of).get("__annotations__", {})]
            classes.setdefault(name, declaring[-1])
            assert classes[name] is declaring[-1], name
