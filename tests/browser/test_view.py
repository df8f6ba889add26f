"""The page of `vaswani look` in headless Chromium."""

import re
from dataclasses import replace
from importlib.resources import files

import pytest
import torch

from vaswani_hf.browser.explain import explain
from vaswani_hf.browser.page import page_of

TEXT = "one two five three"


@pytest.fixture(scope="module")
def explanation(word_translator):
    return explain(word_translator, TEXT, num_beams=3, name="words")


@pytest.fixture
def look(browser_page, explanation, tmp_path):
    """Open the page of the explanation at a fragment such as "#kind=decoder"."""
    path = tmp_path / "page.html"
    path.write_text(page_of(explanation), encoding="utf-8")

    def open_page(fragment: str = ""):
        # A page with only another fragment would not load again.
        browser_page.goto("about:blank")
        browser_page.goto(f"file://{path}{fragment}")
        return browser_page

    return open_page


def test_each_row_has_the_token_that_its_weights_belong_to(look, explanation, word_translator):
    page = look("#unit=tokens&heads=2&layer=1")
    target = torch.tensor([[token.id for token in explanation.decoder_input.tokens]])
    inputs = word_translator.source_tokenizer([TEXT], return_tensors="pt")
    with torch.inference_mode():
        outputs = word_translator.model(**inputs, decoder_input_ids=target, output_attentions=True)
    sides = {
        "encoder": (explanation.source, explanation.source),
        "decoder": (explanation.decoder_input, explanation.decoder_input),
        "cross": (explanation.decoder_input, explanation.source),
    }
    for kind, (rows, columns) in sides.items():
        page.check(f"input[value={kind}]", force=True)
        shown = page.evaluate(
            """() => [".matrix tbody th", ".matrix thead th", ".words.row button", ".words.column button"].map(
                (place) => [...document.querySelectorAll(place)].map((one) => one.textContent))"""
        )
        row_texts = [token.text.strip() or "␣" for token in rows.tokens]
        column_texts = [token.text.strip() or "␣" for token in columns.tokens]
        # The page writes a hyphen before a token that continues a word.
        shown = [[text.removeprefix("-") for text in texts] for texts in shown]
        assert shown == [row_texts, column_texts, row_texts, column_texts]
        cells = page.evaluate(
            """() => [...document.querySelectorAll(".matrix tbody td")].map((cell) => Number(cell.textContent))"""
        )
        expected = getattr(outputs, f"{kind}_attentions")[0][0, 1]
        torch.testing.assert_close(torch.tensor(cells).view(expected.shape), expected, atol=0.0051, rtol=0)


def test_heads_layers_and_words_are_chosen_and_kept_in_the_address(look):
    page = look()
    chips = page.locator(".chip")
    assert chips.count() == 4
    chips.nth(1).click()
    assert [chip.get_attribute("aria-pressed") for chip in chips.all()] == ["true", "false", "true", "true"]
    assert "heads=1%2C3%2C4" in page.url
    chips.nth(2).dblclick()
    assert [chip.get_attribute("aria-pressed") for chip in chips.all()] == ["false", "false", "true", "false"]
    assert set(
        page.evaluate("[...document.querySelectorAll('.links line')].map((one) => one.dataset.head)")
    ) == {"2"}
    page.get_by_label("Layer").fill("1")
    page.locator(".words.row button").nth(2).click()
    page.locator(".sentence button").nth(1).click()
    url = page.url
    for part in ("heads=3", "layer=1", "pin=row-3", "word=2"):
        assert part in url
    shown = page.locator("main").inner_text()
    again = look("#" + url.split("#")[1])
    assert again.locator("main").inner_text() == shown
    assert again.locator(".links line").count() > 0
    assert set(
        again.evaluate("[...document.querySelectorAll('.links line')].map((one) => one.dataset.row)")
    ) == {"2"}


def test_a_word_under_the_pointer_shows_only_its_lines(look):
    page = look()
    count = page.locator(".links line").count()
    page.locator(".words.column button").nth(1).hover()
    columns = page.evaluate("[...document.querySelectorAll('.links line')].map((one) => one.dataset.column)")
    assert set(columns) == {"1"}
    assert "receives attention from" in page.locator(".attention .detail").inner_text()
    page.mouse.move(0, 0)
    assert page.locator(".links line").count() == count


def test_a_word_stays_in_its_place_under_the_pointer(look):
    """On a narrow screen, the text about the word has more lines than the text before."""
    page = look()
    page.set_viewport_size({"width": 200, "height": 900})
    word = page.locator(".words.column button").nth(1)
    word.scroll_into_view_if_needed()
    before = word.bounding_box()
    word.hover()
    assert word.bounding_box() == before


