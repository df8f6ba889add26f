"""An exploding loss ends the run before a good checkpoint is deleted; a rising loss does not."""

import itertools
import math
import random

import pytest
from tiny_runs import metrics, names

from vaswani_hf.training.losses import DivergenceDetector

UNIFORM = math.log(1000)


def end(losses, max_steps=1000, earlier=()):
    """Return the step at which an explosion is detected, and the first step of the explosion."""
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
        # The loss rises far above the loss of a guess. A loss near this loss is detected later.
        ([*falling(300), *[40.0] * 50], (310, 301)),
        ([*[8.0] * 20, *[40.0] * 50], (30, 21)),
        ([*falling(300), *[6.6] * 200], (400, 301)),
        ([*falling(300), *itertools.accumulate([0.05] * 300, initial=2.0)], (450, 351)),
        # No explosions: noise, spikes, other text, a bad initialization with a long warm-up, no progress.
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


OPTIONS = "--max_steps=60 --save_steps=10 --eval_steps=100 --save_total_limit=1 --logging_steps=10"


def test_a_run_whose_learning_rate_explodes_ends_with_its_last_good_checkpoint(
    train_command, before_method, tmp_path
):
    def raise_rate(trainer):
        scheduler = trainer.lr_scheduler
        scheduler.base_lrs = [30 * rate for rate in scheduler.base_lrs]

    before_method(42, raise_rate)
    code, _, sentence = train_command(OPTIONS, "--max_grad_norm=1")
    folder = tmp_path / "run"
    assert code == 1
    assert sentence.startswith("The loss has exploded: it has been too high since step 4"), sentence
    assert "; the lowest mean loss before is " in sentence
    assert (
        f"the last good checkpoint is '{folder}/checkpoint-40'. Try a lower `training.learning_rate"
        in sentence
    )
    assert names(folder) == ["checkpoint-40"]
    assert not (folder / "results.json").exists()
    assert metrics(folder)[-1]["step"] == 50
