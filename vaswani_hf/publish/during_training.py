"""Pushing the checkpoints of a run on its way, and continuing it on another machine. A finished checkpoint: push.py.

`publishing.hub_strategy`, which is named as in transformers, says what is pushed beside the finished checkpoint:

- "end": nothing.
- "every_save": at each save the model as it then is.
- "checkpoint": also what a resumed run needs, in the folder `last-checkpoint`.
- "all_checkpoints": the same in one folder for each save, `checkpoint-STEP`.
"""

import os
import re
import shutil
import threading
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from transformers import TrainerCallback

from ..checkpoint.files import (
    MANIFEST_FILE,
    METRICS_FILE,
    RECIPE_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    checkpoints_in,
    read_state,
    scores_by_step,
)
from ..checkpoint.hub import explained, sentence_of, with_retries
from ..checkpoint.loading import refuse_changed_files
from ..checkpoint.manifest import damage, facts_of, manifest
from ..checkpoint.tokenizers import load_tokenizers, save_tokenizers
from ..recipe.schema import PublishingSection, TrainingSection
from .push import Destination, check_destination, commit_files, refuse_private_text, repository_files

LAST_CHECKPOINT = "last-checkpoint"
_STAGING = ".publishing"
_STATE = re.compile(rf"({LAST_CHECKPOINT}|checkpoint-\d+)/{re.escape(STATE_FILE)}")


class PushCheckpointsCallback(TrainerCallback):
    """Pushes each save in the background; one that comes meanwhile waits if all are kept, or is left out if it is not the last.

    Args:
        folder (str or Path): The output folder of the run.
        publishing (PublishingSection): The repository and the strategy.
    """

    def __init__(self, folder: str | Path, publishing: PublishingSection):
        self.folder, self.publishing = Path(folder), publishing
        self.thread: threading.Thread | None = None
        self.pushed_step = -1

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if state.is_world_process_zero:
            # A run that was killed has left it.
            shutil.rmtree(self.folder / _STAGING, ignore_errors=True)

    def on_save(self, args, state, control, **kwargs) -> None:
        if self.thread and self.publishing.hub_strategy == "all_checkpoints":
            self.thread.join()
        if state.is_world_process_zero and not (self.thread and self.thread.is_alive()):
            self._begin(state.global_step)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        if self.thread is None:
            return
        self.thread.join()
        if self.pushed_step < state.global_step and (self.folder / f"checkpoint-{state.global_step}").is_dir():
            self._begin(state.global_step)
            self.thread.join()
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)

    def _begin(self, step: int) -> None:
        staged = self.folder / _STAGING / f"checkpoint-{step}"
        try:
            # Links: the Trainer may delete the checkpoint before it is uploaded.
            shutil.copytree(self.folder / staged.name, staged, copy_function=_link_or_copy, dirs_exist_ok=True)
            for name in (RECIPE_FILE, METRICS_FILE):
                shutil.copy(self.folder / name, staged)
        except OSError as error:
            print(f"step {step:,} could not be pushed: {sentence_of(error)}", flush=True)
            return
        # A daemon, so that a second Ctrl-C ends the process.
        self.thread = threading.Thread(target=self._push, args=(staged, step), daemon=True)
        self.thread.start()

    def _push(self, staged: Path, step: int) -> None:
        strategy = self.publishing.hub_strategy
        try:
            to = check_destination(Destination(self.publishing.hub_model_id or "", self.publishing.hub_private_repo))
            files = repository_files(staged, to.repo_id)
            if strategy != "every_save":
                name = LAST_CHECKPOINT if strategy == "checkpoint" else staged.name
                files |= {f"{name}/{path}": content for path, content in resumable_files(staged).items()}
            refuse_private_text(files, self.folder)
            commit_files(to, files, f"Training in progress, step {step}")
            self.pushed_step = step
            print(f"pushed step {step:,} to {to.repo_id}", flush=True)
        except Exception as error:
            # Hours of training are worth more than a push; the next push has what this one lacks.
            print(f"step {step:,} could not be pushed: {sentence_of(error)}", flush=True)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def resumable_files(checkpoint: Path) -> dict[str, Path | bytes]:
    """The files that a run needs to go on from a checkpoint, by name, without the paths of this machine.

    Args:
        checkpoint (Path): A checkpoint of the Trainer.
    """
    # training_args.bin is a pickle with local paths, which nothing needs; code and recipe lie beside the model.
    left_out = {"training_args.bin", RECIPE_FILE, *(path.name for path in checkpoint.glob("*.py"))}
    paths = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
    files: dict[str, Path | bytes] = {name: path for name, path in paths.items() if name not in left_out}
    files[MANIFEST_FILE] = manifest(files, facts_of(checkpoint))
    return files


