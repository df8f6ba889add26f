"""Creates the page of `vaswani demo` and of a Space. The page shows the translation of a text, the confidence
of each word, the word alignment and the attention.

`vaswani demo` imports this file, and `vaswani push --space` copies this file into a Space. A Space does not
install the package. Therefore this file imports no module of the package.
"""

import os
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

# Turn off the usage statistics of gradio. Set `GRADIO_ANALYTICS_ENABLED` before gradio is imported, because
# gradio reads this environment variable during the import.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr

# The maximum number of characters of a text. The translation of a longer text would occupy a public demo page
# for too long.
LONGEST_TEXT = 2000
# Use the fonts of the user's computer, because the default fonts of gradio are downloaded from another
# computer.
FONTS = ["system-ui", "sans-serif"]
MONOSPACE_FONTS = ["ui-monospace", "monospace"]
CSS = """
.confidences, .alignment { padding-top: 1.6rem; }
.confidences { line-height: 2.6; font-size: 1.1rem; }
.confidences ruby { border-radius: 4px; padding: 0 4px; }
.confidences rt { font-size: 0.65rem; padding-bottom: 4px; user-select: none; }
.alignment { overflow-x: auto; }
.alignment text { font-family: ui-monospace, monospace; font-size: 15px; fill: currentColor; }
.alignment line { stroke: #0072b2; stroke-width: 2; opacity: 0.8; }
.dark .alignment line { stroke: #56b4e9; }
.best { width: 100%; border-collapse: collapse; }
/* Replace the borders of the tables of gradio, which have the color of the text. */
.best, .best tr, .best th, .best td { border: 0 solid var(--border-color-primary) !important; }
.best tr { border-bottom-width: 1px !important; }
.best th, .best td { padding: 4px 8px; text-align: left; }
.best .number { text-align: right; font-variant-numeric: tabular-nums; }
.attention iframe { width: 100%; height: 900px; border: 1px solid var(--border-color-primary); border-radius: 8px; }
"""
# Sizes in the word alignment picture, in pixels: the width of a Latin character, the gap between words, and
# the height of the picture.
_CHARACTER_WIDTH, _GAP, _HEIGHT = 9.1, 18, 110


@dataclass(frozen=True)
class Direction:
    """A model of the page, and the languages that the model translates.

    Attributes:
        label (str): The text that the page shows for the direction, such as "en → de".
        translate (Callable): The pipeline of the model, as `pipeline("translation")` returns it.
        num_beams (int): The default number of beams.
        examples (sequence): Example texts that the page offers.
        explain (Callable, optional): Returns HTML with the attention for a text and a number of beams.
    """

    label: str
    translate: Callable[..., list[dict[str, Any]]]
    num_beams: int = 4
    examples: Sequence[str] = field(default_factory=tuple)
    explain: Callable[[str, int], str] | None = None


def launch(directions: Sequence[Direction], title: str, **options: Any) -> Any:
    """Start the page. `options` are arguments of `gradio.Blocks.launch`."""
    theme = gr.themes.Default(primary_hue="blue", font=FONTS, font_mono=MONOSPACE_FONTS).set(
        # Use a dark blue for the button, because white text is hard to read on the default color of buttons.
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_dark="*primary_600",
    )
    page = make_page(directions, title)
    return page.launch(theme=theme, css=CSS, footer_links=["api"], **options)


class _Actions:
    """Contains the functions that the buttons of the page call. The argument `label` of these functions is
    the label of the chosen direction.
    """

    def __init__(self, directions: Sequence[Direction]):
        self.directions = {direction.label: direction for direction in directions}

    def translate(self, label: str, text: str, num_beams: int, number: int) -> tuple[str, str, str, str, str]:
        """Return the translation, and four HTML texts: the confidences, the word alignment, the translation
        table and the attention picture. The HTML text of the attention picture is always empty, so that the
        page removes the picture of the previous text.
        """
        if not text.strip():
            return "", "", "", "", ""
        if len(text) > LONGEST_TEXT:
            raise gr.Error(
                f"The text must have at most {LONGEST_TEXT:,} characters, but has {len(text):,}; divide the text.",
                print_exception=False,
            )
        settings = {
            "num_beams": max(num_beams, number),
            "num_return_sequences": number,
            "split_sentences": True,
            "repetition_guard": True,
        }
        translate = self.directions[label].translate
        found = _checked(translate, text, return_scores=True, return_alignments=True, **settings)
        best = found[0]
        return (
            best["translation_text"],
            words_as_html(best.get("words") or []),
            alignment_as_html(text, best["translation_text"], best.get("alignment") or ""),
            translations_as_html(found) if number > 1 else "",
            "",
        )

    def explain(self, label: str, text: str, num_beams: int) -> str:
        """Return HTML that shows the attention."""
        function = self.directions[label].explain
        if not text.strip() or function is None:
            return ""
        return f'<iframe title="Attention" srcdoc="{escape(_checked(function, text, num_beams))}"></iframe>'

    def swap(self, label: str, translation: str) -> tuple[str, str]:
        """Return the label of the opposite direction, and the translation as the new source text."""
        labels = list(self.directions)
        return labels[1 - labels.index(label)], translation


