"""The public interface of the package: its names, and the functions behind the commands."""

import json
import subprocess

import pytest

import vaswani_hf
from vaswani_hf.tasks import TASKS

RECIPE = """
output_dir: {folder}/run
data: {{source_language: en, target_language: de, corpus: numbers, numbers_train_size: 60, max_length: 64}}
tokenizer: {{vocab_size: 280}}
model:
  {{d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2,
    encoder_ffn_dim: 16, decoder_ffn_dim: 16}}
training: {{bf16: false, max_steps: 2, source_tokens_per_batch: 512, target_tokens_per_batch: 512}}
"""
# Names that could be imported before there was a list of public ones.
OLD_NAMES = """
    TranslationPipeline VaswaniConfig VaswaniDecoder VaswaniDecoderConfig VaswaniDecoderModel VaswaniEncoder
    VaswaniEncoderConfig VaswaniEncoderModel VaswaniForCausalLM VaswaniForMaskedLM VaswaniForSeq2SeqLM VaswaniModel
    VaswaniPreTrainedModel register_translation_pipeline __version__
""".split()


def test_public_names_exist_and_say_what_they_are():
    assert len(vaswani_hf.__all__) == 16
    assert {*vaswani_hf.__all__} <= {*dir(vaswani_hf)}
    for name in (*vaswani_hf.__all__, *OLD_NAMES):
        assert getattr(vaswani_hf, name).__doc__, name
    for name in ("evaluate", "export", "load_recipe", "push", "train"):
        assert {"Args:", "Returns:", "Raises:"} <= {*vaswani_hf.__dict__[name].__doc__.split()}, name
    with pytest.raises(AttributeError, match="^module 'vaswani_hf' has no attribute 'nothing'$"):
        vaswani_hf.nothing  # noqa: B018


def test_heavy_names_are_imported_when_they_are_used(fresh_python):
    code = "import vaswani_hf, sys; a = {*sys.modules}; vaswani_hf.Translator; print('vaswani_hf.translation' in a)"
    done = subprocess.run([fresh_python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_recipe_is_trained_and_its_model_evaluated_and_exported(tmp_path, few_numbers):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path), encoding="utf-8")
    recipe = vaswani_hf.load_recipe(tmp_path / "recipe.yaml")
    results = vaswani_hf.train(recipe)
    pairs = TASKS["translation"].load_split(recipe.data, "test", recipe.seed)
    sources, references = [pair["source"] for pair in pairs], [pair["target"] for pair in pairs]
    scores = vaswani_hf.evaluate(str(tmp_path / "run"), sources, references, device="cpu", dtype="float32")
    assert scores["perplexity"] == pytest.approx(results["test"]["perplexity"], rel=1e-4)
    assert scores["sentences"] == len(scores["translations"]) == 10
    translator = vaswani_hf.Translator.from_pretrained(str(tmp_path / "run"), "cpu")
    assert vaswani_hf.evaluate(translator, sources, references)["bleu"] == scores["bleu"]
    with pytest.raises(ValueError, match="^There must be one reference per source sentence"):
        vaswani_hf.evaluate(translator, sources, references[1:])
    compared = vaswani_hf.export(tmp_path / "run", tmp_path / "marian", "marian")
    assert (
        json.loads((tmp_path / "marian" / "config.json").read_text())["model_type"] == "marian" and compared
    )


def test_a_checkpoint_is_pushed(tiny_checkpoint, repo_id, capsys):
    url = vaswani_hf.push(tiny_checkpoint(), repo_id, private=True)
    assert repo_id in url and "checked: downloaded" in capsys.readouterr().out
