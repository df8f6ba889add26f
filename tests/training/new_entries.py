"""Add a new optimizer, schedule and regulariser to their tables with one line each, and train with them.

`python new_entries.py RECIPE TEXT_RECIPE FOLDER` writes its observations to FOLDER/seen.json. The script
needs a process of its own because a recipe gets the keys of all entries when the package is imported.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from pydantic import Field

# Python must import the package again after the new entries.
for name in [name for name in sys.modules if name.split(".")[0] == "vaswani_hf"]:
    del sys.modules[name]

from vaswani_hf.optimization.entries import Optimizer, Regularizer, Schedule  # noqa: E402
from vaswani_hf.optimization.optimizers import OPTIMIZERS  # noqa: E402
from vaswani_hf.optimization.regularizers import REGULARIZERS  # noqa: E402
from vaswani_hf.optimization.schedules import SCHEDULES, HighestRateSettings  # noqa: E402
from vaswani_hf.settings.base import Settings  # noqa: E402


class SgdSettings(Settings):
    sgd_momentum: float = Field(0.0, ge=0, lt=1)


def build_sgd(model, settings, *, bf16):
    return torch.optim.SGD(model.parameters(), momentum=settings.sgd_momentum)


class LinearSettings(HighestRateSettings):
    lowest_rate: float = Field(0.0, ge=0)


def linear_rate(step, settings, *, warmup_steps, max_steps, d_model):
    share = (step - 1) / max_steps
    return settings.learning_rate + share * (settings.lowest_rate - settings.learning_rate)


class ZLossSettings(Settings):
    z_alpha: float = Field(0.0, ge=0)
    z_power: float = Field(2.0, ge=0)


def build_z_loss(model, settings, autocast):
    def loss(wrapped, **batch):
        output = wrapped(**batch)
        seen["calls"] += 1
        output.loss = output.loss + settings.z_alpha * model.lm_head.weight.abs().pow(settings.z_power).mean()
        return output

    return loss


seen = {"calls": 0}
OPTIMIZERS["sgd"] = Optimizer("sgd", build_sgd, SgdSettings)
SCHEDULES["linear"] = Schedule(
    "linear", linear_rate, LinearSettings, rate_key="learning_rate", depends_on_length=True
)
REGULARIZERS["z_loss"] = Regularizer(
    "z_loss", build_z_loss, ZLossSettings, strength="z_alpha", num_passes=3, needs_encoder_decoder=False
)


def main(recipe, text_recipe, folder):
    """Train with the new entries, and record what other parts of the package say about the entries."""
    from vaswani_hf.recipe import load_recipe
    from vaswani_hf.training import train
    from vaswani_hf.training.batches import largest_part
    from vaswani_hf.training.losses import TrainingLosses
    from vaswani_hf.training.plan import plan_run
    from vaswani_hf.training.sharding import prepare_sharding

    def loaded(*words):
        return load_recipe(recipe, [f"--output_dir={folder / 'run'}", *words])

    def refusal(words):
        sharded = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=2)))
        try:
            prepare_sharding(sharded, None, loaded(*words).training)
        except ValueError as error:
            return str(error)

    sgd = ("--optimizer=sgd", "--sgd_momentum=0.5")
    linear = ("--lr_scheduler_type=linear", "--learning_rate=0.01", "--lowest_rate=0.002")
    z_loss = ("--z_alpha=0.5", "--z_power=1")
    with patch("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 20):
        train(loaded(*sgd, *linear, *z_loss))
    arguments = SimpleNamespace(output_dir=str(folder), max_steps=8)
    losses = TrainingLosses(loaded(*sgd, *linear).training, SimpleNamespace(d_model=16), arguments)
    seen["diverged"] = str(losses.error("It diverged", 1, 0))
    seen["sharded"] = [refusal(sgd), refusal(z_loss)]
    seen["parts"] = [largest_part(loaded(*words, "--d_model=512").training, 512) for words in ((), z_loss)]
    plans = [plan_run(loaded(*words)).memory.processor for words in ((), sgd)]
    seen["state"] = [memory.optimizer / memory.weights for memory in plans]
    seen["language_model"] = load_recipe(text_recipe, ["--z_alpha=0.5"]).training.z_alpha
    (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
