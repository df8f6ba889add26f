"""The page of `vaswani export --format html` in headless Chromium: it translates, and explains a
translation.
"""

import re

import pytest

from vaswani_hf import Translator
from vaswani_hf.convert.export import export
from vaswani_hf.convert.html_engine import PAGE_FILE


@pytest.fixture
def page(word_checkpoint, browser_page, tmp_path):
    export(word_checkpoint, tmp_path / "words", "html", "float32")
    browser_page.goto((tmp_path / "words" / PAGE_FILE).as_uri())
    return browser_page


@pytest.fixture
def translator(word_checkpoint):
    return Translator.from_pretrained(word_checkpoint, "cpu", dtype="float32")


def translate(page, text):
    page.fill("#source", text)
    page.wait_for_function(
        "text => document.querySelector('.source')?.textContent.trim() === text "
        "&& document.getElementById('status').textContent.startsWith('Translated')",
        arg=text.split("\n")[0],
    )


def test_the_page_translates_each_line_while_the_user_types(page, translator):
    translate(page, "one two three\nfive")
    expected = list(translator.translate(["one two three", "five"]))
    assert [line.strip() for line in page.locator(".translation").all_inner_texts()] == expected
    assert page.locator(".line").first.locator("li").count() == 2
    page.locator(".target").first.focus()
    detail = page.locator(".detail").first.inner_text()
    assert re.fullmatch(r"\w+: probability [\d.]+ %, most attention to “\w+”", detail)
    page.select_option("#number", "1")
    page.wait_for_function("document.querySelectorAll('.line li').length === 0")
    page.fill("#source", "")
    page.wait_for_function("document.querySelectorAll('.line').length === 0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_contrast_in_both_colour_schemes(page, lowest_contrast, scheme):
    page.emulate_media(color_scheme=scheme)
    translate(page, "one two three")
    page.locator(".target").first.focus()
    assert page.locator(".aligned").count() == 1
    assert lowest_contrast() >= 4.5


def test_the_translation_begins_with_the_given_words(page, translator):
    page.fill("#prefix", "vier")
    translate(page, "one two three")
    (expected,) = translator.translate(["one two three"], target_prefixes=["vier"])
    assert page.locator(".translation").inner_text().strip() == expected


def test_the_translation_contains_the_given_phrases(page, translator):
    page.fill("#phrases", "vier ; fünf eins")
    translate(page, "one two three")
    (expected,) = translator.translate(["one two three"], must_contain=[["vier", "fünf eins"]])
    assert page.locator(".translation").inner_text().strip() == expected and "fünf eins" in expected
    assert page.locator("button.plain").count() == 0


def test_each_sentence_of_a_line_is_translated_and_explained(page, translator):
    translate(page, "one two! five.")
    (expected,) = translator.translate(["one two! five."], split_sentences=True)
    assert page.locator(".translation").inner_text().strip() == expected
    page.get_by_role("button", name="Explain sentence 2").click()
    page.locator("#view .source", has_text="five.").wait_for()


def test_the_page_explains_a_translation(page, translator):
    translate(page, "one two three")
    (expected,) = translator.translate(["one two three"])
    page.get_by_role("button", name="Explain this translation").click()
    page.locator("#view .title", has_text=expected).wait_for()
    assert page.locator("h1").count() == 1
    page.locator("#view h2", has_text="beam search").wait_for()
    # The page writes the minus sign in the score of the translation as in the score of the explanation.
    scores = re.findall(r"score (\S+)", " ".join(page.locator(".facts").all_inner_texts()))
    assert len(scores) > 1 and all(re.fullmatch(r"−\d\.\d{3}", score) for score in scores)
    # A new translation removes the explanation of the previous translation.
    translate(page, "five")
    page.wait_for_function("document.getElementById('view').childElementCount === 0")