def fetch_checkpoints(folder: Path, repo_id: str, training: TrainingSection) -> None:
    """Download the checkpoints that an earlier run has pushed, as if it had been trained in the output folder.

    Nothing happens where the repository has none, or the folder has some.

    Args:
        folder (Path): The output folder.
        repo_id (str): The repository.
        training (TrainingSection): How many checkpoints are kept, and for what.

    Raises:
        HubError: If the repository cannot be read.
        ValueError: If the checkpoints are of another trainer.
    """
    if checkpoints_in(folder) or (folder / WEIGHTS_FILE).exists():
        return
    with explained():
        snapshot, steps = _download(repo_id, training)
    if not steps:
        print(f"'{repo_id}' has no checkpoint to continue from", flush=True)
        return
    staging, newest = folder / _STAGING, max(steps, key=lambda name: steps[name])
    shutil.rmtree(staging, ignore_errors=True)
    for name in steps:
        shutil.copytree(snapshot / name, staging / name)
    shutil.copy(staging / newest / METRICS_FILE, folder)
    shutil.copy(snapshot / RECIPE_FILE, folder)
    save_tokenizers(*load_tokenizers(staging / newest), folder)
    # The newest first: a run that is interrupted after it can go on from it.
    for name in sorted(steps, key=lambda name: -steps[name]):
        checkpoint = folder / f"checkpoint-{steps[name]}"
        if not checkpoint.exists():
            os.replace(staging / name, checkpoint)
    shutil.rmtree(staging)
    print(f"continuing from '{newest}' of {repo_id}, step {steps[newest]:,}", flush=True)
    scores = scores_by_step(read_state(snapshot / newest)["log_history"], training.metric_for_best_model)
    # The best evaluation of all may be of a step that was not saved here either.
    is_best_lost = max(scores, key=lambda step: scores[step], default=None) not in steps.values()
    if len(set(steps.values())) < training.average_checkpoints or (training.early_stopping_patience and is_best_lost):
        print(
            "some checkpoints to average or choose the best from are not here: the final weights come from the others and the "
            "ones to come; `hub_strategy: all_checkpoints` keeps them all",
            flush=True,
        )


def _download(repo_id: str, training: TrainingSection) -> tuple[Path, dict[str, int]]:
    api = HfApi()
    if "/" not in repo_id:
        repo_id = f"{with_retries(api.whoami)['name']}/{repo_id}"
    if not with_retries(api.repo_exists, repo_id):
        return Path(), {}
    info = with_retries(api.model_info, repo_id)
    files = [file.rfilename for file in info.siblings or []]
    states = [found.group(1) for file in files if (found := _STATE.fullmatch(file))]
    if states and RECIPE_FILE not in files:
        raise ValueError(
            f"`publishing.hub_model_id` '{repo_id}' has checkpoints but no {RECIPE_FILE}, so that they are of another trainer; "
            "choose another repository, or leave out `--resume true`."
        )
    numbered = sorted((name for name in states if name != LAST_CHECKPOINT), key=lambda name: int(name.split("-")[1]))
    names = numbered[-training.save_total_limit :] + [name for name in states if name == LAST_CHECKPOINT]

    def download(*patterns: str) -> Path:
        folder = Path(with_retries(snapshot_download, repo_id, revision=info.sha, allow_patterns=list(patterns)))
        refuse_changed_files(folder, repo_id, patterns)
        return folder

    snapshot = download(RECIPE_FILE, *(f"{name}/*" for name in names))
    steps = {name: _step_of_whole(snapshot / name) for name in names}
    best = _best_of(numbered, snapshot / max(steps, key=lambda name: steps[name]), training) if steps else None
    if best is not None and best not in steps:
        download(f"{best}/*")
        steps[best] = _step_of_whole(snapshot / best)
    return snapshot, steps


def _best_of(names: list[str], newest: Path, training: TrainingSection) -> str | None:
    """The checkpoint among these that a run with early stopping would end with, by the log of its newest one."""
    if training.early_stopping_patience is None:
        return None
    scores = scores_by_step(read_state(newest)["log_history"], training.metric_for_best_model)
    evaluated = {f"checkpoint-{step}": score for step, score in scores.items() if f"checkpoint-{step}" in names}
    return max(evaluated, key=lambda name: evaluated[name], default=None)


def _step_of_whole(checkpoint: Path) -> int:
    fault = damage(checkpoint)
    state = {} if fault else read_state(checkpoint)
    step = state.get("global_step")
    # The step becomes a path.
    if type(step) is not int or step < 0 or "log_history" not in state:
        raise ValueError(
            f"{checkpoint.name} of the repository must be a whole checkpoint of this package, but is not "
            f"({fault or f'{STATE_FILE} is that of another trainer'})."
        )
    return step
