"""Fixtures: a page in headless Chromium without a network, and small models whose beams differ."""

import functools
import shutil

import pytest
import torch
from factories import save_checkpoint, stacks, tiny_tokenizer
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration
from word_model import train_on_words, trained_on_words

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.translator_vaswani import BaseTranslator

TEXTS = ("one two three four five eins zwei drei vier fünf",)
# Models of other classes of transformers, with the special tokens of the tokenizers of this package.
IDS = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 0}
MARIAN_SIZES = {"d_model": 32, "max_position_embeddings": 64}
MARIAN_SIZES |= stacks(layers=2, attention_heads=2, ffn_dim=32)
T5_SIZES = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2}
OTHER_KINDS = {
    "marian": (MarianMTModel, MarianConfig, MARIAN_SIZES),
    "t5": (T5ForConditionalGeneration, T5Config, T5_SIZES),
}
# The lowest contrast ratio (WCAG 2.2) of a text and its background, with all weights and doubts at 1.
LOWEST_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const back = numbers(getComputedStyle(document.body).backgroundColor);
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((value) => value / 255).map((value) =>
      value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrasts = [...document.querySelectorAll(".matrix td, .matrix th, button, .choice span, .aligned")].map((one) => {
    one.style.setProperty("--weight", 1);
    one.style.setProperty("--doubt", 1);
    const style = getComputedStyle(one);
    const [red, green, blue, opacity = 1] = numbers(style.backgroundColor);
    const mixed = [red, green, blue].map((value, i) => opacity * value + (1 - opacity) * back[i]);
    return Math.min(...[one, ...one.querySelectorAll("span")].map((part) => {
      const two = [luminance(numbers(getComputedStyle(part).color)), luminance(mixed)];
      return style.opacity === "1" ? (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05) : 0;
    }));
  });
  return Math.min(...contrasts);
}"""


@pytest.fixture(scope="module")
def _browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed.")
    paths = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    path = next(paths, None)
    if path is None:
        pytest.skip("Chromium is not installed.")
    with sync_api.sync_playwright() as playwright:
        # Chromium looks for updates by itself. Let it find no other host, neither by the proxy nor directly.
        offline = ["--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND"]
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *offline])
        yield browser
        browser.close()


@pytest.fixture
def browser_page(_browser):
    """An empty page of headless Chromium. After the test, the page must have no errors and no requests."""
    context = _browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_offline(True)
    # Wait up to two minutes, because the machine of the tests may be busy.
    context.set_default_timeout(120_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if "file:" not in request.url[:5] else None)
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def lowest_contrast(browser_page):
    """A function that returns the lowest contrast ratio of the page. WCAG 2.2 asks for at least 4.5."""
    return lambda: browser_page.evaluate(LOWEST_CONTRAST)


@pytest.fixture(scope="session")
def word_translator() -> BaseTranslator:
    """A translator of number words. The model was trained for a second, so that its beams are different."""
    tokenizer = tiny_tokenizer(TEXTS, 295)
    sizes = {"d_model": 32, **stacks(layers=2, attention_heads=4, ffn_dim=32)}
    config = VaswaniConfig(vocab_size=len(tokenizer), dropout=0.0, **sizes)
    return BaseTranslator(trained_on_words(config, tokenizer), tokenizer, tokenizer)


@pytest.fixture(scope="session")
def word_checkpoint(word_translator, tmp_path_factory) -> str:
    """The folder of a checkpoint with the model of `word_translator`."""
    folder = tmp_path_factory.mktemp("words")
    return str(save_checkpoint(folder, word_translator.model, word_translator.source_tokenizer))


@functools.cache
def _other_translator(kind: str) -> BaseTranslator:
    tokenizer = tiny_tokenizer(TEXTS, 295)
    model_class, config_class, sizes = OTHER_KINDS[kind]
    torch.manual_seed(0)
    model = model_class(config_class(vocab_size=len(tokenizer), forced_eos_token_id=None, **IDS, **sizes))
    model.set_attn_implementation("eager")
    return BaseTranslator(train_on_words(model, tokenizer), tokenizer, tokenizer)


@pytest.fixture(scope="session", params=OTHER_KINDS)
def other_translator(request) -> BaseTranslator:
    """A translator with a tiny model of another class of transformers."""
    return _other_translator(request.param)


@pytest.fixture(scope="session", params=["vaswani", *OTHER_KINDS])
def any_translator(request, word_translator) -> BaseTranslator:
    """A translator with a model of this package, or of another class of transformers."""
    return word_translator if request.param == "vaswani" else _other_translator(request.param)
