"""Loads datasets of the Hub. All splits and processes of a run use the same commit of a dataset, even if the
run is resumed.
"""

import os
import re
from pathlib import Path
from typing import TypeVar

import datasets
from datasets import Dataset, IterableDataset, load_dataset, load_dataset_builder
from datasets.exceptions import DatasetGenerationError
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

from ..checkpoint.hub import HubError, InvalidHubValueError, explained, with_retries
from ..model.errors_vaswani import InvalidValueError
from ..settings.data import CorpusData, is_on_hub

_Data = TypeVar("_Data", bound=CorpusData)

# Turn off the download counter of `datasets`, because the counter sends the names of datasets, even of
# private datasets, to s3.amazonaws.com.
if "HF_UPDATE_DOWNLOAD_COUNTS" not in os.environ:
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False


def pin_dataset(data: _Data, earlier: _Data | None) -> _Data:
    """Return a copy of the section `data` with the commit and the licence of its dataset.

    A licence in the recipe overrides the licence in the dataset card. `earlier` is the section `data` that a
    resumed run has saved. The run uses the commit in `earlier`, unless the recipe now names another dataset
    or commit.
    """
    if data.dataset is None:
        return data
    if os.path.isdir(data.dataset):
        # Put "./" before the name of a local folder, because a machine without the folder would read the name
        # as a repository of the Hub.
        relative = data.dataset if data.dataset.startswith(("/", ".")) else os.path.join(".", data.dataset)
        return data.replace(dataset=relative)
    recorded = earlier if earlier and earlier.dataset == data.dataset else None
    if recorded and not _is_another_commit(data.dataset_revision, recorded.dataset_revision):
        revision, license = recorded.dataset_revision, recorded.license
    else:
        revision, license = _resolve(data.dataset, data.dataset_config, data.dataset_revision)
    return data.replace(dataset_revision=revision, license=data.license or license)


def _is_another_commit(revision: str | None, recorded: str | None) -> bool:
    shortened = re.fullmatch("[0-9a-f]{7,40}", revision or "")
    return bool(shortened) and not (recorded or "").startswith(revision or "")


def _resolve(dataset: str, config: str | None, revision: str | None) -> tuple[str | None, str | None]:
    """Return the commit of a dataset of the Hub and the licence in its card. An unknown commit or licence is
    None.
    """
    if not is_on_hub(dataset):
        raise InvalidValueError(
            f"`data.dataset` must be a local folder or a dataset of the Hub, but '{dataset}' is neither."
        )
    try:
        with explained():
            info = with_retries(HfApi().dataset_info, dataset, revision=revision)
            if info.gated:
                # Check the access separately, because `dataset_info` also succeeds for a gated dataset that
                # the user has no permission to read.
                with_retries(HfApi().auth_check, dataset, repo_type="dataset")
    except HubError as error:
        if isinstance(error.__cause__, OfflineModeIsEnabled):
            return _cached_commit(dataset, config, revision), None
        raise type(error)(f"The dataset '{dataset}' of `data.dataset` cannot be read: {error}") from error
    stated = info.card_data.get("license") if info.card_data else None
    # Use the licence only if the card states a single licence, because a card with several licences does not
    # say which licence applies to which part of the data.
    listed = stated if isinstance(stated, list) else [stated]
    return info.sha, listed[0] if len(listed) == 1 else None


def _cached_commit(dataset: str, config: str | None, revision: str | None) -> str | None:
    try:
        # The attribute `hash` of a dataset builder is the commit of the dataset, even without a connection to
        # the Hub.
        commit = load_dataset_builder(dataset, config, revision=revision).hash
    except (OSError, ValueError) as error:
        raise InvalidHubValueError(
            f"`data.dataset` '{dataset}' must be in the cache while HF_HUB_OFFLINE is set, but is not; run "
            "once without HF_HUB_OFFLINE."
        ) from error
    return commit if _is_commit(commit) and not _is_commit(revision) else revision


def open_dataset(
    name: str, config: str | None, *, split: str, revision: str | None, streaming: bool
) -> Dataset | IterableDataset:
    """Load a split of a dataset. Raise an error if the loaded commit is not `revision`."""
    try:
        with explained():
            dataset = load_dataset(name, config, split=split, revision=revision, streaming=streaming)
    except HubError:
        raise
    except (ValueError, FileNotFoundError) as error:
        raise InvalidValueError(f"`dataset` '{name}' cannot be opened: {error}") from error
    except DatasetGenerationError as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        # Only the cause of the `DatasetGenerationError` says what is wrong with a file of the dataset.
        raise InvalidValueError(f"`dataset` '{name}' cannot be read: {error.__cause__}") from error
    files = getattr(dataset, "cache_files", [])
    # `datasets` caches a dataset in a folder whose name is the commit.
    commit = Path(files[0]["filename"]).parent.name if files else None
    if _is_commit(revision) and _is_commit(commit) and commit != revision:
        # If the Hub does not answer, `datasets` can load another commit than `revision` from the cache.
        raise InvalidValueError(
            f"`dataset_revision` {revision} of '{name}' could not be fetched, and the cache holds only"
            f" {commit}; try again when the Hub can be reached."
        )
    return dataset


def _is_commit(revision: str | None) -> bool:
    """Return True for the full hash of a commit, and False for a shortened hash, a branch or a tag."""
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None
