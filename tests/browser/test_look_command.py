"""The command `vaswani look`, end to end and with bad input."""

import json
from pathlib import Path

import pytest
from transformers import GPT2Config

TEXT = "one two five three"


@pytest.fixture
def look(vaswani, tmp_path):
    """Run `vaswani look`. Return the exit code, the standard output, the last error and the output file."""

    def run(model, *words, output: Path = tmp_path / "page.html"):
        code, out, error = vaswani("look", str(model), "--output", str(output), *words, "--device", "cpu")
        return code, out, error, output

    return run


def explanation_in(page: Path) -> dict:
    content = page.read_text(encoding="utf-8").split('id="explanation">')[1].split("</script>")[0]
    return json.loads(content)


def test_look_writes_the_page_of_a_translation(look, word_checkpoint, word_translator):
    code, out, _, page = look(word_checkpoint, "--text", TEXT, "--num_beams", "3")
    assert code == 0
    (translation,) = word_translator.translate([TEXT], num_beams=3)
    assert out == f"{translation}\n"
    explanation = explanation_in(page)
    assert explanation["target_text"] == translation
    assert explanation["search"]["num_beams"] == 3
    assert explanation["model"] == word_checkpoint


@pytest.mark.parametrize(("text", "number"), [("Eins two. Three one.", 2), ("Eins two.", 1)])
def test_a_text_of_several_sentences_is_one_input(look, word_checkpoint, caplog, text, number):
    code, _, _, page = look(word_checkpoint, "--text", text)
    assert (code, explanation_in(page)["source_text"]) == (0, text)
    warnings = [record.getMessage() for record in caplog.records if record.name == "vaswani_hf.cli.look"]
    expected = (
        "`--text` has 2 sentences, and the page explains the text as one input of the model. If the translation "
        "lacks a sentence, write a page for each sentence."
    )
    assert warnings == ([expected] if number > 1 else [])


def test_look_explains_a_given_translation(look, word_checkpoint):
    code, out, _, page = look(word_checkpoint, "--text", TEXT, "--target", "vier eins")
    assert (code, out) == (0, "vier eins\n")
    assert explanation_in(page)["is_given"] is True


def test_look_explains_other_models_of_transformers(look, other_translator, tmp_path):
    other_translator.model.save_pretrained(tmp_path / "other")
    other_translator.source_tokenizer.save_pretrained(tmp_path / "other")
    code, _, error, page = look(
        tmp_path / "other", "--text", TEXT, "--max_new_tokens", "8", "--num_beams", "2"
    )
    assert (code, error) == (0, "")
    assert explanation_in(page)["search"]["length_penalty_type"] == "power"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", " "), "`--text` must contain a word"),
        (("--text", TEXT, "--target", ""), "`--target` must contain a word"),
        (("--text", "one " * 500), "`text` must be short enough for a page of 1.5 MB"),
    ],
)
def test_a_bad_text_writes_no_page(look, word_checkpoint, words, message):
    code, out, error, page = look(word_checkpoint, *words)
    assert (code, out) == (2, "")
    assert message in error
    assert not page.exists()


def test_an_output_that_exists_is_kept(look, word_checkpoint, tmp_path):
    page = tmp_path / "old.html"
    page.write_text("old")
    code, _, error, _ = look(word_checkpoint, "--text", TEXT, output=page)
    assert code == 2
    assert "`--output` must be a new file" in error
    assert page.read_text() == "old"


def test_a_model_without_an_encoder(look, tmp_path):
    GPT2Config(n_layer=1, n_head=1, n_embd=8).save_pretrained(tmp_path / "gpt2")
    code, _, error, _ = look(tmp_path / "gpt2", "--text", TEXT)
    assert code == 2
    assert "`model` must be an encoder-decoder model" in error
