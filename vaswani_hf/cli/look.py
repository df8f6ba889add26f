"""`vaswani look`: writes a page that shows how a model translates a text."""

import logging
from pathlib import Path
from typing import Self

from pydantic import model_validator

from ..model.errors_vaswani import InvalidValueError
from .options import BeamSearchOptions, DeviceOptions, LanguageOptions, ModelOptions
from .output import check_output, standard_output

logger = logging.getLogger(__name__)


class LookOptions(LanguageOptions, BeamSearchOptions, DeviceOptions, ModelOptions):
    """The options of `vaswani look`."""

    text: str
    """the text to translate as one input of the model; a model that was trained on single sentences can leave
    out the other sentences of a text"""
    target: str | None = None
    """explain this translation; by default the page explains the translation that the search finds"""
    output: str
    """a new HTML file"""

    @model_validator(mode="after")
    def _check_texts_and_output(self) -> Self:
        for option, text in (("--text", self.text), ("--target", self.target)):
            if text is not None and not text.strip():
                raise InvalidValueError(f"`{option}` must contain a word, but is {text!r}.")
        check_output(self.output, {})
        return self


def run(options: LookOptions) -> None:
    """Write the page, and print the translation."""
    from ..browser.explain import explain
    from ..browser.loading import load_translator
    from ..browser.page import page_of
    from ..checkpoint.files import write_whole

    output = standard_output()
    translator = load_translator(options.model_name, options.device)
    explanation = explain(
        translator, options.text, options.target, name=options.model_name, **options.translation_settings()
    )
    write_whole(Path(options.output), page_of(explanation))
    _warn_of_several_sentences(options.text)
    output.write(f"{explanation.target_text}\n".encode(errors="replace"))


def _warn_of_several_sentences(text: str) -> None:
    from ..model.text_rules_vaswani import split_sentences

    sentences, _ = split_sentences(text)
    if len(sentences) > 1:
        logger.warning(
            f"`--text` has {len(sentences)} sentences, and the page explains the text as one input of the model. "
            "If the translation lacks a sentence, write a page for each sentence."
        )
