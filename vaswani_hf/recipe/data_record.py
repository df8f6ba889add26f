"""Describes the data of a recipe for the model card and results.json."""

from typing import Any

from ..checkpoint.results import DataRecord, SplitRecord
from ..settings.data import CorpusData, DataSettings, is_on_hub, last_part
from .licenses import data_license


def data_record(data: DataSettings) -> DataRecord:
    """Describe the data of a run. The returned record contains the names of files, but not the folders of the
    files.
    """
    # Use `getattr`, because a recipe has either the key `language`, or the keys `source_language` and
    # `target_language`.
    return DataRecord(
        source_language=getattr(data, "source_language", ""),
        target_language=getattr(data, "target_language", ""),
        language=getattr(data, "language", ""),
        license=data_license(data),
        attribution=data.attribution,
        train=_split_record(data, "train"),
        validation=_split_record(data, "validation"),
        test=_test_record(data),
    )


def _test_record(data: DataSettings) -> SplitRecord | None:
    """Describe the test split, with the title `data.test_name` and the Hub dataset `data.test_dataset` from
    the recipe.
    """
    record = _split_record(data, "test")
    if record is None:
        return None
    stated = {"title": data.test_name, "stated_dataset": data.test_dataset}
    return record.model_copy(update={key: value for key, value in stated.items() if value})


def _split_record(data: DataSettings, split: str) -> SplitRecord | None:
    if data.corpus:
        return SplitRecord(name=data.corpus, split=split)
    if split in data.held_out_sizes:
        size = data.held_out_sizes[split]
        whole = _split_record(data, "train") or SplitRecord()
        return whole.model_copy(update={"split": f"{size:,} examples of the training data"})
    files = [last_part(path) for path in data.files(split)]
    if files:
        weights = getattr(data, "train_weights", None)
        if split == "train" and weights:
            return SplitRecord(name=files[0], files=files, weights=weights)
        return SplitRecord(name=files[0], files=files)
    name = getattr(data, f"{split}_split", None)
    if not isinstance(data, CorpusData) or not data.dataset or not name:
        return None
    fields: dict[str, Any] = {"name": last_part(data.dataset), "config": data.dataset_config, "split": name}
    if is_on_hub(data.dataset):
        fields |= {"name": data.dataset, "dataset": data.dataset, "revision": data.dataset_revision}
    return SplitRecord(**{key: value for key, value in fields.items() if value})
