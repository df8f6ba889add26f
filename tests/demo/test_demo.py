"""`vaswani demo` serves a page that translates, shows confidences and alignments, and explains
translations.
"""

import shutil
import socket

import pytest

from vaswani_hf.cli import main
from vaswani_hf.demo.models import load_directions

gradio = pytest.importorskip("gradio", reason="the extra `demo` is not installed")

from vaswani_hf.demo.interface import (  # noqa: E402
    LONGEST_TEXT,
    _Actions,
    alignment_as_html,
    make_page,
    translations_as_html,
    words_as_html,
)


def test_a_reader_translates_and_opens_the_attention(hub, vaswani, launched, browser_page, both_directions):
    code, _, sentence = vaswani("demo", *both_directions, "--port", "0", "--open_browser", "false")
    assert code == 0, sentence
    page = browser_page
    page.goto(launched[0])
    page.locator("#text textarea").fill("der Hund läuft")
    page.get_by_label("number input for Translations").fill("2")
    page.get_by_role("button", name="Translate").click()
    page.wait_for_selector(".confidences ruby")
    assert page.locator("#translation textarea").input_value() == "der Hund läuft"
    words = page.locator(".confidences ruby")
    texts = words.evaluate_all("words => words.map(word => word.firstChild.textContent)")
    assert texts == ["der", "Hund", "läuft"]
    assert page.locator(".alignment line").count() == 3
    assert page.locator(".best tr").count() == 3
    # The style sheet of gradio gives tables black borders, and a button with white text a bright color.
    assert page.locator(".best td").first.evaluate("cell => getComputedStyle(cell).borderLeftWidth") == "0px"
    button = page.get_by_role("button", name="Translate")
    assert button.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(37, 99, 235)"
    page.get_by_role("button", name="Show the attention").click()
    frame = page.frame_locator(".attention iframe")
    frame.get_by_role("heading", name="Attention").first.wait_for()
    # Play the beam search until its end.
    frame.get_by_role("button", name="Play").click()
    frame.get_by_role("button", name="Play").wait_for()
    page.get_by_role("button", name="Swap the languages").click()
    page.wait_for_function("document.querySelectorAll('.attention iframe').length === 0")
    assert page.get_by_label("de → en").is_checked()
    assert page.locator("#text textarea").input_value() == "der Hund läuft"


def test_the_command_prints_the_address_and_no_advice_of_gradio(launched, both_directions, capsys):
    words = ["demo", str(both_directions[0]), "--port", "0", "--open_browser", "false"]
    assert main(words) == 0
    out, error = capsys.readouterr()
    (address,) = launched
    assert out == ""
    assert f"vaswani starts a page at {address.rstrip('/')} (Ctrl-C ends the page)\n" in error


def test_a_missing_library_and_a_model_twice_are_one_sentence(vaswani, copier_checkpoint, monkeypatch):
    code, _, sentence = vaswani("demo", copier_checkpoint, copier_checkpoint)
    assert code == 2 and sentence == f"`models` names {copier_checkpoint} twice; name it once."
    monkeypatch.setattr("vaswani_hf.version.find_spec", lambda name: None)
    code, _, sentence = vaswani("demo", copier_checkpoint)
    assert code == 2 and sentence.startswith(
        "`vaswani demo` needs more libraries; install them with `pip install"
    )


def test_a_port_in_use_is_one_sentence(vaswani, copier_checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, _, sentence = vaswani("demo", copier_checkpoint, "--port", port)
    assert code == 2 and sentence.startswith(f"`--port` must be a free port, but {port} cannot be used")


def test_every_sentence_of_a_text_is_translated(copier_checkpoint):
    [direction] = load_directions([copier_checkpoint], "cpu")
    actions = _Actions([direction])
    text = "der Hund läuft\n\nzwei, nein\nÖl"
    assert actions.translate(direction.label, text, 4, 1)[0] == text
    with pytest.raises(
        gradio.Error, match=f"at most {LONGEST_TEXT:,} characters, but has {LONGEST_TEXT + 1:,}"
    ):
        actions.translate(direction.label, "a" * (LONGEST_TEXT + 1), 4, 1)


def test_texts_are_not_read_as_html():
    found = [{"translation_text": "<b>&", "score": -0.5, "confidence": 0.25}]
    assert "<td>&lt;b&gt;&amp;</td>" in translations_as_html(found)
    assert "&lt;b&gt;<rt>0.25</rt>" in words_as_html([{"word": "<b>", "confidence": 0.25}])
    picture = alignment_as_html("<i> x", "<b> y", "0-1 1-0")
    assert picture.count("<line ") == 2 and "&lt;i&gt;" in picture and "<b>" not in picture
    # A screen reader reads the pairs of words.
    assert 'aria-label="Word alignment: &lt;i&gt; – y, x – &lt;b&gt;"' in picture
    # Chinese characters are wider than Latin characters.
    assert 'width="73"' in alignment_as_html("东京是", "y", "0-0")
    assert 'width="45"' in alignment_as_html("abc", "y", "0-0")
    # The second sentence of a text without spaces belongs to the same word of the text.
    assert alignment_as_html("一。二。", "x y", "0-0 1-1").count("<line ") == 1
    assert alignment_as_html("x", "y", "") == "" and words_as_html([]) == ""


def has_swap_button(directions):
    blocks = make_page(directions, "title").blocks.values()
    return any(block.visible for block in blocks if getattr(block, "value", "") == "⇄ Swap the languages")


def test_models_of_one_direction_have_their_names_in_the_labels(both_directions):
    first, second = both_directions
    assert has_swap_button(load_directions([str(first), str(second)], "cpu"))
    (second / "results.json").write_text((first / "results.json").read_text())
    directions = load_directions([str(first), str(second)], "cpu")
    assert [direction.label for direction in directions] == [
        "en → de (copier_en_de)",
        "en → de (copier_de_en)",
    ]
    assert not has_swap_button(directions)


def test_models_of_one_name_have_their_full_names_in_the_labels(copier_checkpoint, tmp_path, monkeypatch):
    names = [
        str(shutil.copytree(copier_checkpoint, tmp_path / run / "averaged")) for run in ("first", "second")
    ]
    directions = load_directions(names, "cpu")
    assert [direction.label for direction in directions] == names
    monkeypatch.chdir(names[0])
    assert load_directions(["."], "cpu")[0].label == "averaged"
