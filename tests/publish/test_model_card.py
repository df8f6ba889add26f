"""Cards of trained runs contain only recorded facts, their code snippets run, and wrong licences are
refused.
"""

import io
import json
import re
import shutil
import subprocess
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from factories import add_languages, files_in, write_recipe
from huggingface_hub import ModelCard
from jinja2 import Environment, meta
from safetensors.torch import load_file, save_file
from sentences import refused, rows

from vaswani_hf.data.toy_corpora import number_pairs
from vaswani_hf.publish.certificate import hashes_of_weights
from vaswani_hf.publish.license_text import license_text
from vaswani_hf.publish.model_card import CardContext, model_card
from vaswani_hf.publish.push import push, stage_repository
from vaswani_hf.publish.staging import check_card
from vaswani_hf.recipe import load_recipe
from vaswani_hf.recipe.published import published_recipe
from vaswani_hf.training import train
from vaswani_hf.training.run_results import LONGEST_EXAMPLE, _shareable_texts
from vaswani_hf.version import __version__

ROOT = Path(__file__).parents[2]
RUN = {
    "tokenizer.vocab_size": 270,
    "model.d_model": 8,
    "model.encoder_attention_heads": 8,
    "model.decoder_attention_heads": 8,
    "model.encoder_ffn_dim": 8,
    "model.decoder_ffn_dim": 8,
    "training.max_steps": 2,
    "training.save_steps": 1,
    "decoding.max_length": 6,
    "data.numbers_train_size": 100,
}
NOT_KNOWN = "not known"


