"""The public interface of the package: its names, and the functions behind the commands."""

import json
import textwrap

import pytest
from factories import write_recipe

import vaswani_hf

# Names that could be imported before the package had a list of public names.
OLD_NAMES = """
    TranslationPipeline VaswaniConfig VaswaniDecoder VaswaniDecoderConfig VaswaniDecoderModel VaswaniEncoder
    VaswaniEncoderConfig VaswaniEncoderModel VaswaniForCausalLM VaswaniForMaskedLM VaswaniForSeq2SeqLM VaswaniModel
    VaswaniPreTrainedModel register_translation_pipeline __version__
""".split()


def test_public_names_exist_and_say_what_they_are():
    assert len(vaswani_hf.__all__) == 20
    assert {*vaswani_hf.__all__} <= {*dir(vaswani_hf)}
    for name in (*vaswani_hf.__all__, *OLD_NAMES):
        assert getattr(vaswani_hf, name).__doc__, name
    for name in ("evaluate", "export", "import_checkpoint", "load_recipe", "push", "train"):
        assert {"Args:", "Returns:", "Raises:"} <= {*vaswani_hf.__dict__[name].__doc__.split()}, name
    with pytest.raises(AttributeError, match="^module 'vaswani_hf' has no attribute 'nothing'$"):
        vaswani_hf.nothing  # noqa: B018


def test_the_tour_in_the_docstring_of_the_package_runs(tmp_path, few_numbers, hub, monkeypatch):
    text = vaswani_hf.__doc__.strip()
    tour = textwrap.dedent(text.split("\n\n", 1)[1].rpartition("\n\n")[0])
    changes = {"training.max_steps": 2, "data.numbers_train_size": 60}
    path = write_recipe(tmp_path / "recipe.yaml", changes, output_dir=str(tmp_path / "run"))
    recipe = vaswani_hf.load_recipe(path)
    monkeypatch.setattr(vaswani_hf, "load_recipe", lambda name: recipe)
    monkeypatch.setenv("HF_TOKEN", hub.add_token("user"))
    monkeypatch.chdir(tmp_path)
    exec(tour, {})
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    pairs = recipe.make_task().load_split("test")
    sources, references = [pair["source"] for pair in pairs], [pair["target"] for pair in pairs]
    scores = vaswani_hf.evaluate(str(tmp_path / "run"), sources, references, device="cpu", dtype="float32")
    assert scores["perplexity"] == pytest.approx(results["test"]["perplexity"], rel=1e-4)
    assert scores["sentences"] == len(scores["translations"]) == 10
    translator = vaswani_hf.Translator.from_pretrained(str(tmp_path / "run"), "cpu")
    assert vaswani_hf.evaluate(translator, sources, references)["bleu"] == scores["bleu"]
    with pytest.raises(ValueError, match="^There must be one reference per source sentence"):
        vaswani_hf.evaluate(translator, sources, references[1:])
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["model_type"] == "marian"
