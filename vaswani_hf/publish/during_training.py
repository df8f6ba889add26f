"""Pushes checkpoints during training, so that the run can be continued on another machine.

push.py pushes the final checkpoint. The recipe key `publishing.hub_strategy` determines which files are
pushed during the training. The values of `hub_strategy` are the same as in transformers:

- "end": no files are pushed during the training.
- "every_save": each save of a checkpoint pushes the model, unless an earlier push is still running.
- "checkpoint": as "every_save", but each push also writes the files that a resumed run needs into the folder
  `last-checkpoint`.
- "all_checkpoints": each save pushes the model, and pushes the files that a resumed run needs into a new
  folder `checkpoint-STEP`.
"""

import os
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
from transformers import TrainerCallback

from ..checkpoint.files import (
    MANIFEST_FILE,
    METRICS_FILE,
    RECIPE_FILE,
    STATE_FILE,
    has_run,
    read_state,
    scores_by_step,
)
from ..checkpoint.hub import explained, sentence_of, with_retries
from ..checkpoint.loading import verify_download
from ..checkpoint.manifest import metadata_of, read_manifest, verify_manifest, write_manifest
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..messages import say
from ..model.errors_vaswani import InvalidValueError
from ..optimization.section import AnyTraining
from ..settings.sections import PublishingSettings
from .destination import Destination, check_destination
from .push import REPLACED_FILES, commit_folder
from .staging import refuse_tokens, stage_repository

LAST_CHECKPOINT = "last-checkpoint"
_STAGING = ".publishing"
_STATE = re.compile(rf"({LAST_CHECKPOINT}|checkpoint-\d+)/{re.escape(STATE_FILE)}")
# The files of a checkpoint that are not copied, because a resumed run does not need these files.
# training_args.bin is a pickle file with local paths, the recipe and the Python files are also in the root
# folder of the repository, and the pushed folder gets a new manifest.
_NOT_RESUMED = ("training_args.bin", RECIPE_FILE, MANIFEST_FILE, "*.py")


