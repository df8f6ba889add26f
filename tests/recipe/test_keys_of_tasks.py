"""Recipes of the tasks other than translation: their keys, and the keys that they refuse by name."""

import pytest
import yaml
from sentences import rows

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

    def load(*overrides, is_recorded=False, **content):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(CAUSAL | content), encoding="utf-8")
        return load_recipe(path, list(overrides), is_recorded=is_recorded)

    return load


def test_the_record_has_only_keys_of_the_task_and_both_sides_have_the_size_of_the_text(load):
    recipe = load("--train_source=null")
    assert recipe.training.source_tokens_per_batch == recipe.training.target_tokens_per_batch == 300
    written = yaml.safe_load(recipe.to_yaml())
    assert "decoding" not in written and "train_source" not in written["data"] and written["model"] == {}
    assert written["evaluation"] == {"tokens_per_batch": 4096}
    assert load(**written) == recipe
    # The records of version 0.2 have the size of a batch for both sides, and keys of other tasks.
    written["training"] |= {"source_tokens_per_batch": 300, "target_tokens_per_batch": 300}
    written["tokenizer"]["bpe_dropout"] = 0.0
    assert load(is_recorded=True, **written) == recipe
    with pytest.raises(
        ValueError, match="^`tokenizer.bpe_dropout` belongs to `task: translation`, but is 0.0 in"
    ):
        load(**written)


REFUSED = """
--source_language=de | `data.source_language` belongs to `task: translation`, but is 'de' in a recipe of `task: causal_lm`; leave
--encoder_layers=2 | `model.encoder_layers` belongs to `task: translation` and `task: masked_lm` and `task: parsing`, but is 2 in
--task=masked_lm --decoder_layers=2 | `model.decoder_layers` belongs to `task: translation` and `task: causal_lm` and
--task=translation | `data.language` belongs to `task: causal_lm` and `task: masked_lm` and `task: parsing`, but
--num_beams=4 | `decoding.num_beams` belongs to `task: translation` and `task: parsing`, but is 4 in
--source_tokens_per_batch=500 | `training.source_tokens_per_batch` belongs to `task: translation` and `task: parsing`
--text_tokens_per_batch=0 | `training.text_tokens_per_batch` must be greater than 0, but is 0.
--text_tokens_per_batch=5 | `training.text_tokens_per_batch` must be at least `data.max_length` = 256
--text_column=body | `data.text_column` needs a `data.dataset`, but is 'body' without a dataset; leave `data.text_column` out.
--d_model=30 --decoder_attention_heads=4 | `model.d_model` must be a multiple of `model.decoder_attention_heads` unless
--task=casual_lm | `task` must be 'translation' or 'causal_lm' or 'masked_lm' or 'parsing', but is 'casual_lm'.
--train_text=null | Exactly one of `data.corpus`, `data.dataset` and `data.train_text` must be given, but none
"""


@pytest.mark.parametrize(("words", "message"), rows(REFUSED))
def test_keys_of_another_task_are_refused_by_name(load, words, message):
    with pytest.raises(ValueError) as error:
        load(*words.split())
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("task", "stack"), [("causal_lm", "decoder"), ("masked_lm", "encoder")])
def test_a_model_of_one_stack_needs_no_shape_of_the_other_stack(load, task, stack):
    shape = {
        "d_model": 36,
        f"{stack}_attention_heads": 4,
        f"{stack}_layers": 3,
        "attention_window": [1, 2, 3],
    }
    config = load(task=task, model=shape).model.make_config()
    assert (config.d_k, config.attention_window) == (9, [1, 2, 3])


def test_the_language_must_be_given(load):
    with pytest.raises(ValueError, match="^`data.language` must be given, but is missing.$"):
        load(data={"train_text": "train.txt"})