def run(folder, *overrides, **changes) -> Path:
    """A trained checkpoint."""
    path = write_recipe(folder / "given.yaml", {**RUN, **changes}, output_dir=str(folder / "a run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaswani_hf.data.toy_corpora.NUMBERS_HELD_OUT", 10)
        train(load_recipe(path, overrides))
    return folder / "a run"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> Path:
    """A run on the corpus of the quick start, for which all facts are known."""
    return run(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A run on two text files without validation and test, with two vocabularies."""
    folder = tmp_path_factory.mktemp("alice")
    data = {"source_language": "en", "target_language": "de", "max_length": 64, "license": "cc-by-sa-4.0"}
    for side, language in (("source", "en"), ("target", "de")):
        path = folder / f"train.{language}.txt"
        path.write_text("".join(pair[side] + "\n" for pair in number_pairs(50, 1, "train")), encoding="utf-8")
        data[f"train_{side}"] = str(path)
    data["attribution"] = "Alice, who wrote it"
    changes = {"data.numbers_train_size": None, "data.corpus": None}
    changes |= {f"data.{key}": value for key, value in data.items()}
    return run(folder, "--shared_vocabulary", "false", "--tokenizer.lowercase=true", **changes)


@pytest.fixture
def copy(tmp_path):
    """Return a copy of a checkpoint that a test may change."""

    def copy(folder, without=()):
        shutil.copytree(folder, tmp_path / "copy")
        for name in without:
            (tmp_path / "copy" / name).unlink()
        return tmp_path / "copy"

    return copy


def change(folder, section, **keys) -> Path:
    """Change keys of a section in the recipe of a checkpoint."""
    path = folder / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    recipe[section] |= keys
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder


def results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def table_of(card) -> dict[str, str]:
    """The table of the training."""
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", card.text, re.MULTILINE))


def snippets(card) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", card.text, re.MULTILINE | re.DOTALL)


def test_the_metadata_is_that_of_the_run(numbers):
    card, recorded = model_card(numbers, "alice/words"), results(numbers)
    metadata = ModelCard(str(card)).data.to_dict()
    assert metadata["language"] == ["en", "de"]
    assert metadata["license"] == "apache-2.0"
    assert (metadata["pipeline_tag"], metadata["library_name"]) == ("translation", "transformers")
    assert {"translation", "vaswani"} <= set(metadata["tags"])
    assert "datasets" not in metadata and "base_model" not in metadata
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert model["name"] == "words"
    assert result["task"]["type"] == "translation"
    assert result["dataset"] == {"name": "numbers", "type": "numbers", "split": "test"}
    decoding = {"num_beams": 2, "length_penalty": 0.6, "length_penalty_type": "gnmt", "max_length": 6}
    for metric, (name, title) in zip(result["metrics"], (("bleu", "BLEU"), ("chrf", "chrF")), strict=True):
        assert (metric["type"], metric["name"]) == (name, title)
        assert metric["value"] == round(recorded["test"][name], 2)
        assert metric["args"]["signature"] == recorded["test"][f"{name}_signature"]
        assert decoding.items() <= metric["args"].items()


def test_the_text_is_that_of_the_run(numbers):
    card, training = model_card(numbers, "alice/words"), results(numbers)["training"]
    table = table_of(card)
    assert table["parameters"] == f"{training['parameters']:,}"
    assert (table["optimizer steps"], table["target tokens"]) == ("2", f"{training['target_tokens']:,}")
    assert training["target_tokens"] > 0 and training["seconds"] > 0
    assert table["time"] == f"{training['seconds']} seconds"
    assert table["hardware"] == training["hardware"]
    assert re.fullmatch(r".+, \d+ logical cores?, \d+ threads?", training["hardware"])
    assert table["training data"] == "`numbers`, split `train`: 100 of 100 sentence pairs"
    assert table["final weights"] == "the weights of the last step"
    assert all(name in table["versions"] for name in ("vaswani_hf", "torch", "transformers", "sacrebleu"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"])
    assert NOT_KNOWN not in card.text
    search = '`length_penalty_type` "gnmt", `max_length` 6, `max_length_a` 1.0, `max_length_b` 50'
    assert search in card.text
    assert "![Loss over the steps of the training](training_curve.png)" in card.text
    assert "four hundred and seventy-one thousand and five" in card.text
    assert "\n\n\n" not in card.text
    assert "[Attention Is All You Need](https://arxiv.org/abs/1706.03762)" in card.text
    assert card.text.count("```bibtex\n@") == 2
    assert f"version = {{{__version__}}}" in card.text
    assert 'snippets with `pipeline("translation")` on this page work with transformers 5.' in card.text


def test_the_recipe_on_the_card_trains_and_names_no_folder(texts, tmp_path):
    (block,) = re.findall(
        r"^```yaml\n(.*?)^```$", model_card(texts, "alice/words").text, re.MULTILINE | re.DOTALL
    )
    (tmp_path / "recipe.yaml").write_text(block)
    published, recorded = load_recipe(tmp_path / "recipe.yaml"), load_recipe(texts / "recipe.yaml")
    assert published == published_recipe(recorded)
    assert published.output_dir == "a run"
    assert (published.data.train_source, published.data.train_target) == ("train.en.txt", "train.de.txt")
    assert (published.model, published.training) == (recorded.model, recorded.training)


def test_a_published_recipe_does_not_push_where_its_owner_pushed(tmp_path):
    path = write_recipe(tmp_path / "recipe.yaml", output_dir=".", publishing={"license": "mit"})
    pushed = ["--push_to_hub", "true", "--hub_model_id", "alice/secret"]
    published = published_recipe(load_recipe(path, pushed))
    assert (published.publishing.push_to_hub, published.publishing.hub_model_id) == (False, None)
    assert published.publishing.license == "mit"
    assert published.output_dir not in ("", ".")


@pytest.mark.parametrize("which", ["numbers", "texts"])
def test_nothing_of_the_machine_is_in_the_record_that_others_see(request, which):
    folder = request.getfixturevalue(which)
    seen = str(model_card(folder, "user/words")) + (folder / "results.json").read_text()
    assert str(folder.parent) not in seen and folder.parent.name not in seen
    home = str(Path.home())
    assert "/tmp" not in seen and (home == "/" or home not in seen)


def test_every_snippet_runs_as_written_against_the_hub(texts, repo_id, fresh_python):
    push(texts, repo_id)
    codes = snippets(model_card(texts, repo_id))
    with_package = [_printed(code) for code in codes[:2]]
    translation = with_package[0].removesuffix("\n")
    assert translation.strip() and with_package[1] == f"{[translation]}\n"
    assert [code.count('subfolder="target_tokenizer"') for code in codes] == [0, 1, 0, 1]
    assert "trust_remote_code" not in codes[0] + codes[1]
    assert all("trust_remote_code=True" in code and "vaswani_hf" not in code for code in codes[2:])
    assert all("revision=" in code for code in codes[2:])
    code = "\n".join(["import sys", "sys.modules['vaswani_hf'] = None", *codes[2:]])
    result = subprocess.run([fresh_python, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "".join(with_package)


def test_the_snippets_of_one_vocabulary_load_one_tokenizer(numbers):
    codes = snippets(model_card(numbers, "alice/words"))
    assert len(codes) == 4 and not any("target_tokenizer" in code for code in codes)
    assert all("print(tokenizer.batch_decode(" in codes[number] for number in (1, 3))


def _printed(code) -> str:
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "the card", "exec"), {})
    return out.getvalue()


def test_what_a_run_had_not_is_not_on_its_card(texts):
    card = model_card(texts, "alice/words")
    metadata = card.data.to_dict()
    assert metadata["license"] == "cc-by-sa-4.0"
    assert not {"model-index", "metrics", "datasets"} & metadata.keys()
    assert "The scores are not known, because the model was not scored on a test set." in card.text
    table = table_of(card)
    assert table["training data"] == "`train.en.txt` and `train.de.txt`: 50 of 50 sentence pairs"
    assert table["validation data"] == "none"
    assert table["shape"].endswith("vocabulary 270 and 270")
    assert "Training data: Alice, who wrote it" in card.text
    assert "It is not settled whether a model is an adaptation" in card.text
    assert "The tokenizer lowercases all text." in card.text
    assert "The model reads the whole sentence at once." in card.text
    # The run has no test split for examples.
    assert "## Examples" not in card.text and "widget" not in metadata
    assert not (texts / "attention.png").exists() and "](attention.png)" not in card.text


RECORD = ("recipe.yaml", "results.json", "training_curve.png")


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({}, NOT_KNOWN),
        ({"d_model": 8, "vocab_size": 270}, "d_model 8, vocabulary 270"),
        ({"decoder_layers": 2, "decoder_attention_heads": 1}, "2 layers, 1 head"),
        (
            {"cross_attention_score": "additive", "attention_score": "scaled_dot", "attention_window": [3]},
            "`cross_attention_score` additive, `attention_window` [3]",
        ),
    ],
)
def test_the_shape_has_only_the_numbers_of_the_config(numbers, copy, config, shape):
    folder = copy(numbers, RECORD)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert table_of(model_card(folder, "alice/words"))["shape"] == shape


def test_a_checkpoint_without_a_record_says_what_is_not_known(numbers, copy):
    folder = copy(numbers, RECORD)
    card = model_card(folder, "alice/words")
    assert set(card.data.to_dict()) == {"library_name", "pipeline_tag", "tags"}
    assert "There is no record of the training of this model." in card.text
    assert "the two languages are not known" in card.text
    assert "The purpose of the model is not known" in card.text
    assert "The scores are not known, because no score was recorded." in card.text
    assert "The licence is not known. Ask the publisher before you use the model." in card.text
    assert "The recipe is not known." in card.text
    assert "training_curve" not in card.text
    table = table_of(card)
    # These values come from the weights and the config.
    known = {name: table.pop(name) for name in ("parameters", "shape")}
    assert known["parameters"] == f"{results(numbers)['training']['parameters']:,}"
    assert known["shape"] == "1 + 1 layers, 8 heads, d_model 8, d_ff 8, vocabulary 270"
    assert set(table.values()) == {NOT_KNOWN}
    stated = model_card(folder, "alice/words", license="mit")
    assert stated.data.license == "mit"


def test_the_code_for_a_model_with_language_tokens_names_languages(numbers, copy):
    folder = copy(numbers)
    add_languages(folder, de="x", fr="z", en="y")
    code = snippets(model_card(folder, "alice/words"))
    assert len(code) == 2
    assert all(', src_lang="en", tgt_lang="fr")[0]' in one for one in code)


def test_a_run_that_was_not_finished_says_so(numbers, copy):
    card = model_card(copy(numbers, ["results.json"]), "alice/words", base_model="alice/base")
    assert "The run of this model has no results" in card.text
    assert card.data.base_model == "alice/base" and "made from `alice/base`" in card.text
    assert card.data.language == ["en", "de"]
    assert card.data.eval_results is None
    assert table_of(card)["optimizer steps"] == NOT_KNOWN


def test_results_without_a_recipe_are_enough_for_the_scores_and_the_data(numbers, copy):
    folder, recorded = copy(numbers, ["recipe.yaml"]), results(numbers)
    card = model_card(folder, "alice/words")
    assert (card.data.language, card.data.license) == (["en", "de"], "apache-2.0")
    assert card.data.eval_results[0].dataset_name == "numbers"
    recorded["data"]["test"] = {"name": "test.en", "files": ["test.en", "test.de"]}
    (folder / "results.json").write_text(json.dumps(recorded))
    # A test file is not the id of a dataset.
    assert model_card(folder, "alice/words").data.eval_results[0].dataset_type == "unknown"
    nulls = dict.fromkeys(("training", "test", "decoding", "data", "corpus"))
    inner = {"training": {"seconds": None, "versions": None}, "test": {"bleu": None, "chrf": None}}
    for content in (nulls, nulls | inner):
        (folder / "results.json").write_text(json.dumps(content))
        card = model_card(folder, "alice/words")
        assert card.data.eval_results is None and "BLEU" not in str(card)
        table = table_of(card)
        assert table["date"] == table["epochs"] == table["hardware"] == NOT_KNOWN


def test_a_run_that_was_stopped_early_resumed_or_averaged_says_so(numbers, copy):
    folder, recorded = copy(numbers), results(numbers)
    page = "trackio:https://huggingface.co/spaces/alice/words"
    changed = {"steps": 1200, "resumed_at_step": 700, "averaged_steps": [], "seconds": 9000.0}
    recorded["training"] |= changed | {"model_tags": ["trackio", page]}
    (folder / "results.json").write_text(json.dumps(recorded))
    change(folder, "training", early_stopping_patience=3, max_steps=5000, save_steps=500)
    card = model_card(folder, "alice/words")
    table = table_of(card)
    assert table["optimizer steps"] == "1,200 of at most 5,000; early stopping ended the run"
    assert table["final weights"] == "the checkpoint with the best validation loss"
    assert table["time"] == "2.50 hours"
    assert "The run was resumed after step 700; the table shows the hardware and the versions" in card.text
    assert card.data.tags[-2:] == ["trackio", page]
    assert f"The metrics of the training: {page.removeprefix('trackio:')}\n" in card.text
    recorded["training"]["averaged_steps"] = [1, 2]
    (folder / "results.json").write_text(json.dumps(recorded))
    table = table_of(model_card(folder, "alice/words"))
    assert table["final weights"] == "mean of the checkpoints of the steps 1, 2"


PAIRS = {"corpus": None, "train_pairs": "a.jsonl"}


@pytest.mark.parametrize(
    ("data", "metadata", "text"),
    [
        # The Hub knows languages of two or three letters.
        ({**PAIRS, "target_language": "de_AT"}, "language:\n- en\n- de\n", "from `en` to `de_AT`"),
        ({**PAIRS, "target_language": "zh-Hans"}, "language:\n- en\n- zh\n", "from `en` to `zh-Hans`"),
        ({**PAIRS, "target_language": "german"}, "language:\n- en\nli", "from `en` to `german`"),
        ({"test_name": "News"}, "name: News\n", "Scores on News, `numbers`"),
        ({"test_dataset": "alice/news"}, "type: alice/news\n", "Scores on `numbers`"),
        ({"license": "other"}, "\nlicense: other\n", "is `other`, which is also the licence of the training"),
        ({"license": "unknown"}, "\nlicense: unknown\n", "The licence is not known. Ask the publisher"),
    ],
)
def test_the_data_of_the_recipe_is_on_the_card(numbers, copy, data, metadata, text):
    card = model_card(change(copy(numbers), "data", **data), "alice/words")
    assert metadata in str(card.data) and text in card.text


@pytest.mark.parametrize("name", ["copy/checkpoint-2", "best", "."])
def test_a_numbered_checkpoint_has_the_terms_of_its_run(texts, copy, name, monkeypatch, tmp_path):
    checkpoint = change(copy(texts), "data", license="research-only") / "checkpoint-2"
    (tmp_path / "best").symlink_to(checkpoint)
    monkeypatch.chdir(checkpoint)
    named = Path() if name == "." else tmp_path / name
    assert model_card(named, "alice/words").data.license_name == "research-only"
    stage_repository(named, tmp_path / "staged", "alice/words")
    assert "license: research-only" in (tmp_path / "staged" / "recipe.yaml").read_text()


def test_a_licence_that_the_publisher_chose_is_beside_that_of_the_data(texts, copy):
    folder = change(copy(texts), "data", license="cc-by-nc-4.0")
    change(folder, "publishing", license="cc-by-nc-sa-4.0")
    card = model_card(folder, "alice/words")
    assert card.data.license == "cc-by-nc-sa-4.0"
    assert "`cc-by-nc-sa-4.0`. The training data is under `cc-by-nc-4.0`." in card.text


def test_the_licence_of_an_imported_checkpoint_is_not_called_that_of_the_data(tiny_checkpoint):
    folder = tiny_checkpoint()
    origin = {"name": "theirs", "format": "Marian", "difference": None}
    record = {"origin": origin, "data": {"license": "cc-by-nc-sa-4.0"}}
    (folder / "results.json").write_text(json.dumps(record))
    text = model_card(folder, "alice/words").text
    assert "The licence of the model is `cc-by-nc-sa-4.0`.\n\n## Citation" in text
    text = model_card(folder, "alice/words", license="cc-by-nc-4.0").text
    assert "`cc-by-nc-4.0`. The imported checkpoint is under `cc-by-nc-sa-4.0`.\n\n## Cit" in text


def test_a_model_of_research_only_data_is_for_research_only(texts, copy):
    folder = change(copy(texts), "data", license="research-only")
    card = model_card(folder, "alice/words")
    assert (card.data.license, card.data.license_name) == ("other", "research-only")
    assert "**Research only.** The texts that the model was trained on may be used for res" in card.text
    stated = model_card(folder, "alice/words", license="research-only")
    assert stated.data.to_dict() == card.data.to_dict()
    with refused(
        "`license` must be research-only or left out, but is 'apache-2.0'; the training data is for research only."
    ):
        model_card(folder, "alice/words", license="apache-2.0")
    # The check also refuses a handwritten card with such a licence.
    path = folder / "README.md"
    for text in (str(card), "# No metadata"):
        path.write_text(text)
        check_card(path)
    for license in ("apache-2.0", "[apache-2.0]", "other"):
        path.write_text(f"---\nlicense: {license}\n---\n# My model")
        with pytest.raises(ValueError, match="`license` must be research-only or left out"):
            check_card(path)


FOREIGN = "must hold what `vaswani train` writes, but does not"
NO_OBJECT = "must hold a JSON object, but does not; restore it or remove it."
# A file, its content, and the beginning of the error message after the name of the file.
DAMAGED = f"""
results.json | [] | {NO_OBJECT}
results.json | {{ | {NO_OBJECT}
results.json | {{"test": {{"bleu": "x"}}}} | {FOREIGN} (`test.bleu` must be a number, but is 'x'); restore it
results.json | {{"origin": {{}}}} | {FOREIGN} (`origin.name` must be given, but is missing); restore it
results.json | {{"test": {{"bleu": 20}}}} | must hold all scores of the test set, but has `test.bleu` and no `test.chrf`;
recipe.yaml | steps: 3 | cannot be used: `steps` is not a key of a recipe
"""


def message_for(folder, file, content):
    """The error of the model card of a checkpoint whose record has this content."""
    (folder / file).write_text(content)
    with pytest.raises(ValueError) as caught:
        model_card(folder, "alice/words")
    return str(caught.value)


@pytest.mark.parametrize(("file", "content", "sentence"), rows(DAMAGED))
def test_a_damaged_record_is_named(tiny_checkpoint, file, content, sentence):
    folder = tiny_checkpoint()
    found = message_for(folder, file, content)
    assert found.startswith(f"The record '{folder / file}' {sentence}")


def test_a_damaged_certificate_is_named_if_it_belongs_to_the_weights(tiny_checkpoint):
    folder = tiny_checkpoint()
    content = {"weights": hashes_of_weights(folder), "rows": [{"engine": 3}]}
    found = message_for(folder, "certificate.json", json.dumps(content))
    record = f"The record '{folder}/certificate.json' must hold what `vaswani certify` writes"
    assert found.startswith(f"{record}, but does not (`rows[0].engine` must be")
    (folder / "certificate.json").write_text("{}")
    assert "Exports" not in str(model_card(folder, "alice/words"))


def test_a_fault_of_the_package_is_not_blamed_on_the_record(tiny_checkpoint, monkeypatch):
    monkeypatch.delattr("vaswani_hf.publish.model_card.CardContext.__init__")
    folder = tiny_checkpoint()
    (folder / "results.json").write_text("{}")
    with pytest.raises(TypeError, match="CardContext"):
        model_card(folder, "alice/words")


def test_a_card_that_is_not_utf8(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes("Übersetzer".encode("latin-1"))
    with refused(
        f"The card '{path}' must be text in UTF-8, but is not; save it as UTF-8, or move it away to get a new card."
    ):
        check_card(path)
    path.write_text("---\nlicense: mit\n---\n", encoding="utf-8-sig")
    with refused(
        f"The card '{path}' must begin with its metadata, but begins with a byte order mark; save it as UTF-8 without "
        "byte order mark."
    ):
        check_card(path)
    path.write_text("Übersetzer", encoding="utf-8")
    check_card(path)


def test_the_template_reads_only_facts():
    template = (ROOT / "model_cards" / "template.md").read_text(encoding="utf-8")
    names = meta.find_undeclared_variables(Environment().parse(template))
    assert names - {field.name for field in fields(CardContext)} == {"card_data", "in_table"}


def test_parameters_are_counted_once(tiny_checkpoint):
    folder = tiny_checkpoint()
    total = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    save_file(load_file(folder / "model.safetensors"), folder / "model-00001-of-00001.safetensors")
    assert f"| parameters | {total:,} |" in str(model_card(folder, "alice/x"))


def test_the_first_test_texts_are_the_examples_of_the_card(numbers):
    recorded = results(numbers)["examples"]
    assert len(recorded) == 5
    for example in recorded:
        assert 0 < example["confidence"] <= 1
        assert [word for word, _ in example["words"]] == example["output"].split()
    card = model_card(numbers, "alice/words")
    table = card.text.partition("## Examples")[2].partition("##")[0]
    assert table.count("\n| ") == 6
    assert (numbers / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "](attention.png)" in card.text
    widget = ModelCard(str(card)).data.to_dict()["widget"]
    assert [shown["text"] for shown in widget] == [example["source"] for example in recorded[:3]]
    assert [shown["output"]["text"] for shown in widget] == [example["output"] for example in recorded[:3]]


def test_only_short_texts_of_data_that_may_be_shared_are_examples():
    sources = [" ", "a" * (LONGEST_EXAMPLE + 1), *"bcdefg"]
    corpus = SimpleNamespace(texts={"test": {"source": sources}})
    for license, expected in {None: "", "unknown": "", "research-only": "", "cc-by-4.0": "bcdef"}.items():
        task = SimpleNamespace(data=SimpleNamespace(license=license, corpus=None))
        trainer = SimpleNamespace(corpus=corpus, task=task)
        assert _shareable_texts(trainer) == [*expected]


def test_the_publisher_chooses_the_examples(tmp_path):
    texts = ["*two* | hundred", "<b>seven</b>"]
    folder = run(tmp_path, **{"data.license": "research-only", "publishing.examples": texts})
    assert [example["source"] for example in results(folder)["examples"]] == texts
    card = model_card(folder, "alice/words")
    assert r"| \*two\* \| hundred |" in card.text and r"| \<b\>seven\</b\> |" in card.text
    assert "texts that the publisher of the model chose" in card.text


@pytest.mark.parametrize(
    ("license", "sentence"),
    [
        ("apache-2.0", "under the licence apache-2.0.\n"),
        ("cc-by-nc-sa-3.0", "https://creativecommons.org/licenses/by-nc-sa/3.0/"),
        ("cc0-1.0", "https://creativecommons.org/publicdomain/zero/1.0/"),
        ("unknown", "is not known"),
        (["mit", "cc-by-4.0"], "licence mit, cc-by-4.0 (https://creativecommons.org/licenses/by/4.0/)."),
        ([], "is not known"),
    ],
)
def test_the_text_of_a_licence(license, sentence):
    assert sentence in license_text({"license": license})


def test_the_licences_of_the_weights_and_of_the_code_are_pushed(numbers, copy, tmp_path):
    staged = tmp_path / "staged"
    folder = change(copy(numbers), "data", license="cc-by-4.0")
    stage_repository(folder, staged, "alice/words", license="research-only")
    text = (staged / "LICENSE").read_text()
    assert "may be used for research only" in text and text.endswith((ROOT / "LICENSE").read_text())
    card = (staged / "README.md").read_text()
    assert "\nlicense_link: LICENSE\n" in card and "\n  license: research-only\n" in card
    assert load_recipe(staged / "recipe.yaml", is_recorded=True).publishing.license == "research-only"


def test_files_of_the_publisher_are_pushed_unchanged(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint()
    own = {"LICENSE": b"Mine.", "handler.py": b"# Mine.", "README.md": b"By hand.\n"}
    for name, content in own.items():
        (folder / name).write_bytes(content)
    stage_repository(folder, tmp_path / "staged", "alice/words")
    staged = files_in(tmp_path / "staged")
    assert own.items() <= staged.items() and "requirements.txt" not in staged