def test_the_keyboard_reaches_every_part(look):
    page = look()
    row = page.locator(".words.row button")
    row.first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.place") == "row-2"
    page.keyboard.press("Enter")
    assert row.nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    assert row.nth(1).get_attribute("aria-pressed") == "false"
    page.locator(".chip").nth(3).focus()
    page.keyboard.press("Shift+Enter")
    assert "heads=4" in page.url
    page.get_by_label("Sub-words").focus()
    page.keyboard.press("ArrowLeft")
    # Every control has an accessible name.
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input")].filter((one) =>
            !one.textContent.trim() && !one.getAttribute("aria-label") && !one.closest("label")).length"""
    )
    assert nameless == 0
    # A user of speech input says the visible text of a button.
    assert page.evaluate(
        """() => [...document.querySelectorAll("button[aria-label]")].every((one) =>
            one.getAttribute("aria-label").startsWith(one.textContent))"""
    )


def test_why_this_word(look, explanation):
    page = look("#word=1")
    choice = explanation.words[0]
    panel = " ".join(page.locator(".panel").inner_text().split())
    assert explanation.target.words[0].text in panel
    for other in choice.runners_up:
        assert " ".join(other.translation.split()) in panel
    assert page.locator(".bars li").count() == 4
    assert "step" in panel or "beam" in panel


def test_the_replay_shows_the_tree_and_searches_again(look, explanation):
    record = explanation.search
    page = look("#step=1")
    shown = page.evaluate(
        "[...document.querySelectorAll('.plane button')].map((one) => Number(one.dataset.node))"
    )
    kept = [i for i, node in enumerate(record.nodes) if node.step == 1 and node.state != "dropped"]
    assert sorted(shown) == kept
    assert page.locator(".replay table").first.locator("tbody tr").count() == record.num_candidates
    page = look()
    finished = page.locator(".replay table").last.locator("tbody tr").first.inner_text()
    assert explanation.target_text in finished
    page.locator(".plane button").first.click()
    assert "has the sum" in page.locator(".replay .detail").inner_text()
    page.get_by_label("Temperature").fill("0")
    assert "temperature=0.3" in page.url
    assert "recorded tree" in page.locator(".note").inner_text()
    page.get_by_role("button", name="Recorded settings").click()
    assert "temperature" not in page.url
    assert page.locator(".note").inner_text() == ""
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("document.querySelector('.play').textContent === 'Play'")


def test_impossible_values_in_the_address_are_ignored(look):
    page = look(
        "#kind=x&layer=99&heads=0,7&word=-3&step=1e9&node=x&temperature=7&penalty=nan&pin=row-99&unit=z"
    )
    assert page.locator(".chip[aria-pressed=true]").count() == 0
    assert "Choose a head" in page.locator(".attention .detail").inner_text()
    page.get_by_role("button", name="All heads").click()
    assert page.locator(".links line").count() > 0


def test_a_page_without_a_recorded_search_says_why(browser_page, explanation, tmp_path):
    hidden = replace(explanation, search=None, search_note="No steps were recorded.")
    path = tmp_path / "page.html"
    path.write_text(page_of(hidden), encoding="utf-8")
    browser_page.goto(f"file://{path}#word=1")
    assert "No steps were recorded." in browser_page.locator(".replay").inner_text()
    assert browser_page.locator(".plane").count() == 0


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("one", None),
        ("one two " * 19, None),
        ("one two", ""),
        ("</script><script>one()</script> <!-- {{title}} ${two} \0 \u2028", "zwei</script> <!--"),
        ("שלום עולם", "مرحبا بالعالم"),
    ],
    ids=["one word", "150 characters", "an empty translation", "HTML", "right to left"],
)
def test_unusual_texts(browser_page, word_translator, tmp_path, text, target):
    """`browser_page` checks that the console has no errors."""
    explanation = explain(word_translator, text, target, num_beams=2, max_new_tokens=8)
    path = tmp_path / "page.html"
    path.write_text(page_of(explanation), encoding="utf-8")
    browser_page.goto(f"file://{path}#word=1")
    shown = browser_page.locator("h1").text_content()
    assert shown == (explanation.target_text or "(empty translation)")
    assert browser_page.locator(".source").text_content() == text
    assert browser_page.title().strip()
    direction = browser_page.evaluate("getComputedStyle(document.querySelector('h1')).unicodeBidi")
    assert direction == "plaintext"


def test_the_tree_begins_with_the_result_in_view(look):
    """The tree of a long translation is wider than the screen, and the result is at the right end."""
    page = look()
    page.set_viewport_size({"width": 300, "height": 900})
    page.reload()
    page.wait_for_function("document.querySelector('.tree').scrollLeft > 0")
    result = page.locator(".plane button.finished.leading").bounding_box()
    assert 0 < result["x"] < 300


def test_all_head_colours_differ_from_a_dark_page(look):
    script = files("vaswani_hf.browser").joinpath("view", "attention.js").read_text(encoding="utf-8")
    colours = re.findall("#[0-9a-f]{6}", script)
    page = look()
    page.emulate_media(color_scheme="dark")
    contrasts = page.evaluate(
        """(colours) => {
          const luminance = (colour) => {
            // The browser gives a mixed colour as "color(srgb 0.2 0.4 0.6)".
            const scale = colour.startsWith("rgb") ? 255 : 1;
            const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number).map((value) => value / scale)
              .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
          };
          const back = luminance(getComputedStyle(document.body).backgroundColor);
          const line = document.querySelector(".links line");
          return colours.map((colour) => {
            line.style.setProperty("--colour", colour);
            return (luminance(getComputedStyle(line).stroke) + 0.05) / (back + 0.05);
          });
        }""",
        colours,
    )
    assert len(contrasts) == 16
    # WCAG 2.2 asks for a contrast of at least 3 between a line and its background.
    assert min(contrasts) >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_and_wide_screens_in_both_colour_schemes(look, lowest_contrast, scheme):
    page = look()
    page.emulate_media(color_scheme=scheme)
    for width in (360, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    back, text = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (brightness(back) < brightness(text)) == (scheme == "dark")
    page.locator(".chip").first.click()
    assert lowest_contrast() >= 4.5


def brightness(colour: str) -> int:
    """The sum of the three numbers of a colour such as "rgb(1, 2, 3)"."""
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
