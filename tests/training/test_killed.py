"""Runs that are killed, by SIGKILL and at any moment, end as if nothing had happened."""

import json
import random
import shutil
import time

import pytest
from mortal_runs import Moment, fail_at, fail_at_change, live
from tiny_runs import RECIPE, metrics, same, weights

from vaswani_hf.checkpoint.files import checkpoints_in
from vaswani_hf.data.toy_corpora import number_pairs

NUM_KILLS = 5
AVERAGED = ("--average_checkpoints=3", "--save_total_limit=3", "--save_steps=2")
COSINE = ("--lr_scheduler_type=cosine", "--learning_rate=0.01")
# An epoch has half of the 300 pairs of the first corpus, and twice the 40 of the second.
WEIGHTED = ("--train_pairs=FOLDER/a.jsonl,FOLDER/b.jsonl", "--corpus=null", "--train_weights=0.5,2")
BOTH = ("--both_directions=true", "--vocab_size=290")
# Two batches a step, by two in turn or two processes; an epoch has 6 batches, so that steps 3 and 6 end one.
WAYS = {
    "average": (1, (*AVERAGED, "--bpe_dropout=0.1", "--simcut_alpha=1", "--ema_decay=0.8", *WEIGHTED)),
    "stream": (1, (*AVERAGED, "--streaming=true", "--r_drop_alpha=1", "--optimizer=muon", *COSINE)),
    "two processes": (
        2,
        (
            *AVERAGED,
            "--gradient_accumulation_steps=1",
            "--ema_decay=0.8",
            "--r_drop_alpha=1",
            *WEIGHTED,
            *BOTH,
        ),
    ),
    "two processes, accumulation, stream": (
        2,
        (
            *("--streaming=true", "--save_steps=3", "--average_checkpoints=2", "--numbers_train_size=150"),
            *("--simcut_alpha=1", "--optimizer=muon", *COSINE, *BOTH),
        ),
    ),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    for name, size in (("a", 300), ("b", 40)):
        rows = [{"en": pair["source"], "de": pair["target"]} for pair in number_pairs(size, 1, "train")]
        path.with_name(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path.with_name("v.jsonl").write_bytes(path.with_name("b.jsonl").read_bytes())
    return path


@pytest.fixture(scope="module")
def keys_of(recipe):
    """The keys of one of the ways, with the folder of its corpora."""
    held_out = ("--validation_pairs=FOLDER/v.jsonl", "--test_pairs=FOLDER/v.jsonl")

    def keys(way):
        words = (*WAYS[way][1], *(held_out if "--corpus=null" in WAYS[way][1] else ()))
        return [word.replace("FOLDER", str(recipe.parent)) for word in words]

    return keys


@pytest.fixture(scope="module")
def whole(recipe, keys_of):
    """The folder of an uninterrupted run of one of the ways, made once."""

    def make(way):
        folder = recipe.with_name(way)
        if not folder.exists():
            life = live(recipe, folder, *keys_of(way), processes=WAYS[way][0])
            assert life.wait() == [0] * WAYS[way][0], life.said()
        return folder

    return make


def lasting(folder):
    """What of the results is the same at every time."""
    results = json.loads((folder / "results.json").read_text())
    for section, name in (("training", "seconds"), ("training", "resumed_at_step"), ("test", "seconds")):
        results[section].pop(name)
    results["test"].pop("sentences_per_second")
    # A process counts the pairs of a stream that it reads itself.
    results["corpus"].pop("train")
    return results


def assert_same_run(part, whole):
    """All that two runs leave is the same, to the bit where it is weights."""
    assert same(weights(part), weights(whole))
    assert lasting(part) == lasting(whole)
    names = [path.name for path in checkpoints_in(whole)]
    assert [path.name for path in checkpoints_in(part)] == names
    for name in names:
        assert same(weights(part / name), weights(whole / name))
    validation = [
        [
            (row["step"], row["eval_loss"], row["target_tokens"])
            for row in metrics(folder)
            if "eval_loss" in row
        ]
        for folder in (part, whole)
    ]
    assert validation[0] == validation[1]
    assert {path.name for path in part.iterdir()} == {path.name for path in whole.iterdir()}


def draw(choice, processes):
    """A moment of a life, or the seconds after which one of its processes is killed."""
    if choice.random() < 0.5:
        return choice.uniform(0.05, 1.5)
    if processes == 2 and choice.random() < 0.5:
        return fail_at(1, choice.randint(1, 8))
    return fail_at_change(0, choice.randint(1, 130))


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_killed_at_random_moments_ends_as_if_it_had_not_been(
    whole, recipe, keys_of, tmp_path, way
):
    processes, keys = WAYS[way][0], keys_of(way)
    choice, folder, kills = random.Random(way), tmp_path / "run", 0
    for _ in range(3 * NUM_KILLS):
        moment = draw(choice, processes)
        is_moment = isinstance(moment, Moment)
        life = live(recipe, folder, *keys, processes=processes, moment=moment if is_moment else None)
        if not is_moment:
            life.wait_for_start()
            time.sleep(moment)
            choice.choice(life.processes).kill()
        codes = life.wait()
        if codes == [0] * processes:
            # It was faster: once more from the beginning.
            assert_same_run(folder, whole(way))
            shutil.rmtree(folder)
            continue
        assert -9 in codes, life.said()
        assert "Traceback" not in life.said()
        kills += 1
        if kills == NUM_KILLS:
            break
    life = live(recipe, folder, *keys, processes=processes)
    assert life.wait() == [0] * processes, life.said()
    assert kills == NUM_KILLS
    assert_same_run(folder, whole(way))


# Between the stages of a save, of a rotation and of the end, of one process or the second of two.
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
STAGES = ("--save_steps=3", "--save_total_limit=2", "--max_steps=9", "--average_checkpoints=2")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_killed_at_every_stage_ends_as_if_it_had_not_been(recipe, tmp_path, processes):
    """One life for each stage; each begins where the one before it has ended, so that killed runs are killed again."""
    keys = (*STAGES, f"--gradient_accumulation_steps={2 // processes}")
    expected, folder = tmp_path / "whole", tmp_path / "run"
    life = live(recipe, expected, *keys, processes=processes)
    assert life.wait() == [0] * processes, life.said()
    for name, moment in (MOMENTS if processes == 1 else SECOND).items():
        life = live(recipe, folder, *keys, processes=processes, moment=moment)
        assert life.wait()[moment.rank] == -9, f"{name}: {life.said()}"
    life = live(recipe, folder, *keys, processes=processes)
    assert life.wait() == [0] * processes, life.said()
    assert_same_run(folder, expected)
