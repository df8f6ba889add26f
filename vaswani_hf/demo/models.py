"""Loads the models of `vaswani demo`."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..browser.explain import explain
from ..browser.loading import load_translator
from ..browser.page import page_of
from ..checkpoint.files import RECIPE_FILE, RESULTS_FILE
from ..checkpoint.languages import recorded_languages
from ..checkpoint.loading import checkpoint_folder
from ..checkpoint.results import read_results
from ..model.errors_vaswani import InvalidValueError
from ..model.pipeline_vaswani import TranslationPipeline
from ..model.translator_vaswani import BaseTranslator

if TYPE_CHECKING:
    from .interface import Direction


def load_directions(names: Sequence[str], device: str | None) -> "list[Direction]":
    """Load models by name, and return the translation directions that the page offers. If several models
    translate in the same direction, their labels contain the names of the models.
    """
    translators = [load_translator(name, device) for name in names]
    for name, translator in zip(names, translators, strict=True):
        if translator.segment_tokenizer.languages:
            raise InvalidValueError(
                f"`models` must be models without language tokens, but '{name}' has language tokens; use `vaswani "
                "serve` with `--languages`."
            )
    # Import gradio after the models have been loaded, because the import takes seconds and an error about a
    # model must be reported early.
    from .interface import Direction

    short_names = [Path(os.path.abspath(name)).name for name in names]
    if len(set(short_names)) < len(names):
        # Use the complete names, because several models have the same short name: for example,
        # runs/a/averaged and runs/b/averaged have the short name "averaged".
        short_names = list(names)
    directions = []
    for name, short_name, translator in zip(names, short_names, translators, strict=True):
        folder = checkpoint_folder(name, files=(RECIPE_FILE, RESULTS_FILE))
        languages = recorded_languages(folder)
        examples = read_results(folder).examples or []
        direction = Direction(
            label=" → ".join(languages) if languages else short_name,
            translate=TranslationPipeline(
                translator.model, translator.source_tokenizer, target_tokenizer=translator.target_tokenizer
            ),
            num_beams=translator.setting("num_beams"),
            examples=[example.source for example in examples],
            explain=partial(_explanation_page, translator, short_name),
        )
        directions.append(direction)
    labels = [direction.label for direction in directions]
    return [
        replace(direction, label=f"{direction.label} ({short_name})")
        if labels.count(direction.label) > 1
        else direction
        for direction, short_name in zip(directions, short_names, strict=True)
    ]


def _explanation_page(translator: BaseTranslator, name: str, text: str, num_beams: int) -> str:
    return page_of(explain(translator, text, name=name, num_beams=num_beams))
