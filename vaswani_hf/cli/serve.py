"""Defines `vaswani serve`, the command that starts an HTTP service for translation."""

import ipaddress
import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from ..model.errors_vaswani import InvalidValueError
from ..model.glossary_vaswani import Glossary, read_glossary
from ..model.inputs_vaswani import TranslationOptions
from ..serving.limits import Limits
from ..serving.server import API_KEY, listening_socket, run_server
from ..version import are_installed, install_command
from .options import (
    CodeOptions,
    EngineOptions,
    InferenceOptions,
    SearchOptions,
    check_different,
    check_file,
    on_command_line,
    translation_option,
)

if TYPE_CHECKING:
    from ..serving.service import Service


class ServeOptions(SearchOptions, InferenceOptions, EngineOptions, CodeOptions, Limits):
    """The options of `vaswani serve`."""

    min_confidence: float | None = translation_option("min_confidence")
    models: list[str] = on_command_line(positional=True, metavar="MODEL")
    """checkpoint folders or repositories on the Hub; each model must have a different pair of languages"""
    languages: list[str] = on_command_line([], metavar="SOURCE:TARGET")
    """the source and target language of each model, such as en:de; by default the languages that the
    checkpoints record
    """
    host: str = "127.0.0.1"
    """the address of the service; if other computers can connect to the address, the environment variable
    VASWANI_API_KEY must contain an API key
    """
    port: int = Field(5000, ge=0, le=65535)
    """the port of the service; 0 is any free port"""
    glossary_files: list[str] = on_command_line([], option="glossary", metavar="NAME=FILE")
    """the name of a glossary in requests, and the file of the glossary; each line has a source term, a tab
    and a target term"""
    language_check: Literal["pass", "refuse"] | None = None
    """what to do with a text that is not in the source language: pass returns the text itself, refuse returns
    an error; needs the library py3langid"""
    split_sentences: bool = on_command_line(True, group="search")
    """translate texts sentence by sentence"""
    # The repetition guard is on by default because of the measurements in
    # scripts/benchmarks/repetition_guard.md.
    repetition_guard: bool = on_command_line(True, group="search")
    """translate a sentence again, without repetition, if its translation repeats itself in a loop"""

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        check_different("models", self.models)
        if self.languages and len(self.languages) != len(self.models):
            raise InvalidValueError(
                f"`--languages` must have one entry for each model ({len(self.models)}), but has "
                f"{len(self.languages)}."
            )
        for entry in self.languages:
            source, _, target = entry.partition(":")
            if not source or not target:
                raise InvalidValueError(
                    f"`--languages` must have entries such as en:de, with the source language and the target "
                    f"language, but has {entry!r}."
                )
        return self

    @model_validator(mode="after")
    def _check_glossaries(self) -> Self:
        names = set()
        for entry in self.glossary_files:
            name, _, path = entry.partition("=")
            if not name or not path or name in names:
                raise InvalidValueError(
                    "`--glossary` must have entries such as terms=terms.tsv, each with a different name and a file, "
                    f"but has {entry!r}."
                )
            names.add(name)
            check_file("--glossary", path)
        # Read the glossaries before the models are loaded, so that an invalid line of a glossary is reported
        # early.
        _ = self.glossaries
        return self

    @model_validator(mode="after")
    def _check_host(self) -> Self:
        if not _is_loopback(self.host) and not os.environ.get(API_KEY):
            raise InvalidValueError(
                f"`--host` {self.host} can be reached from other machines and needs an API key; set the "
                f"environment variable {API_KEY} to a secret text, or leave `--host` out."
            )
        return self

    @cached_property
    def glossaries(self) -> dict[str, Glossary]:
        """Maps the name of each glossary to the content of its file."""
        entries = [entry.partition("=") for entry in self.glossary_files]
        return {name: read_glossary(path) for name, _, path in entries}


def run(options: ServeOptions) -> None:
    """Run the service until the process receives the signal SIGINT or SIGTERM."""
    if not are_installed(["fastapi", "uvicorn", "prometheus_client", "python_multipart"]):
        raise InvalidValueError(
            f"`vaswani serve` needs more libraries; install them with `{install_command('serve')}`."
        )
    with listening_socket(options.host, options.port) as listening:
        service = _load_service(options)
        run_server(service, listening)
    print("vaswani: the service has ended", file=sys.stderr)


def _load_service(options: ServeOptions) -> "Service":
    import torch

    from ..serving.directions import load_directions
    from ..serving.service import Service
    from ..translation.language_check import has_detector, load_detector

    if "OMP_NUM_THREADS" not in os.environ:
        # Translate with one thread, because the threads of a short operation wait for each other longer than
        # the operation takes. On two cores, a service with one thread answers 1.3 to 5.5 times as many
        # requests as a service with two threads (scripts/benchmarks/serving.md).
        torch.set_num_threads(1)
    needs_detector = options.language_check is not None
    directions = load_directions(
        options.models,
        options.languages,
        lambda name: options.translator_loader(name, ())(),
        load_detector() if needs_detector or has_detector() else None,
    )
    settings = TranslationOptions.of(**options.translation_settings())
    key = os.environ.get(API_KEY) or None
    return Service(directions, settings, options, key, options.glossaries, options.language_check)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
