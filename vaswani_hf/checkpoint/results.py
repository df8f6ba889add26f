"""Declares, reads and writes results.json, the file with the scores and the cost of a training.

`Results` declares all keys of results.json. To add a key, add a field to `Results` or to the class of a
nested object, such as `TrainingRecord`, and set the field, for example in `_results_of_run`
(training/run.py).
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, ValidationError

from ..settings.base import explain_invalid
from .files import RESULTS_FILE, finite, write_whole


class JsonObject(BaseModel):
    """Base class of the results that the package writes as JSON, such as the output of `vaswani evaluate
    --json`. The field names are the keys of the JSON object.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON, without the fields that were never set."""
        return self.model_dump(mode="json", exclude_unset=True)


class Record(JsonObject):
    """Base class of the JSON objects that the package reads from the files of a checkpoint, such as
    results.json. A record can have unknown keys, because a later version of the package can write new keys.
    """

    model_config = ConfigDict(extra="allow")


AnyRecord = TypeVar("AnyRecord", bound=Record)


class TrainingRecord(Record):
    """The training that produced the final weights."""

    date: str | None = None
    seed: int | None = None
    dtype: str | None = None
    steps: int | None = None
    epochs: float | None = None
    target_tokens: int | None = None
    seconds: float | None = None
    # For a resumed run, `hardware` and `versions` describe the machine and the libraries after the
    # interruption.
    resumed_at_step: int | None = None
    hardware: str | None = None
    processes: int | None = None
    threads: int | None = None
    # Tags that a logging integration of transformers (`report_to`) has added to the model, such as the
    # address of a dashboard.
    model_tags: list[str] | None = None
    versions: dict[str, str] | None = None
    # The steps of the checkpoints whose average is the final weights.
    averaged_steps: list[int] | None = None
    # The number of parameters of the model.
    parameters: int | None = None


class ScoresRecord(Record):
    """The scores of the model on the test split, for the model card. A task can also return scores that have
    no field in this class.
    """

    bleu: float | None = None
    chrf: float | None = None
    exact_match: float | None = None
    bleu_signature: str | None = None
    chrf_signature: str | None = None
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
    """A sample input of the model, with the output of the model, for the model card."""

    source: str
    output: str
    confidence: float
    # The words of the output with their confidences.
    words: list[Annotated[tuple[str, float], Strict(False)]] = []


class SplitRecord(Record):
    """Describes where the data of the training, validation or test split comes from."""

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
    """The checkpoint from which `vaswani import` has imported the model."""

    name: str
    format: str
    is_on_hub: bool = False
    # The SHA-256 hash of the README.md that `vaswani import` has written.
    card_sha256: str | None = None
    difference: float | None
    notes: list[str] = []


class Results(Record):
    """The content of results.json."""

    training: TrainingRecord | None = None
    test: ScoresRecord | None = None
    # The SHA-256 hash of the test texts.
    test_sha256: str | None = None
    examples: list[ExampleRecord] | None = None
    # The search settings that produced the scores, such as `num_beams`.
    decoding: dict[str, Any] | None = None
    # Maps recipe keys such as "training.max_steps" to the values of the finished run. If a user changes the
    # value of one of these keys in the recipe, `vaswani train` continues the training of the finished run.
    # `finished_with` is None if the scoring was interrupted: the run is then not finished.
    finished_with: dict[str, Any] | None = {}
    data: DataRecord | None = None
    # For each split, the number of kept examples, and the number of removed examples for each reason.
    corpus: dict[str, dict[str, int]] | None = None
    origin: OriginRecord | None = None
    # For a model from `vaswani average`, the names of the averaged checkpoints.
    average_of: list[str] | None = None
    # True if the weights were changed after the training run, and a pipeline with the changed weights was
    # pushed.
    weights_changed: bool | None = None

    def as_text(self) -> str:
        """Return the text of results.json. Infinite and NaN numbers become null."""
        return json.dumps(finite(self.as_json()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_results(folder: Path, results: Results) -> None:
    """Write the results.json of a checkpoint."""
    write_whole(folder / RESULTS_FILE, results.as_text())


def read_results(folder: Path) -> Results:
    """Read the results.json of a checkpoint. If the file is missing, return an object without keys."""
    path = folder / RESULTS_FILE
    return validate_record(Results, read_record(path), path, "vaswani train")


def validate_record(kind: type[AnyRecord], content: dict[str, Any], path: Path, command: str) -> AnyRecord:
    """Create a record from the content of the file `path`. `command` is the name of the command that writes
    the file.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(
            f"The record '{path}' must hold what `{command}` writes, but does not "
            f"({explain_invalid(error, content).removesuffix('.')}); restore it or remove it."
        ) from None


def check_scores(folder: Path, test: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise an error if results.json has the first score in `names`, but lacks another score in `names`."""
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
