"""The sizes that `vaswani init` chooses for corpora of different sizes."""

import pytest
import yaml

from vaswani_hf.recipe import make_recipe
from vaswani_hf.training import new_recipe
from vaswani_hf.training.new_recipe import new_recipe as write_new_recipe


@pytest.mark.parametrize(
    ("num_pairs", "tokens", "vocabulary", "width", "dropout"),
    [
        (200, 1_000, 300, 128, 0.3),
        (29_000, 400_000, 10_000, 128, 0.3),
        (166_000, 1_400_000, 8000, 128, 0.1),
        (1_000_000, 20_000_000, 16_000, 256, 0.1),
        (4_500_000, 120_000_000, 37_000, 512, 0.1),
    ],
)
def test_each_size_of_corpus_has_a_recipe_that_loads(
    monkeypatch, num_pairs, tokens, vocabulary, width, dropout
):
    corpus = new_recipe._Corpus(num_pairs, 20_000, vocabulary, tokens, tokens, 12, 64, 0.001, 9.0)
    monkeypatch.setattr(new_recipe, "_survey", lambda pairs, largest: corpus)
    monkeypatch.setattr(new_recipe, "measure_speed", lambda *args: (1e4, "a machine"))
    monkeypatch.setattr(new_recipe.TranslationTask, "load_split", lambda *args: range(num_pairs))
    data = {"source_language": "en", "target_language": "no", "train_source": "a.en", "train_target": "a.no"}
    text, summary = write_new_recipe(data, "checkpoints/a", 1.0)
    recipe = make_recipe(yaml.safe_load(text))
    training = recipe.training
    assert (recipe.tokenizer.vocab_size, recipe.model.d_model, recipe.model.dropout) == (
        vocabulary,
        width,
        dropout,
    )
    assert recipe.data.target_language == "no" and recipe.training_warnings() == []
    assert 0 < training.warmup_steps < training.max_steps / 3 and training.save_steps <= training.eval_steps
    hours = (
        training.max_steps
        * training.gradient_accumulation_steps
        * training.target_tokens_per_batch
        / 1e4
        / 3600
    )
    assert f"about {hours:.2g} hours on a machine" in text and f"about {hours:.2g} hours" in summary
