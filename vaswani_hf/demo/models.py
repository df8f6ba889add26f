"""Loads the models of `vaswani demo`.

This file does not import gradio, because the import takes seconds, and an error about a model must be reported
early.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..browser.explain import explain
from ..browser.loading import load_translator
from ..browser.page import page_of
from ..checkpoint.files import RECIPE_FILE, RESULTS_FILE
from ..checkpoint.languages import recorded_languages
from ..checkpoint.loading import checkpoint_folder
from ..checkpoint.results import read_results
from ..model.pipeline_vaswani import TranslationPipeline


@dataclass
class DemoModel:
    """A model of the demo page, with the fields of `Direction`, because interface.py needs gradio."""

    label: str
    translate: TranslationPipeline
    num_beams: int
    examples: Sequence[str]
    explain: Callable[[str, int], str]


def load_models(names: Sequence[str], device: str | None) -> list[DemoModel]:
    """Load models by name."""
    models = [_load_model(name, device) for name in names]
    labels = [model.label for model in models]
    for model, name in zip(models, names, strict=True):
        if labels.count(model.label) > 1:
            model.label = f"{model.label} ({Path(name).name})"
    return models


def _load_model(name: str, device: str | None) -> DemoModel:
    translator = load_translator(name, device)
    folder = checkpoint_folder(name, files=(RECIPE_FILE, RESULTS_FILE))
    languages = recorded_languages(folder)
    pipeline = TranslationPipeline(
        translator.model, translator.source_tokenizer, target_tokenizer=translator.target_tokenizer
    )

    def explain_translation(text: str, num_beams: int) -> str:
        return page_of(explain(translator, text, name=Path(name).name, num_beams=num_beams))

    examples = read_results(folder).examples or []
    return DemoModel(
        label=" → ".join(languages) if languages else Path(name).name,
        translate=pipeline,
        num_beams=translator.model.generation_config.num_beams or 4,
        examples=[example.source for example in examples],
        explain=explain_translation,
    )
