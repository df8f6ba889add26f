"""`vaswani demo`: opens a page in the browser on which people try one or several models."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from ..model.errors_vaswani import InvalidValueError
from ..version import install_command
from .options import CodeOptions, check_different, on_command_line


class DemoOptions(CodeOptions):
    """The options of `vaswani demo`."""

    models: list[str] = on_command_line(positional=True, metavar="MODEL")
    """checkpoint folders or repositories on the Hub; two models of opposite directions swap the languages"""
    device: str | None = on_command_line(None, group="computing")
    """the device, such as cpu, cuda or cuda:1; by default the GPU if the machine has a GPU, else the CPU"""
    host: str = "127.0.0.1"
    """the address of the page"""
    port: int = Field(7860, ge=0, le=65535)
    """the port of the page; 0 selects a free port"""
    open_browser: bool = True
    """open the page in the browser of this machine"""

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        check_different("models", self.models)
        return self


def run(options: DemoOptions) -> None:
    """Serve the page until a signal ends the command."""
    if find_spec("gradio") is None:
        raise InvalidValueError(
            f"`vaswani demo` needs more libraries; install them with `{install_command('demo')}`."
        )
    directions = [_direction(name, options.device) for name in options.models]
    # Load the models before the import of gradio, because the import takes seconds and an error about a model
    # must be reported early.
    from ..demo.interface import Direction, launch

    labels = [entry["label"] for entry in directions]
    # If several models translate in the same direction, add the name of the model to their labels.
    for entry, name in zip(directions, options.models, strict=True):
        if labels.count(entry["label"]) > 1:
            entry["label"] = f"{entry['label']} ({Path(name).name})"
    launch(
        [Direction(**entry) for entry in directions],
        " and ".join(Path(name).name for name in options.models),
        server_name=options.host,
        server_port=options.port or _free_port(options.host),
        inbrowser=options.open_browser,
        show_error=True,
    )


def _free_port(host: str) -> int:
    import socket

    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _direction(name: str, device: str | None) -> dict[str, Any]:
    """Load a model, and return the arguments that create its `Direction`."""
    from ..browser.explain import explain
    from ..browser.loading import load_translator
    from ..browser.page import page_of
    from ..checkpoint.files import RECIPE_FILE, RESULTS_FILE
    from ..checkpoint.languages import recorded_languages
    from ..checkpoint.loading import checkpoint_folder
    from ..checkpoint.results import read_results
    from ..model.pipeline_vaswani import TranslationPipeline

    translator = load_translator(name, device)
    folder = checkpoint_folder(name, files=(RECIPE_FILE, RESULTS_FILE))
    languages = recorded_languages(folder)
    pipeline = TranslationPipeline(
        translator.model, translator.source_tokenizer, target_tokenizer=translator.target_tokenizer
    )

    def explain_translation(text: str, num_beams: int) -> str:
        return page_of(explain(translator, text, name=Path(name).name, num_beams=num_beams))

    examples = read_results(folder).examples or []
    return {
        "label": " → ".join(languages) if languages else Path(name).name,
        "translate": pipeline,
        "num_beams": translator.model.generation_config.num_beams or 4,
        "examples": [example.source for example in examples],
        "explain": explain_translation,
    }
