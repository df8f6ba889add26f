"""Defines the content of results.json, and reads the JSON files of a run that a model card describes.

The parts `training`, `data` and `origin` are written as objects of their classes. The tasks write `test` and
`examples` as dicts, because each task has other scores. `read_results` validates all parts with the classes,
because a user may have edited the file.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Strict, ValidationError

from ..checkpoint.files import RESULTS_FILE
from ..settings.base import explain_invalid


class Record(BaseModel):
    """Base class of the parts of results.json. A part may have other keys, because a later version of the
    package may write other keys.
    """

    model_config = ConfigDict(strict=True)

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON, with the keys that were given."""
        return self.model_dump(exclude_unset=True)


class TrainingRecord(Record):
    """The training of the final weights."""

    date: str | None = None
    seed: int | None = None
    dtype: str | None = None
    steps: int | None = None
    epochs: float | None = None
    target_tokens: int | None = None
    seconds: float | None = None
    # For a resumed run, `hardware` and `versions` are those after the interruption.
    resumed_at_step: int | None = None
    hardware: str | None = None
    processes: int | None = None
    threads: int | None = None
    # Tags that a reporter of transformers has added to the model, such as the address of a dashboard.
    model_tags: list[str] | None = None
    versions: dict[str, str] | None = None
    averaged_steps: list[int] | None = None


class ScoresRecord(Record):
    """The scores of all tasks on the test split. The tasks write the scores, see `Task.score_test_split`."""

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


class ExampleRecord(Record):
    """A sample input of the model, with the output of the model. The model card shows a few such samples."""

    source: str
    output: str
    confidence: float
    # The words of the output with their confidences.
    words: list[Annotated[tuple[str, float], Strict(False)]] = []


class SplitRecord(Record):
    """The data of a split."""

    name: str | None = None
    title: str | None = None
    files: list[str] | None = None
    weights: list[float | int] | None = None
    dataset: str | None = None
    stated_dataset: str | None = None
    config: str | None = None
    revision: str | None = None
    split: str | None = None


class DataRecord(Record):
    """The data of a run, or the data with which an imported model was trained."""

    source_language: str | None = None
    target_language: str | None = None
    language: str | None = None
    license: str | None = None
    attribution: str | None = None
    train: SplitRecord | None = None
    validation: SplitRecord | None = None
    test: SplitRecord | None = None


class OriginRecord(Record):
    """The checkpoint that `vaswani import` has read."""

    name: str
    format: str
    is_on_hub: bool = False
    # The name of the model in the model card.
    imported_as: str | None = None
    peer: str | None = None
    difference: float | None
    notes: list[str] = []


class _Results(Record):
    training: TrainingRecord | None = None
    test: ScoresRecord | None = None
    examples: list[ExampleRecord] | None = None
    decoding: dict[str, Any] | None = None
    # Maps the name of each split to the number of kept examples, and to the number of removed examples for
    # each reason.
    corpus: dict[str, dict[str, int]] | None = None
    data: DataRecord | None = None
    origin: OriginRecord | None = None
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


def check_scores(folder: Path, test: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise a ValueError if the results.json of a checkpoint has the first of the scores `names`, but lacks
    another one. `test` is the entry `test` of results.json.
    """
    if not names or test.get(names[0]) is None:
        return
    for name in names:
        if test.get(name) is None:
            raise ValueError(
                f"The record '{folder / RESULTS_FILE}' must hold all scores of the test set, but has "
                f"`test.{names[0]}` and no `test.{name}`; restore the file or remove it."
            )


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