class PushCheckpointsCallback(TrainerCallback):
    """Pushes each saved checkpoint to the Hub in a background thread.

    If `hub_strategy` is "all_checkpoints", the callback waits until an earlier push has ended. If
    `hub_strategy` is not "all_checkpoints", the callback skips a new checkpoint while an earlier push is
    running. The callback always pushes the last checkpoint of the run.
    """

    def __init__(self, folder: str | Path, publishing: PublishingSettings):
        self.folder = Path(folder)
        self.publishing = publishing
        self.thread: threading.Thread | None = None
        self.pushed_step = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            # Delete the temporary folder, because a killed run has perhaps left the folder behind.
            shutil.rmtree(self.folder / _STAGING, ignore_errors=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.thread and self.publishing.hub_strategy == "all_checkpoints":
            self.thread.join()
        is_pushing = self.thread is not None and self.thread.is_alive()
        if state.is_world_process_zero and not is_pushing:
            self._begin(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.thread is None:
            return
        self.thread.join()
        was_skipped = self.pushed_step < state.global_step
        if was_skipped and (self.folder / f"checkpoint-{state.global_step}").is_dir():
            self._begin(state.global_step)
            self.thread.join()
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)

    def _begin(self, step: int) -> None:
        checkpoint = self.folder / _STAGING / f"checkpoint-{step}"
        try:
            # Make hard links, because the Trainer can delete the checkpoint before the upload ends.
            saved = self.folder / checkpoint.name
            shutil.copytree(saved, checkpoint, copy_function=_link_or_copy, dirs_exist_ok=True)
            for name in (RECIPE_FILE, METRICS_FILE):
                shutil.copy(self.folder / name, checkpoint)
        except OSError as error:
            say(f"step {step:,} could not be pushed: {sentence_of(error)}", is_important=True)
            return
        # Use a daemon thread, so that the process can end after a second Ctrl-C.
        self.thread = threading.Thread(target=self._push, args=(checkpoint, step), daemon=True)
        self.thread.start()

    def _push(self, checkpoint: Path, step: int) -> None:
        publishing = self.publishing
        repository = self.folder / _STAGING / "repository"
        try:
            to = check_destination(Destination(publishing.hub_model_id or "", publishing.hub_private_repo))
            repository.mkdir()
            stage_repository(checkpoint, repository, to.repo_id)
            replaced = REPLACED_FILES
            if publishing.hub_strategy != "every_save":
                is_last_only = publishing.hub_strategy == "checkpoint"
                name = LAST_CHECKPOINT if is_last_only else checkpoint.name
                _stage_resumable(checkpoint, repository / name)
                replaced = (*replaced, *_files_of_earlier_push(to.repo_id, name))
            refuse_tokens(repository)
            commit_folder(to, repository, f"Training in progress, step {step}", replaced)
            self.pushed_step = step
            say(f"pushed step {step:,} to {to.repo_id}")
        except Exception as error:
            # If a push fails, print the error and continue the training. A later push uploads a newer
            # checkpoint.
            say(f"step {step:,} could not be pushed: {sentence_of(error)}", is_important=True)
        finally:
            shutil.rmtree(repository, ignore_errors=True)
            shutil.rmtree(checkpoint, ignore_errors=True)


def _files_of_earlier_push(repo_id: str, name: str) -> list[str]:
    """Return the files that an earlier push has written into the folder `name` of the repository. The
    manifest in the folder `name` lists the files, so that a push does not delete the files of a user.
    """
    with suppress(RepositoryNotFoundError, EntryNotFoundError, ValueError):
        path = Path(with_retries(hf_hub_download, repo_id, f"{name}/{MANIFEST_FILE}"))
        return [f"{name}/{file}" for file in read_manifest(path.parent)["files"]]
    return []


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _stage_resumable(checkpoint: Path, folder: Path) -> None:
    """Copy the files that a resumed run needs into a new folder, and write a manifest of these files."""
    ignored = shutil.ignore_patterns(*_NOT_RESUMED)
    shutil.copytree(checkpoint, folder, copy_function=_link_or_copy, ignore=ignored)
    write_manifest(folder, metadata_of(checkpoint))


def fetch_checkpoints(folder: Path, repo_id: str, training: AnyTraining) -> None:
    """Download the checkpoints that an earlier run pushed, unless `folder` already has checkpoints or final
    weights.
    """
    if has_run(folder):
        return
    with explained():
        snapshot, steps = _download(repo_id, training)
    if not steps:
        say(f"'{repo_id}' has no checkpoint to continue from")
        return
    newest = max(steps, key=lambda name: steps[name])
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    for name in steps:
        shutil.copytree(snapshot / name, staging / name)
    shutil.copy(staging / newest / METRICS_FILE, folder)
    shutil.copy(snapshot / RECIPE_FILE, folder)
    save_tokenizers(*load_tokenizers(staging / newest), folder)
    # Move the newest checkpoint first, so that the training can be resumed even if the process ends before
    # the other checkpoints are moved.
    for name in sorted(steps, key=lambda name: -steps[name]):
        checkpoint = folder / f"checkpoint-{steps[name]}"
        if not checkpoint.exists():
            os.replace(staging / name, checkpoint)
    shutil.rmtree(staging)
    say(f"continuing from '{newest}' of {repo_id}, step {steps[newest]:,}")
    # Early stopping needs the checkpoint with the best validation score, and averaging needs the last
    # checkpoints.
    best = _best_step(snapshot / newest, training)
    is_best_missing = training.stops_early and best not in steps.values()
    if is_best_missing or len(set(steps.values())) < training.average_checkpoints:
        say(
            "some checkpoints for the average or for the choice of the best checkpoint are missing, so the "
            "final weights come from the remaining and later checkpoints; `hub_strategy: all_checkpoints` "
            "keeps all checkpoints"
        )


def _download(repo_id: str, training: AnyTraining) -> tuple[Path, dict[str, int]]:
    """Download the newest checkpoints and, for early stopping, the best checkpoint. Return the folder with
    the checkpoints, and a dict from the name of each checkpoint to its step.
    """
    api = HfApi()
    if "/" not in repo_id:
        repo_id = f"{with_retries(api.whoami)['name']}/{repo_id}"
    if not with_retries(api.repo_exists, repo_id):
        return Path(), {}
    info = with_retries(api.model_info, repo_id)
    files = [file.rfilename for file in info.siblings or []]
    names = [found.group(1) for file in files if (found := _STATE.fullmatch(file))]
    if not names:
        return Path(), {}
    if RECIPE_FILE not in files:
        raise InvalidValueError(
            f"`publishing.hub_model_id` '{repo_id}' has checkpoints but no {RECIPE_FILE}; therefore another "
            "trainer wrote the checkpoints; choose another repository, or leave out `--resume true`."
        )

    numbered = [name for name in names if name != LAST_CHECKPOINT]
    numbered.sort(key=lambda name: int(name.split("-")[1]))
    wanted = numbered[-training.save_total_limit :]
    if LAST_CHECKPOINT in names:
        wanted.append(LAST_CHECKPOINT)
    patterns = [RECIPE_FILE, *(f"{name}/*" for name in wanted)]
    snapshot = _download_files(repo_id, info.sha, patterns)
    steps = {name: _step_of_whole(snapshot / name) for name in wanted}
    if training.stops_early:
        newest = max(steps, key=lambda name: steps[name])
        best = f"checkpoint-{_best_step(snapshot / newest, training, numbered)}"
        if best in numbered and best not in steps:
            _download_files(repo_id, info.sha, [f"{best}/*"])
            steps[best] = _step_of_whole(snapshot / best)
    return snapshot, steps


def _download_files(repo_id: str, revision: str | None, patterns: list[str]) -> Path:
    folder = Path(with_retries(snapshot_download, repo_id, revision=revision, allow_patterns=patterns))
    verify_download(folder, repo_id, patterns)
    return folder


def _best_step(newest: Path, training: AnyTraining, among: list[str] | None = None) -> int | None:
    """Return the step with the best validation score, according to the log in the newest checkpoint."""
    scores = scores_by_step(read_state(newest)["log_history"], training.metric_for_best_model)
    if among is not None:
        scores = {step: score for step, score in scores.items() if f"checkpoint-{step}" in among}
    return max(scores, key=lambda step: scores[step], default=None)


def _step_of_whole(checkpoint: Path) -> int:
    """Return the step of a downloaded checkpoint. Raise a ValueError if the checkpoint is incomplete."""
    fault = verify_manifest(checkpoint)
    state = {} if fault else read_state(checkpoint)
    step = state.get("global_step")
    # Accept only an integer, because the step becomes part of a path.
    if type(step) is not int or step < 0 or "log_history" not in state:
        raise ValueError(
            f"{checkpoint.name} of the repository must be a whole checkpoint of this package, but is not "
            f"({fault or f'{STATE_FILE} was written by another trainer'})."
        )
    return step
