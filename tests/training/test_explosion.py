"""A loss that explodes ends the run before it has displaced anything good; a loss that only rises does not."""

import itertools
import math
import random

import pytest
from tiny_runs import metrics

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.training.callbacks import DivergenceDetector
from vaswani_hf.training.trainer import VaswaniTrainer

UNIFORM = math.log(1000)


def end(losses, max_steps=1000, earlier=()):
    """The step at which a run with these losses has exploded, and the first one of its explosion."""
    explosion = DivergenceDetector(UNIFORM, max_steps, list(earlier))
    for step, loss in enumerate(losses, len(earlier) + 1):
        if explosion.update(step, loss):
            return step, explosion.since
    return None


def falling(steps, low=2.0, noise=0.0):
    draw = random.Random(1)
    return [low + (UNIFORM - low) * math.exp(-step / 50) + draw.gauss(0, noise) for step in range(steps)]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        # Far beyond a guess: after a good phase, and before one; where it fell back to a guess it takes longer.
        ([*falling(300), *[40.0] * 50], (310, 301)),
        ([*[8.0] * 20, *[40.0] * 50], (30, 21)),
        ([*falling(300), *[6.6] * 200], (400, 301)),
        ([*falling(300), *itertools.accumulate([0.05] * 300, initial=2.0)], (450, 351)),
        # None of these: noise of small batches, spikes, other text, a bad initialization with a long warmup, no progress.
        (falling(1000, noise=1.5), None),
        ([*falling(300), *([30.0] * 9 + [2.0]) * 20], None),
        ([*falling(300), *[6.6] * 99, *[2.0] * 300], None),
        ([*falling(300), *[4.4] * 700], None),
        ([*[120.0] * 300, *falling(300)], None),
        ([UNIFORM + 0.5] * 1000, None),
        ([*[UNIFORM + 1] * 100, *[UNIFORM - 0.5] * 100, *[UNIFORM + 1] * 800], None),
    ],
)
def test_what_has_exploded(losses, expected):
    assert end(losses) == expected


def test_a_resumed_run_knows_what_it_had_come_down_to():
    assert end([6.6] * 100) is None
    assert end([6.6] * 100, earlier=falling(300)) == (400, 301)
    assert end([40.0] * 10, earlier=[8.0]) == (11, 2)


def lasting(run, vaswani, tmp_path, *overrides):
    folder = tmp_path / "run"
    keys = (
        "--max_steps=70",
        "--save_steps=10",
        "--eval_steps=100",
        "--save_total_limit=1",
        "--logging_steps=10",
    )
    return folder, vaswani("train", run.recipe, f"--output_dir={folder}", *keys, *overrides)


def test_a_run_whose_learning_rate_explodes_ends_with_its_last_good_checkpoint(
    run, vaswani, tmp_path, monkeypatch
):
    before, changes = VaswaniTrainer.training_step, []

    def changed(self, *args, **kwargs):
        if self.state.global_step == 42 and not changes:
            changes.append(42)
            self.lr_scheduler.base_lrs = [30 * rate for rate in self.lr_scheduler.base_lrs]
        return before(self, *args, **kwargs)

    monkeypatch.setattr(VaswaniTrainer, "training_step", changed)
    folder, (code, _, sentence) = lasting(run, vaswani, tmp_path, "--max_grad_norm=1")
    assert code == 1
    assert sentence.startswith("The loss has exploded: it is too high since step 4"), sentence
    assert (
        f"the last good checkpoint is '{folder}/checkpoint-40'. Try a lower `training.learning_rate"
        in sentence
    )
    assert [path.name for path in checkpoints_in(folder)] == ["checkpoint-40"]
    assert not (folder / "results.json").exists()
    assert metrics(folder)[-1]["step"] == 50


@pytest.mark.parametrize("rate", ["8", "0"])
def test_a_run_that_learns_badly_or_nothing_is_not_ended(run, vaswani, tmp_path, rate):
    folder, (code, _, sentence) = lasting(run, vaswani, tmp_path, f"--learning_rate_factor={rate}")
    assert (code, sentence) == (0, "")
    assert metrics(folder)[-1]["step"] == 70