def make_page(directions: Sequence[Direction], title: str) -> gr.Blocks:
    """Return the page. With two opposite directions, the page has a button that swaps the
    languages.
    """
    actions = _Actions(directions)
    labels = list(actions.directions)
    can_swap = len(labels) == 2 and labels[0].split(" → ") == labels[1].split(" → ")[::-1]
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"# {title}")
        with gr.Row(visible=len(labels) > 1):
            direction = gr.Radio(labels, value=labels[0], label="Direction", scale=3)
            swap_button = gr.Button("⇄ Swap the languages", visible=can_swap, scale=1)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(label="Text", lines=3, elem_id="text", autofocus=True)
                with gr.Row():
                    most = max(12, *(one.num_beams for one in directions))
                    num_beams = gr.Slider(1, most, value=directions[0].num_beams, step=1, label="Beams")
                    number = gr.Slider(1, 5, value=1, step=1, label="Translations")
                button = gr.Button("Translate", variant="primary")
            with gr.Column():
                translation = gr.Textbox(
                    label="Translation", lines=3, elem_id="translation", interactive=False, buttons=["copy"]
                )
                confidences = gr.HTML(label="Confidence of each word", container=True, show_label=True)
        alignment = gr.HTML(label="Word alignment", container=True, show_label=True)
        best = gr.HTML()
        with gr.Column(visible=any(one.explain for one in directions)):
            explain_button = gr.Button("Show the attention")
            attention = gr.HTML(elem_classes="attention")
        examples = [[one.label, example] for one in directions for example in one.examples]
        if examples:
            gr.Examples(examples, [direction, text], cache_examples=False)
        outputs = [translation, confidences, alignment, best, attention]
        gr.on(
            [button.click, text.submit],
            actions.translate,
            [direction, text, num_beams, number],
            outputs,
            api_name="translate",
        )
        explain_button.click(actions.explain, [direction, text, num_beams], attention, api_name="explain")
        swap_button.click(
            actions.swap, [direction, translation], [direction, text], api_visibility="private"
        ).then(actions.translate, [direction, text, num_beams, number], outputs, api_visibility="private")
    return page


def _checked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function. If the function raises a ValueError, show the error message on the page."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise gr.Error(str(error), print_exception=False) from None


def words_as_html(words: Sequence[dict[str, Any]]) -> str:
    """Return the words with their confidences. A darker background means a lower confidence."""
    parts = []
    for entry in words:
        confidence = entry["confidence"]
        color = f"rgba(230, 159, 0, {(1 - confidence) * 0.8:.2f})"
        parts.append(
            f'<ruby style="background: {color}">{escape(entry["word"])}<rt>{confidence:.2f}</rt></ruby>'
        )
    return f'<div class="confidences">{" ".join(parts)}</div>' if parts else ""


def alignment_as_html(text: str, translation: str, alignment: str) -> str:
    """Return a picture of lines between aligned words. `alignment` is in Pharaoh format: "0-0 1-2"."""
    source, target = text.split(), translation.split()
    if not alignment or not source or not target:
        return ""
    source_centers, source_width = _centers(source)
    target_centers, target_width = _centers(target)
    parts = []
    aligned = []
    for pair in alignment.split():
        i, j = map(int, pair.split("-"))
        # Skip a pair of word indices if one of the two indices is too large for its text.
        if i >= len(source) or j >= len(target):
            continue
        line = f'x1="{source_centers[i]:.0f}" y1="26" x2="{target_centers[j]:.0f}" y2="{_HEIGHT - 24}"'
        parts.append(f"<line {line}/>")
        aligned.append(f"{source[i]} – {target[j]}")
    for words, centers, y in ((source, source_centers, 18), (target, target_centers, _HEIGHT - 8)):
        for word, center in zip(words, centers, strict=True):
            parts.append(f'<text x="{center:.0f}" y="{y}" text-anchor="middle">{escape(word)}</text>')
    width = max(source_width, target_width)
    label = escape(f"Word alignment: {', '.join(aligned)}")
    return (
        f'<div class="alignment"><svg width="{width:.0f}" height="{_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></div>'
    )


def _centers(words: Sequence[str]) -> tuple[list[float], float]:
    """Return the horizontal center of each word of a line in pixels, and the width of the line in pixels."""
    centers = []
    left = 0.0
    for word in words:
        # Characters such as Chinese characters and emoji are twice as wide as Latin characters.
        num_wide = sum(unicodedata.east_asian_width(character) in ("W", "F") for character in word)
        width = _CHARACTER_WIDTH * (len(word) + num_wide)
        centers.append(left + width / 2)
        left += width + _GAP
    return centers, left


def translations_as_html(found: Sequence[dict[str, Any]]) -> str:
    """Return a table of the translations of a text, best first."""
    rows = []
    for entry in found:
        numbers = "".join(f'<td class="number">{entry[name]:.3f}</td>' for name in ("score", "confidence"))
        rows.append(f"<tr><td>{escape(entry['translation_text'])}</td>{numbers}</tr>")
    head = '<tr><th>translation</th><th class="number">score</th><th class="number">confidence</th></tr>'
    return f'<table class="best">{head}{"".join(rows)}</table>'
