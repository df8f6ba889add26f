"""Recipes of the tasks other than translation: which keys they have, and which are refused by name."""

import dataclasses

import pytest
import yaml

from vaswani_hf.recipe import load_recipe

CAUSAL = {
    "output_dir": "runs/causal",
    "task": "causal_lm",
    "data": {"language": "en", "train_text": "train.txt"},
    "training": {"max_steps": 10, "text_tokens_per_batch": 300},
}


@pytest.fixture
def load(tmp_path):
    """Load a recipe of a causal model with other keys."""

    def load(overrides=(), **content):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**CAUSAL, **content}), encoding="utf-8")
        return load_recipe(path, list(overrides))

    return load


def test_a_key_of_another_task_may_be_null_and_is_not_recorded(load):
    recipe = load(["--train_source", "null"])
    written = yaml.safe_load(recipe.to_yaml())
    assert "decoding" not in written and "train_source" not in written["data"] and written["model"] == {}
    assert written["data"]["train_text"] == "train.txt" and written["evaluation"] == {"tokens_per_batch": 4096}


def test_both_sides_have_the_size_of_the_text(load, tmp_path):
    recipe = load()
    assert recipe.training.source_tokens_per_batch == recipe.training.target_tokens_per_batch == 300
    again = tmp_path / "again.yaml"
    again.write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(again) == recipe


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["--source_language", "de"],
            "`data.source_language` belongs to `task: translation`, but is 'de' in a recipe of `task: causal_lm`; leave it out.",
        ),
        (
            ["--encoder_layers", "2"],
            "`model.encoder_layers` belongs to `task: translation` and `task: parsing` and `task: masked_lm`, but is 2 in a recipe "
            "of `task: causal_lm`; leave it out.",
        ),
        (
            ["--num_beams", "5"],
            "`decoding.num_beams` belongs to `task: translation` and `task: parsing`, but is 5 in a recipe of `task: causal_lm`; "
            "leave it out.",
        ),
        (
            ["--task", "masked_lm", "--decoder_layers", "2"],
            "`model.decoder_layers` belongs to `task: translation` and `task: parsing` and `task: causal_lm`, but is 2 in a recipe "
            "of `task: masked_lm`; leave it out.",
        ),
        (
            ["--task", "translation"],
            "`data.language` belongs to `task: causal_lm` and `task: masked_lm` and `task: parsing`, but is 'en' in a recipe of `task: "
            "translation`; leave it out.",
        ),
        (
            # Also where the value is the default of another task.
            ["--num_beams", "4"],
            "`decoding.num_beams` belongs to `task: translation` and `task: parsing`, but is 4 in a recipe of `task: causal_lm`; "
            "leave it out.",
        ),
        (
            ["--source_tokens_per_batch", "500"],
            "`training.source_tokens_per_batch` belongs to tasks with two sides, but is 500 in a recipe of `task: causal_lm`; "
            "give `training.text_tokens_per_batch` instead.",
        ),
        (["--text_tokens_per_batch", "0"], "`training.text_tokens_per_batch` must be positive, but is 0."),
        (
            ["--text_tokens_per_batch", "5"],
            "`training.text_tokens_per_batch` must hold a sentence of `data.max_length` = 256 tokens, but is 5.",
        ),
        (
            ["--text_column", "body"],
            "`data.text_column` is for a `data.dataset`, but is 'body' without one; leave it out.",
        ),
        (
            ["--task", "casual_lm"],
            "`task` must be 'translation' or 'causal_lm' or 'masked_lm' or 'parsing', but is 'casual_lm'.",
        ),
        (
            ["--train_text", "null"],
            "Exactly one of `data.corpus`, `data.dataset` and `data.train_text` must be given, but none is.",
        ),
    ],
)
def test_keys_of_another_task_are_refused_by_name(load, overrides, message):
    with pytest.raises(ValueError) as error:
        load(overrides)
    assert str(error.value) == message


def test_the_language_must_be_given(load):
    with pytest.raises(ValueError) as error:
        load(data={"train_text": "train.txt"})
    assert str(error.value) == "`data.language` must be given in the recipe, but is missing."


def test_a_record_with_the_keys_of_all_tasks_is_read(load, tmp_path):
    recipe = load()
    path = tmp_path / "record.yaml"
    path.write_text(yaml.safe_dump(dataclasses.asdict(recipe)), encoding="utf-8")
    assert load_recipe(path, is_record=True) == recipe
    with pytest.raises(
        ValueError, match="^`data.both_directions` belongs to `task: translation`, but is False in a recipe"
    ):
        load_recipe(path)
