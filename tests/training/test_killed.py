"""Runs that are killed by SIGKILL at any moment and resumed have the results of uninterrupted runs."""

import random
import shutil
import time

import pytest
from factories import write_recipe
from mortal_runs import Moment, fail_at, fail_at_change, live
from tiny_runs import metrics, names, results, same, weights, write_pairs

from vaswani_hf.data.toy_corpora import number_pairs

pytestmark = pytest.mark.usefixtures("quick_workers")
SLOW = pytest.mark.slow
AVERAGED = "--average_checkpoints=3 --save_total_limit=3 --save_steps=2"
COSINE = "--lr_scheduler_type=cosine --learning_rate=0.01"
# An epoch has half of the 300 pairs of the first corpus, and twice the 40 pairs of the second.
WEIGHTED = (
    "--train_pairs=FOLDER/a.jsonl,FOLDER/b.jsonl --corpus=null --train_weights=0.5,2 "
    "--validation_pairs=FOLDER/v.jsonl --test_pairs=FOLDER/v.jsonl"
)
BOTH = "--both_directions=true --vocab_size=290"
# Processes, kills and options. A step has two batches, an epoch 6, so steps 3 and 6 end an epoch.
WAYS = {
    "average": (1, 3, f"{AVERAGED} --bpe_dropout=0.1 --simcut_alpha=1 --ema_decay=0.8 {WEIGHTED}"),
    "stream": (1, 5, f"{AVERAGED} --streaming=true --r_drop_alpha=1 --optimizer=muon {COSINE}"),
    "two processes": (
        2,
        5,
        f"{AVERAGED} --gradient_accumulation_steps=1 --ema_decay=0.8 --r_drop_alpha=1 {WEIGHTED} {BOTH}",
    ),
    "two processes, accumulation, stream": (
        2,
        5,
        "--streaming=true --save_steps=3 --average_checkpoints=2 --numbers_train_size=150 --simcut_alpha=1 "
        f"--optimizer=muon {COSINE} {BOTH}",
    ),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    for name, size in (("a", 300), ("b", 40), ("v", 40)):
        write_pairs(folder / f"{name}.jsonl", number_pairs(size, 1, "train"))
    return write_recipe(folder / "recipe.yaml")


def lasting(folder):
    """Return the part of the results that does not depend on the time."""
    found = results(folder)
    for section, name in (("training", "seconds"), ("training", "resumed_at_step"), ("test", "seconds")):
        found[section].pop(name)
    found["test"].pop("sentences_per_second")
    # Each process counts only the pairs of a stream that it reads itself, so do not compare these counts.
    found["corpus"].pop("train")
    return found


def validation(folder):
    rows = [row for row in metrics(folder) if "eval_loss" in row]
    return [(row["step"], row["eval_loss"], row["target_tokens"]) for row in rows]


def assert_same_run(part, whole):
    """Check that two runs have the same files, and bitwise equal weights."""
    assert same(weights(part), weights(whole))
    assert lasting(part) == lasting(whole)
    assert names(part) == names(whole)
    for name in names(whole):
        assert same(weights(part / name), weights(whole / name))
    assert validation(part) == validation(whole)
    assert {path.name for path in part.iterdir()} == {path.name for path in whole.iterdir()}


def draw(choice, processes, seconds):
    """Draw the moment at which a process is killed, or the seconds after which a process is killed. An
    uninterrupted run takes this number of seconds.
    """
    if choice.random() < 0.5:
        return choice.uniform(0, 0.7 * seconds)
    if processes == 2 and choice.random() < 0.5:
        return fail_at(1, choice.randint(1, 8))
    return fail_at_change(0, choice.randint(1, 130))


@pytest.mark.parametrize("way", [pytest.param(way, marks=SLOW if way != "average" else []) for way in WAYS])
def test_a_run_that_is_killed_at_random_moments_ends_as_if_it_had_not_been(recipe, tmp_path, way):
    processes, num_kills, words = WAYS[way]
    options = words.replace("FOLDER", str(recipe.parent)).split()
    whole = tmp_path / "whole"
    life = live(recipe, whole, *options, processes=processes)
    life.wait_for_start()
    began = time.monotonic()
    assert life.wait() == [0] * processes, life.said()
    seconds = time.monotonic() - began
    choice, folder, kills = random.Random(way), tmp_path / "run", 0
    for _ in range(10 * num_kills):
        moment = draw(choice, processes, seconds)
        is_moment = isinstance(moment, Moment)
        life = live(recipe, folder, *options, processes=processes, moment=moment if is_moment else None)
        if not is_moment:
            life.wait_for_start()
            time.sleep(moment)
            choice.choice(life.processes).kill()
        codes = life.wait()
        if codes == [0] * processes:
            # The run has ended before the kill, so repeat the run from the beginning.
            assert_same_run(folder, whole)
            shutil.rmtree(folder)
            continue
        assert -9 in codes, life.said()
        assert "Traceback" not in life.said()
        kills += 1
        if kills == num_kills:
            break
    life = live(recipe, folder, *options, processes=processes)
    assert life.wait() == [0] * processes, life.said()
    assert kills == num_kills
    assert_same_run(folder, whole)


# Moments between the stages of a save, of the rotation and of the end, for the first process.
MOMENTS = {
    "before the tokenizers": fail_at_change(0, "open tokenizer_config.json"),
    "before the recipe": fail_at_change(0, "os.rename .recipe.yaml.unfinished"),
    "in the first step": fail_at(0, 1),
    "in the middle of an epoch": fail_at(0, 5),
    "after an epoch, before its save": fail_at(0, 6, method="_save_checkpoint"),
    "after the weights": fail_at(0, 6, method="_save_optimizer_and_scheduler"),
    "after the optimizer": fail_at(0, 6, method="_save_rng_state"),
    "before the manifest": fail_at_change(0, "open .saving/checkpoint-6/.manifest.json.unfinished"),
    "in the manifest": fail_at_change(0, "os.rename .saving/checkpoint-6/.manifest.json.unfinished"),
    "before its place": fail_at_change(0, "os.rename .saving/checkpoint-6"),
    "right after a save": fail_at(0, 7),
    "before the rotation": fail_at_change(0, "os.rename checkpoint-3"),
    "in the rotation": fail_at_change(0, "os.remove .saving/checkpoint-3.deleted/config.json"),
    "before the final weights": fail_at_change(0, "os.mkdir .staging"),
    "between the final files": fail_at_change(0, "os.rename .staging/model.safetensors"),
    "in the translations": fail_at_change(0, "open test_translations.txt"),
    "in the picture": fail_at_change(0, "open training_curve.png"),
    "before the results": fail_at_change(0, "os.rename .results.json.unfinished"),
}
SECOND = {
    "in the first step": fail_at(1, 1),
    "in the middle of an epoch": fail_at(1, 4),
    "after an epoch, before its save": fail_at(1, 6, method="_save_checkpoint"),
    "in a save": fail_at(1, 6, method="_save_rng_state"),
    "right after a save": fail_at(1, 7),
}
# Run one moment of each kind in the fast test suite.
FEW = (
    "in the middle of an epoch",
    "in the manifest",
    "before its place",
    "in the rotation",
    "between the final files",
)
LIVES = [
    pytest.param(1, {name: MOMENTS[name] for name in FEW}, id="few"),
    pytest.param(1, MOMENTS, id="all", marks=SLOW),
    pytest.param(2, SECOND, id="second", marks=SLOW),
]
STAGES = "--save_steps=3 --save_total_limit=2 --max_steps=9 --average_checkpoints=2".split()


@pytest.mark.parametrize(("processes", "moments"), LIVES)
def test_a_run_that_is_killed_at_every_stage_ends_as_if_it_had_not_been(recipe, tmp_path, processes, moments):
    """Start and kill the run once for each stage; each start resumes the killed run."""
    options = (*STAGES, f"--gradient_accumulation_steps={2 // processes}")
    expected, folder = tmp_path / "whole", tmp_path / "run"
    life = live(recipe, expected, *options, processes=processes)
    assert life.wait() == [0] * processes, life.said()
    for name, moment in moments.items():
        life = live(recipe, folder, *options, processes=processes, moment=moment)
        assert life.wait()[moment.rank] == -9, f"{name}: {life.said()}"
    life = live(recipe, folder, *options, processes=processes)
    assert life.wait() == [0] * processes, life.said()
    assert_same_run(folder, expected)
