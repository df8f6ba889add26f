"""Reads the JSON files of a run that a model card describes. The content of results.json is validated."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Strict, ValidationError

from ..checkpoint.files import RESULTS_FILE
from ..settings.base import explain_invalid


class _Record(BaseModel):
    """Base class of the parts of results.json. A part may have other keys, because a later version of the
    package may write other keys.
    """

    model_config = ConfigDict(strict=True)


class _Training(_Record):
    steps: int | None = None
    target_tokens: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    averaged_steps: list[int] | None = None
    resumed_at_step: int | None = None
    hardware: str | None = None
    date: str | None = None
    model_tags: list[str] | None = None
    versions: dict[str, str] | None = None


class _Scores(_Record):
    """The scores of all tasks on the test split."""

    bleu: float | None = None
    chrf: float | None = None
    exact_match: float | None = None
    perplexity: float | None = None
    accuracy: float | None = None
    bits_per_byte: float | None = None
    f1: float | None = None
    precision: float | None = None
    recall: float | None = None
    sentences: int | None = None
    texts: int | None = None
    tokens: int | None = None


class _Example(_Record):
    source: str
    output: str
    confidence: float
    # The words of the output with their confidences.
    words: list[Annotated[tuple[str, float], Strict(False)]] = []


class _Split(_Record):
    name: str | None = None
    title: str | None = None
    files: list[str] | None = None
    weights: list[float] | None = None
    dataset: str | None = None
    stated_dataset: str | None = None
    config: str | None = None
    revision: str | None = None
    split: str | None = None


class _Data(_Record):
    source_language: str | None = None
    target_language: str | None = None
    language: str | None = None
    license: str | None = None
    attribution: str | None = None
    train: _Split | None = None
    validation: _Split | None = None
    test: _Split | None = None


class _Origin(_Record):
    """The checkpoint that `vaswani import` has read."""

    name: str
    format: str
    difference: float | None
    is_on_hub: bool = False
    peer: str | None = None
    notes: list[str] = []


class _Results(_Record):
    training: _Training | None = None
    test: _Scores | None = None
    examples: list[_Example] | None = None
    decoding: dict[str, Any] | None = None
    # Maps the name of each split to the number of kept examples, and to the number of removed examples for
    # each reason.
    corpus: dict[str, dict[str, int]] | None = None
    data: _Data | None = None
    origin: _Origin | None = None
    average_of: list[str] | None = None


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results.json of a checkpoint. If the file is missing, return an empty dict. Raise a ValueError
    if a value has another type than the values that `vaswani train` and `vaswani import` write.
    """
    path = folder / RESULTS_FILE
    content = read_record(path)
    try:
        _Results.model_validate(content)
    except ValidationError as error:
        raise ValueError(
            f"The record '{path}' must hold what `vaswani train` writes, but does not "
            f"({explain_invalid(error).removesuffix('.')}); restore it or remove it."
        ) from None
    return content


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a run. If the file is missing, return an empty dict."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(
            f"The record '{path}' must hold a JSON object, but does not; restore it or remove it."
        )
    return content
