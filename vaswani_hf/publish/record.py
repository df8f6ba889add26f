"""The facts of a run that its results and its card state, without local paths."""

import json
from pathlib import Path
from typing import Any

from ..recipe.licenses import data_license
from ..settings.data import CorpusData, DataSettings, is_on_hub, last_part


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run; empty if there is no such file."""
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


def data_facts(data: DataSettings) -> dict[str, Any]:
    """The data of a run for its card and its results.json, without the folders that the data lies in."""
    # A task has one language or two.
    return {
        "source_language": getattr(data, "source_language", ""),
        "target_language": getattr(data, "target_language", ""),
        "language": getattr(data, "language", ""),
        "license": data_license(data),
        "attribution": data.attribution,
        "train": _split_facts(data, "train"),
        "validation": _split_facts(data, "validation"),
        "test": _split_facts(data, "test"),
    }


def _split_facts(data: DataSettings, split: str) -> dict[str, Any] | None:
    if data.corpus:
        return {"name": data.corpus, "split": split}
    files = [last_part(path) for path in data.files(split)]
    if files:
        facts: dict[str, Any] = {"name": files[0], "files": files}
        weights = getattr(data, "train_weights", None)
        if split == "train" and weights:
            facts["weights"] = weights
        return facts
    name = getattr(data, f"{split}_split", None)
    if not isinstance(data, CorpusData) or not data.dataset or not name:
        return None
    facts = {"name": last_part(data.dataset)}
    if is_on_hub(data.dataset):
        facts = {"name": data.dataset, "dataset": data.dataset, "revision": data.dataset_revision}
    facts |= {"config": data.dataset_config, "split": name}
    return {key: value for key, value in facts.items() if value}
